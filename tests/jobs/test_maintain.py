"""Maintenance: fewer files, the same rows, and nobody's feed or merge is broken by it."""

from __future__ import annotations

import random
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

import jobs.maintain
from api.engine.changelog import may_have
from api.reads.lake import Lake
from api.replica.replica import Replica
from jobs.attempts import Attempts
from jobs.ingest import Ingest
from jobs.maintain import Maintain
from jobs.merge import Merge
from jobs.run import IDLE, merge_once, run_merges
from jobs.spark.slices import Slices
from statehouse.errors import ConfigError
from statehouse.tables import opened
from tests.support.depth import sized
from tests.support.lakes import drawn, right, state, written
from tests.support.records import SCHEMA, Heard, control, record, rows, wait

TABLES = ("changelog/s", "quarantine/s", "state/total", "state/hours", "tombstones/total")
BATCHES = sized(2, 3)  # before the first compaction


def files(config, name):
    """How many files the newest version has, and how many there are."""
    path = Path(config.root, name)
    return len(DeltaTable(str(path)).file_uris()), len(list(path.glob("*.parquet")))


@pytest.mark.slow
def test_fewer_files_and_the_same_rows_while_jobs_go_on(spark, lake):
    config, known = written(lake), []
    ingest, dice = Ingest(spark, config, config.streams["s"]), random.Random()
    merges = {name: Merge(spark, config, config.stores[name]) for name in ("total", "hours")}

    def more():
        records, events = drawn(dice.random(), 20, first=len(known), resets=not known)
        known.extend(events)
        bad = record("t", 1, len(known), 0, "k", b"rubbish")
        ingest.batch(spark.createDataFrame([*records, bad], SCHEMA))

    for number in range(BATCHES):
        more()
        for name, merge in merges.items():
            if number == 0 or name == "total":
                merge.round()
    heard = Heard()
    maintain, before = Maintain(spark, config, heard), {name: files(config, name) for name in TABLES}
    assert before["changelog/s"][0] >= BATCHES and before["quarantine/s"][0] == BATCHES
    heard.begin("a round")
    maintain.logs(threading.Event())
    more()  # from before the compaction to after it, for some of them
    for name, merge in merges.items():
        maintain.store(merge)
        merge.round()
        assert state(spark, config, name) == right(known, name), name
    assert heard.steps[0][2] == maintain.tables - 2, "all but those of the third store"
    maintain.config = config.model_copy(update={"versions": 0})  # no one reads an older one
    more()
    maintain.logs(threading.Event())
    for merge in merges.values():
        maintain.store(merge)
    assert maintain.failed == 0
    left = {name: files(config, name) for name in TABLES}
    assert all(live == there <= 1 for live, there in left.values()), left
    assert sum(merge_once(merge) for merge in merges.values()) == 2, "their feed is gone"
    for name in merges:
        assert state(spark, config, name) == right(known, name), name
    assert len(rows(spark, f"{config.root}/quarantine/s")) == BATCHES + 2


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
    done, stopping = [], threading.Event()

    class Nothing:
        checked, store, slices = True, config.stores[next(iter(config.stores))], Slices(None, config)

        def round(self):
            done.append("round")

    def keep(merge):
        done.append(merge)
        stopping.wait(2 * IDLE)  # longer than the pause: a merge does not wait for the upkeep of all

    merges = [Nothing(), Nothing()]
    worker = threading.Thread(target=run_merges, args=(merges, Attempts(config, "merge"), stopping, config, keep))
    worker.start()
    wait(lambda: sum(one != "round" for one in done) >= 4, what="the upkeep")
    stopping.set()
    worker.join(10)
    places = [place for place, one in enumerate(done) if one != "round"]
    assert [done[place] for place in places[:4]] == merges * 2
    assert all(later > place + 1 for place, later in pairwise(places))


@pytest.mark.slow
def test_a_changelog_is_compacted_by_key_and_a_keys_history_read_from_few_files(spark, lake, monkeypatch):
    """Of a stream whose ``cluster_by`` is set after its first events, and taken away in the end. Random reports; sets and purges,
    which may be of any key's store, are looked at wherever they are."""
    monkeypatch.setattr(jobs.maintain, "PART_BYTES", 4_000)
    written = (
        "streams: {s: {topic: t, schema: 'key STRING, n BIGINT'}}\n"
        "stores: {last: {stream: s, key: key, value: n, reduce: latest}}"
    )
    config = lake(written)
    dice, path, sent = random.Random(5), f"{config.root}/changelog/s", 0

    def ingest(*found):
        Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(found, SCHEMA))

    def more():
        nonlocal sent
        names = [f"key-{dice.randrange(60):02}" for _ in range(200)]
        numbered = enumerate(names, sent)
        ingest(*(record("t", 0, n, 10**15 + n, name, {"key": name, "n": n}) for n, name in numbered))
        sent += len(names)

    def histories():
        replica.refresh()
        snapshot = replica.snapshot("last")
        return {f"key-{n:02}": reading.history(snapshot, [f"key-{n:02}"], None, 1000)[0].rows for n in range(60)}

    def read(key):
        actions = pa.table(opened(path).get_add_actions(flatten=True))
        return pc.sum(may_have({"key": key}, actions)).as_py(), actions.num_rows

    more()
    config = lake(written.replace("BIGINT'", "BIGINT', cluster_by: key"))
    more()
    more()
    Merge(spark, config, config.stores["last"]).round()
    replica, reading = Replica(config), Lake(config)
    before = histories()
    assert sum(map(len, before.values())) == 600
    few, all_ = read("key-07")
    assert few == all_, "any of them may have it"
    Maintain(spark, config).logs(threading.Event())
    for key in before:
        few, all_ = read(key)
        assert 1 <= few <= 2 < all_, key
    assert histories() == before
    ingest(
        record("t", 0, 600, 10**15 + 600, "key-07", {"value": 7}, control("set", "last")),
        record("t", 0, 601, 10**15 + 601, "key-08", None),
    )
    Maintain(spark, config).logs(threading.Event())
    now = histories()
    assert [e["op"] for e in now["key-07"]][:1] == ["set"] and now["key-07"][1:] == before["key-07"]
    assert [e["op"] for e in now["key-08"]][:1] == ["purge"] and now["key-08"][1:] == before["key-08"]
    rest = before.keys() - {"key-07", "key-08"}
    assert {key: now[key] for key in rest} == {key: before[key] for key in rest}
    config, sent = lake(written), 602
    for _ in range(3):
        more()
    files = read("key-07")[1]
    Maintain(spark, config).logs(threading.Event())
    assert read("key-07")[1] < files, "what is no longer clustered is compacted as others are"
    assert sum(map(len, histories().values())) == 1202


@pytest.mark.slow
def test_what_is_kept_for_long_is_known_for_as_long(spark, lake):
    config = lake("versions: 10 days\nstreams: {s: {topic: t, schema: key STRING}}")
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 0, 10**15, "a", {"key": "a"})], SCHEMA))
    maintain, path = Maintain(spark, config), f"{config.root}/changelog/s"
    maintain.logs(threading.Event())
    kept = opened(path).metadata().configuration
    assert kept["delta.deletedFileRetentionDuration"] == "interval 864000 seconds"
    assert kept["delta.logRetentionDuration"] == "interval 864000 seconds"
    version = opened(path).version()
    maintain.logs(threading.Event())
    assert opened(path).version() == version and not maintain.failed
    config = config.model_copy(update={"versions": 60 * 86_400_000})
    Maintain(spark, config).logs(threading.Event())
    kept = opened(path).metadata().configuration
    assert (
        kept["delta.deletedFileRetentionDuration"] == kept["delta.logRetentionDuration"] == "interval 5184000 seconds"
    )


@pytest.mark.slow
def test_files_that_no_version_needs_any_more_are_deleted_after_seconds_if_so_wanted(spark, lake):
    """Shorter than the configuration takes, as nobody waits an hour: the files of the versions of the last seconds stay."""
    config = lake("streams: {s: {topic: t, schema: key STRING}}").model_copy(update={"versions": 8_000})
    ingest, path = Ingest(spark, config, config.streams["s"]), Path(f"{config.root}/changelog/s")
    for number in range(3):
        ingest.batch(spark.createDataFrame([record("t", 0, number, 10**15, "a", {"key": "a"})], SCHEMA))
    there = {file.name for file in path.glob("*.parquet")}
    maintain = Maintain(spark, config)
    maintain.logs(threading.Event())
    now = {file.name for file in path.glob("*.parquet")}
    assert there < now, "compacted, and the version before can still be read"

    def gone():
        maintain.logs(threading.Event())
        return {file.name for file in path.glob("*.parquet")} == now - there

    wait(gone, 60, 1, "the files of older versions are deleted")
    assert not maintain.failed


def test_versions_are_kept_for_an_hour_at_least(lake):
    with pytest.raises(ConfigError, match="versions: found '5 minutes'.*3600000"):
        lake("versions: 5 minutes\nstreams: {s: {topic: t, schema: k STRING}}")
