"""What a key's requests say of its events that are pending: its state, its history, its reports and its past never contradict one
another, and say the same when the changelog has the events."""

from __future__ import annotations

import datetime as dt
import random
import threading
from typing import Any

import duckdb
from deltalake import DeltaTable
from flask.testing import FlaskClient
from werkzeug.serving import make_server

from api import create_app
from api.replica import arrivals
from api.replica.locks import FairLock
from api.replica.pending import PendingEvents
from api.replica.replica import Replica
from statehouse.config.models import Config
from tests.support.api_lake import eventually
from tests.support.lakes import right, written
from tests.support.live import PARTITIONS, T0, Topic, among, values
from tests.support.oracle import history, standing
from tests.support.records import free_port, iso

MARKS = ("position", "provisional", "offsets")
LATER = "2999-01-01T00:00:00Z"
KEYS = [f"k{i}" for i in range(9)]


class Served(Topic):
    """A topic and its lake behind the API, which follows them when it is told to."""

    def __init__(self, config: Config, dice: random.Random) -> None:
        # Nothing goes on in the background: the test says what comes when.
        quiet = config.model_copy(update={"api": config.api.model_copy(update={"freshness": "changelog"})})
        self.client: FlaskClient
        super().__init__(quiet, dice, self._replica_of)

    def _replica_of(self, config: Config) -> Replica:
        app = create_app(config)
        self.client = app.test_client()
        replica: Replica = app.extensions["statehouse"].replica
        before = {thread for thread in threading.enumerate() if thread.name == "replica"}
        replica.stop()
        eventually(lambda: not any(thread.is_alive() for thread in before))
        return replica

    def agreed(self) -> None:
        """From here on Spark and the API see every event alike."""
        for event in (e for p in PARTITIONS for e in self.events[p]):
            event.refused, event.unseen, event.other = False, False, event.n

    def read_all(self) -> None:
        """The API reads all of the topic."""
        self.live.arrived(arrivals.table([e.sent() for p in PARTITIONS for e in self.events[p]]))

    def log_all(self) -> None:
        """The changelog gets the rest of the topic, and the replica follows it."""
        while any(offset < len(self.events[p]) for p, offset in self.logged.items()):
            self.commit()
        self.follow()

    def ask(self, store: str, key: str, below: str = "", **query: Any) -> dict[str, Any]:
        """An answer, or nothing where it is a 404."""
        response = self.client.get(f"/stores/{store}/keys/{key}{below}", query_string=query)
        assert response.status_code in (200, 404), response.text
        return response.get_json() if response.status_code == 200 else {}

    def pages(
        self, store: str, key: str, limit: int, between: Any = lambda: None, **query: Any
    ) -> list[dict[str, Any]]:
        """The events of a key's history, page by page."""
        events, cursor = [], {}
        while True:
            page = self.ask(store, key, "/history", limit=limit, **cursor, **query)
            events += page.get("events", [])
            assert page.get("provisional", False) == any("provisional" in e for e in page.get("events", []))
            assert ("offsets" in page) == ("provisional" in page)
            if not page.get("cursor"):
                return events
            cursor = {"cursor": page["cursor"]}
            between()

    def events_of(self, store: str, key: str, logged: dict[int, int]) -> tuple[list[Any], list[Any]]:
        """The oracle's events of a key, as tests.support.lakes.right has them: the changelog's up to some offsets, and the pending ones."""
        truth, pending = self.meant(logged)
        return tuple([e for e in found if e[0] == key and store in e[1]] for found in (truth, pending))  # type: ignore[return-value]


def placed(event: dict[str, Any]) -> tuple[Any, ...]:
    """An event of a history as it is compared."""
    moment = dt.datetime.fromisoformat(event["event_time"].removesuffix("Z"))
    micros = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    order = (micros, event["partition"], event["offset"])
    return order, event["op"], event["value"], event.get("provisional", False)


def expected(store: str, truth: list[Any], pending: list[Any]) -> list[tuple[Any, ...]]:
    """The same of what the oracle has."""
    ahead = {e["order"] for _, _, e in pending}

    def value(event: dict[str, Any]) -> Any:
        n = event["n"]
        if event["op"] == "purge":
            return None
        if store == "hours":  # a count
            return 1
        return n if store != "votes" else int(abs(n) % 3 * (1 if n > 0 else -1))

    events = history([e for _, _, e in truth + pending])
    return [(e["order"], e["op"], value(e), e["order"] in ahead) for e in events]


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what says how fresh it is; `changed_at` is outside the law."""
    kept = {name: value for name, value in answer.items() if name not in (*MARKS, "changed_at")}
    if "windows" in kept:
        kept["windows"] = [{n: v for n, v in w.items() if n != "changed_at"} for w in kept["windows"]]
    if "events" in kept:
        kept["events"] = [{n: v for n, v in e.items() if n != "provisional"} for e in kept["events"]]
    return kept


def check(topic: Served, store: str, key: str, dice: random.Random) -> None:
    """The requests of one key are the oracle's, and one another's."""
    truth, pending = topic.events_of(store, key, topic.folded)
    state, past = topic.ask(store, key), topic.ask(store, key, at=LATER)
    assert plain(state) == plain(past)
    assert [state.get(mark) for mark in MARKS] == [past.get(mark) for mark in MARKS]
    shown = values(state.get("windows", [state] if state else []))
    assert shown == among(right(truth + pending, store), store, key, key)
    if store != "hours" and state:  # a window that nothing touches is not ahead
        assert state.get("provisional", False) == bool(pending)
    limit = dice.choice((2, 1000))
    events = topic.pages(store, key, limit)
    assert [placed(e) for e in events] == expected(store, truth, pending)
    if "provisional" in state:
        assert any("provisional" in e for e in events)
    moment = T0 + dice.randrange(4 * 3600) * 1_000_000
    past = topic.ask(store, key, at=iso(moment))
    upto = [e for e in truth + pending if e[2]["order"][0] <= moment]
    assert values(past.get("windows", [past] if past else [])) == among(right(upto, store), store, key, key)
    if store != "hours" and past:
        assert past.get("provisional", False) == any(e in pending for e in upto)
    if store == "votes":
        found = topic.ask(store, key, "/reports")
        assert found == {n: state[n] for n in ("value", "reports", *MARKS) if n in state}
        assert {agent: r["value"] for agent, r in found.get("reports", {}).items()} == standing(
            [{**e, "value": int(abs(e["n"]) % 3 * (1 if e["n"] > 0 else -1))} for _, _, e in truth + pending]
        )
    by_log = {"freshness": "changelog"}
    state, past = topic.ask(store, key, **by_log), topic.ask(store, key, at=LATER, **by_log)
    assert plain(state) == plain(past) and not {"provisional", "offsets"} & {*state, *past}
    assert values(state.get("windows", [state] if state else [])) == among(right(truth, store), store, key, key)
    events = topic.pages(store, key, 1000, **by_log)
    assert [placed(e) for e in events] == expected(store, truth, [])
    if store == "votes":
        reports = topic.ask(store, key, "/reports", **by_log)
        assert reports == {n: state[n] for n in ("value", "reports", *MARKS) if n in state}


def test_the_requests_of_a_key_agree_whatever_is_pending(lake, monkeypatch):
    monkeypatch.setattr("api.replica.store.OVERLAY", 10)  # so that newer versions are read, too
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    topic = Served(written(lake), dice)
    for _ in range(20):
        step = dice.choice((topic.read, topic.read, topic.commit, topic.follow, topic.merge))
        step()
        if step is topic.merge:
            topic.follow()
        check(topic, dice.choice(list(topic.config.stores)), dice.choice(KEYS), dice)


def test_when_the_changelog_has_them_only_the_mark_is_gone(lake):
    topic = Served(written(lake), random.Random(3))
    topic.agreed()
    topic.commit()
    topic.follow()
    topic.read_all()
    asked = [("", {}), ("", {"at": LATER}), ("", {"at": iso(T0 + 7_200_000_000)}), ("/history", {"limit": 1000})]

    def answers() -> list[dict[str, Any]]:
        found = [
            topic.ask(store, key, a[0], **a[1]) for store in topic.config.stores for key in KEYS[:4] for a in asked
        ]
        return found + [topic.ask("votes", key, "/reports") for key in KEYS[:4]]

    before = answers()
    marked = [answer for answer in before if "provisional" in answer]
    assert len(marked) > 30
    topic.log_all()
    after = answers()
    assert [plain(answer) for answer in after] == [plain(answer) for answer in before]
    assert not any("provisional" in answer or "offsets" in answer for answer in after)
    assert not any("provisional" in event for answer in after for event in answer.get("events", []))


def test_a_key_that_is_only_pending_is_there_in_all_requests_and_gone_in_all_after_a_purge(lake):
    topic = Served(written(lake), random.Random(1))
    first, second = topic.events[0][:2]
    for event, op in ((first, "report"), (second, "purge")):
        event.key, event.op, event.stores, event.headers = "fresh", op, ("total", "votes", "hours"), {}
        event.unseen, event.agent, event.n = False, "p", 2
    first.time, second.time = T0, T0 + 1_000_000
    topic.live.arrived(arrivals.table([first.sent()]))
    for store in topic.config.stores:
        for below, query in (("", {}), ("", {"at": LATER}), ("/history", {})):
            answer = topic.ask(store, "fresh", below, **query)
            assert (answer["position"], answer["provisional"], answer["offsets"]) == (None, True, {"0": 1}), below
            assert topic.ask(store, "fresh", below, **query, freshness="changelog") == {}
        assert [e["provisional"] for e in topic.ask(store, "fresh", "/history")["events"]] == [True]
    found = topic.ask("votes", "fresh", "/reports")
    assert (found["value"], list(found["reports"]), found["provisional"]) == (2, ["p"], True)
    assert topic.ask("votes", "fresh", "/reports", freshness="changelog") == {}
    for path in ("", "/history", "/reports"):
        assert topic.client.get(f"/stores/votes/keys/fresh{path}?freshness=soon").status_code == 400
    waiting = {"after": "t:0:0", "timeout": 0.1}
    assert topic.ask("total", "fresh", at=LATER, **waiting)["provisional"] is True
    for words in ({"at": LATER, "freshness": "changelog"}, {"version": 0}):
        response = topic.client.get("/stores/total/keys/fresh", query_string={**waiting, **words})
        assert response.status_code == 504, "the changelog does not have it"
    topic.live.arrived(arrivals.table([second.sent()]))
    for store in topic.config.stores:
        assert topic.ask(store, "fresh") == topic.ask(store, "fresh", at=LATER) == {}
        assert topic.ask(store, "fresh", at=iso(T0))["provisional"] is True, "before the purge"
        events = topic.ask(store, "fresh", "/history")["events"]
        assert [(e["op"], e["provisional"]) for e in events] == [("purge", True), ("report", True)]
    assert topic.ask("votes", "fresh", "/reports") == {}
    old = topic.events[1][:5]
    for number, event in enumerate(old):
        event.key, event.op, event.stores, event.headers, event.unseen = "old", "report", first.stores, {}, False
        event.time = (number - 5) * 1_000_000
    topic.live.arrived(arrivals.table([event.sent() for event in old]))
    assert [e["offset"] for e in topic.pages("total", "old", 2)] == [4, 3, 2, 1, 0], (
        "an order before 1970 is below zero"
    )


def test_what_cannot_be_folded_is_in_none_of_the_answers(lake, monkeypatch):
    def fails(*_: object) -> None:
        raise duckdb.OutOfRangeException("too much")

    topic = Served(written(lake), random.Random(1))
    topic.agreed()
    topic.events[0][0].key = "fresh"
    monkeypatch.setattr(PendingEvents, "rows", fails)
    for below, query in (("/history", {}), ("", {"at": LATER}), ("", {})):
        topic.live.arrived(arrivals.table([topic.events[0][0].sent()]))
        assert topic.ask("total", "fresh", below, **query) == {}
        topic.live.read.clear()  # so that it arrives once more


def test_pages_neither_repeat_nor_miss_an_event_while_the_changelog_catches_up(lake):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    topic = Served(written(lake), dice)
    topic.agreed()
    while min(len(topic.events[p]) for p in PARTITIONS) > topic.live.read.get(0, 0):
        topic.read()

    def between() -> None:
        dice.choice((topic.commit, topic.follow, topic.read))()

    for key in dice.sample(KEYS, 4):
        before = [e[0] for e in expected("total", *topic.events_of("total", key, topic.folded))]
        orders = [placed(e)[0] for e in topic.pages("total", key, 4, between)]
        now = {e[0] for e in expected("total", *topic.events_of("total", key, topic.folded))}
        assert orders == sorted(set(orders), reverse=True)
        assert set(before) <= set(orders) <= now


def test_where_the_newest_version_answers_what_it_has_is_not_pending(lake):
    topic = Served(written(lake), random.Random(2))
    topic.agreed()
    topic.commit()
    topic.follow()
    topic.read_all()
    while any(offset < 5 for offset in topic.logged.values()):
        topic.commit()
    changelog = DeltaTable(topic.path)
    changelog.optimize.compact()
    assert changelog.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    head = DeltaTable(topic.path).version()
    marks = set()
    for key in KEYS[:4]:
        truth, pending = topic.events_of("total", key, topic.logged)
        answer = topic.ask("total", key, "/history", limit=1000)
        assert [placed(e) for e in answer["events"]] == expected("total", truth, pending)
        assert answer["position"] == head
        past = topic.ask("total", key, at=LATER)
        assert past.get("value") == right(truth + pending, "total").get(key)
        marks |= {e.get("provisional", False) for e in answer["events"]}
    assert marks == {True, False}


def test_what_is_pending_of_a_key_is_asked_of_who_has_it(lake, monkeypatch):
    """Two instances share the keys, and one of them has read the topic: the other has what it knows of that from there."""
    topic = Served(written(lake), random.Random(4))
    topic.agreed()
    topic.commit()
    topic.merge()
    for name in ("ANSWER_SECONDS", "LOST_SECONDS"):  # on a busy machine neither is to take the other's shards
        monkeypatch.setattr(f"api.fleet.membership.{name}", 60.0)
    peers = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    apps, servers = [], []
    for address in peers:
        share = {"shards": 6, "copies": 1, "peers": peers, "address": address}
        config = topic.config.model_copy(update={"api": topic.config.api.model_copy(update=share)})
        apps.append(create_app(config))
        servers.append(make_server("127.0.0.1", int(address.rpartition(":")[2]), apps[-1], threaded=True))
        threading.Thread(target=servers[-1].serve_forever).start()
    replicas = [app.extensions["statehouse"].replica for app in apps]
    try:
        eventually(lambda: sum(len(r.status("total")["shards"] or ()) for r in replicas) == 6)
        first = next(number for number, r in enumerate(replicas) if r.snapshot("total").has(["k0"]))
        reading, other = apps[first].test_client(), apps[1 - first].test_client()
        records = arrivals.table([e.sent() for p in PARTITIONS for e in topic.events[p]])
        replicas[first]._streams["s"].provisional.arrived(records)
        mine = [key for key in KEYS if replicas[first].snapshot("total").has([key])][:2]
        paths = [f"/stores/{store}/keys/{key}" for store in topic.config.stores for key in mine]
        asked = [path + end for path in paths for end in ("", f"?at={LATER}", "/history?limit=3", "/history")]
        for path in [*asked, *(f"/stores/votes/keys/{key}/reports" for key in mine)]:
            here, there = reading.get(path), other.get(path)
            assert here.status_code == there.status_code
            if here.status_code == 200:
                assert plain(there.get_json()) == plain(here.get_json())
                assert [there.get_json()[mark] for mark in MARKS] == [here.get_json()[mark] for mark in MARKS], path
        monkeypatch.undo()
        servers[first].shutdown()
        servers[first].server_close()
        apps[first].extensions["statehouse"].stop()
        alone = other.get(f"{paths[0]}/history?limit=1000").get_json()["events"]
        assert [placed(e) for e in alone] == expected("total", topic.events_of("total", mine[0], topic.logged)[0], [])
    finally:
        for app, server in zip(apps, servers, strict=True):
            app.extensions["statehouse"].stop()
            server.shutdown()
            server.server_close()


def test_what_is_pending_is_taken_together_with_the_position_that_it_is_on_top_of(lake, monkeypatch):
    monkeypatch.setattr("api.replica.tail.PART", 2)
    dice = random.Random(5)
    topic = Served(written(lake), dice)
    topic.agreed()
    looks: list[tuple[int, str, Any]] = []
    readers: list[threading.Thread] = []

    class Watched(FairLock):
        """Between two parts of a commit a reader comes."""

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if threading.current_thread() is threading.main_thread():
                store, key = dice.choice(list(topic.config.stores)), dice.choice(KEYS)
                snapshot = topic.replica.snapshot(store)
                snapshot.settle()

                def look() -> None:
                    looks.append((store, key, snapshot.pending_of([key])))

                readers.append(threading.Thread(target=look))
                readers[-1].start()
                readers[-1].join(0.05)  # it may wait for the whole commit

    offsets = {None: dict(topic.logged)}
    topic.live.locks.turn = Watched()
    for _ in range(8):
        topic.read()
        topic.commit()
        offsets[DeltaTable(topic.path).version()] = dict(topic.logged)
        topic.follow()
        for reader in readers:
            reader.join()
        seen = topic.live.read
        for store, key, (position, events, _) in looks:
            logged = offsets[position]
            places = set() if events is None else {(r["_partition"], r["_offset"]) for r in events.to_pylist()}
            _, pending = topic.events_of(store, key, logged)
            assert places == {e["order"][1:] for _, _, e in pending if e["order"][2] < seen.get(e["order"][1], 0)}
        looks.clear()
