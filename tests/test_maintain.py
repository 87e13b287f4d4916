"""Maintenance: fewer files, the same rows, and nobody's feed or merge is broken by it."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs.ingest import Ingest
from jobs.maintain import Maintain
from jobs.merge import Merge
from jobs.run import catch_up, run_merges
from statehouse.errors import ConfigError
from statehouse.tables import opened
from tests.lakes import drawn, right, state, written
from tests.records import SCHEMA, record, rows, wait

TABLES = ("changelog/s", "quarantine/s", "state/total", "state/hours", "tombstones/total")


def files(config, name):
    """How many files the newest version has, and how many there are."""
    path = Path(config.root, name)
    return len(DeltaTable(str(path)).file_uris()), len(list(path.glob("*.parquet")))


def test_fewer_files_and_the_same_rows_while_jobs_go_on(spark, lake):
    config, known = written(lake), []
    ingest, dice = Ingest(spark, config, config.streams["s"]), random.Random()
    merges = {name: Merge(spark, config, config.stores[name]) for name in ("total", "hours")}

    def more():
        records, events = drawn(dice.random(), 20, first=len(known))
        known.extend(events)
        bad = record("t", 1, len(known), 0, "k", b"rubbish")
        ingest.batch(spark.createDataFrame([*records, bad], SCHEMA))

    for number in range(3):
        more()
        for name, merge in merges.items():
            if number == 0 or name == "total":
                merge.round()
    maintain, before = Maintain(spark, config), {name: files(config, name) for name in TABLES}
    assert before["changelog/s"][0] >= 3 and before["quarantine/s"][0] == 3
    maintain.logs(threading.Event())
    more()  # from before the compaction to after it, for some of them
    for name, merge in merges.items():
        maintain.store(merge)
        merge.round()
        assert state(spark, config, name) == right(known, name), name
    maintain.config = config.model_copy(update={"versions": 0})  # no one reads an older one
    more()
    maintain.logs(threading.Event())
    for merge in merges.values():
        maintain.store(merge)
    assert maintain.failed == 0
    left = {name: files(config, name) for name in TABLES}
    assert all(live == there <= 1 for live, there in left.values()), left
    assert catch_up(list(merges.values()), lambda done: None) == 2, "their feed is gone"
    for name in merges:
        assert state(spark, config, name) == right(known, name), name
    assert len(rows(spark, f"{config.root}/quarantine/s")) == 5


def test_a_table_that_fails_does_not_keep_the_others(spark, lake, caplog):
    config = written(lake)
    ingest = Ingest(spark, config, config.streams["s"])
    for number in range(2):
        records, _ = drawn(number, 5, first=5 * number)
        ingest.batch(spark.createDataFrame([*records, record("t", 1, number, 0, "k", b"rubbish")], SCHEMA))
    changelog = Path(config.root, "changelog/s")
    next(changelog.glob("*.parquet")).unlink()
    maintain = Maintain(spark, config)
    maintain.logs(threading.Event())
    assert maintain.failed == 1 and "changelog/s" in caplog.text
    assert files(config, "quarantine/s")[0] == 1


def test_the_merge_keeps_its_tables_between_two_rounds(lake):
    config = written(lake).model_copy(update={"merge_every": 1, "maintain_every": 1})
    kept, stopping = [], threading.Event()

    class Nothing:
        def round(self):
            return None

    merges = [Nothing(), Nothing()]
    worker = threading.Thread(target=run_merges, args=(merges, stopping, config, print, kept.append))
    worker.start()
    wait(lambda: len(kept) >= 4, what="the upkeep")
    stopping.set()
    worker.join(10)
    assert kept[:4] == merges * 2


@pytest.mark.slow
def test_what_is_kept_for_long_is_known_for_as_long(spark, lake):
    config = lake("versions: 10 days\nstreams: {s: {topic: t, schema: key STRING}}")
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 0, 10**15, "a", {"key": "a"})], SCHEMA))
    maintain, path = Maintain(spark, config), f"{config.root}/changelog/s"
    maintain.logs(threading.Event())
    kept = opened(path).metadata().configuration
    assert kept["delta.deletedFileRetentionDuration"] == "interval 240 hours"
    assert "delta.logRetentionDuration" not in kept, "which is 30 days"
    version = opened(path).version()
    maintain.logs(threading.Event())
    assert opened(path).version() == version and not maintain.failed


def test_versions_are_kept_for_an_hour_at_least(lake):
    with pytest.raises(ConfigError, match="versions: found '5 minutes'.*3600000"):
        lake("versions: 5 minutes\nstreams: {s: {topic: t, schema: k STRING}}")
