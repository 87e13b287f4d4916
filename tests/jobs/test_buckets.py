"""A state in buckets: the same rows, and a MERGE that leaves other buckets alone."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from api.engine import duck
from api.replica.storage import load as snapshot_of
from jobs.ingest import Ingest
from jobs.recover import recover
from statehouse.config.models import Config
from statehouse.tables import BUCKET, buckets, opened
from tests.support.depth import sized
from tests.support.lakes import CONFIG, drawn, merged, more, right, state, whole
from tests.support.records import SCHEMA, record

FOUR = CONFIG.replace("reduce: sum{where}", "reduce: sum, buckets: 4").replace(
    "reduce: count", "reduce: count, buckets: 4"
)


def partitioned(lake, text: str = FOUR) -> Config:
    return lake(text.format(where="", tombstones="7 days"))


def files(config: Config, store: str) -> dict[int, set[str]]:
    """The files of a state, by bucket."""
    found: dict[int, set[str]] = {}
    actions = opened(f"{config.root}/state/{store}").get_add_actions(flatten=True)
    for action in pa.table(actions).to_pylist():
        found.setdefault(action[f"partition.{BUCKET}"], set()).add(action["path"])
    return found


@pytest.mark.slow
def test_the_same_rows_whatever_the_layout(spark, lake):
    """Random events with purges, sets and windows, in batches; the layout is changed in between."""
    config, known = partitioned(lake), []
    for batch in range(sized(2, 3)):
        records, events = drawn(20 + batch, 60, first=60 * batch)
        known += events
        more(spark, config, records)
        for store in config.stores:
            assert state(spark, config, store) == right(known, store), (batch, store)
    for store, count in (("total", 4), ("hours", 4), ("votes", None)):
        table = f"{config.root}/state/{store}"
        assert buckets(opened(table)) == count
        assert opened(table).metadata().partition_columns == ([BUCKET] if count else [])
    rows = spark.read.format("delta").load(f"{config.root}/state/hours")
    assert rows.where(F.col(BUCKET) != F.expr("pmod(hash(key), 4)")).isEmpty()

    before = whole(spark, config, "total")
    number = 180
    for count in sized((None,), (7, None, 2)):
        setting = f", buckets: {count}" if count else ""
        config = partitioned(lake, FOUR.replace("reduce: sum, buckets: 4", "reduce: sum" + setting))
        found = recover(spark, config, config.stores["total"], swap=True)
        assert (found.added, found.gone, found.changed, found.swapped) == (0, 0, 0, True)
        now = whole(spark, config, "total")
        assert [{k: v for k, v in row.items() if k != BUCKET} for row in now] == [
            {k: v for k, v in row.items() if k != BUCKET} for row in before
        ], "row for row, changed_at included"
        assert buckets(opened(f"{config.root}/state/total")) == count
        assert opened(f"{config.root}/state/total").metadata().partition_columns == ([BUCKET] if count else [])
        records, events = drawn(number, 30, first=number, resets=False)
        known, number = known + events, number + 30
        more(spark, config, records)
        assert state(spark, config, "total") == right(known, "total")
        before = whole(spark, config, "total")


@pytest.mark.slow
def test_only_the_touched_buckets_are_read_and_written(spark, lake, caplog):
    config = partitioned(lake)
    rows = [record("t", 0, n, 10**15, f"key-{n}", {"key": f"key-{n}", "n": n}) for n in range(100)]
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(rows, SCHEMA))
    merged(spark, config, "total")
    before = files(config, "total")
    assert set(before) == {0, 1, 2, 3} and all(len(paths) == 1 for paths in before.values())
    of = {r["key"]: r[BUCKET] for r in spark.read.format("delta").load(f"{config.root}/state/total").collect()}

    more(spark, config, [record("t", 0, 100, 10**15, "key-7", {"key": "key-7", "n": 1})], "total")
    now = files(config, "total")
    assert {bucket for bucket in before if before[bucket] != now[bucket]} == {of["key-7"]}
    merge = opened(f"{config.root}/state/total").history(1)[0]
    assert [int(merge["operationMetrics"][f"numTarget{name}"]) for name in ("RowsUpdated", "FilesAdded")] == [1, 1]
    # By the API, too: the same rows, without the bucket.
    with duck.connect(root=config.root) as db:
        snapshot = snapshot_of(db, config, config.stores["total"], opened(f"{config.root}/state/total").version())
    assert BUCKET not in snapshot.types and snapshot.keys == 100
    assert snapshot.get(["key-7"])["value"] == 8 and snapshot.get(["key-8"])["value"] == 8

    # Another number in the configuration changes nothing by itself, and is said.
    other = partitioned(lake, FOUR.replace("buckets: 4", "buckets: 16"))
    with caplog.at_level(logging.WARNING, "statehouse"):
        more(spark, other, [record("t", 0, 101, 10**15, "key-8", {"key": "key-8", "n": 1})], "total")
    assert "store total: its state has 4 buckets, the configuration says 16" in caplog.text
    assert state(spark, other, "total")["key-8"] == 9 and set(files(other, "total")) == {0, 1, 2, 3}
