"""Tasks over HTTP: asked for, listed, cancelled; from the request to the topic, the job, and the table."""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from api import create_app
from api.engine.places import Places
from jobs.ingest import Ingest
from jobs.tasks.job import Tasks
from tests.support.calls import problem
from tests.support.lakes import merged
from tests.support.records import iso, produce, wait
from tests.support.tasks import STATUS
from tests.support.topics import messages


@pytest.fixture
def made(lake, broker, spark):
    """A lake with a device that is down, its API, and what makes the jobs go round at a time."""
    topic = f"api-tasks-{os.getpid()}-{random.randrange(10**9)}"
    config = lake(STATUS.format(topic=topic, rules="{topics: ['*-told']}"), broker.bootstrap)
    now = [time.time()]
    tasks = Tasks(spark, config, lambda: now[0])

    def jobs(at: float = 0.0) -> None:
        Ingest(spark, config, config.streams["s"]).run(once=True)
        merged(spark, config)
        now[0] = max(now[0], at)
        tasks.round()

    produce(broker.bootstrap, topic, [("a", {"key": "a", "value": "down", "ts": iso(int(time.time() * 1e6))}, None, 0)])
    jobs()
    app = create_app(config)
    yield app.test_client(), topic, jobs
    app.extensions["statehouse"].replica.stop()


@pytest.mark.slow
def test_what_is_asked_for_is_listed_sent_and_cancelled(made, broker) -> None:
    client, topic, jobs = made
    assert client.get("/tasks").get_json() == {"rows": [], "cursor": None}
    down = {"store": "status", "key": "a", "value": "down"}
    send = {"topic": f"{topic}-told", "key": "k", "value": {"n": [1, 2.5]}}
    due = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=2)
    said = [
        {"after": "1 hour", "send": send},
        {"due": due.isoformat(), "while": down, "set": {"store": "acks", "key": "a", "value": "seen"}},
        {"after": "3 hours", "while": {**down, "value": "up"}, "send": {"topic": f"{topic}-told"}},
        {"after": "4 hours", "while": down, "send": {"topic": f"{topic}-told", "value": "text"}},
        {"after": "5 hours", "send": send},
    ]
    ids = []
    for body in said:
        answer = client.post("/tasks", json=body)
        assert answer.status_code == 202, answer.get_json()
        ids.append(answer.get_json()["id"])
    with_key = {"Idempotency-Key": "once"}
    again = [
        client.post("/tasks", json={"after": "6 hours", "send": send}, headers=with_key).get_json() for _ in range(2)
    ]
    assert again[0] == again[1]
    cancelled = client.delete(f"/tasks/{ids[4]}")
    assert (cancelled.status_code, cancelled.get_json()) == (202, {"id": ids[4]})
    jobs()
    rows = client.get("/tasks").get_json()["rows"]
    assert [r["id"] for r in rows] == [*ids, again[0]["id"]]
    assert [r["status"] for r in rows] == ["waiting", "waiting", "cancelled", "waiting", "cancelled", "waiting"]
    assert [r["reason"] for r in rows][2::2] == ["the state has changed", "as asked for"]
    assert (rows[1]["store"], rows[1]["key"], rows[1]["value"], rows[1]["set"]) == ("status", "a", "down", "acks")
    assert rows[1]["due"] == due.isoformat(timespec="microseconds").replace("+00:00", "Z")

    assert [r["id"] for r in client.get("/tasks?status=cancelled").get_json()["rows"]] == [ids[2], ids[4]]
    assert [r["id"] for r in client.get("/tasks?store=status&key=a&status=waiting").get_json()["rows"]] == [
        ids[1],
        ids[3],
    ]
    found, cursor = [], ""
    while cursor is not None:
        page = client.get("/tasks?limit=2" + (f"&cursor={cursor}" if cursor else "")).get_json()
        found, cursor = [*found, *page["rows"]], page["cursor"]
    assert found == rows

    jobs(due.timestamp() + 60)
    [told] = [m for m in messages(broker.bootstrap, f"{topic}-told")]
    assert (told.key(), told.value(), told.headers()) == (b"k", b'{"n":[1,2.5]}', [("task-id", ids[0].encode())])
    rows = client.get("/tasks").get_json()["rows"]
    assert [r["status"] for r in rows] == ["sent", "sent", "cancelled", "waiting", "cancelled", "waiting"]
    produce(broker.bootstrap, topic, [("a", {"key": "a", "value": "up", "ts": iso(int(time.time() * 1e6))}, None, 0)])
    jobs()
    assert client.get("/tasks?status=cancelled").get_json()["rows"][1]["id"] == ids[3], "as it came up in between"
    wait(lambda: client.get("/stores/acks/keys/a").get_json().get("value") == "seen", what="the set")
    problem(client.delete(f"/tasks/{ids[0]}"), 409, "not-waiting")
    problem(client.delete("/tasks/t:0:0"), 404, "unknown-task")
    problem(client.delete("/tasks/"), 404, "unknown-task")


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """Nothing reaches Kafka: what is refused is refused before."""
    from statehouse.config.file import load

    folder = tmp_path_factory.mktemp("tasks")
    text = "kafka: {bootstrap.servers: 127.0.0.1:1}\n" + STATUS.format(topic="t", rules="{topics: [told, 'ops-*']}")
    (folder / "statehouse.yaml").write_text(
        text.replace("  acks:", "  hours: {stream: s, key: key, window: 1 hour, reduce: count}\n  acks:")
    )
    app = create_app(load(folder / "statehouse.yaml", {}))
    yield app.test_client()
    app.extensions["statehouse"].replica.stop()


def test_what_was_never_asked_for_is_not_cancelled(lake, broker) -> None:
    topic = f"api-tasks-{os.getpid()}-{random.randrange(10**9)}"
    config = lake(STATUS.format(topic=topic, rules="{topics: [told]}"), broker.bootstrap)
    produce(broker.bootstrap, topic, [("a", {"key": "a", "value": "down"}, None, 0)])
    app = create_app(config)
    try:
        client = app.test_client()
        asked = client.post("/tasks", json={"after": "1 hour", "send": {"topic": "told"}}).get_json()["id"]
        for wrong in (0, 99, 10**17):
            problem(client.delete(f"/tasks/{topic}:0:{wrong}"), 404, "unknown-task")
        problem(client.delete(f"/tasks/{topic}:7:0"), 404, "unknown-task")
        assert client.delete(f"/tasks/{asked}").status_code == 202
        app.extensions["statehouse"].looks = Places(0, "none")
        problem(client.delete(f"/tasks/{asked}"), 503, "busy")
    finally:
        app.extensions["statehouse"].replica.stop()


SEND = {"topic": "told"}


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"send": SEND}, "found neither, expected one of due and after"),
        ({"send": SEND, "after": "1 day", "due": "2026-01-01"}, "found both, expected one of due and after"),
        ({"send": SEND, "after": "soon"}, 'after: found "soon", expected a duration such as'),
        ({"send": SEND, "due": "tomorrow"}, 'due: found "tomorrow", expected'),
        ({"after": "1 day"}, "found neither, expected one of send and set"),
        ({"after": "1 day", "send": SEND, "set": {}}, "found both, expected one of send and set"),
        ({"after": "1 day", "send": SEND, "what": 1}, "found the field 'what', expected one of due, after, while, send, set"),
        ({"after": "1 day", "send": {"topic": "a b"}}, 'send.topic: found "a b", expected letters'),
        ({"after": "1 day", "send": {"topic": ".."}}, 'send.topic: found "..", expected letters'),
        ({"after": "1 day", "send": {"topic": "__consumer_offsets"}}, "expected no topic of Kafka's own"),
        ({"after": "1 day", "send": {"key": "k"}}, 'send: found {"key":"k"}, expected a topic'),
        ({"after": "1 day", "send": {**SEND, "key": 1}}, "send.key: found 1, expected a string"),
        ({"after": "1 day", "set": {"store": "no", "key": "k", "value": 1}}, 'set.store: found "no", expected one of status, acks'),
        ({"after": "1 day", "set": {"store": "hours", "key": "k", "value": 1}}, 'set.store: found "hours", expected one of status'),
        ({"after": "1 day", "set": {"store": "acks", "key": "k"}}, "found no value, expected one"),
        ({"after": "1 day", "set": {"store": "acks", "key": 1.5, "value": 1}}, "key: found 1.5, expected a string"),
        ({"after": "1 day", "send": SEND, "while": "down"}, 'while: found "down", expected a store, a key and a value'),
        ({"after": "1 day", "send": SEND, "while": {"store": "status", "key": "k"}}, "while: found no value, expected a value"),
        ({"after": "1 day", "send": SEND, "while": {"store": "status", "key": "k", "value": None}}, "while: found null, expected"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_it_is_sent(offline: FlaskClient, body: dict, detail: str) -> None:
    answer = offline.post("/tasks", json=body)
    assert answer.status_code == 400 and detail in answer.get_json()["detail"], answer.get_json()


def test_a_topic_that_the_file_does_not_allow_is_a_403_that_says_which_it_does(offline: FlaskClient) -> None:
    for topic in ("alerts", "t", "xtold", "ops"):
        answer = problem(
            offline.post("/tasks", json={"after": "1 day", "send": {"topic": topic}}), 403, "topic-not-allowed"
        )
        assert "expected one that tasks may send to: told, ops-*" in answer["detail"]
    problem(offline.post("/tasks", json={"after": "1 day", "send": {"topic": "ops-1", "key": 1}}), 400, "bad-body")


@pytest.mark.slow
def test_what_kafka_did_not_acknowledge_is_a_503_and_bad_parameters_are_400(offline: FlaskClient) -> None:
    problem(offline.post("/tasks", json={"after": "1 day", "send": SEND}), 503, "kafka-unavailable")
    problem(offline.get("/tasks?status=late"), 400, "bad-parameter")
    problem(offline.get("/tasks?cursor=x"), 400, "bad-parameter")
    assert offline.get("/tasks").get_json() == {"rows": [], "cursor": None}
