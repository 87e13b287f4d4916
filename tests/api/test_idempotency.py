"""A write that is repeated is one event: one after the other, all at once, and as long as it is remembered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from api import create_app
from api.errors import Problem
from api.writes import producer
from api.writes.idempotency import Idempotency
from tests.support.api_lake import made
from tests.support.calls import post, problem
from tests.support.topics import everything


@pytest.fixture(scope="module")
def app(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    folder = tmp_path_factory.mktemp("repeated")
    app = create_app(made(folder, broker.bootstrap, sales="repeated-sales", reports="repeated-reports"))
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def key(text: str) -> dict[str, dict[str, str]]:
    return {"headers": {"Idempotency-Key": text}}


def of(broker, name: str) -> list[dict]:
    """The headers of a key's events."""
    return [h for k, _, h in everything(broker.bootstrap, "repeated-sales").values() if k == name.encode()]


def test_a_repeated_write_is_one_event(client: FlaskClient, broker) -> None:
    first = client.put("/stores/last/keys/one", json={"value": 1}, **key("a"))
    again = client.put("/stores/last/keys/one", data='{ "value" : 1 }', content_type="application/json", **key("a"))
    assert (first.status_code, first.data) == (202, again.data)
    (headers,) = of(broker, "one")
    assert headers["statehouse-idempotency-key"] == b"a"
    unmarked = client.put("/stores/last/keys/one", json={"value": 1})
    assert unmarked.get_json()["token"] != first.get_json()["token"]
    assert "statehouse-idempotency-key" not in of(broker, "one")[1]


def test_a_purge_and_a_bulk_write_are_repeated_likewise(client: FlaskClient, broker) -> None:
    deleted = [client.delete("/stores/last/keys/two", **key("b")).data for _ in range(3)]
    assert len(set(deleted)) == 1 and len(of(broker, "two")) == 1
    lines = [{"key": "three", "value": n} for n in range(3)]
    answers = [post(client, "last", *lines, **key("c")) for _ in range(3)]
    assert answers[0].get_json()["events"] == 3
    assert {a.data for a in answers} == {answers[0].data}
    marks = [h["statehouse-idempotency-key"] for h in of(broker, "three")]
    assert marks == [b"c/0", b"c/1", b"c/2"]


def test_a_key_is_for_one_request(client: FlaskClient, broker) -> None:
    client.put("/stores/last/keys/four", json={"value": 1}, **key("d"))
    for again in (
        client.put("/stores/last/keys/four", json={"value": 2}, **key("d")),
        client.put("/stores/last/keys/five", json={"value": 1}, **key("d")),
        client.delete("/stores/last/keys/four", **key("d")),
        client.put("/stores/rewards/keys/four", json={"value": 1}, **key("d")),
        post(client, "last", {"key": "four", "value": 1}, **key("d")),
    ):
        problem(again, 422, "idempotency-key-reused")
    assert len(of(broker, "four")) == 1 and not of(broker, "five")


@pytest.mark.parametrize("text", ["", "x" * 256, "tab\there", "\xe9"], ids=ascii)
def test_a_key_that_is_none(client: FlaskClient, text: str) -> None:
    problem(client.delete("/stores/last/keys/k", **key(text)), 400, "bad-header")


def test_concurrent_repeats_are_one_event(app: Flask, broker) -> None:
    start = threading.Barrier(12)

    def write(_: int) -> bytes:
        start.wait()
        return app.test_client().put("/stores/last/keys/six", json={"value": 1}, **key("e")).data

    with ThreadPoolExecutor(12) as pool:
        answers = set(pool.map(write, range(12)))
    assert len(answers) == 1 and len(of(broker, "six")) == 1


def test_what_kafka_did_not_acknowledge_is_not_remembered(
    tmp_path: Path, broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "ACKNOWLEDGED_MS", 500)
    app = create_app(made(tmp_path, "127.0.0.1:1", sales="repeated-sales"))
    api = app.extensions["statehouse"]
    client = app.test_client()
    problem(client.put("/stores/last/keys/seven", json={"value": 1}, **key("f")), 503, "kafka-unavailable")
    problem(client.put("/stores/last/keys/seven", json={"value": 2}, **key("f")), 503, "kafka-unavailable")
    api.producer = producer.Producer({"bootstrap.servers": broker.bootstrap})
    monkeypatch.undo()
    assert client.put("/stores/last/keys/seven", json={"value": 1}, **key("f")).status_code == 202
    problem(client.put("/stores/last/keys/seven", json={"value": 2}, **key("f")), 422, "idempotency-key-reused")
    api.replica.stop()


def test_repeats_share_a_failure_and_not_too_many_wait() -> None:
    writes = Idempotency(waiting=2)
    begun, go = threading.Event(), threading.Event()

    def send() -> dict:
        begun.set()
        assert go.wait(120)
        raise OSError("away")

    def again() -> dict:
        raise AssertionError("a repeat sends nothing")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(writes.once, "k", 1, send)
        assert begun.wait(120)
        repeats = [pool.submit(writes.once, "k", 1, again) for _ in range(2)]
        while writes._places._value:
            pass
        with pytest.raises(Problem) as busy:
            writes.once("k", 1, again)
        assert (busy.value.status, busy.value.kind) == (503, "busy")
        go.set()
        for one in (first, *repeats):
            with pytest.raises(OSError, match="away"):
                one.result(10)
    assert writes.once("k", 2, lambda: {"a": 1}) == {"a": 1}, "forgotten, so another request may have the key"


class Remembering(RuleBasedStateMachine):
    """Against a plain list of what was sent when: remembered for ten seconds, and only the last four."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.sent: list[tuple[int, str, int]] = []  # when, key, request
        self.writes = Idempotency(most=4, seconds=10, now=lambda: self.now)

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("abcdefg"), request=st.integers(0, 1))
    def write(self, name: str, request: int) -> None:
        # Room is made for one more before it is known whether this one is new.
        known = [s for s in self.sent if s[0] + 10 > self.now][-3:]
        before = next((r for _, n, r in known if n == name), None)

        def send() -> dict:
            self.sent.append((self.now, name, request))
            return {"number": len(self.sent)}

        count = len(self.sent)
        if before is None or before == request:
            answer = self.writes.once(name, request, send)
            assert len(self.sent) == count + (before is None)
            assert self.sent[answer["number"] - 1][1:] == (name, request)
        else:
            with pytest.raises(Problem):
                self.writes.once(name, request, send)
            assert len(self.sent) == count

    @invariant()
    def bounded(self) -> None:
        assert len(self.writes._writes) <= 4


TestRemembering = Remembering.TestCase
