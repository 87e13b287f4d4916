"""A key erased: as if its events had never come, in every store and every file."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from api import create_app
from jobs.erase import erase
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.run import merge_once
from statehouse.cli import main
from statehouse.errors import StatehouseError
from tests.support.depth import FULL, sized
from tests.support.lakes import drawn, right, state, written
from tests.support.records import SCHEMA, Heard, control, iso, record, rows

WHO = "someone/in particular"
STORES, BATCHES = sized((("total", "hours"), 2), (("total", "votes", "hours"), 3))


def everywhere(root):
    """Every text in the data files of a lake."""
    found = set()
    for file in Path(root).glob("**/*.parquet"):
        if "_delta_log" not in file.parts:
            for column in pq.read_table(file).columns:
                found |= {str(value) for value in column.to_pylist()}
    return found


@pytest.mark.slow
def test_nothing_is_left_of_a_key(spark, lake):
    config, known = written(lake), []
    ingest = Ingest(spark, config, config.streams["s"])
    merges = [Merge(spark, config, config.stores[name]) for name in STORES]
    for number in range(BATCHES):
        records, events = drawn(number, 30, first=100 * number, resets=number == 0)
        known += events
        time = 1_700_000_000_000_000 + number
        own = {"key": WHO, "agent": "p", "n": 5, "ts": iso(time)}
        records.append(record("t", 0, 100 * number + 50, time, "k1", own))  # Kafka's key is another
        records.append(record("t", 0, 100 * number + 51, time, WHO, {"value": 7}, control("set", "total")))
        records.append(record("t", 0, 100 * number + 52, time, WHO, b"rubbish"))
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        if number < BATCHES - 1:  # the last ones are not merged yet
            for merge in merges:
                merge_once(merge)
    assert any(WHO in text for text in everywhere(config.root))
    app = create_app(config)
    replica, client = app.extensions["statehouse"].replica, app.test_client()
    try:
        assert client.get("/stores/total/keys/someone%2Fin%20particular").status_code == 200
        heard = Heard()
        found = erase(spark, config, config.stores["total"], [WHO, "nobody"], heard)
        (first, events, _), *folds, (last, tables, done) = heard.steps
        assert first == "removing events of s" and last == "deleting old files" and tables == done
        assert [left for _, left, _ in folds] == [events - found.events] * len(config.stores)
        assert (found.events, found.refused) == (2 * BATCHES, BATCHES)
        assert set(found.versions) >= {"changelog/s", "quarantine/s", "state/total", "state/hours", "tombstones/total"}
        for name in STORES:
            assert state(spark, config, name) == right(known, name), name
        assert not any(WHO in text for text in everywhere(config.root))
        replica.refresh()
        assert client.get("/stores/total/keys/someone%2Fin%20particular").status_code == 404
        values = {row["key"]: row["value"] for row in client.get("/stores/total/keys?limit=50").json["rows"]}
        assert values == right(known, "total")
        records, events = drawn(9, 30, first=1000, resets=False)  # and it goes on
        ingest = Ingest(spark, config, config.streams["s"])
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        for name in STORES:
            Merge(spark, config, config.stores[name]).round()
            assert state(spark, config, name) == right(known + events, name), name
        replica.refresh()
        values = {row["key"]: row["value"] for row in client.get("/stores/total/keys?limit=50").json["rows"]}
        assert values == right(known + events, "total")
        assert client.get("/stores/total").json["freshness"] == "changelog", (
            "its feed has what was deleted, and goes on"
        )
        if FULL:
            assert erase(spark, config, config.stores["total"], [WHO]).events == 0, "once more does no harm"
        assert len(rows(spark, f"{config.root}/quarantine/s")) == 0
    finally:
        replica.stop()


@pytest.mark.slow
def test_a_composite_key_is_given_as_in_kafka(spark, lake):
    config = lake("""
streams: {s: {topic: t, schema: "a STRING, n INT, ts TIMESTAMP", time: ts}}
stores: {pairs: {stream: s, key: [a, n], value: n, reduce: count}}
""")
    bodies = [{"a": a, "n": n, "ts": iso(1_700_000_000_000_000)} for a in ("x/y", "z") for n in (1, 2)]
    records = [record("t", 0, i, 1_700_000_000_000_000, None, body) for i, body in enumerate(bodies)]
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(records, SCHEMA))
    Merge(spark, config, config.stores["pairs"]).round()
    assert erase(spark, config, config.stores["pairs"], ["x%2Fy/1"]).events == 1
    left = {(r["a"], r["n"]) for r in rows(spark, f"{config.root}/state/pairs")}
    assert left == {("x/y", 2), ("z", 1), ("z", 2)}
    with pytest.raises(StatehouseError, match="found the key 'x/y/1', expected one of pairs: STRING, INT"):
        erase(spark, config, config.stores["pairs"], ["x/y/1"])


def test_a_store_that_is_not_there(lake, capsys):
    config = lake("streams: {s: {topic: t, schema: k STRING}}\n")
    assert main(["erase", "nope", "k", "-c", str(Path(config.root).parent / "statehouse.yaml")]) == 2
    assert "found the store 'nope', expected one of" in capsys.readouterr().err
