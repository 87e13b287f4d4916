"""Limits, other origins, and the audit."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st

from api import create_app
from api.engine import deadline
from api.engine.deadline import Deadline, Turns
from api.errors import Problem
from api.http.context import GONE, LOOKS, WAITS
from api.http.rate import Rate
from api.reads import changes, lake
from api.reads.lake import WAITING, Lake
from api.server import worker, wsgi
from api.writes import idempotency, producer
from tests.support.api_lake import State, eventually, made
from tests.support.calls import BOTH, READER, bearing, post, problem, with_tokens

ORIGIN = {"Origin": "https://app.example.org"}


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Flask]]:
    apps = []

    def make(bootstrap: str = "127.0.0.1:1", tokens: bool = False, **settings: object) -> Flask:
        config = made(tmp_path, bootstrap, sales="limits-sales")
        config = with_tokens(config) if tokens else config
        apps.append(create_app(config.model_copy(update={"api": config.api.model_copy(update=settings)})))
        return apps[-1]

    yield make
    for app in apps:
        app.extensions["statehouse"].replica.stop()


def test_a_key_may_only_be_so_long(serving) -> None:
    client = serving(max_key=10).test_client()
    for path in ("last/keys/" + "é" * 5, "last/keys/%2F%2F%2F%2F%2F%2F%2F%2F%2F%2F", "pairs/keys/a%2Fbcdef/12"):
        assert client.get(f"/stores/{path}").status_code == 404
        longer = f"/stores/{path}3"
        for refused in (client.get(longer), client.delete(longer), client.put(longer, json={"value": 1})):
            assert "11 bytes, expected at most 10" in problem(refused, 414, "key-too-long")["detail"]


def test_a_body_may_only_be_so_long(serving) -> None:
    client = serving(max_body=30).test_client()
    assert client.put("/stores/last/keys/k", json={"value": "x" * 16}).status_code == 400
    problem(client.put("/stores/last/keys/k", json={"value": "x" * 20}), 413)


def test_the_rate_of_each_address(serving) -> None:
    client = serving(rate_limit=0.01).test_client()
    one, other = ({"environ_base": {"REMOTE_ADDR": a}} for a in ("10.0.0.1", "10.0.0.2"))
    assert client.get("/stores", **one).status_code == 200
    refused = client.get("/stores", **one)
    problem(refused, 429, "too-many-requests")
    assert 90 <= int(refused.headers["Retry-After"]) <= 100
    assert client.get("/stores", **other).status_code == 200
    assert client.get("/healthz", **one).status_code == 200


def test_the_rate_of_each_token(serving) -> None:
    client = serving(tokens=True, rate_limit=0.01).test_client()
    assert client.get("/stores", headers=bearing(READER)).status_code == 200
    problem(client.get("/stores", headers=bearing(READER)), 429, "too-many-requests")
    assert client.get("/stores", headers=bearing(BOTH)).status_code == 200
    problem(client.get("/stores", headers=bearing("guess")), 401, "unauthorized")
    problem(client.get("/stores", headers=bearing("guess again")), 429, "too-many-requests")


@given(
    st.floats(0.1, 50), st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.just(0), st.floats(0, 5))), max_size=60)
)
@example(1.0, [("a", 0)] * 60)
@example(7.5, [("a", 0)] * 60)
def test_no_caller_has_more_than_its_rate_and_none_less(per_second: float, requests: list) -> None:
    now, passed = 0.0, {"a": [], "b": []}
    rate = Rate(per_second, now=lambda: now)
    burst = max(1.0, per_second)
    for caller, pause in requests:
        now += pause
        wait = rate.wait(caller)
        mine = passed[caller]
        if wait:
            assert 0 < wait <= 1 / per_second + 1e-6
            full = any(len(mine) - n + 1 > burst + per_second * (now - s) - 1e-6 for n, s in enumerate(mine))
            assert full, "too strict"
            now += wait + 1e-9
            assert rate.wait(caller) == 0, "as it was told"
        mine.append(now)
        for n, since in enumerate(mine):
            assert len(mine) - n <= burst + per_second * (now - since) + 1e-6


def test_only_so_many_callers_are_remembered() -> None:
    rate = Rate(1, most=2, now=lambda: 0.0)
    assert [rate.wait(c) > 0 for c in "abab"] == [False, False, True, True]
    assert rate.wait("c") == 0 and rate.wait("b") > 0, "the one that was quiet for the longest is forgotten"
    assert rate.wait("a") == 0 and len(rate._buckets) == 2


def test_no_other_origin_by_default(serving) -> None:
    client = serving().test_client()
    for response in (client.get("/stores", headers=ORIGIN), preflight(client)):
        assert not any(name.startswith("Access-Control") for name, _ in response.headers)


def preflight(client: FlaskClient, path: str = "/stores/last/keys/k", origin: dict = ORIGIN):
    return client.options(path, headers={**origin, "Access-Control-Request-Method": "PUT"})


def test_an_origin_that_is_listed(serving) -> None:
    client = serving(tokens=True, cors=["https://app.example.org"]).test_client()
    answer = preflight(client)
    assert (answer.status_code, answer.data) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN["Origin"]
    assert {"GET", "PUT", "DELETE"} <= set(answer.headers["Access-Control-Allow-Methods"].split(", "))
    assert {"Authorization", "Idempotency-Key"} <= set(answer.headers["Access-Control-Allow-Headers"].split(", "))
    refused = client.get("/stores", headers=ORIGIN)
    problem(refused, 401, "unauthorized")
    assert refused.headers["Access-Control-Allow-Origin"] == ORIGIN["Origin"], "so that the page sees why"
    assert "Origin" in refused.headers["Vary"]
    for other in ({"Origin": "https://example.org"}, {"Origin": "null"}):
        assert "Access-Control-Allow-Origin" not in client.get("/healthz", headers=other).headers
        assert preflight(client, origin=other).status_code == 401


def test_any_origin(serving) -> None:
    client = serving(cors=["*"]).test_client()
    assert preflight(client).headers["Access-Control-Allow-Origin"] == "*"
    assert client.get("/stores", headers=ORIGIN).headers["Access-Control-Allow-Origin"] == "*"


def test_only_so_many_rows(serving) -> None:
    client = serving(max_rows=3).test_client()
    for path in ("/stores/status/keys", "/stores/status/keys/a/history", "/streams/sales/quarantine"):
        assert "expected 1 to 3" in problem(client.get(f"{path}?limit=4"), 400, "bad-parameter")["detail"]
    assert client.get("/stores/status/keys").status_code == client.get("/stores/status/keys?limit=3").status_code == 200
    assert client.post("/stores/status/lookup", json={"keys": ["a"] * 3}).status_code == 200
    refused = client.post("/stores/status/lookup", json={"keys": ["a"] * 4})
    assert "at most 3 keys" in problem(refused, 400, "bad-body")["detail"]


def test_a_wait_may_only_be_so_long(serving) -> None:
    client = serving(max_time=200).test_client()
    path = "/stores/status/keys/a?after=agent-reports:0:0"
    for wrong in ("&timeout=0.3", "&timeout=-1", "&timeout=+0.1", "&timeout=0_1", "&timeout=nan"):
        assert "0 to 0.2" in problem(client.get(path + wrong), 400, "bad-parameter")["detail"]
    problem(client.get("/stores/status/keys/a?timeout=0.3"), 400, "bad-parameter")
    for right in ("", "&timeout=0.1", "&timeout=1e-2"):
        problem(client.get(path + right), 504, "not-yet")


QUARANTINE = "/streams/sales/quarantine"
MOMENTS = dict.fromkeys(("timestamp", "log_time"), pa.timestamp("us", "UTC"))
TEXTS = dict.fromkeys(("topic", "key", "payload", "reason"), pa.string())
REFUSED = pa.schema({**TEXTS, **MOMENTS, "partition": pa.int32(), "offset": pa.int64(), "payload_bytes": pa.binary()})
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10_000_000) AS a, range(10_000_000) AS b"


def test_the_lake_is_only_read_for_so_long(serving, monkeypatch: pytest.MonkeyPatch) -> None:
    app = serving(max_time=300)
    lake, client = app.extensions["statehouse"].lake, app.test_client()

    def endless(*_: object) -> list:
        def read(db: duckdb.DuckDBPyConnection) -> list:
            try:
                db.execute("ATTACH ':memory:' AS lake")
                return db.execute(ENDLESS).fetchall()
            finally:
                db.execute(ENDLESS)  # a second query after the time is over is no way out

        return lake._tables.ask(read)

    monkeypatch.setattr(lake, "quarantine", endless)
    begun = time.monotonic()
    refused = client.get("/streams/sales/quarantine")
    assert time.monotonic() - begun >= 0.3
    assert "300 ms" in problem(refused, 503, "too-slow")["detail"] and refused.headers["Retry-After"]
    assert lake._tables.ask(lambda db: db.execute("SELECT 1").fetchall()) == [(1,)]
    lake._tables.ask(
        lambda db: db.execute("ATTACH ':memory:' AS lake")
    )  # another connection, without what was attached


@contextmanager
def reading(lake: Lake) -> Iterator[None]:
    """Somebody reads the lake."""
    begun, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lake._tables.ask, args=(lambda _: (begun.set(), done.wait(20)),))
    thread.start()
    begun.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_only_so_many_wait_for_the_lake(serving) -> None:
    app = serving(max_time=60_000)
    lake, client = app.extensions["statehouse"].lake, app.test_client()
    asked: list = []
    ask = [
        threading.Thread(target=lambda: asked.append(app.test_client().get(QUARANTINE).status_code))
        for _ in range(WAITING)
    ]
    DeltaTable.create(f"{lake.config.root}/quarantine/sales", REFUSED)
    with reading(lake):
        for thread in ask:
            thread.start()
        eventually(lambda: lake._tables._places._value == 0)
        refused = client.get(QUARANTINE)
        problem(refused, 503, "busy")
        assert refused.headers["Retry-After"]
        assert client.get("/stores/status/keys").status_code == 200
    for thread in ask:
        thread.join()
    assert asked == [200] * WAITING
    assert client.get(QUARANTINE).status_code == 200


def test_one_thread_reads_the_lake_whoever_asks(serving) -> None:
    tables = serving().extensions["statehouse"].lake._tables
    with ThreadPoolExecutor(8) as threads:
        by = {threads.submit(tables.ask, lambda _: threading.get_ident()) for _ in range(8)}
    assert len({asked.result() for asked in by}) == 1, "each that ever ran a query keeps some of its memory"


def test_to_wait_for_the_lake_counts_as_time(serving) -> None:
    app = serving(max_time=100)
    lake = app.extensions["statehouse"].lake
    DeltaTable.create(f"{lake.config.root}/quarantine/sales", REFUSED)
    with reading(lake):
        problem(app.test_client().get(QUARANTINE), 503, "too-slow")


def test_only_so_many_wait_for_a_write(serving) -> None:
    app = serving()
    waits, client, found = app.extensions["statehouse"].waits, app.test_client(), []
    path = "/stores/status/keys/a?after=agent-reports:0:0&timeout="
    wait = [
        threading.Thread(target=lambda: found.append(app.test_client().get(f"{path}3").status_code))
        for _ in range(WAITS)
    ]
    for thread in wait:
        thread.start()
    eventually(lambda: waits._value == 0)
    refused = client.get(f"{path}3")
    problem(refused, 503, "busy")
    assert refused.headers["Retry-After"]
    assert client.get("/stores/status/keys").status_code == 200
    for thread in wait:
        thread.join()
    assert found == [504] * WAITS
    problem(client.get(f"{path}0"), 504, "not-yet")


def test_only_so_many_scan_and_wait_to_scan(serving) -> None:
    app = serving(max_time=300)
    app.extensions["statehouse"].turns = turns = Turns(at_once=1, waiting=1)
    client, path = app.test_client(), "/stores/last/keys"
    with Deadline(60, bool, turns).turn():
        problem(client.get(path), 503, "too-slow")
        with ThreadPoolExecutor(1) as threads:
            waits = threads.submit(app.test_client().get, path)
            eventually(lambda: turns.places._value == 0)
            refused = client.get(path)
            problem(refused, 503, "busy")
            assert refused.headers["Retry-After"]
            problem(waits.result(), 503, "too-slow")
        streamed = Deadline(60, bool, turns)
        streamed.renew()  # has no place among those who wait
        with ThreadPoolExecutor(1) as threads:
            piece = threads.submit(lambda: streamed.turn().__enter__())
            assert not piece.done()
            turns.turns.release()
            piece.result()
    assert client.get(path).status_code == client.get(path, headers={"Accept": "text/csv"}).status_code == 200


def test_a_turn_is_not_waited_for_when_the_caller_has_left() -> None:
    turns, gone = Turns(at_once=1), threading.Event()
    with Deadline(60, bool, turns).turn(), ThreadPoolExecutor(1) as threads:
        waits = threads.submit(lambda: Deadline(60, gone.is_set, turns).turn().__enter__())
        gone.set()
        with pytest.raises(Problem):
            waits.result(20)


def test_the_lake_and_a_write_are_not_waited_for_when_the_caller_has_left(serving) -> None:
    app, gone = serving(max_time=60_000), threading.Event()
    given = {"environ_overrides": {GONE: gone.is_set}}
    DeltaTable.create(f"{app.extensions['statehouse'].lake.config.root}/quarantine/sales", REFUSED)
    with reading(app.extensions["statehouse"].lake), ThreadPoolExecutor(2) as threads:
        waits = [
            threads.submit(app.test_client().get, path, **given)
            for path in (QUARANTINE, "/stores/status/keys/a?after=agent-reports:0:0&timeout=60")
        ]
        time.sleep(0.3)
        assert not any(wait.done() for wait in waits)
        gone.set()
        problem(waits[0].result(20), 503, "too-slow")
        problem(waits[1].result(20), 504, "not-yet")


def test_only_so_many_bytes(serving) -> None:
    app = serving(max_answer=10_000)
    client, config = app.test_client(), app.extensions["statehouse"].config
    many = {f"{n:03}" + "x" * 1000: n for n in range(50)}
    State(config, "pairs").write(4, *({"customer": k, "till": 1, "value": v} for k, v in many.items()))
    eventually(lambda: client.get("/stores/pairs").get_json()["keys"] == 50)

    def pages(path: str, limit: int) -> Iterator[dict]:
        cursor: str | None = ""
        while cursor is not None:
            page = client.get(f"{path}?limit={limit}" + (f"&cursor={cursor}" if cursor else "")).get_json()
            assert 0 < len(page["rows"]) < 15
            yield from page["rows"]
            cursor = page["cursor"]

    assert [row["value"] for row in pages("/stores/pairs/keys", 100)] == list(many.values())
    keys = [[key, 1] for key in many]
    assert len(client.post("/stores/pairs/lookup", json={"keys": keys[:8]}).get_json()["rows"]) == 8
    refused = client.post("/stores/pairs/lookup", json={"keys": keys})
    assert "more than 10,000 bytes" in problem(refused, 413, "too-large")["detail"]
    path = f"{config.root}/quarantine/sales"
    row = {"partition": 0, "payload": "x" * 3000, "reason": "r", "topic": "t"}
    DeltaTable.create(path, REFUSED)
    write_deltalake(
        path, pa.Table.from_pylist([{**row, "offset": n} for n in range(10)], schema=REFUSED), mode="append"
    )
    assert [row["offset"] for row in pages(QUARANTINE, 10)] == list(range(9, -1, -1))


def test_there_is_always_a_thread_for_a_point_read() -> None:
    waiting = producer.WAITING + idempotency.WAITING + 2 * (lake.WAITING + 1) + WAITS + LOOKS + changes.STREAMS
    assert waiting + deadline.WAITING + 2 * wsgi.PIECES < worker.THREADS - 64


@contextmanager
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[list[dict]]:
    """The lines of what is done meanwhile."""
    lines: list[dict] = []
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="statehouse.audit"):
        yield lines
    lines += [json.loads(r.getMessage()) for r in caplog.records if r.name == "statehouse.audit"]
    assert "secret" not in caplog.text


def test_the_audit(serving, broker, caplog: pytest.LogCaptureFixture) -> None:
    client = serving(broker.bootstrap, tokens=True).test_client()
    me = bearing(BOTH)
    with audited(caplog) as lines:
        body = {"value": ["secret"]}
        put = client.put("/stores/tagged/keys/a%20b", json=body, headers={**me, "Idempotency-Key": "k"})
        client.put("/stores/tagged/keys/a%20b", json=body, headers={**me, "Idempotency-Key": "k"})
        deleted = client.delete("/stores/pairs/keys/x%2Fy/7", headers=me)
        bulk = post(client, "tagged", {"key": "c", "value": ["secret"]}, {"key": "d", "delete": True}, headers=me)
        client.get("/stores", headers=me)
        client.options("/stores/tagged/keys/a", headers=me)
    said = [{n: v for n, v in line.items() if n not in ("time", "address")} for line in lines]
    common = {"name": "both", "status": 202}
    one = {**common, "method": "PUT", "store": "tagged", "key": "a b", "token": put.get_json()["token"]}
    assert said == [
        one,
        one,
        {**common, "method": "DELETE", "store": "pairs", "key": "x%2Fy/7", "token": deleted.get_json()["token"]},
        {**common, "method": "POST", "store": "tagged", "keys": 2, "tokens": bulk.get_json()["tokens"]},
    ]
    assert all(line["time"].endswith("+00:00") and line["address"] == "127.0.0.1" for line in lines)


def test_what_was_refused_is_in_the_audit_too(serving, caplog: pytest.LogCaptureFixture) -> None:
    client = serving(tokens=True).test_client()
    with audited(caplog) as lines:
        client.put("/stores/last/keys/k", json={"value": "secret"}, headers=bearing("guess"))
        client.put("/stores/last/keys/k", json={"value": "secret"}, headers=bearing(READER))
        client.put("/stores/last/keys/" + "k" * 40_000, json={"value": "secret"}, headers=bearing(BOTH))
        client.put("/stores/last/keys/k%0A", json={"value": "secret"}, headers=bearing(BOTH))
        client.delete("/stores/nope/keys/k", headers=bearing(BOTH))
        post(client, "last", {"key": "k", "value": "secret"}, headers=bearing(BOTH))
    assert [(line["name"], line["status"]) for line in lines] == [
        (None, 401),
        ("reader", 403),
        ("both", 414),
        ("both", 400),
        ("both", 404),
        ("both", 400),
    ]
    assert [line.get("key") for line in lines] == ["k", "k", "k" * 100, "k\n", "k", None]
