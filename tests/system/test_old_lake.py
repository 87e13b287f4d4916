"""A lake of before, whose files have times in INT96, is opened, read and merged on rightly."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from api.engine.change_feed import batches, feed
from api.replica.replica import Replica
from jobs.ingest import Ingest
from jobs.maintain import Maintain
from jobs.merge import Merge
from jobs.run import merge_once
from jobs.spark import kafka_sink
from jobs.tasks.job import Tasks
from statehouse.config.file import load
from statehouse.tables import opened, select, table, tasks_table
from tests.support.depth import sized
from tests.support.old_lake import (
    BATCHES,
    MENDED,
    STORES,
    TIMES,
    as_records,
    micros,
    plain,
    report,
    right,
    rows_of,
    unpacked,
)
from tests.support.records import SCHEMA

NEW = [
    [
        report("late", 41, ts="9999-12-31T23:00:00Z", at="9999-12-31T23:59:59.999998Z"),
        report("k1", 42, ts="0001-01-01T00:00:00.000001Z"),
        report("new", 43, ts="2025-01-01T00:00:00Z"),
        ("place", "put", {"value": {"Town": "again", "houseNumber": 8}}),
    ]
]
BLANK = [b"-", b"-"]  # the offsets of the lake's tasks


@pytest.fixture
def old(tmp_path):
    return load(unpacked(tmp_path), {})


def shown(replica, store):
    """The state as :func:`tests.support.old_lake.right` has it, by a scan; each key by itself gives the same value."""
    snapshot = replica.snapshot(store)
    assert snapshot is not None and snapshot.rule is not None, store
    found = {}
    for row in snapshot.rows(snapshot.page(None, 100_000)[0]):
        value = row["value"]
        if STORES[store][0] == "place":
            value = None if value is None else json.dumps({**value, "since": value["since"] and _iso(value["since"])})
        elif STORES[store][0] == "at":
            value = _micros(value)
        key = row["key"] if STORES[store][2] is None else (row["key"], _micros(row["window_start"]))
        alone = snapshot.get([row["key"]])
        assert (alone["windows"] if STORES[store][2] else [alone])[0].keys() <= row.keys()
        found[key] = value, _micros(row["event_time"])
    return found


def _iso(moment):
    return moment.isoformat() + "Z"


def _micros(moment):
    return micros(_iso(moment))


def one_version_back(config):
    """Take away the newest version of each state: a reader has to go on from the changelog."""
    for store in config.stores:
        for kind, newest in (("state", 3), ("tombstones", 2)):
            Path(table(config, kind, store), "_delta_log", f"{newest:020}.json").unlink(missing_ok=True)


def test_the_feed_has_the_times_that_were_sent(old):
    rows = feed(table(old, "changelog", "s"), 0, 4)
    assert rows.num_rows == sum(batch.num_rows for batch in batches(table(old, "changelog", "s"), 0, 4)) == 51
    assert {
        _micros(m.replace(tzinfo=None)) for m in rows.filter(pc.equal(rows["_op"], "report"))["_event_time"].to_pylist()
    } == {micros(t) for t in TIMES}
    inner = pc.struct_field(rows["place"], "since").drop_null().to_pylist()
    assert {_micros(m.replace(tzinfo=None)) for m in inner} == {micros(t) for t in TIMES}


def test_a_query_of_a_table_has_the_times_that_were_sent(old):
    (row,) = select(
        opened(tasks_table(old)), "SELECT min(due) AS due, count(*) AS n FROM found WHERE status = 'waiting'"
    )
    assert (row["due"].year, row["n"]) == (2500, 2)


@pytest.mark.parametrize("back", [False, True], ids=["merged", "followed"])
@pytest.mark.parametrize("where", ["memory", "none"])
def test_the_api_shows_what_is_right(old, back, where):
    if back:
        one_version_back(old)
    if back and where == "none":
        pytest.skip("it is served at the table's version")
    kept = old.api.model_copy(update={"freshness": "changelog", "replica": where})
    replica = Replica(old.model_copy(update={"api": kept}))
    replica.refresh()
    replica.refresh()
    for store in STORES:
        if store not in MENDED:
            assert shown(replica, store) == right(store), store
    replica.stop()


@pytest.mark.slow
def test_it_is_merged_on_and_what_was_wrong_is_mended(spark, old):
    merged = sized(("total", *MENDED), tuple(STORES))
    states = [Merge(spark, old, old.stores[store]) for store in merged]
    ingest = Ingest(spark, old, old.streams["s"])
    everything = [*BATCHES, BLANK, *NEW]
    ingest.batch(spark.createDataFrame([*rows_of(as_records(everything)[-1])], SCHEMA))
    assert all([merge_once(state) for state in states])
    for state in states:
        merge_once(state)
    keeping = Maintain(spark, old)
    replica = Replica(old.model_copy(update={"api": old.api.model_copy(update={"freshness": "changelog"})}))
    for compacted in sized((True,), (False, True)):
        if compacted:
            keeping.keep(table(old, "changelog", "s"))
            for state in states:
                keeping.store(state)
            assert keeping.failed == 0
        replica.refresh()
        for store in STORES:
            assert shown(replica, store) == right(store, everything), (store, compacted)
        for store in merged:
            assert in_spark(spark, old, store) == right(store, everything), (store, compacted)
    names = spark.read.format("delta").load(table(old, "state", "place")).schema["value"].dataType.names
    assert names == ["Town", "houseNumber", "since", "inner"]
    replica.stop()


def in_spark(spark, config, store):
    """The state as Spark reads the table."""
    column, _, window = STORES[store]
    value = (
        F.expr("unix_micros(value)")
        if column == "at"
        else kafka_sink.json(["value"])
        if column == "place"
        else F.col("value")
    )
    start = "unix_micros(window_start) AS start" if window else "NULL AS start"
    rows = spark.read.format("delta").load(table(config, "state", store)).withColumn("value", value)
    found = {}
    for row in rows.selectExpr("key", start, "value", "unix_micros(event_time) AS time").collect():
        shown_value = plain("place", json.loads(row.value)["value"]) if column == "place" else row.value
        found[(row.key, row.start) if window else row.key] = shown_value, row.time
    return found


@pytest.mark.slow
def test_its_tasks_wait_for_their_time(spark, old):
    tasks = Tasks(spark, old)
    assert tasks.round() is None
    assert tasks.next_due.year == 2500
    assert Tasks(spark, old).round() is None
    rows = spark.read.format("delta").load(tasks_table(old))
    assert [r.due.year for r in rows.orderBy("due").collect()] == [2500, 9999]
    assert {r.status for r in rows.collect()} == {"waiting"}


def test_sums_have_all_of_their_digits(old):
    assert any(isinstance(value, Decimal) and value % 1 for value, _ in right("total").values())
