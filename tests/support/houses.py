"""Both halves on one topic of a real Kafka, as they are beside each other; and a producer with transactions."""

from __future__ import annotations

import json
import uuid

from confluent_kafka import Producer

from api import create_app
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.status import stream_status
from tests.support.records import create, payload, produce, rows

CONFIG = """{kafka}
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: _key, value: n, reduce: latest}}
"""


class Writer:
    """A producer with transactions, of which one may be open."""

    def __init__(self, broker, topic):
        self.topic = topic
        settings = {"transactional.id": str(uuid.uuid4()), "transaction.timeout.ms": 600_000, "log_level": 0}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
        self.producer.init_transactions(60)
        self.events = None

    def begin(self):
        self.producer.begin_transaction()
        self.events = []

    def write(self, *events):
        """Some more events, (key, number, partition), of the open transaction; in the topic when this returns."""
        for key, n, partition in events:
            self.producer.produce(self.topic, payload({"key": key, "n": n}), key, partition)
        assert self.producer.flush(60) == 0
        self.events += events

    def end(self, commit):
        """What counts of the transaction."""
        self.producer.commit_transaction(60) if commit else self.producer.abort_transaction(60)
        events, self.events = self.events, None
        return events if commit else []


class House:
    """A topic, its lake, and an API that follows both. ``settings`` are the topic's, ``kafka`` is in the file."""

    turns = 0

    def __init__(self, spark, broker, lake, partitions=1, kafka="", **settings):
        self.spark, self.bootstrap, self.topic = spark, broker.bootstrap, f"house-{uuid.uuid4()}"
        create(self.bootstrap, self.topic, partitions, **settings)
        self.config = lake(CONFIG.format(kafka=kafka, topic=self.topic), self.bootstrap)
        self.ingest = Ingest(spark, self.config, self.config.streams["s"])
        self.merges = [Merge(spark, self.config, store) for store in self.config.stores.values()]
        self.merge()  # or the API has nothing to go on from
        self.open()

    def open(self):
        """Another process of the API."""
        self.app = create_app(self.config)
        self.client = self.app.test_client()

    def send(self, *events):
        """Some events, (key, number, partition), without a transaction."""
        produce(self.bootstrap, self.topic, [(key, {"key": key, "n": n}, None, p) for key, n, p in events])

    def merge(self):
        for merge in self.merges:
            merge.round()

    def once(self):
        """What the jobs do once, with few records: without Spark's source, and with it, in turns."""
        self.turns += 1
        if self.turns % 2:
            self.ingest.run(once=True)
            self.merge()
        else:
            self.query()

    def query(self):
        """The same by a query of Spark's; what Spark says of it."""
        query = self.ingest.start(self.ingest.begin(), once=True)
        query.awaitTermination()
        assert query.exception() is None
        self.merge()
        return json.loads(query._jsq.lastProgress().json())

    def live(self):
        """What the API says of the topic."""
        return self.client.get("/stores/total").get_json()["live"]

    def rows(self, store, freshness):
        """What the API shows, by key."""
        found = self.client.get(f"/stores/{store}/keys?freshness={freshness}").get_json()
        return {row.pop("key"): row for row in found["rows"]}

    def shown(self, freshness):
        """The totals that the API shows."""
        return {key: row["value"] for key, row in self.rows("total", freshness).items()}

    def merged(self, store="total"):
        """The values in the state's table."""
        return {row["key"]: row["value"] for row in rows(self.spark, f"{self.config.root}/state/{store}")}

    def behind(self):
        """Of the topic: by the status command, and by the API."""
        return stream_status(self.config, "s")["behind"], self.live()["behind"]

    def close(self):
        self.app.extensions["statehouse"].replica.stop()
