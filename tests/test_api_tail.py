"""The replica goes on from a state by the changelog's own feed: right at every moment, with merges, late, or without any."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from api.replica import Replica
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.recover import recover
from tests.records import SCHEMA, record
from tests.test_recover import COUNT, T0, _compacted, base, drawn, filled, right, written  # noqa: F401 (fixtures)


def shown(replica, store):
    """What a scan gives, as the oracle gives it; each key read by itself gives the same."""
    snapshot = replica.snapshot(store)
    rows, _ = snapshot.page(None, 100_000)
    assert len(rows) == snapshot.keys
    epoch = dt.datetime(1970, 1, 1)
    for row in rows:
        found = snapshot.get([row["key"]])
        if store == "hours":
            assert {k: v for k, v in row.items() if k != "key"} in found["windows"]
        else:
            assert found == row
    if store == "hours":
        return {(r["key"], (r["window_start"] - epoch) // dt.timedelta(microseconds=1)): r["value"] for r in rows}
    return {r["key"]: r["value"] for r in rows}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_answer_is_the_oracles_whether_it_is_merged_or_not(spark, filled, monkeypatch, seed):  # noqa: F811
    config, events = filled
    monkeypatch.setattr("api.replica.OVERLAY", 5)  # so that newer versions are read, too
    dice, replica = random.Random(seed), Replica(config)
    ingest = Ingest(spark, config, config.streams["s"])
    for number in range(6):
        records, new = drawn(100 * seed + number, 40, first=COUNT + 40 * number)
        events = events + new
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        for store in dice.sample(list(config.stores), dice.randrange(3)):
            Merge(spark, config, config.stores[store]).round()
        for _ in range(2):  # the second time there is nothing new
            replica.refresh()
            for store in config.stores:
                status = replica.status(store)
                assert (status["error"], status["freshness"], status["lag_ms"]) == (None, "changelog", 0)
                assert status["position"] == status["head"]
                assert shown(replica, store) == right(events, store), (number, store)
    gone = replica.snapshot("total").get(["gone"])
    assert gone is None
    late = {"key": "gone", "n": 1, "ts": "2023-01-01T00:00:00Z"}
    ingest.batch(spark.createDataFrame([record("t", 0, COUNT + 240, T0, "gone", late)], SCHEMA))
    replica.refresh()
    assert replica.snapshot("total").get(["gone"]) is None, "older than its purge, which the tombstones remember"


@pytest.mark.slow
def test_a_swapped_state_a_compacted_changelog_and_a_lost_feed_are_noticed(spark, lake, filled):  # noqa: F811
    config, events = filled
    replica = Replica(config)
    replica.refresh()
    changed = written(lake, "n > 0")
    assert recover(spark, changed, changed.stores["total"], swap=True).swapped
    replica.refresh()
    assert shown(replica, "total") == right(events, "total", lambda event: event["n"] > 0)
    assert replica.status("total")["freshness"] == "changelog"
    ingest = Ingest(spark, config, config.streams["s"])
    records, new = drawn(5, 30, first=COUNT)
    ingest.batch(spark.createDataFrame(records, SCHEMA))
    replica.refresh()
    events = events + new
    assert shown(replica, "total") == right(events, "total", lambda event: event["n"] > 0), "by the rule of the table"
    other = Replica(config)
    other.refresh()
    records, new = drawn(6, 30, first=COUNT + 30)
    ingest.batch(spark.createDataFrame(records, SCHEMA))
    events = events + new
    _compacted(spark, config)
    other.refresh()
    assert other.status("votes")["freshness"] == "state", "the feed is lost: the table's versions are left"
    assert shown(other, "votes") != right(events, "votes")
    from jobs.run import catch_up

    catch_up([Merge(spark, config, s) for n, s in config.stores.items() if n != "total"], lambda done: None)
    other.refresh()
    for store in ("votes", "hours"):
        assert shown(other, store) == right(events, store)
        assert other.status(store)["freshness"] == "changelog"
