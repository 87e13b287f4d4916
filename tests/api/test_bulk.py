"""Bulk writes: every line is looked at before one is sent, and 202 means that Kafka has them all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from api import create_app
from api.engine import keys
from api.errors import Problem
from api.writes import bulk, producer
from statehouse.config.models import Api
from statehouse.kafka import create_topic
from tests.support.api_lake import configured, made, rule
from tests.support.calls import STRANGE, post, problem
from tests.support.topics import everything

TOPICS = {"reports": "bulk-reports", "sales": "bulk-sales"}


@pytest.fixture(scope="module")
def app(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    config = made(tmp_path_factory.mktemp("bulk"), broker.bootstrap, **TOPICS)
    create_topic(config.kafka, "bulk-small", {"max.message.bytes": "2000"})
    small = config.streams["reports"].model_copy(update={"topic": "bulk-small"})
    config = config.model_copy(update={"streams": {**config.streams, "reports": small}})
    app = create_app(config)
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """Nothing reaches Kafka: what is refused is refused before."""
    config = made(tmp_path_factory.mktemp("offline"), "127.0.0.1:1")
    kafka = {**config.kafka, "queue.buffering.max.messages": 5}
    app = create_app(config.model_copy(update={"kafka": kafka, "api": Api(max_body=200_000, max_key=50)}))
    yield app.test_client()
    app.extensions["statehouse"].replica.stop()


def test_sets_and_purges_of_many_keys(client: FlaskClient, broker) -> None:
    sets = [{"key": key, "value": n} for n, key in enumerate(STRANGE)]
    response = post(client, "last", *sets, "", {"key": "gone", "delete": True}, "")
    assert response.status_code == 202, response.text
    answer = response.get_json()
    assert (answer["events"], answer["position"]) == (len(sets) + 1, 3)
    found = everything(broker.bootstrap, "bulk-sales")
    assert {k.decode(): v and v["value"] for k, v, _ in found.values()} == {
        **{key: n for n, key in enumerate(STRANGE)},
        "gone": None,
    }
    ops = {k.decode(): h["statehouse-op"] for k, _, h in found.values()}
    assert {op for key, op in ops.items() if key != "gone"} == {b"set"} and ops["gone"] == b"purge"
    last = {p: max(o for q, o in found if q == p) for p, _ in found}
    assert len(last) == 2, "both partitions have some"
    assert answer["tokens"] == [f"bulk-sales:{p}:{last[p]}" for p in sorted(last)]


def test_many_events_keep_their_order_within_a_key(client: FlaskClient, broker) -> None:
    before = set(everything(broker.bootstrap, "bulk-sales"))
    response = post(client, "by_till", *({"key": [n % 7], "value": n} for n in range(10_000)))
    assert response.get_json()["events"] == 10_000, response.text
    found = everything(broker.bootstrap, "bulk-sales")
    of_key: dict[bytes, list[int]] = {}
    for at in sorted(found.keys() - before):
        key, value, _ = found[at]
        of_key.setdefault(key, []).append(value["value"])
    assert of_key == {str(k).encode(): list(range(k, 10_000, 7)) for k in range(7)}


@pytest.mark.parametrize(
    ("store", "line", "found", "expected"),
    [
        ("last", "{", "not JSON", "an object"),
        ("last", "[1]", "[1]", "an object such as"),
        ("last", {"value": 1}, "no key", "one, such as"),
        ("last", {"key": None, "value": 1}, "null", "a string or an integer"),
        ("last", {"key": 1.5, "value": 1}, "1.5", "a string or an integer"),
        ("last", {"key": ["a", "b"], "value": 1}, "2 parts", "1: key"),
        ("last", {"key": [], "value": 1}, "0 parts", "1: key"),
        ("last", {"key": [["a"]], "value": 1}, '["a"]', "a string or an integer"),
        ("last", {"key": "é" * 26, "value": 1}, "52 bytes", "at most 50"),
        ("pairs", {"key": "%FF/1", "delete": True}, "b'\\xff'", "UTF-8"),
        ("by_till", {"key": "x", "delete": True}, "'x'", "an integer between"),
        ("by_till", {"key": True, "delete": True}, "true", "a string or an integer"),
        ("last", {"key": "k"}, "no value", "one"),
        ("last", {"key": "k", "value": "x"}, '"x"', "a number (DOUBLE)"),
        ("rewards", {"key": "k", "value": None}, "null", "a value"),
        ("last", {"key": "k", "value": 1, "agent": "a"}, "an agent", "none"),
        ("last", {"key": "k", "value": 1, "valeu": 1}, "the field 'valeu'", "value or agent"),
        ("last", {"key": "k", "delete": False}, "another value", "true"),
        ("last", {"key": "k", "delete": True, "value": 1}, "the field 'value'", "only key beside delete"),
        ("hours", {"key": "k", "value": 1}, "a set", "a delete"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_line_that_is_refused(offline: FlaskClient, store: str, line: Any, found: str, expected: str) -> None:
    good = {"key": 5 if store == "by_till" else ["a", 1] if store == "pairs" else "k", "delete": True}
    document = problem(post(offline, store, good, "", line, good), 400, "bad-lines")
    (wrong,) = document["lines"]
    assert wrong["line"] == 3 and document["detail"].startswith("line 3: ")
    assert found in wrong["found"] and wrong["expected"].startswith(expected)


def test_the_first_wrong_lines_are_told_and_nothing_is_sent(client: FlaskClient, broker) -> None:
    before = everything(broker.bootstrap, "bulk-sales")
    lines = [{"key": "k", "value": n if n % 2 else "x"} for n in range(100)]
    wrong = problem(post(client, "last", *lines), 400, "bad-lines")["lines"]
    assert [w["line"] for w in wrong] == list(range(1, 40, 2))
    assert everything(broker.bootstrap, "bulk-sales") == before


def test_other_refusals(offline: FlaskClient) -> None:
    problem(post(offline, "last"), 411, "length-required")
    problem(post(offline, "last", "", " ", "\r"), 400, "bad-body")
    detail = problem(post(offline, "last", *["{}"] * 10_001), 413, "too-large")["detail"]
    assert "found 10001 lines, expected at most 10000" in detail
    problem(post(offline, "last", "x" * 200_001), 413)
    problem(offline.post("/stores/last/keys", json={"key": "k", "value": 1}), 415, "bad-body")
    problem(post(offline, "nope", {"key": "k", "value": 1}), 404, "unknown-store")


def test_a_body_in_chunks_is_read_whole_or_not_at_all(offline: FlaskClient) -> None:
    chunked = {"wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    line = json.dumps({"key": "k", "value": "x"})  # it is wrong, so nothing is sent
    problem(post(offline, "last", line, environ_overrides=chunked), 411, "length-required")
    for size, status in ((100_000, 400), (199_990, 413)):  # the limit is 200,000
        body = json.dumps({"value": "x" * size})
        path = "/stores/last/keys/k"
        problem(
            offline.put(path, data=body, content_type="application/json", environ_overrides=chunked),
            status,
            "bad-value" if status == 400 else "about:blank",
        )
    short = {"wsgi.input_terminated": True, "CONTENT_LENGTH": "199999"}
    detail = problem(post(offline, "last", line, environ_overrides=short), 400, "bad-body")["detail"]
    assert "expected 199999, as the header Content-Length says" in detail


def test_kafka_is_away(offline: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "ACKNOWLEDGED_MS", 1000)
    response = post(offline, "last", *({"key": "k", "value": n} for n in range(3)))
    assert "; 0 of 3 events were acknowledged" in problem(response, 503, "kafka-unavailable")["detail"]
    assert int(response.headers["Retry-After"]) > 0
    response = post(offline, "last", *({"key": "k", "value": n} for n in range(50)))
    assert "queue is full; 0 of 50" in problem(response, 503, "kafka-unavailable")["detail"]


def test_one_that_kafka_refuses_is_no_202(client: FlaskClient, broker) -> None:
    sets = [{"key": "a", "value": "x"}, {"key": "b", "value": "x" * 3000}]
    detail = problem(post(client, "status", *sets), 413, "too-large")["detail"]
    arrived = [k for k, _, _ in everything(broker.bootstrap, "bulk-small").values()]
    assert b"b" not in arrived, "a may have gone with it, or before"
    assert f"; {len(arrived)} of 2 events were acknowledged" in detail


def test_a_key_is_where_kafkas_own_clients_put_it(client: FlaskClient, broker) -> None:
    # murmur2 of Kafka's UtilsTest, positive, modulo two partitions; CRC32, librdkafka's default, differs in three.
    expected = {"21": 0, "foobar": 0, "a-little-bit-long-string": 0, "abc": 1}
    expected["lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8"] = 1
    for key, partition in expected.items():
        response = client.put(f"/stores/last/keys/{key}", json={"value": 1})
        assert response.get_json()["token"].split(":")[1] == str(partition), key


parts = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2)


@given(parts)
def test_a_composite_key_as_a_list_and_as_kafkas_text_is_the_same(tmp_path_factory, parts: list[str]) -> None:
    config = configured(tmp_path_factory.mktemp("keys"))
    store, names = config.stores["names"], rule(config, "names")
    text = keys.kafka_key(parts, store)
    lines = [json.dumps({"key": key, "delete": True}).encode() for key in (parts, text)]
    one, other = bulk.records(b"\n".join(lines), store, names, 10**6)
    assert one == other and one.key == text


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_a_problem(tmp_path_factory, body: bytes) -> None:
    config = configured(tmp_path_factory.mktemp("bytes"))
    try:
        records = bulk.records(body, config.stores["status"], rule(config, "status"), 100)
    except Problem as problem:
        assert problem.status == 400
    else:
        assert 0 < len(records) <= body.count(b"\n") + 1


def test_the_topics_of_these_tests_have_two_partitions(app: Flask, broker) -> None:
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
    assert len(topics["bulk-sales"].partitions) == 2
