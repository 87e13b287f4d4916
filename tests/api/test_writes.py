"""Writes: what is sent to Kafka, what is refused before, and what an absent Kafka means."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from flask import Flask
from flask.testing import FlaskClient

from api import create_app
from api.engine import exact_json
from api.engine.types import canonical, conforming
from api.errors import Problem
from api.writes import bulk, producer
from api.writes.events import set_to
from tests.support.api_lake import YAML, made
from tests.support.calls import STRANGE, at, problem


@pytest.fixture(scope="module")
def app(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    app = create_app(made(tmp_path_factory.mktemp("writes"), broker.bootstrap))
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """Nothing reaches Kafka: what is refused is refused before."""
    app = create_app(made(tmp_path_factory.mktemp("offline"), "127.0.0.1:1"))
    yield app.test_client()
    app.extensions["statehouse"].replica.stop()


@pytest.fixture(scope="module")
def sent(broker):
    """The message that a token names."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "tests", "enable.auto.commit": False})

    def read(token: str) -> Message:
        topic, partition, offset = token.rsplit(":", 2)
        consumer.assign([TopicPartition(topic, int(partition), int(offset))])
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        return message

    yield read
    consumer.close()


def test_a_set(client: FlaskClient, sent) -> None:
    response = client.put("/stores/status/keys/d1", json={"value": "ok", "agent": "me"})
    assert response.status_code == 202, response.text
    answer = response.get_json()
    assert set(answer) == {"token", "position"} and answer["position"] == 3
    message = sent(answer["token"])
    assert message.topic() == "agent-reports"
    assert message.key() == b"d1"
    assert json.loads(message.value()) == {"value": "ok", "agent": "me"}
    assert message.headers() == [("statehouse-op", b"set"), ("statehouse-store", b"status")]


def test_a_purge(client: FlaskClient, sent) -> None:
    response = client.delete("/stores/rewards/keys/c")
    assert response.status_code == 202, response.text
    message = sent(response.get_json()["token"])
    assert (message.topic(), message.key(), message.value()) == ("till-sales", b"c", None)
    assert message.headers() == [("statehouse-op", b"purge"), ("statehouse-store", b"rewards")]


@pytest.mark.parametrize("key", STRANGE, ids=lambda k: ascii(k[:12]))
def test_strange_keys_arrive_as_they_are(client: FlaskClient, sent, key: str) -> None:
    response = client.put(f"/stores/last/keys/{at(key)}", json={"value": 1})
    assert sent(response.get_json()["token"]).key() == key.encode()


def test_the_text_of_composite_and_typed_keys(client: FlaskClient, sent) -> None:
    for path, key in (
        ("pairs/keys/a%2Fb/7", b"a%2Fb/7"),  # nothing merged yet: the types are not known
        ("names/keys/%C3%BC%20%25/-._~%2B", b"%C3%BC%20%25/-._~%2B"),
        ("by_till/keys/+007", b"7"),
        ("days/keys/2026-03-01", b"2026-03-01"),
    ):
        assert sent(client.delete(f"/stores/{path}").get_json()["token"]).key() == key
    problem(client.delete("/stores/pairs/keys/a"), 400, "bad-key")


@pytest.mark.parametrize(
    ("store", "body", "payload"),
    [
        ("status", '{"value": null, "agent": "a"}', '{"value":null,"agent":"a"}'),
        ("status", '{"value": "ü\\u0000"}', '{"value":"ü\\u0000","agent":"api"}'),
        ("last", '{"value": null}', '{"value":null}'),
        ("last", '{"value": 1e300}', '{"value":1E+300}'),
        ("tagged", '{"value": ["a", null]}', '{"value":["a",null]}'),
        # Spark reads a JSON number as a double, so the digits go as text.
        (
            "rewards",
            '{"value": 123456789012345678901234567.10}',
            '{"value":"123456789012345678901234567.10"}',
        ),
        ("by_till", '{"value": 9223372036854775807}', '{"value":9223372036854775807}'),
        ("alarm", '{"value": 0.10000000000000000001}', '{"value":0.10000000000000000001,"agent":"api"}'),
    ],
)
def test_values(client: FlaskClient, sent, store: str, body: str, payload: str) -> None:
    key = "5" if store == "by_till" else "k"
    response = client.put(f"/stores/{store}/keys/{key}", data=body, content_type="application/json")
    assert response.status_code == 202, response.text
    assert sent(response.get_json()["token"]).value().decode() == payload


@pytest.mark.parametrize(
    ("store", "body", "kind", "expected"),
    [
        ("last", "", "bad-body", "not JSON"),
        ("last", "{", "bad-body", "not JSON"),
        ("last", '{"value": NaN}', "bad-body", "not JSON"),
        ("last", b'{"value": "\xff"}', "bad-body", "UTF-8"),
        ("status", '{"value": "\\ud800"}', "bad-body", "UTF-8"),
        ("last", "[" * 100_000, "bad-body", "not JSON"),
        ("last", "1" * 5000, "bad-body", "not JSON"),
        ("last", "[1]", "bad-body", "found [1], expected an object"),
        ("last", "{}", "bad-body", "found no value"),
        ("last", '{"value": 1, "valeu": 2}', "bad-body", "found the field 'valeu'"),
        ("last", '{"value": 1, "agent": "a"}', "bad-body", "latest does not tell agents apart"),
        ("status", '{"value": "x", "agent": 7}', "bad-body", "agent: found 7"),
        ("rewards", '{"value": null}', "bad-value", "use DELETE"),
        ("by_till", '{"value": null}', "bad-value", "use DELETE"),
        ("rewards", '{"value": "1"}', "bad-value", 'found "1", expected a number'),
        ("rewards", '{"value": 1.005}', "bad-value", "2 of them decimals"),
        ("last", '{"value": "1"}', "bad-value", "expected a number"),
        ("last", '{"value": true}', "bad-value", "expected a number"),
        ("last", '{"value": 1e999}', "bad-value", "expected a number"),
        ("last", f'{{"value": -17976931348623157{"0" * 291}1}}', "bad-value", "expected a number"),
        ("status", '{"value": 1}', "bad-value", "found 1, expected a string"),
        ("tagged", '{"value": {}}', "bad-value", "JSON array"),
        ("tagged", '{"value": ' + "[" * 600 + "]" * 600 + "}", "bad-body", "nested more than 200 levels"),
        ("tagged", '{"value": ' + '{"a":' * 250 + "1" + "}" * 250 + "}", "bad-body", "nested more than 200 levels"),
        ("tagged", '{"value": [' + "1" * 900_000 + "]}", "bad-body", "not JSON"),
        ("rewards", '{"value": ' + "1" * 900_000 + "}", "bad-body", "not JSON"),
        ("rewards", '{"value": 0.' + "1" * 900_000 + "}", "bad-value", "2 of them decimals"),
        ("rewards", '{"value": 1e-400000000}', "bad-value", "2 of them decimals"),
        ("rewards", '{"value": 1e400000000}', "bad-value", "2 of them decimals"),
        ("rewards", '{"value": 1e99999999999999999999}', "bad-body", "out of all proportion"),
        ("last", '{"value": -1e400000000}', "bad-value", "expected a number"),
        ("by_till", '{"value": 1e400000000}', "bad-value", "an integer between"),
        ("by_till", '{"value": 0e400000000}', "bad-value", "an integer between"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_bodies_that_are_refused(offline: FlaskClient, store: str, body: str, kind: str, expected: str) -> None:
    key = "5" if store == "by_till" else "k"
    response = offline.put(f"/stores/{store}/keys/{key}", data=body, content_type="application/json")
    assert expected in problem(response, 400, kind)["detail"]


def test_a_value_is_sent_at_the_size_of_its_number(offline: FlaskClient) -> None:
    """And takes the time of its text."""
    state = offline.application.extensions["statehouse"]
    config, rule = state.config, state.replica.snapshot("rewards").rule
    for number, sent in {
        "0e-400000000": "0",
        "-0e-400000000": "0",
        "0e400000000": "0",
        "1.5" + "0" * 900_000: "1.5",
        "1000e-1": "100.0",
        "15e-1": "1.5",
    }.items():
        body = exact_json.loads(f'{{"value": {number}}}')
        payload = set_to(["k"], body, config.stores["rewards"], rule).payload
        assert (
            payload is not None and len(payload) < 70 and Decimal(exact_json.loads(payload)["value"]) == Decimal(sent)
        )
    lines = b'{"key": "k", "value": 0e-400000000}\n' * 1000
    assert {r.payload for r in bulk.records(lines, config.stores["rewards"], rule, 50)} == {'{"value":"0"}'}
    nested = b'{"key": "k", "value": ' + b"[" * 600 + b"]" * 600 + b"}\n"
    with pytest.raises(Problem, match="nested more than 200 levels"):
        bulk.records(nested * 1000, config.stores["rewards"], rule, 50)


def test_other_refusals(offline: FlaskClient) -> None:
    sent_as = "application/x-www-form-urlencoded"
    problem(offline.put("/stores/last/keys/k", data='{"value": 1}', content_type=sent_as), 415, "bad-body")
    problem(offline.put("/stores/last/keys/k", data='{"value": 1}'), 415, "bad-body")
    long = json.dumps({"value": "x" * 1_000_000})
    problem(offline.put("/stores/last/keys/k", data=long, content_type="application/json"), 413)
    problem(offline.put("/stores/nope/keys/k", json={"value": 1}), 404, "unknown-store")
    problem(offline.delete("/stores/nope/keys/k"), 404, "unknown-store")
    problem(offline.put("/stores/by_till/keys/k", json={"value": 1}), 400, "bad-key")
    problem(offline.put("/stores/last/keys", json={"value": 1}), 405)


def test_writes_do_not_wait_for_each_other(client: FlaskClient, app: Flask) -> None:
    tokens: list[str] = []

    def write(number: int) -> None:
        mine = app.test_client()
        for n in range(20):
            response = mine.put(f"/stores/last/keys/{number}-{n}", json={"value": n})
            tokens.append(response.get_json()["token"])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 160


def test_kafka_is_away(offline: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer, "ACKNOWLEDGED_MS", 1000)
    response = offline.put("/stores/last/keys/k", json={"value": 1})
    assert "127.0.0.1:1" in problem(response, 503, "kafka-unavailable")["detail"]
    assert int(response.headers["Retry-After"]) > 0
    problem(offline.delete("/stores/last/keys/k"), 503, "kafka-unavailable")
    assert offline.get("/stores/last").status_code == 200, "reads do not need Kafka"


def test_too_many_writes_wait_for_kafka(offline: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    places = threading.BoundedSemaphore(1)
    places.acquire()
    monkeypatch.setattr(offline.application.extensions["statehouse"].producer, "_places", places)
    response = offline.put("/stores/last/keys/k", json={"value": 1})
    assert "waiting for it already" in problem(response, 503, "kafka-unavailable")["detail"]


def test_an_absent_kafka_is_no_reason_to_talk(tmp_path: Path) -> None:
    """The client's own log lines go to the process's stderr, so this looks at a process."""
    (tmp_path / "statehouse.yaml").write_text(YAML.format(bootstrap="127.0.0.1:1"))
    script = (
        "import sys; from api import create_app; from api.writes import producer; from statehouse.config import load;"
        "producer.ACKNOWLEDGED_MS = 1500; app = create_app(load(sys.argv[1], {}));"
        "print(app.test_client().delete('/stores/last/keys/k').status_code)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "statehouse.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("503\n", "")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("STRING", {"": "", " 1": " 1"}),
        ("BOOLEAN", {"TRUE": "true", "false": "false", "1": None}),
        ("TINYINT", {"-128": "-128", "128": None, "1_0": None, "\u0661": None}),
        ("BIGINT", {"9223372036854775807": "9223372036854775807", "9223372036854775808": None}),
        ("DECIMAL(5,2)", {"1.5": "1.5", "999.99": "999.99", "-0.00": "0", "1000": None, "1.234": None, "NaN": None}),
        ("DOUBLE", {"1": "1.0", "1e-3": "0.001", "inf": None, "1e999": None, "": None}),
        ("DATE", {"2026-03-01": "2026-03-01", "2026-3-1": None}),
        (
            "TIMESTAMP",
            {
                "2026-03-01T01:00:00+02:00": "2026-02-28T23:00:00Z",
                "2026-03-01": "2026-03-01T00:00:00Z",
                "2026-03-01 01:02:03.5": "2026-03-01T01:02:03.500000Z",
                "0001-01-01T00:00:00+05:00": None,
                "1770000000": None,
            },
        ),
    ],
)
def test_texts_of_every_type(kind: str, texts: dict[str, str | None]) -> None:
    for text, expected in texts.items():
        if expected is None:
            with pytest.raises(ValueError, match="expected"):
                canonical(text, kind)
        else:
            assert canonical(text, kind) == expected


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("BOOLEAN", [True], [0, "true"]),
        ("INT", [5, -5, Decimal("5.0"), Decimal("1E+2")], [True, "5", 2**31, Decimal("5.1"), Decimal("1E+99999999")]),
        ("DOUBLE", [1, Decimal("1.5")], ["1", True, Decimal("1e400"), 10**400]),
        ("DECIMAL(38,0)", [10**37, Decimal("1E+37")], [10**38, Decimal("0.5"), Decimal("1E+999999999")]),
        ("DECIMAL(38,2)", [Decimal("1" * 36 + ".230"), 0], [Decimal("1" * 37), Decimal("0.001")]),
        ("DATE", ["2026-03-01"], ["2026-02-30", 1]),
        ("TIMESTAMP", ["2026-03-01T00:00:00Z"], ["now", 1]),
        ("BINARY", ["AAE="], ["?", 1]),
        ("MAP<STRING, INT>", [{}], [[]]),
        ("STRUCT<a: INT>", [{"a": 1}], ["a"]),
    ],
)
def test_values_of_every_type(kind: str, good: list, bad: list) -> None:
    for value in good:
        conforming(value, kind)
    for value in bad:
        with pytest.raises(ValueError, match="expected"):
            conforming(value, kind)


def test_json_keeps_every_digit() -> None:
    text = '{"a":[1.10,100000000000000000000000001,-0.0,1E+30,"é\\"\\n"],"b":{"c":null,"d":true}}'
    assert exact_json.dumps(exact_json.loads(text)) == text
    assert exact_json.dumps({1: b"\0", None: float("nan"), "x": float("-inf")}) == '{"1":"AA==","null":null,"x":null}'
