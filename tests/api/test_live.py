"""Ahead of the changelog: at every moment the oracle's answer over what the changelog has and what is pending on top of it."""

from __future__ import annotations

import datetime as dt
import gc
import random
import threading
import time
import weakref
from typing import Any

import duckdb
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from api import create_app
from api.engine.prepared import cursor
from api.replica import arrivals
from api.replica.fold_thread import OFTEN, UNASKED_SECONDS
from api.replica.locks import FairLock
from api.replica.priority import BUSY, QUIET, SHARE, WAIT, PollInterval
from api.replica.snapshot import Snapshot
from demo.broker import Broker
from jobs.spark.parse import accepted_rows, parse
from statehouse.fold import Rule
from statehouse.kafka import partitions
from statehouse.records import decoder_for
from tests.support.api_lake import eventually
from tests.support.depth import first
from tests.support.lakes import right, written
from tests.support.live import T0, Shop, Topic, among, values
from tests.support.records import SCHEMA, control, stamp


@pytest.mark.slow
@pytest.mark.parametrize("example", first(1, range(5)))
def test_answers_are_the_oracles_over_the_changelog_and_what_is_pending(lake, example, monkeypatch):
    monkeypatch.setattr("api.replica.store.OVERLAY", 10)  # so that newer versions are read, too
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    topic = Topic(written(lake), dice)
    for _ in range(40):
        step = dice.choice((topic.read, topic.read, topic.commit, topic.follow, topic.merge))
        step()
        if step is topic.merge:
            topic.follow()
        topic.check()
    while any(o < len(topic.events[p]) for p, o in topic.logged.items()):
        topic.commit()
    topic.follow()
    topic.live.skip()
    topic.check(whole=True)
    assert topic.live.pending == 0, "the changelog has it all"
    for name in topic.config.stores:
        snapshot = topic.replica.snapshot(name)
        assert not snapshot.overlay.under and snapshot.offsets(["k1"]) is None


@pytest.mark.slow
@pytest.mark.parametrize("example", first(1, range(3)))
def test_a_commit_is_taken_over_in_parts_and_a_key_is_as_before_or_as_after(lake, example, monkeypatch):
    monkeypatch.setattr("api.replica.tail.PART", 2)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    topic = Topic(written(lake), dice)
    either: dict[str, list[Any]] = {}  # by store, what was before and what is to be
    looks = 0

    class Watched(FairLock):
        """Between two turns a reader comes."""

        def __exit__(self, *error: object) -> None:
            nonlocal looks
            super().__exit__(*error)
            if not either or threading.current_thread() is not threading.main_thread():
                return
            expected = dict(either)
            either.clear()  # reading takes turns, too
            for name, states in expected.items():
                snapshot, key = topic.replica.snapshot(name), f"k{dice.randrange(9)}"
                found = snapshot.get([key]) or {}
                shown = values(found.get("windows", [found] if found else []))
                assert shown in [among(state, name, key, key) for state in states], (name, key)
                looks += 1
            either.update(expected)

    topic.live.locks.turn = Watched()
    for _ in range(25):
        topic.read()
        topic.commit()
        states = [topic.meant(logged) for logged in (topic.folded, topic.logged)]
        either.update({name: [right(t + p, name) for t, p in states] for name in topic.config.stores})
        topic.follow()
        either.clear()
        topic.check()
    topic.check(whole=True)
    assert looks > 100


def test_an_event_that_is_not_taken_is_covered_when_it_was_read(lake):
    topic = Topic(written(lake), random.Random(1))
    event = topic.events[0][0]
    event.unseen = True
    topic.live.arrived(arrivals.table([event.sent()]))
    topic.check(whole=True)


def test_what_nobody_asks_for_is_folded_while_others_are_read(lake):
    topic = Topic(written(lake), random.Random(1))
    topic.live.arrived(arrivals.table([event.sent() for event in topic.events[0][:40]]))
    snapshot = topic.replica.snapshot("total")
    waiting = dict(snapshot.stale)
    time.sleep(3 * UNASKED_SECONDS)
    assert len(waiting) > OFTEN and snapshot.stale == waiting, "nobody reads"
    first, *others = waiting
    snapshot.get([first[0]])
    time.sleep(3 * UNASKED_SECONDS)
    assert list(snapshot.stale) == others, "one alone"
    for key in others[: OFTEN - 1]:
        snapshot.get([key[0]])
    eventually(lambda: not snapshot.stale)
    topic.check(whole=True)


def test_a_version_that_was_replaced_gives_its_memory_back(lake):
    topic = Topic(written(lake), random.Random(1))
    topic.live.arrived(arrivals.table([event.sent() for event in topic.events[0][:20]]))
    followed = topic.replica._stores["total"]
    assert followed.snapshot.stale
    old, mark = weakref.ref(followed.snapshot), followed.log.newest()
    gc.disable()  # it may be hundreds of megabytes: not only when Python looks for what holds each other
    try:
        assert followed._replace(followed._base(mark, None, True), mark)
        assert old() is None
    finally:
        gc.enable()
    topic.check(whole=True)


@pytest.fixture
def shop(lake, broker, request):
    made = Shop(lake, broker, f"live-{request.node.name.replace('[', '-').replace(']', '')}"[:200])
    yield made
    made.replica.stop()


def test_an_event_is_shown_before_the_changelog_has_it(shop):
    shop.send(("a", 1), ("b", 2), ("a", 3))
    found = shop.shows("a", 4)
    assert (found["provisional"], found["offsets"], found["position"]) == (True, {"0": 3}, None)
    assert shop.get("a", query="?freshness=changelog") is None
    eventually(lambda: shop.get("a", "last"))  # one store after the other
    rows = shop.client.get("/stores/last/keys").get_json()
    assert [(r["key"], r["value"]) for r in rows["rows"]] == [("a", 3), ("b", 2)] and rows["provisional"] is True
    assert shop.client.get("/stores/last/keys?freshness=changelog").get_json()["rows"] == []
    asked = {"keys": ["a", "c"]}
    assert shop.client.post("/stores/last/lookup", json=asked).get_json()["missing"] == ["c"]
    assert shop.client.post("/stores/last/lookup?freshness=changelog", json=asked).get_json()["missing"] == ["a", "c"]
    assert shop.client.get("/stores/last/keys/a?freshness=soon").status_code == 400
    assert shop.live["pending"] == 3 and shop.live["state"] == "following" and shop.live["offsets"] == {"0": 3}
    shop.log()
    eventually(lambda: "provisional" not in shop.get("a"))
    assert (shop.get("a")["value"], shop.get("a")["position"]) == (4, 1)
    assert shop.get("a", query="?freshness=changelog")["value"] == 4
    eventually(lambda: shop.live["pending"] == 0)
    assert shop.client.get("/stores/total").get_json()["freshness"] == "live"


def test_who_writes_reads_it_without_the_jobs(shop):
    client = shop.client
    for number in range(20):
        token = client.put("/stores/last/keys/mine", json={"value": number}).get_json()["token"]
        found = client.get(f"/stores/last/keys/mine?after={token}&timeout=20")
        assert (found.status_code, found.get_json()["value"], found.get_json()["provisional"]) == (200, number, True)
    client.delete("/stores/last/keys/mine")
    eventually(lambda: shop.get("mine", "last") is None)
    assert shop.client.get("/stores/last/keys/mine?freshness=changelog").status_code == 404
    metrics = client.get("/metrics").text
    assert 'statehouse_live_pending{store="last"} 21.0' in metrics
    assert 'statehouse_live{state="following",store="last"} 1.0' in metrics


def test_a_write_that_is_not_shown_any_more_when_it_is_read_is_waited_for_again(shop, monkeypatch):
    """As where its store follows its table for a while, or what is pending cannot be folded."""
    client, live, read, lost = shop.client, shop.replica._streams["s"].provisional, Snapshot.get, []
    followed = shop.replica._stores["last"]

    def back(*before):
        live.replace(followed, *before)
        shop.replica._changes.send()

    def get(snapshot, parts):
        if not lost:
            lost.append(parts)
            before = snapshot, followed.tail, followed.covered
            live.replace(followed, snapshot, None, None)
            threading.Timer(0.5, back, before).start()
        return read(snapshot, parts)

    client.put("/stores/last/keys/mine", json={"value": 1})
    monkeypatch.setattr(Snapshot, "get", get)
    token = client.put("/stores/last/keys/mine", json={"value": 2}).get_json()["token"]
    found = client.get(f"/stores/last/keys/mine?after={token}&timeout=20")
    assert (found.status_code, found.get_json().get("value"), lost) == (200, 2, [["mine"]])
    lost.clear()
    found = client.get(f"/stores/last/keys/mine?after={token}&timeout=0.2")
    assert found.status_code == 504 and "within 0.2 s" in found.get_json()["detail"]


@pytest.mark.parametrize("past", ["", "&at=2999-01-01T00:00:00Z"], ids=["now", "past"])
def test_who_asks_the_changelog_waits_for_it(shop, past):
    shop.send(("a", 1))
    path = f"/stores/total/keys/a?after={shop.topic}:0:0{past}"
    found = shop.client.get(f"{path}&timeout=20").get_json()
    assert (found["value"], found["provisional"], found["offsets"]) == (1, True, {"0": 1})
    assert shop.client.get(f"{path}&timeout=0.2&freshness=changelog").status_code == 504
    shop.log()
    found = shop.client.get(f"{path}&timeout=20&freshness=changelog").get_json()
    assert (found["value"], "provisional" in found) == (1, False)


def test_who_writes_has_it_in_the_history(shop):
    client = shop.client
    for number in range(3):
        token = client.put("/stores/last/keys/mine", json={"value": number}).get_json()["token"]
        assert client.get(f"/stores/last/keys/mine?after={token}&timeout=20").get_json()["value"] == number
        history = client.get("/stores/last/keys/mine/history").get_json()
        assert [(e["op"], e["value"], e["provisional"]) for e in history["events"]] == [
            ("set", n, True) for n in range(number, -1, -1)
        ]
    client.delete("/stores/last/keys/mine")
    eventually(lambda: shop.get("mine", "last") is None)
    newest = client.get("/stores/last/keys/mine/history?limit=1").get_json()["events"]
    assert [(e["op"], e["provisional"]) for e in newest] == [("purge", True)]


def test_partitions_are_added_and_the_topic_is_truncated(shop):
    shop.send(("a", 1))
    shop.shows("a", 1)
    admin = AdminClient({"bootstrap.servers": shop.broker.bootstrap})
    more = len(partitions(shop.config.kafka, shop.topic)) + 1
    admin.create_partitions([NewPartitions(shop.topic, more)])[shop.topic].result(20)
    eventually(lambda: len(partitions(shop.config.kafka, shop.topic)) == more)
    shop.send(("a", 10), partition=more - 1)
    assert shop.shows("a", 11, 30)["offsets"] == {"0": 1, str(more - 1): 1}
    shop.replica.stop()
    shop.send(("a", 100), ("a", 1000))
    place = TopicPartition(shop.topic, 0, 2)
    admin.delete_records([place])[TopicPartition(shop.topic, 0)].result(20)
    # A new process begins where the changelog is, and there is less in the topic than came after that.
    app = create_app(shop.config)
    try:
        client = app.test_client()
        eventually(lambda: (client.get("/stores/total/keys/a").get_json() or {}).get("value") == 1010)
    finally:
        app.extensions["statehouse"].replica.stop()


def test_kafka_goes_away_and_comes_back(lake, tmp_path):
    broker = Broker(tmp_path / "own-kafka")
    broker.start()
    try:
        shop = Shop(lake, broker, "t")
        shop.send(("a", 1))
        shop.shows("a", 1)
        shop.log()
        eventually(lambda: "provisional" not in shop.get("a"))
        broker.kill()
        eventually(lambda: shop.live["state"] == "away")
        assert shop.get("a")["value"] == 1 and shop.client.get("/stores/total").get_json()["freshness"] == "changelog"
        broker = Broker(tmp_path / "own-kafka")
        broker.start()
        shop.send(("a", 10))
        shop.shows("a", 11, 60)
        assert shop.live["state"] == "following"
        shop.replica.stop()
    finally:
        broker.stop()


def test_it_steps_aside_where_there_is_too_much_and_returns(lake, broker, monkeypatch):
    monkeypatch.setattr("api.replica.topic.PENDING", 100)
    monkeypatch.setattr("api.replica.topic.BEHIND", 400)
    monkeypatch.setattr("api.replica.topic.AT_ONCE", 50)
    monkeypatch.setattr("api.replica.topic.ASIDE_SECONDS", 0.1)
    shop = Shop(lake, broker, "live-aside")
    try:
        for number in range(1, 31):
            shop.send(*((f"k{number}-{i}", 1) for i in range(20)))
        eventually(lambda: shop.live["state"] == "aside")
        pending = shop.live["pending"]
        assert 0 < pending <= 150, "bounded"
        assert shop.get("k1-0")["value"] == 1, "what is shown stays"
        text = shop.client.get("/stores/total").get_json()
        assert text["freshness"] == "changelog" and text["live"]["behind"] > 0
        shop.log()
        eventually(lambda: shop.live["state"] == "following")
        assert shop.client.get("/stores/total").get_json()["keys"] == 600
        shop.send(("after", 7))
        assert shop.shows("after", 7)["provisional"] is True
        assert shop.live["pending"] == 1
    finally:
        shop.replica.stop()


ODD = [
    b'{"key": "a", "n": 1, "d": 1.50, "b": true, "tags": ["x", null], "at": "2024-02-29", "ts": "2024-02-29T12:00:00.123456Z"}',
    b' \n{"key": 17, "n": 2}',
    '{"key": "ü \\u2603 \\"q\\" \\\\", "n": 3, "ts": "2024-02-29T12:00:00+02:00"}'.encode(),
    b'{"key": {"x": [1, 2]}, "n": 4}',
    b'{"key": null, "n": 5, "other": {}}',
    b'{"n": -9223372036854775808}',
    b'{"key": "no n"}',
    b'{"n": null}',
    b'{"n": "1"}',
    b'{"n": 1.5}',
    b'{"n": 9223372036854775808}',
    b'{"n": 1, "d": "x"}',
    b'{"n": 1, "b": "true"}',
    b'{"n": 1, "tags": "x"}',
    b'{"n": 1, "at": "2024-02-30"}',
    b'{"n": 1, "ts": "yesterday"}',
    b"[1]",
    b"1",
    b"",
    b"{",
    b'{"n": 1',
    b'{"n": 1} {"n": 2}',
    b"\xff\xfe",
    None,
]


@pytest.mark.slow
def test_what_it_takes_is_what_spark_takes(spark, lake):
    config = lake("""
streams:
  s:
    topic: t
    schema: "key STRING, n BIGINT NOT NULL, d DECIMAL(12,2), b BOOLEAN, tags ARRAY<STRING>, at DATE, ts TIMESTAMP"
    time: ts
    keep_payload: true
stores:
  total: {stream: s, key: key, value: n, reduce: sum}
  last: {stream: s, key: key, value: n, reduce: latest}
  hours: {stream: s, key: key, value: n, window: 1 hour, reduce: count}
""")
    stream, kinds = config.streams["s"], (("STRING",), "BIGINT")
    rules = [Rule(store, *kinds) for store in config.stores.values()]
    sent = [(value, None) for value in ODD]
    for store in ("total", "last", "hours", "nope", None):
        bodies = [
            b'{"value": 1}',
            b'{"value": "1"}',
            b'{"value": 1.5}',
            b'{"value": null}',
            b'{"agent": "a"}',
            b"1",
            None,
        ]
        sent += [(body, control("set", store)) for body in bodies]
        sent += [(None, control("purge", store)), (b"x", control("purge", store))]
    sent += [(b"{}", {"statehouse-op": "report"}), (b'{"n": 1}', {"statehouse-op": "zap"})]
    rows = [
        ("t", i % 2, i, stamp(T0 + i * 1000), b"k", value, [(n, v.encode()) for n, v in headers.items()] if headers else None)
        for i, (value, headers) in enumerate(sent)
    ]  # fmt: skip
    stores = config.stores_of("s")
    parsed = parse(spark.createDataFrame(rows, SCHEMA), stream, decoder_for(stream, stores, rules))
    expected = {row._offset: row.asDict(recursive=True) for row in accepted_rows(parsed, stream).collect()}
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        parser = arrivals.Parser(cursor(db), stream, rules, stores)
        read = [(*arrivals.record(*_as_kafka(row)), 0) for row in rows]
        found = {row["_offset"]: row for row in parser.parse(arrivals.table(read)).to_pylist()}
    assert [sent[i] for i in sorted(expected.keys() ^ found.keys())] == [], "taken by one and not by the other"
    for offset, row in expected.items():
        for name, value in row.items():
            if name != "_log_time":
                got = found[offset][name]
                got = got.replace(tzinfo=None) if isinstance(got, dt.datetime) else got
                assert got == value, (name, sent[offset])


def _as_kafka(row):
    topic, partition, offset, at, key, value, headers = row
    return topic, partition, offset, round(at.replace(tzinfo=dt.timezone.utc).timestamp() * 1000), key, value, headers


def test_rounds_are_few_where_others_have_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own, every = [1000.0], [0.0], [0.0]
    for name, at in (("monotonic", clock), ("thread_time", own), ("process_time", every)):
        monkeypatch.setattr(f"api.replica.priority.time.{name}", lambda at=at: at[0])

    def between(first: float, takes: float, others: float = 0.0, waits: float = 0.0) -> float:
        """Seconds from the end of a round to the next one's begin, where so long after it the first event comes; a round takes so
        much work, and waits besides; others take so much of a core all the time."""
        interval, found = PollInterval(), 0.0
        for _ in range(100):
            clock[0] += first
            found = first + (wait := interval.wait())
            clock[0] += wait
            every[0] += others * found
            with interval.round():
                clock[0] += takes + waits
                own[0] += takes
                every[0] += takes + others * (takes + waits)
        return found

    assert between(1.0, 0.002) == pytest.approx(1.0 + WAIT), "one alone is shown at once"
    assert between(0.0, 0.0005) == pytest.approx(0.0005 * SHARE, rel=0.01)
    assert between(0.0, 0.002) == pytest.approx(QUIET)
    assert between(0.0, 0.002, others=0.2) == pytest.approx(QUIET), "nobody needs more"
    assert between(0.0, 0.002, others=0.6) == pytest.approx(0.002 * SHARE, rel=0.01)
    assert between(0.0, 0.002, others=0.6, waits=0.2) == pytest.approx(0.002 * SHARE, rel=0.01), "that is not its work"
    assert between(0.0, 0.05, others=0.6) == pytest.approx(BUSY), "however long it takes"
    assert QUIET < between(0.0, 0.05, others=0.3) < BUSY / 2
    assert between(0.0, 0.0) == WAIT
