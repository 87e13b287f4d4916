"""A topic that was deleted and made again is another one, whatever its offsets are: the jobs refuse it, the API shows nothing of it."""

from __future__ import annotations

import re
import threading
import uuid

import pytest

from api import create_app
from jobs.ingest import Ingest
from statehouse import kafka
from statehouse.errors import TopicRecreated
from statehouse.kafka import Topic, find_topic, recreated
from statehouse.status import stream_status
from statehouse.tables import metadata
from tests.support.api_lake import eventually
from tests.support.live import Shop
from tests.support.records import create, produce, recreate, rows, wait

CONFIG = """
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
"""
OLD, NEW = [("a", {"key": "a", "n": 1}, None, 0)] * 3, ("a", {"key": "a", "n": 1000}, None, 0)
COUNTS = pytest.mark.parametrize("count", [0, 2, 3, 6])  # of the new topic's records: the old one had three


@pytest.fixture
def topic(broker):
    name = f"anew-{uuid.uuid4()}"
    create(broker.bootstrap, name)
    return name


def ingest_of(spark, broker, lake, topic):
    config = lake(CONFIG.format(topic=topic), broker.bootstrap)
    return Ingest(spark, config, config.streams["s"])


def offsets_of(spark, ingest):
    return sorted((r["_offset"], r["n"]) for r in rows(spark, ingest.changelog))


@COUNTS
def test_the_jobs_refuse_it_at_the_start(spark, broker, lake, topic, count):
    produce(broker.bootstrap, topic, OLD)
    ingest = ingest_of(spark, broker, lake, topic)
    ingest.run(once=True)
    known = find_topic(ingest.config.kafka, topic).id
    assert metadata(ingest.changelog, "offsets") == {"topic": topic, "id": known, "offsets": {"0": 3}}
    recreate(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [NEW] * count)
    for again in (ingest, ingest_of(spark, broker, lake, topic)):
        with pytest.raises(TopicRecreated, match=f"id {re.escape(known)}, found .*Give the stream a new name"):
            again.run(once=True)
    assert offsets_of(spark, ingest) == [(0, 1), (1, 1), (2, 1)]
    status = stream_status(ingest.config, "s")
    assert status["behind"] is None and "was deleted and made again" in status["error"]


@COUNTS
def test_the_jobs_refuse_it_while_they_run(spark, broker, lake, topic, count):
    produce(broker.bootstrap, topic, OLD)
    ingest, raised = ingest_of(spark, broker, lake, topic), []

    def run():
        try:
            ingest.run()
        except TopicRecreated as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait(lambda: ingest.events == 3, what="the old topic's events")
        recreate(broker.bootstrap, topic)
        produce(broker.bootstrap, topic, [NEW] * count)
        thread.join(90)
    finally:
        ingest.stopping.set()
        thread.join(60)
    assert raised and offsets_of(spark, ingest) == [(0, 1), (1, 1), (2, 1)]


def test_a_new_name_takes_it(spark, broker, lake, topic):
    produce(broker.bootstrap, topic, OLD)
    ingest_of(spark, broker, lake, topic).run(once=True)
    recreate(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [NEW] * 2)
    text = CONFIG.format(topic=topic).replace("s: {topic", "fresh: {topic").replace("stream: s", "stream: fresh")
    config = lake(text, broker.bootstrap)
    ingest = Ingest(spark, config, config.streams["fresh"])
    ingest.run(once=True)
    assert offsets_of(spark, ingest) == [(0, 1000), (1, 1000)]


def test_a_lake_from_before_there_were_ids_gets_one_with_its_first_commit(spark, broker, lake, topic, monkeypatch):
    produce(broker.bootstrap, topic, OLD)
    ingest = ingest_of(spark, broker, lake, topic)
    monkeypatch.setattr(kafka, "NO_ID", find_topic(ingest.config.kafka, topic).id)  # as brokers say that have none
    ingest.run(once=True)
    assert metadata(ingest.changelog, "offsets") == {"topic": topic, "offsets": {"0": 3}}
    assert stream_status(ingest.config, "s")["error"] is None
    monkeypatch.undo()
    produce(broker.bootstrap, topic, OLD[:1])
    again = ingest_of(spark, broker, lake, topic)
    again.run(once=True)
    known = find_topic(again.config.kafka, topic).id
    assert metadata(again.changelog, "offsets") == {"topic": topic, "id": known, "offsets": {"0": 4}}


def test_where_nothing_was_ingested_yet_the_new_one_is_as_good(spark, broker, lake, topic):
    ingest = ingest_of(spark, broker, lake, topic)
    ingest.run(once=True)
    recreate(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [NEW])
    ingest.run(once=True)
    assert offsets_of(spark, ingest) == [(0, 1000)]


def test_an_id_that_is_not_known_says_nothing():
    assert recreated("t", None, Topic("x", [0])) is None
    assert recreated("t", "x", Topic(None, [0])) is None
    assert recreated("t", "x", None) is None
    assert recreated("t", "x", Topic("x", [0])) is None
    assert "made again" in recreated("t", "x", Topic("y", [0]))


@pytest.fixture
def shop(lake, broker, topic):
    made = Shop(lake, broker, topic)
    yield made
    made.replica.stop()


def problem(client, path):
    """What the API says where it refuses the topic's tokens."""
    response = client.get(path)
    assert response.status_code == 409 and response.content_type == "application/problem+json", response.text
    document = response.get_json()
    assert document["type"] == "urn:statehouse:topic-recreated" and "Give the stream a new name" in document["detail"]
    return document


@pytest.mark.parametrize("count", [2, 3, 6, 50])
def test_the_api_shows_nothing_of_it(shop, broker, count):
    shop.send(*[("a", 1)] * 3)
    shop.shows("a", 3)
    shop.log()
    eventually(lambda: shop.live["pending"] == 0)
    shop.send(("a", 10))
    shop.shows("a", 13)
    assert shop.get("a", query=f"?after={shop.topic}:0:2")["value"] == 13
    recreate(broker.bootstrap, shop.topic)
    shop.send(*[("a", 1000)] * count)
    seen = set()

    def refused():
        seen.add((shop.get("a") or {}).get("value"))
        return shop.live["state"] == "recreated"

    eventually(refused)
    assert seen <= {13, 3}
    problem(shop.client, f"/stores/total/keys/a?after={shop.topic}:0:1")
    assert "provisional" not in shop.get("a") and shop.get("a")["value"] == 3, "what the changelog has"
    status = shop.client.get("/stores/total").get_json()
    assert "was deleted and made again" in status["error"] and status["freshness"] == "changelog"
    assert (status["live"]["behind"], status["live"]["pending"], status["lag_ms"]) == (None, 0, None)
    assert shop.client.get("/readyz").status_code == 200, "it serves what it should"
    assert 'statehouse_live{state="recreated",store="total"} 1.0' in shop.client.get("/metrics").text
    app = create_app(shop.config)  # which begins with it
    try:
        assert app.test_client().get("/stores/total/keys/a").get_json()["value"] == 3
        problem(app.test_client(), f"/stores/total/keys/a?after={shop.topic}:0:1")
        eventually(lambda: app.test_client().get("/stores/total").get_json()["live"]["state"] == "recreated")
    finally:
        app.extensions["statehouse"].replica.stop()


def test_no_token_of_either_is_answered(shop, broker):
    shop.send(*[("a", 1)] * 3)
    shop.shows("a", 3)
    shop.log()
    eventually(lambda: "provisional" not in shop.get("a"))
    assert shop.get("a", query=f"?after={shop.topic}:0:2")["value"] == 3
    recreate(broker.bootstrap, shop.topic)
    token = shop.client.put("/stores/last/keys/a", json={"value": 7}).get_json()["token"]
    assert token == f"{shop.topic}:0:0", "which the changelog has, of the old one"
    problem(shop.client, f"/stores/last/keys/a?after={token}")
    problem(shop.client, f"/stores/last/keys/a?after={token}&freshness=changelog")
    problem(shop.client, f"/stores/last/keys/a?after={token}&at=2999-01-01T00:00:00Z")
    problem(shop.client, f"/stores/total/keys/a?after={shop.topic}:0:2")


def test_the_api_is_not_ready_where_its_lag_is_limited(shop, broker):
    shop.config = shop.config.model_copy(update={"api": shop.config.api.model_copy(update={"max_lag": 60_000})})
    shop.send(("a", 1))
    shop.shows("a", 1)
    shop.log()
    app = create_app(shop.config)
    try:
        client = app.test_client()
        eventually(lambda: client.get("/readyz").status_code == 200)
        recreate(broker.bootstrap, shop.topic)
        eventually(lambda: client.get("/readyz").status_code == 503)
        assert {store["lag_ms"] for store in client.get("/readyz").get_json()["stores"]} == {None}
    finally:
        app.extensions["statehouse"].replica.stop()


def test_the_api_takes_a_new_one_where_nothing_was_ingested_yet(shop, broker):
    shop.send(("a", 1), ("b", 2))
    shop.shows("a", 1)
    recreate(broker.bootstrap, shop.topic)
    shop.send(("a", 1000))
    shop.shows("a", 1000, 30)
    assert shop.get("b") is None and shop.live["state"] == "following"
    shop.log()
    eventually(lambda: "provisional" not in shop.get("a"))
    assert shop.get("a")["value"] == 1000
    assert shop.live["offsets"] == {"0": 1}
