"""What is new in a changelog is read once for all of the stream's stores, whichever of them is behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs.attempts import Attempts
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.run import catch_up
from jobs.spark import change_feed
from jobs.spark.slices import Slices
from statehouse.tables import position
from tests.support.depth import sized
from tests.support.lakes import drawn, right, state, written
from tests.support.records import SCHEMA

pytestmark = pytest.mark.slow


@pytest.fixture
def counted(monkeypatch):
    """The slices that are read: start and head of each."""
    reads, events = [], change_feed.events

    def counting(spark, config, stream, start, head):
        reads.append((start, head))
        return events(spark, config, stream, start, head)

    monkeypatch.setattr(change_feed, "events", counting)
    return reads


def ingested(spark, config, seed, first, resets=True):
    records, events = drawn(seed, 40, first=first, resets=resets)
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(records, SCHEMA))
    return events


def test_one_slice_for_all_stores_and_another_for_one_that_is_behind(spark, lake, counted):
    config, known = written(lake), []
    slices, attempts = Slices(spark, config, patience=60.0), Attempts(config, "merge")
    merges = [Merge(spark, config, store, slices=slices) for store in config.stores.values()]
    for batch in range(sized(4, 12)):
        known += ingested(spark, config, 40 + batch, 40 * batch, resets=batch == 1)
        some = merges[batch % 2 :] if batch else merges  # the first is left behind by every other round
        starts = {position(merge.state) for merge in some}
        counted.clear()
        assert catch_up(some, attempts, threading.Event()) == len(some) and not attempts.errors
        whole = [read for read in counted if read[0] is None] if batch else []  # of keys that are folded anew
        assert len(counted) - len(whole) == len(starts), counted
        for merge in some:
            assert state(spark, config, merge.store.name) == right(known, merge.store.name), batch
        views = [row.viewName for row in spark.sql("SHOW VIEWS IN global_temp").collect()]
        assert not [name for name in views if name.startswith("slice_")], "nothing is kept between two rounds"
    assert catch_up(merges, attempts, threading.Event()) == 1, "the first has not yet seen the last batch"


def test_a_head_is_looked_for_again_when_it_is_old(spark, lake):
    config = written(lake)
    path = Merge(spark, config, config.stores["total"]).changelog
    patient, hasty = Slices(spark, config, patience=600.0), Slices(spark, config)
    assert patient.head(path) is hasty.head(path) is None
    for version in (1, 2):
        ingested(spark, config, version, 40 * version)
        assert (patient.head(path), hasty.head(path)) == (1, version)
    patient.forget()
    assert patient.head(path) == 2


@pytest.mark.parametrize("where", ["", "_payload IS NULL AND _topic = 't' AND _log_time IS NOT NULL"])
def test_what_a_store_names_is_kept(spark, lake, where):
    config, known = written(lake, where), []
    for batch in range(2):
        known += ingested(spark, config, 60 + batch, 40 * batch, resets=False)
        merge = Merge(spark, config, config.stores["total"])
        merge.round()
        assert state(spark, config, "total") == right(known, "total")
    rows, _ = merge.slices.read(spark, config.streams["s"], 1, 2)
    assert {"key", "agent", "n", "ts", "_op", "_key", "_value", "_offset"} <= set(rows.columns)
    assert all((name in rows.columns) == bool(where) for name in ("_payload", "_topic", "_log_time"))
    assert "_commit_version" not in rows.columns


def test_of_many_rows_each_store_reads_what_it_needs_one_at_a_time(spark, lake, counted, monkeypatch):
    config, known = written(lake), []
    slices, attempts = Slices(spark, config, patience=60.0), Attempts(config, "merge")
    merges = [Merge(spark, config, store, slices=slices) for store in config.stores.values()]
    monkeypatch.setattr("jobs.spark.slices.MOST", 39)
    with ThreadPoolExecutor(3) as threads:
        for batch in range(3):
            known += ingested(spark, config, 80 + batch, 40 * batch, resets=False)
            if batch == 1:
                spark.sql(f"OPTIMIZE delta.`{merges[0].changelog}`")  # adds no rows
            if batch == 2:
                monkeypatch.setattr("jobs.spark.slices.MOST", 40)
            starts = [position(merge.state) for merge in merges]
            counted.clear()
            assert catch_up(merges, attempts, threading.Event(), threads=threads) == len(merges)
            assert not attempts.errors and not slices.alone.locked()
            assert counted.count((starts[0], position(merges[0].state))) == (len(merges) if batch < 2 else 1)
            for merge in merges:
                assert state(spark, config, merge.store.name) == right(known, merge.store.name), batch
