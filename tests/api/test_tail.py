"""The replica goes on from a state by the changelog's own feed: right at every moment, with merges, late, or without any."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from api import create_app
from api.replica import storage
from api.replica.replica import Replica
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.recover import recover
from tests.support.depth import deep, sized
from tests.support.lakes import BATCHES, COUNT, T0, compacted, drawn, more, right, written
from tests.support.records import SCHEMA, iso, record


def kept(config, where):
    """The configuration with another place for the replica."""
    api = config.api.model_copy(update={"replica": where, "cache": f"{config.root}/_cache"})
    return config.model_copy(update={"api": api})


def shown(replica, store):
    """What a scan gives, as the oracle gives it; each key read by itself gives the same."""
    snapshot = replica.snapshot(store)
    rows = snapshot.rows(snapshot.page(None, 100_000)[0])
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
def test_every_answer_is_the_oracles_whether_it_is_merged_or_not(spark, filled, monkeypatch):
    config, events = filled
    monkeypatch.setattr("api.replica.store.OVERLAY", 5)  # so that newer versions are read, too
    monkeypatch.setattr("api.replica.store.STALE_SECONDS", 3600.0)  # reading every key may take longer than it
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    memory, none = Replica(config), Replica(kept(config, "none"))
    ingest = Ingest(spark, config, config.streams["s"])
    for number in range(sized(1, 4)):
        records, new = drawn(100 * seed + number, 40, first=COUNT + 40 * number)
        events = events + new
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        for store in dice.sample(list(config.stores), dice.randrange(3)):
            Merge(spark, config, config.stores[store]).round()
        disk = Replica(kept(config, "disk"))  # a new process each time: it goes on from what the last one kept
        for replica in (memory, memory, disk):  # the second time there is nothing new
            replica.refresh()
            for store in config.stores:
                status = replica.status(store)
                assert (status["error"], status["freshness"], status["lag_ms"]) == (None, "changelog", 0)
                assert status["position"] == status["head"]
                assert shown(replica, store) == right(events, store), (number, store)
        none.refresh()
        for store in config.stores:
            status = none.status(store)
            assert (status["error"], status["freshness"]) == (None, "state")
            if status["position"] == status["head"]:
                assert shown(none, store) == right(events, store), (number, store)
    replica = memory
    gone = replica.snapshot("total").get(["gone"])
    assert gone is None
    late = {"key": "gone", "n": 1, "ts": "2023-01-01T00:00:00Z"}
    ingest.batch(spark.createDataFrame([record("t", 0, COUNT + 160, T0, "gone", late)], SCHEMA))
    replica.refresh()
    assert replica.snapshot("total").get(["gone"]) is None, "older than its purge, which the tombstones remember"


@pytest.mark.slow
def test_a_swapped_state_a_compacted_changelog_and_a_lost_feed_are_noticed(spark, lake, filled):
    config, events = filled
    replica = Replica(config)
    replica.refresh()
    changed = written(lake, "n > 0")
    assert recover(spark, changed, changed.stores["total"], swap=True).swapped
    replica.refresh()
    assert shown(replica, "total") == right(events, "total", lambda event: event["n"] > 0)
    assert replica.status("total")["freshness"] == "changelog"
    ingest = Ingest(spark, config, config.streams["s"])
    records, new = drawn(5, 30, first=COUNT, resets=False)
    ingest.batch(spark.createDataFrame(records, SCHEMA))
    replica.refresh()
    events = events + new
    assert shown(replica, "total") == right(events, "total", lambda event: event["n"] > 0), "by the rule of the table"
    other = Replica(config)
    other.refresh()
    records, new = drawn(6, 30, first=COUNT + 30, resets=False)
    ingest.batch(spark.createDataFrame(records, SCHEMA))
    events = events + new
    compacted(spark, config)
    other.refresh()
    assert other.status("votes")["freshness"] == "state", "the feed is lost: the table's versions are left"
    assert shown(other, "votes") != right(events, "votes")
    from jobs.run import merge_once

    behind = sized(("votes",), ("votes", "hours"))
    for name in behind:
        merge_once(Merge(spark, config, config.stores[name]))
    other.refresh()
    for store in behind:
        assert shown(other, store) == right(events, store)
        assert other.status(store)["freshness"] == "changelog"


@deep
@pytest.mark.slow
def test_a_new_process_goes_on_from_what_was_kept_as_long_as_it_can(spark, filled, monkeypatch):
    config, events = filled
    config, read, load = kept(config, "disk"), [], storage.load

    def noted(db, config, store, version, **named):
        read.append(store.name)
        return load(db, config, store, version, **named)

    monkeypatch.setattr(storage, "load", noted)
    Replica(config).refresh()
    assert sorted(read) == sorted(config.stores)
    read.clear()
    records, new = drawn(8, 40, first=COUNT)
    more(spark, config, records)
    events = events + new

    def begun(freshness="changelog"):
        replica = Replica(config)
        replica.refresh()
        for store in config.stores:
            assert shown(replica, store) == right(events, store)
            assert replica.status(store)["freshness"] == freshness
        found, read[:] = sorted(read), []
        return found

    assert begun() == [], "a version was merged meanwhile: what was kept and the feed are enough"
    recover(spark, config, config.stores["total"])
    assert begun() == ["total"], "it was replaced"
    monkeypatch.setattr("api.replica.store.OVERLAY", 1)
    assert begun() == ["hours", "votes"], "too much has come since"
    assert begun() == []
    monkeypatch.setattr("api.replica.store.OVERLAY", 1000)
    records, new = drawn(9, 40, first=COUNT + 40)
    more(spark, config, records)
    events = events + new
    compacted(spark, config)
    assert begun("state") == sorted(config.stores), "the feed is lost: the tables are left"


@pytest.mark.slow
def test_the_past_of_a_key_is_the_oracles(spark, filled, monkeypatch):
    monkeypatch.setattr("api.reads.lake.FILES", 2)  # so that there are some parts
    config, events = filled
    ingest = Ingest(spark, config, config.streams["s"])
    records, new = drawn(77, 60, first=COUNT)
    ingest.batch(spark.createDataFrame(records, SCHEMA))  # not merged: the tail has it
    app = create_app(config)
    client = app.test_client()
    try:
        for key in ("k0", "k3", "k8"):
            mine = sorted((e["order"], e) for k, stores, e in events + new if k == key and "total" in stores)
            found = client.get(f"/stores/total/keys/{key}/history?limit=1000").get_json()
            assert found["cursor"] is None and found["position"] == BATCHES + 1
            assert [(e["partition"], e["offset"], e["op"]) for e in found["events"]] == [
                (*order[1:], e["op"]) for order, e in reversed(mine)
            ]
            page = client.get(f"/stores/total/keys/{key}/history?limit=3").get_json()
            rest = client.get(f"/stores/total/keys/{key}/history?limit=1000&cursor={page['cursor']}").get_json()
            assert page["events"] + rest["events"] == found["events"]
            assert len(client.get(f"/stores/hours/keys/{key}/history?limit=1000").get_json()["events"]) <= len(mine)
            for hours in (1, 2, 3.5):
                moment = T0 + int(hours * 3600) * 1_000_000
                past = [e for e in events + new if e[2]["order"][0] <= moment]
                for store in ("total", "votes"):
                    answer = client.get(f"/stores/{store}/keys/{key}", query_string={"at": iso(moment)})
                    assert (answer.get_json()["value"] if answer.status_code == 200 else None) == right(
                        past, store
                    ).get(key)
                answer = client.get(f"/stores/hours/keys/{key}", query_string={"at": iso(moment)}).get_json()
                starts = {k[1]: v for k, v in right(past, "hours").items() if k[0] == key}
                assert [w["value"] for w in answer.get("windows", [])] == [starts[s] for s in sorted(starts)]
            for version, position in enumerate((None, 1, 2, 3)):
                known = [e for e in events if e[2]["order"][2] < 60 * (position or 0)]
                answer = client.get(f"/stores/total/keys/{key}?version={version}")
                assert (answer.get_json().get("value"), answer.get_json()["position"]) == (
                    right(known, "total").get(key),
                    position,
                )
        assert client.get("/stores/total/keys/k0?version=99").status_code == 404
        # Were all the numbers up to there looked at, it would be the 503 of a lake that is not read in time, after minutes.
        assert client.get("/stores/total/keys/k0?version=999999999").status_code == 404
        assert client.get("/stores/total/keys/nope/history").status_code == 404
        assert client.get("/stores/total/keys/k0?at=yesterday").status_code == 400
        token = f"t:0:{COUNT + 59}"
        assert client.get("/stores/total/keys/k0", query_string={"after": token}).status_code == 200
        late = client.get("/stores/total/keys/k0", query_string={"after": f"t:0:{COUNT + 60}", "timeout": 0.1})
        assert late.status_code == 504 and late.get_json()["type"] == "urn:statehouse:not-yet"
        assert client.get("/stores/total/keys/k0?after=u:0:1").status_code == 400
        bad = [record("t", 0, COUNT + 60 + i, T0, "k", b"?") for i in range(3)]
        ingest.batch(spark.createDataFrame(bad, SCHEMA))
        page = client.get("/streams/s/quarantine?limit=2").get_json()
        rest = client.get(f"/streams/s/quarantine?cursor={page['cursor']}").get_json()
        assert [r["offset"] for r in page["rows"] + rest["rows"]] == [COUNT + 62, COUNT + 61, COUNT + 60]
        assert rest["cursor"] is None and "not a JSON object" in rest["rows"][0]["reason"]
        assert client.get("/streams/nope/quarantine").status_code == 404
    finally:
        app.extensions["statehouse"].replica.stop()
