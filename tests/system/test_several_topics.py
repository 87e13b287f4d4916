"""A stream of several topics: what both halves show is the oracle's, whichever topic an event came by, and whatever topics come and go."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient

from api import create_app
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.errors import DefinitionChanged
from statehouse.requeue import requeue
from statehouse.status import stream_status
from statehouse.tables import metadata
from tests.support.api_lake import eventually
from tests.support.depth import first
from tests.support.houses import House
from tests.support.records import create, produce, recreate, rows

CONFIG = """
tasks: {{}}
streams:
  s: {{{topics}, schema: "key STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: ["_topic AS topic", key], value: n, reduce: latest}}
"""


class Houses(House):
    """The same of several topics, ``{prefix}.a`` with two partitions and ``{prefix}.b`` with one; further ones come as they are sent to."""

    text = CONFIG

    def __init__(self, spark, broker, lake, topics):
        self.spark, self.bootstrap, self.prefix = spark, broker.bootstrap, f"house-{uuid.uuid4()}"
        self.lake, self.sent, self.lasts, self.places = lake, Counter(), {}, {}
        for name, partitions in (("a", 2), ("b", 1)):
            create(self.bootstrap, self.topic(name), partitions)
        self.configure(topics)
        self.merge()
        self.open()

    def configure(self, topics):
        """Other settings in the file, as after a restart of the jobs."""
        named = [self.topic(name) for name in "ab"]
        text = topics.format(prefix=self.prefix, both=", ".join(named), a=named[0], b=named[1])
        self.config = self.lake(self.text.format(topics=text), self.bootstrap)
        self.stream = self.config.streams["s"]
        self.ingest = Ingest(self.spark, self.config, self.stream)
        self.merges = [Merge(self.spark, self.config, store) for store in self.config.stores.values()]

    def topic(self, name):
        return f"{self.prefix}.{name}"

    def send(self, *events):
        """Some events, (topic, partition, key, number), each known to the oracle."""
        for name, partition, key, n in events:
            produce(self.bootstrap, self.topic(name), [(key, {"key": key, "n": n}, None, partition)])
            self.sent[key] += n
            self.lasts[self.topic(name), key] = n
            self.places.setdefault(key, Counter())[self.topic(name), partition, n] += 1

    def random(self, dice, count):
        """Random events; a key of ``last`` is in one partition, which is what keeps its order."""
        for _ in range(count):
            name, key = dice.choice("ab"), dice.choice("klmn")
            partition = "klmn".index(key) % 2 if name == "a" else 0
            self.send((name, partition, key, dice.randrange(-50, 50)))

    def right(self, freshness):
        """Whether the API shows the oracle's states."""
        shown = self.client.get(f"/stores/last/keys?freshness={freshness}").get_json()["rows"]
        lasts = {(row["topic"], row["key"]): row["value"] for row in shown}
        return self.shown(freshness) == dict(self.sent) and lasts == self.lasts

    def histories(self):
        """By key what its history says of where its events were, and their values."""
        asked = {key: self.client.get(f"/stores/total/keys/{key}/history").get_json()["events"] for key in self.places}
        places = {key: Counter((e["topic"], e["topic_partition"], e["value"]) for e in of) for key, of in asked.items()}
        return places, {event.get("provisional", False) for of in asked.values() for event in of}


@pytest.fixture
def house_of(spark, broker, lake):
    made = []

    def house(topics, kind=Houses):
        made.append(kind(spark, broker, lake, topics))
        return made[-1]

    yield house
    for one in made:
        one.close()


T0 = 1_777_629_600_000
LIST, PATTERN = "topics: [{both}]", "topics: '{prefix}\\..*'"


@pytest.mark.slow
@pytest.mark.parametrize("example", first(1, range(3)))
def test_both_halves_show_what_all_topics_hold(house_of, example):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    house = house_of(dice.choice([LIST, PATTERN]))
    house.random(dice, 5)
    house.once()
    assert house.merged() == dict(house.sent)
    for step in range(4):
        house.random(dice, dice.randrange(1, 12))
        eventually(lambda: house.right("live"), 60)
        places, provisional = house.histories()
        assert places == house.places and True in provisional
        if dice.random() < 0.3:  # another process of the jobs, which reads the position
            house.configure(dice.choice([LIST, PATTERN]))
        if step % 2:
            house.once()
            eventually(lambda: house.right("changelog"), 60)
            assert house.right("live") and house.histories() == (house.places, {False})
    house.once()
    assert house.merged() == dict(house.sent) and house.behind()[0] == 0
    key, places = next(iter(house.places.items()))
    page = house.client.get(f"/stores/total/keys/{key}", headers={"Accept": "text/html"}).text
    assert all(f"{topic}, partition {partition}, offset" in page for topic, partition, _ in places)
    log = rows(house.spark, house.ingest.changelog)
    numbers = {(row["_topic"], row["_topic_partition"]): row["_partition"] for row in log}
    assert len(log) == len({(row["_partition"], row["_offset"]) for row in log}) and len(set(numbers.values())) == len(
        numbers
    )
    described = metadata(house.ingest.changelog, "offsets")["topics"]
    assert all(described[topic]["partitions"][str(p)] == number for (topic, p), number in numbers.items())


@pytest.mark.slow
def test_a_topic_that_is_made_while_the_jobs_run_is_read_and_its_tokens_hold(house_of):
    house = house_of(PATTERN)
    house.send(("a", 0, "k", 1), ("b", 0, "k", 2))
    thread = threading.Thread(target=house.ingest.run)
    thread.start()
    try:
        eventually(lambda: house.ingest.events == 2, 60)
        create(house.bootstrap, house.topic("c"), 2)
        house.send(("c", 1, "k", 4), ("c", 1, "l", 8))
        after = house.client.get(f"/stores/total/keys/k?after={house.topic('c')}:1:0&timeout=60")
        assert (after.status_code, after.get_json()["value"]) == (200, 7)
        eventually(lambda: house.right("live"), 60)
        house.send(("c", 0, "m", 16))
        eventually(lambda: house.right("live"), 60)
        house.merge()
        eventually(lambda: house.ingest.events == 5, 60)
        # Made again its coordinates name other events: it is read no further, and the others go on.
        recreate(house.bootstrap, house.topic("c"))
        produce(house.bootstrap, house.topic("c"), [("m", {"key": "m", "n": 32}, None, 0)])
        house.send(("a", 1, "k", 64))
        eventually(lambda: house.ingest.events == 6, 60)
        eventually(lambda: house.right("live"), 60)
        assert "made again" in stream_status(house.config, "s")["error"]
        assert house.client.get(f"/stores/total/keys/k?after={house.topic('c')}:0:0").status_code == 409
        assert house.client.get(f"/stores/total/keys/k?after={house.topic('a')}:1:0&timeout=60").status_code == 200
    finally:
        house.ingest.stopping.set()
        thread.join(60)
    house.once()
    assert house.merged() == dict(house.sent)
    response = house.client.get("/stores/total/keys/k?after=other:0:1")
    assert response.status_code == 400, "no token of this stream"


@pytest.mark.slow
def test_what_a_topic_took_with_it_is_not_shown_for_good(house_of):
    house = house_of(PATTERN)
    create(house.bootstrap, house.topic("c"), 1)
    house.send(("a", 0, "k", 1), ("c", 0, "k", 2))
    house.once()
    produce(house.bootstrap, house.topic("c"), [("k", {"key": "k", "n": 100}, None, 0)])
    eventually(lambda: house.shown("live") == {"k": 103}, 60)
    admin = AdminClient({"bootstrap.servers": house.bootstrap})  # held by a name: the request dies with it
    admin.delete_topics([house.topic("c")])[house.topic("c")].result(20)
    house.send(("a", 0, "k", 4))
    eventually(lambda: house.shown("live") == {"k": 7}, 60)
    house.once()
    assert house.merged() == {"k": 7} and house.right("live")
    # One that nothing was read of is as good when it is made again.
    create(house.bootstrap, house.topic("d"), 1)
    house.once()
    recreate(house.bootstrap, house.topic("d"))
    house.send(("d", 0, "k", 8))
    house.once()
    assert house.merged() == {"k": 15}
    eventually(lambda: house.right("live"), 60)


@pytest.mark.slow
def test_a_topic_that_is_taken_out_of_the_list_is_read_no_further(house_of):
    house = house_of(LIST)
    house.send(("a", 0, "k", 1), ("b", 0, "k", 2))
    produce(house.bootstrap, house.topic("b"), [("k", b"rubbish", None, 0)])
    house.once()
    house.configure("topics: [{a}]")
    house.close()
    house.open()
    produce(house.bootstrap, house.topic("b"), [("k", {"key": "k", "n": 100}, None, 0)])
    house.send(("a", 1, "k", 4))
    eventually(lambda: house.shown("live") == {"k": 7}, 60)
    assert requeue(house.config, house.stream).sent == 0, "nobody would read it"
    recreate(house.bootstrap, house.topic("b"))
    house.once()
    assert house.merged() == {"k": 7} and house.live()["state"] == "following"
    assert house.client.get(f"/stores/total/keys/k?after={house.topic('a')}:1:0").status_code == 200
    for topics in ("topic: {a}", "topic: {b}"):
        with pytest.raises(DefinitionChanged, match="Give the stream a new name"):
            house.configure(topics)


@pytest.mark.slow
def test_a_stream_gets_further_topics_and_its_log_may_be_cleaned(house_of, monkeypatch):
    house = house_of("topic: {a}")
    house.send(("a", 0, "k", 1), ("a", 1, "l", 2))
    house.once()
    house.configure(LIST)
    house.close()
    house.open()
    house.send(("b", 0, "k", 4), ("a", 1, "l", 8))
    house.once()
    assert house.merged() == dict(house.sent)
    numbers = house.ingest.numbering.numbers
    with monkeypatch.context() as patched:  # the log no longer has the commits that tell the position
        patched.setattr("jobs.ingest.metadata", lambda *_: None)
        house.configure(LIST)
        assert house.ingest.numbering.numbers == numbers
    house.configure(LIST)
    house.send(("b", 0, "m", 16))
    house.once()
    eventually(lambda: house.right("live"), 60)
    assert house.merged() == dict(house.sent)


@pytest.mark.slow
def test_writes_go_to_the_first_topic_and_what_is_refused_back_to_its_own(house_of):
    house = house_of(LIST)
    house.once()
    token = house.client.put("/stores/total/keys/k", json={"value": 5}).get_json()["token"]
    assert token.startswith(house.topic("a") + ":")
    assert house.client.get(f"/stores/total/keys/k?after={token}&timeout=60").get_json()["value"] == 5
    produce(house.bootstrap, house.topic("b"), [("k", b'{"key": "k", "n": "x"}', None, 0)])
    asked = house.client.post("/tasks", json={"after": "1 day", "set": {"store": "total", "key": "k", "value": 1}})
    task = asked.get_json()["id"]
    house.once()
    (bad,) = rows(house.spark, house.ingest.quarantine)
    number = house.ingest.numbering.number(house.topic("b"), 0)
    assert (bad["topic"], bad["topic_partition"], bad["partition"]) == (house.topic("b"), 0, number)
    done = requeue(house.config, house.stream, places={(number, bad["offset"])})
    assert done.sent == 1 and list(done.ends) == [(house.topic("b"), 0)]
    assert requeue(house.config, house.stream).before == 1, "it is in the topic, and not in the changelog yet"
    house.once()
    assert requeue(house.config, house.stream).before == 1
    (shown, again) = house.client.get("/streams/s/quarantine").get_json()["rows"]
    assert {shown["topic"], again["topic"]} == {house.topic("b")} and shown["partition"] == number
    assert again["requeued"] == f"{house.topic('b')}:0:{done.ends[house.topic('b'), 0]}"
    assert house.client.delete(f"/tasks/{task}").status_code == 202
    assert stream_status(house.config, "s")["topic"] == f"{house.topic('a')}, {house.topic('b')}"


@pytest.mark.slow
def test_a_pattern_has_no_topic_for_what_is_written_but_one_that_is_named(house_of):
    house = house_of(PATTERN)
    house.once()
    response = house.client.put("/stores/total/keys/k", json={"value": 5})
    assert (response.status_code, response.get_json()["type"]) == (405, "urn:statehouse:no-topic")
    house.configure("topic: {b}, " + PATTERN)
    named = create_app(house.config)
    try:
        answer = named.test_client().put("/stores/total/keys/k", json={"value": 5})
        assert answer.get_json()["token"] == f"{house.topic('b')}:0:0"
    finally:
        named.extensions["statehouse"].replica.stop()


@pytest.mark.slow
def test_where_no_topic_is_there_nothing_is_to_be_done(spark, broker, lake):
    name = f"nowhere-{uuid.uuid4()}"
    config = lake(CONFIG.format(topics=f"topics: '{name}.*'"), broker.bootstrap)
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.run(once=True)
    assert (ingest.events, stream_status(config, "s")["behind"]) == (0, 0)
    create(broker.bootstrap, name)
    produce(broker.bootstrap, name, [("k", {"key": "k", "n": 1}, None, 0)])
    ingest.run(once=True)
    recreate(broker.bootstrap, name)  # then there is none that is read
    ingest.run(once=True)
    status = stream_status(config, "s")
    assert (ingest.events, status["behind"]) == (1, 0) and "made again" in status["error"]


class Tables(Houses):
    """The tables of a database, each with a topic of changes by Debezium."""

    text = """
streams:
  s: {{{topics}, format: debezium, schema: 'id BIGINT NOT NULL, n BIGINT'}}
stores:
  rows: {{stream: s, key: ["_source.table AS name", id], value: n, reduce: latest}}
  last: {{stream: s, key: id, value: n, reduce: latest}}
"""

    def change(self, lsn, table, op, id, n):
        """A change as Debezium sends it; after a delete a tombstone."""
        row, source = {"id": id, "n": n}, {"connector": "postgresql", "lsn": lsn, "ts_ms": T0 + lsn, "table": table}
        change = {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "source": source}
        sent = [(json.dumps({"id": id}), value, None, 0) for value in ([change, None] if op == "d" else [change])]
        produce(self.bootstrap, self.topic(table), sent)

    def values(self, freshness):
        """What the API shows: of each table's row, and of each id."""
        asked = [self.client.get(f"/stores/{name}/keys?freshness={freshness}").get_json() for name in ("rows", "last")]
        by_table, by_id = (answer["rows"] for answer in asked)
        return {(row["name"], row["id"]): row["value"] for row in by_table}, {row["key"]: row["value"] for row in by_id}


@pytest.mark.slow
def test_tables_of_a_database_are_one_stream(house_of):
    """A delete is of its own table's row, and the tombstone after it of nobody's."""
    house = house_of(PATTERN, Tables)
    house.once()  # which numbers the partitions
    changes = [("a", "c", 1, 10), ("b", "c", 1, 20), ("a", "d", 1, 10), ("b", "u", 1, 21), ("a", "c", 2, 30)]
    for lsn, change in enumerate(changes, 100):
        house.change(lsn, *change)
    right = {("b", 1): 21, ("a", 2): 30}, {1: 21, 2: 30}
    eventually(lambda: house.values("live") == right, 60)
    house.once()
    eventually(lambda: house.values("changelog") == right, 60)
    assert house.values("live") == right and not rows(house.spark, house.ingest.quarantine)
