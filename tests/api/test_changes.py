"""Changes as they happen: who applies the events to what a scan gave always has what a scan gives."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from flask import Flask

from api import create_app
from api.errors import Problem
from api.reads import changes
from api.reads.changes import Held
from api.replica.changed_keys import Recent
from api.replica.snapshot import Snapshot
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.recover import recover
from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.tables import GENERATION, table
from tests.support.api_lake import MOMENT, Sales, State, configured, eventually
from tests.support.calls import problem
from tests.support.depth import sized
from tests.support.follower import Follower, scanned
from tests.support.lakes import drawn
from tests.support.records import SCHEMA, control, record
from tests.support.serving import serving, stopped

STORES = """
streams:
  s: {topic: t, schema: "key STRING, agent STRING, n BIGINT, ts TIMESTAMP", time: ts}
stores:
  total: {stream: s, key: key, value: n, reduce: sum%s}
  pairs: {stream: s, key: [key, agent], value: n, reduce: latest}
  hours: {stream: s, key: key, value: n, window: 1 hour, reduce: count}
"""
KEYS = {"total": ["key"], "pairs": ["key", "agent"], "hours": ["key", "window_start"]}


@pytest.mark.slow
def test_who_applies_the_events_has_what_a_scan_gives(spark, lake) -> None:
    """Random events, sets and purges; merges, and a recovery under another rule; two processes, and connections that break."""
    config = lake(STORES % "")
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ingest, head = Ingest(spark, config, config.streams["s"]), 0

    def more(count: int) -> None:
        nonlocal head
        records, _ = drawn(dice.randrange(10**6), count, first=1000 * head)
        if dice.random() < 0.5:  # of a composite key
            parts = f"k{dice.randrange(9)}/{dice.choice('pqr')}"
            records.append(
                record(
                    "t",
                    0,
                    1000 * head + count,
                    records[-1][3].timestamp() * 1e6,
                    parts,
                    None,
                    control("purge", "pairs"),
                )
            )
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        head += 1

    def merge(*stores: str) -> None:
        for store in stores:
            Merge(spark, config, config.stores[store]).round()

    more(80)
    merge(*KEYS)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(config)) for _ in range(2)]
        ports = [connection.port for _, connection in servers]
        followers = [Follower(ports, s, k, random.Random(dice.random())) for s, k in KEYS.items()]
        followers += [Follower(ports[:1], s, k) for s, k in KEYS.items()]

        def same() -> None:
            for follower in followers:
                eventually(lambda f=follower: f.wrong or f.position >= head)
                assert not follower.wrong
                # What one process knows another may know a moment later.
                eventually(lambda f=follower: int(scanned(ports[1], f.store, f.keys)[1].split("-")[0]) >= head)
                rows, _ = scanned(ports[1], follower.store, follower.keys)
                assert follower.rows == rows, (follower.store, follower.dice is not None)

        for number in range(sized(4, 6)):
            more(dice.choice([1, 5, 40]))
            if number in sized((1,), (1, 3)):
                same()
            if number == sized(1, 2):
                merge(*dice.sample(list(KEYS), 2))
            if number == sized(None, 4):  # else test_a_state_in_the_place_of_another_is_a_reset has to do
                file = Path(config.root).parent / "statehouse.yaml"
                changed = load(_written(file, config.kafka["bootstrap.servers"], ', where: "n > 0"'), {})
                assert recover(spark, changed, changed.stores["total"], swap=True).swapped
                for follower in followers:
                    if follower.store == "total":
                        eventually(lambda f=follower: f.wrong or f.resets)
        same()
        for follower in followers:
            follower.stop()
        assert all(f.connections > 5 for f in followers[:3]) and all(f.connections <= 2 for f in followers[3:])
        print([(f.store, f.connections, f.events, f.resets) for f in followers])
        for process, _ in servers:
            assert stopped(process, signal.SIGTERM)[0] == 0


def _written(file: Path, bootstrap: str, where: str) -> Path:
    file.write_text(f"root: ./lake\nkafka:\n  bootstrap.servers: {bootstrap}\n{STORES % where}")
    return file


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


@pytest.fixture
def states(config: Config) -> dict[str, State]:
    return {store: State(config, store) for store in ("last", "pairs", "hours")}


@pytest.fixture
def sales(config: Config) -> Sales:
    return Sales(config)


@pytest.fixture
def app(config: Config, sales: Sales, states: dict[str, State]) -> Iterator[Flask]:
    app = create_app(config)
    yield app
    app.extensions["statehouse"].replica.stop()


def begun(app: Flask, path: str, **headers: str) -> Callable[[], dict[str, Any]]:
    """A function that gives the next event, as its fields."""
    response = app.test_client().get(path, headers={k.replace("_", "-"): v for k, v in headers.items()}, buffered=False)
    assert response.status_code == 200, response.text
    assert (response.mimetype, response.headers["Cache-Control"]) == ("text/event-stream", "no-store")
    blocks = (block for piece in response.iter_encoded() for block in piece.decode().split("\n\n") if block)

    def following() -> dict[str, Any]:
        fields = dict(line.split(": ", 1) for line in next(blocks).splitlines())
        return {**fields, "data": json.loads(fields["data"])} if "data" in fields else fields

    following.close = response.close  # type: ignore[attr-defined]
    return following


def test_what_is_sent(app: Flask, sales: Sales) -> None:
    following = begun(app, "/stores/last/changes")
    assert following() == {"retry": "1000"}
    first = following()
    epoch = first["id"].removeprefix("0-")
    assert first == {"id": f"0-{epoch}", "event": "position", "data": {"position": 0}}
    sales.append({"customer": "a", "weight": 1.5}, {"customer": "ü\n/", "weight": 2}, {"customer": None})
    events = [following(), following()]
    assert [e["event"] for e in events] == ["state", "state"]
    assert {e["data"]["key"]: e["data"]["value"] for e in events} == {"a": 1.5, "ü\n/": 2}
    assert ["id" in e for e in events] == [False, True], "only the last one of a batch"
    assert events[1]["id"] == f"1-{epoch}"
    one = app.test_client().get("/stores/last/keys/a").get_json()
    assert one == {**next(e["data"] for e in events if e["data"]["key"] == "a"), "position": 1}
    sales.append({"purge": "a"})
    assert following() == {"event": "purge", "data": {"key": "a"}, "id": f"2-{epoch}"}
    sales.append({"customer": None})
    assert following() == {"id": f"3-{epoch}"}, "no event, but where to go on from"
    again = begun(app, "/stores/last/changes", Last_Event_ID=f"0-{epoch}")
    assert [again(), again()] == [{"retry": "1000"}, {**first}], "where it goes on from"
    states = [again(), again()]
    assert sorted((e["event"], e["data"]["key"], e.get("id")) for e in states[:1]) <= [("state", "ü\n/", None)]
    assert {(e["event"], e["data"]["key"]) for e in states} == {("purge", "a"), ("state", "ü\n/")}, "as they are now"
    assert states[1]["id"] == f"3-{epoch}"


def test_composite_keys_and_windows(app: Flask, sales: Sales) -> None:
    pairs, hours = begun(app, "/stores/pairs/changes"), begun(app, "/stores/hours/changes")
    for following in (pairs, hours):
        assert [following()["retry"], following()["event"]] == ["1000", "position"]
    later = MOMENT + dt.timedelta(hours=3)
    sales.append({"customer": "a", "till": 1, "amount": 2}, {"customer": "a", "till": 1, "amount": 2, "at": later})
    found = pairs()
    assert (found["event"], found["data"]["customer"], found["data"]["till"], found["data"]["value"]) == (
        "state",
        "a",
        1,
        4,
    )
    starts = ["2026-03-01T12:00:00Z", "2026-03-01T15:00:00Z"]
    assert sorted((e["data"]["window_start"], e["data"]["value"]) for e in (hours(), hours())) == [
        (s, 2) for s in starts
    ]
    sales.append(*({"purge": key, "at": MOMENT + dt.timedelta(hours=4)} for key in ("a/1", "a")))
    assert pairs()["data"] == {"customer": "a", "till": 1}
    gone = sorted((hours(), hours()), key=lambda e: e["data"]["window_start"])
    assert [(e["event"], e["data"]) for e in gone] == [("purge", {"key": "a", "window_start": s}) for s in starts]


def test_what_no_process_remembers_is_read_from_the_changelog(
    config: Config, sales: Sales, states: dict[str, State]
) -> None:
    """As a process that was just started: its memory begins at the state's position."""
    later = MOMENT + dt.timedelta(hours=3)
    for event in ({"customer": "a"}, {"customer": "b"}, {"purge": "a", "at": later}, {"customer": "a", "at": later}):
        sales.append({**event, "till": 1, "amount": 3} if "customer" in event else event)
    states["last"].write(4, {"key": "b", "value": 7.0})
    start = dt.datetime(2026, 3, 1, 15, tzinfo=dt.timezone.utc)
    states["hours"].write(
        4, {"key": "b", "window_start": start, "value": 1}, {"key": "a", "window_start": start, "value": 5}
    )
    app = create_app(config)
    try:
        following = begun(app, "/stores/last/changes?position=1")
        assert [following().get("data") for _ in range(2)] == [None, {"position": 1}]
        events = [following(), following()]
        assert [(e["event"], e["data"]["key"]) for e in events] == [("purge", "a"), ("state", "b")]
        assert events[1]["id"].startswith("4-")
        following = begun(app, "/stores/hours/changes?position=1")
        events = [following() for _ in range(6)][2:]
        told = [(e["event"], e["data"]["key"], e["data"].get("window_start")) for e in events]
        assert sorted(told[:-1] + told[-1:], key=str)[:1] == [("purge", "a", None)], (
            "every window, then those there are"
        )
        assert ("state", "a", "2026-03-01T15:00:00Z") in told[told.index(("purge", "a", None)) :]
        changes_of = begun(app, f"/stores/last/changes?position={events[-1]['id'].split('-')[0]}")
        assert changes_of()["retry"] == "1000"
    finally:
        app.extensions["statehouse"].replica.stop()


def test_what_is_too_long_ago(
    config: Config, sales: Sales, states: dict[str, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        sales.append({"customer": f"c{number}", "weight": number})
    states["last"].write(5, {"key": "b", "value": 7.0})
    app = create_app(config)
    client = app.test_client()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("api.reads.lake.VERSIONS", 3)
            problem(client.get("/stores/last/changes?position=1"), 410, "changes-gone")
        with monkeypatch.context() as patch:
            patch.setattr("api.reads.lake.MOST", 3)
            problem(client.get("/stores/last/changes?position=1"), 410, "changes-gone")
        (Path(sales.path) / "_delta_log" / f"{2:020}.json").rename(Path(sales.path) / "away")
        problem(client.get("/stores/last/changes?position=0"), 410, "changes-gone")
        (Path(sales.path) / "away").rename(Path(sales.path) / "_delta_log" / f"{2:020}.json")
        for file in Path(sales.path).glob("*.parquet"):
            file.unlink()
        problem(client.get("/stores/last/changes?position=0"), 410, "changes-gone")
    finally:
        app.extensions["statehouse"].replica.stop()


def test_what_is_wrong(app: Flask, config: Config, sales: Sales) -> None:
    client = app.test_client()
    sales.append({"customer": "a", "weight": 1})
    for text in ("-1", "x", "1.5", "9" * 19, "1-", "", "٣"):
        problem(client.get("/stores/last/changes", query_string={"position": text}), 400, "bad-parameter")
    for header in ("abc", ""):
        problem(client.get("/stores/last/changes", headers={"Last-Event-ID": header}), 400, "bad-header")
    # A right header does not excuse a wrong parameter.
    both = client.get("/stores/last/changes?position=x", headers={"Last-Event-ID": "0"})
    problem(both, 400, "bad-parameter")
    problem(client.get("/stores/last/changes?position=2"), 404, "unknown-position")
    problem(client.get("/stores/last/changes?timeout=-1"), 400, "bad-parameter")
    problem(client.get("/stores/last/changes?since=2"), 400, "bad-parameter")
    problem(client.get("/stores/nope/changes"), 404, "unknown-store")
    problem(client.get("/stores/rewards/changes"), 409, "not-followed")
    State(config, "status").write(3, {"key": "a", "value": "ok"})  # its stream has no changelog
    eventually(lambda: client.get("/stores/status").get_json()["version"])
    problem(client.get("/stores/status/changes"), 409, "not-followed")
    head = client.head("/stores/last/changes")
    assert (head.status_code, head.data) == (200, b"")


def test_a_position_that_this_process_has_yet_to_reach(app: Flask, sales: Sales) -> None:
    replica = app.extensions["statehouse"].replica
    sales.append({"customer": "a", "weight": 1})
    eventually(lambda: replica.snapshot("last").position == 1)
    with replica._refreshing:  # it stands still
        assert sales.append({"customer": "b", "weight": 2}) == 2
        following = begun(app, f"/stores/last/changes?position=2-{replica.snapshot('last').epoch}")
        assert [following().get("data"), following().get("data")] == [None, {"position": 2}]
    sales.append({"customer": "c", "weight": 3})
    events = [following()]
    while "-" in events[-1].get("id", "-") and not events[-1].get("id", "").startswith("3-"):
        events.append(following())
    assert "c" in [e["data"]["key"] for e in events if "data" in e]
    assert "a" not in [e["data"]["key"] for e in events if "data" in e]


def test_a_state_in_the_place_of_another_is_a_reset(app: Flask, config: Config, sales: Sales, tmp_path: Path) -> None:
    sales.append({"customer": "a", "weight": 1})
    following = begun(app, "/stores/last/changes")
    assert [following().get("event"), following()["event"]] == [None, "position"]
    while (place := app.test_client().get("/stores/last/keys").headers["Statehouse-Position"])[:2] != "1-":
        pass
    (tmp_path / "other").mkdir()
    other = State(configured(tmp_path / "other"), "last")
    other.write(1, {"key": "b", "value": 1.0})
    shutil.rmtree(table(config, "state", "last"))
    shutil.move(other.path, table(config, "state", "last"))
    events = [following()]
    while events[-1].get("event") != "reset":
        events.append(following())
    assert events[-1]["data"] == {"position": 1} and events[-1]["id"] != place
    again = begun(app, "/stores/last/changes", Last_Event_ID=place)
    assert [again().get("event"), again()["event"]] == [None, "reset"]
    problem(app.test_client().get("/stores/last/changes?position=0"), 410, "changes-gone")
    sales.append({"customer": "c", "weight": 1})
    assert following()["data"]["key"] == again()["data"]["key"] == "c"


def test_a_store_whose_recovery_is_not_finished_is_followed_all_along(
    config: Config, sales: Sales, states: dict[str, State]
) -> None:
    """Its tombstones are still of the generation before: the fold waits for them, and who follows the store is not told that
    it cannot be followed (as once happened to who asked while that was looked into)."""
    replica, asked, stopping = create_app(config).extensions["statehouse"].replica, [0], threading.Event()
    refused = []

    def asking() -> None:
        while not stopping.is_set():
            asked[0] += 1
            if not replica.follows("last"):
                refused.append(asked[0])

    thread = threading.Thread(target=asking)
    try:
        assert replica.follows("last")
        thread.start()
        DeltaTable(states["last"].path).alter.set_table_properties({GENERATION: "1"}, raise_if_not_exists=False)
        eventually(lambda: replica.status("last")["version"] == 1)
        head, before = sales.append({"customer": "a", "weight": 1.5}), asked[0]
        eventually(lambda: replica.status("pairs")["position"] == head and asked[0] > before + 1000)
        time.sleep(0.5)  # of more refreshes
        assert replica.status("last")["position"] != head
        tombstones = table(config, "tombstones", "last")
        DeltaTable.create(
            tombstones, pa.schema({"key": pa.string()}), configuration={GENERATION: "1"}, raise_if_key_not_exists=False
        )
        eventually(lambda: replica.status("last")["position"] == head)
        assert not refused
    finally:
        stopping.set()
        thread.join()
        replica.stop()


def test_so_many_streams_and_no_more(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "HEARTBEAT", 0.1)
    open_ = [begun(app, "/stores/last/changes") for _ in range(changes.STREAMS)]
    full = app.test_client().get("/stores/last/changes")
    problem(full, 503, "busy")
    assert full.headers["Retry-After"]
    open_[0].close()  # type: ignore[attr-defined]
    following = begun(app, "/stores/last/changes")
    assert [following().get("retry"), following()["event"], following()] == ["1000", "position", {"": ""}], (
        "a heartbeat"
    )
    with pytest.raises(Problem):
        Held(app.extensions["statehouse"].streams)
    app.extensions["statehouse"].replica.stop()
    with pytest.raises(StopIteration):
        for _ in range(3):
            following()


def test_memory_is_bounded() -> None:
    recent, snapshot = Recent(most=10), Snapshot(epoch="e")
    for position in range(1, 9):
        snapshot.position = position
        recent.add(snapshot, position - 1, [(position, i) for i in range(4)])
    assert recent.since(6) == ("e", 8, [(p, i) for p in (7, 8) for i in range(4)])
    assert recent.since(5)[2] is None and recent.since(9) == ("e", 8, [])
    snapshot.position = 9
    recent.add(snapshot, 8, [(i,) for i in range(50)])
    assert len(recent.since(8)[2] or []) == 50 and recent.since(7)[2] is None, "the newest, however many"
    recent.add(snapshot, 9, [("later",)])  # no position of its own: it goes with the next
    assert recent.since(9)[2] == []
    snapshot.position = 10
    recent.add(snapshot, 9, [("new",)])
    assert set(recent.since(9)[2] or []) == {("later",), ("new",)}
    snapshot.position = 20
    recent.add(snapshot, 15, [("gap",)])
    assert recent.since(10)[2] is None and recent.since(15)[2] == [("gap",)]
    assert recent.whole
    recent.add(Snapshot(epoch="f", position=20), 20, [])
    assert recent.since(20) == ("f", 20, []) and recent.since(15)[2] is None and not recent.whole


def test_streams_end_with_the_server(config: Config, sales: Sales, states: dict[str, State]) -> None:
    """And free their threads when the caller is gone."""
    with serving(config) as (process, connection):
        streams = [http.client.HTTPConnection("127.0.0.1", connection.port, timeout=20) for _ in range(changes.STREAMS)]
        for stream in streams:
            stream.request("GET", "/stores/last/changes", headers={"Accept-Encoding": "zstd, gzip"})
        answers = [stream.getresponse() for stream in streams]
        assert {(a.status, a.headers["Content-Encoding"]) for a in answers} == {(200, None)}
        assert all(b"retry" in a.read1(100) for a in answers)

        def status(path: str = "/stores/last/changes") -> int:
            connection.close()
            connection.request("GET", path)
            return connection.getresponse().status

        assert status() == 503 and status("/stores/last") == 200
        for answer, stream in zip(answers[:4], streams, strict=False):
            answer.close()
            stream.close()
        sales.append({"customer": "a", "weight": 1})  # as it writes to them it finds out
        eventually(lambda: status() == 200)
        connection.close()
        sent = b""
        while b"event: state" not in sent:  # each stream in its turn: this one may be the last
            sent += answers[-1].read1(1000)
        rest: list[bytes] = []

        def read() -> None:
            with suppress(OSError):
                rest.append(answers[-1].read())

        reading = threading.Thread(target=read)
        reading.start()
        code, _, seconds = stopped(process, signal.SIGTERM)
        reading.join(10)
        assert code == 0 and seconds < 2.5, "and not by being killed after three"
        assert rest, "it ended in order"
