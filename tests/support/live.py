"""Topics ahead of their changelogs: one that is drawn, and a real one."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from api import create_app
from api.replica import arrivals
from api.replica.provisional import ProvisionalState
from api.replica.replica import Replica
from api.replica.snapshot import Selection
from demo.broker import Broker
from statehouse.config.models import Config
from statehouse.fold import Rule
from statehouse.kafka import create_topic, end_offsets, find_topic
from statehouse.tables import DEFINITION, EVENT_COLUMNS, POSITION, definition_of, metadata, table
from statehouse.transpile import duckdb_type
from tests.support.api_lake import eventually
from tests.support.lakes import right
from tests.support.records import control, iso, produce, stamp

T0 = 1_700_000_000_000_000
PARTITIONS = (0, 1, 2)
COLUMNS = {"key": "STRING", "agent": "STRING", "n": "BIGINT", "ts": "TIMESTAMP", **EVENT_COLUMNS}


def arrow(columns: dict[str, str]) -> pa.Schema:
    """The same columns in Arrow."""
    made = ", ".join(f'CAST(NULL AS {duckdb_type(kind)}) AS "{name}"' for name, kind in columns.items())
    with duckdb.connect(config={}) as db:
        db.execute("SET TimeZone = 'UTC'")
        return db.execute(f"SELECT {made}").to_arrow_table().schema


class Event:
    """One event of a topic: as Kafka has it, as Spark takes it, as the API takes it; each of the two may see it otherwise."""

    def __init__(self, dice: random.Random, partition: int, offset: int) -> None:
        self.partition, self.offset, self.time = partition, offset, T0 + dice.randrange(4 * 3600) * 1_000_000
        self.key, self.agent, self.n = f"k{dice.randrange(9)}", dice.choice("pqr"), dice.randrange(-5, 6)
        kind = dice.random()
        self.op, self.stores, self.headers = "report", ("total", "votes", "hours"), {}
        if kind < 0.05:
            self.op = "purge"
        elif kind < 0.08:
            self.op, self.stores = "purge", (dice.choice(self.stores),)
            self.headers = control("purge", self.stores[0])
        elif kind < 0.13:
            self.op, self.stores, self.headers = "set", ("total",), control("set", "total")
        # What Spark makes of it: a refusal, or (of a report) another number.
        self.refused = dice.random() < 0.05
        self.other = self.n + (dice.choice((0, 7)) if self.op == "report" and dice.random() < 0.1 else 0)
        self.unseen = dice.random() < 0.05  # the API refuses it

    def sent(self) -> tuple[Any, ...]:
        """A row of api.replica.arrivals.RECORDS."""
        body = None
        if self.op == "set":
            body = json.dumps({"value": self.n})
        elif self.op == "report":
            body = json.dumps({"key": self.key, "agent": self.agent, "n": self.n, "ts": iso(self.time)})
        body = "{" if self.unseen else body
        headers = {} if self.unseen else {name: text.encode() for name, text in self.headers.items()}
        place = "t", self.partition, self.offset, self.time // 1000
        return *arrivals.record(*place, self.key, body and body.encode(), headers), self.time // 1000

    def logged(self) -> dict[str, Any]:
        """A row of the changelog."""
        at = stamp(self.time).replace(tzinfo=dt.timezone.utc)
        own = {"key": self.key, "agent": self.agent, "n": self.other, "ts": at} if self.op == "report" else {}
        value = str(self.n) if self.op == "set" else None
        place = {
            "_topic": "t",
            "_partition": self.partition,
            "_offset": self.offset,
            "_event_time": at,
            "_log_time": at,
        }
        store = self.headers.get("statehouse-store")
        return {**own, **place, "_op": self.op, "_key": self.key, "_store": store, "_value": value}

    def meant(self, n: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
        """As tests.support.lakes.right wants it."""
        order = (self.time, self.partition, self.offset)
        return self.key, self.stores, {"op": self.op, "agent": self.agent, "n": n, "order": order}


class Topic:
    """A topic, a lake that follows it, and a replica that follows both."""

    def __init__(self, config: Config, dice: random.Random, replica_of: Callable[[Config], Replica] = Replica) -> None:
        self.config, self.dice = config, dice
        self.events = {p: [Event(dice, p, o) for o in range(60)] for p in PARTITIONS}
        self.logged = dict.fromkeys(PARTITIONS, 0)  # up to which offset the changelog has it
        self.folded = dict(self.logged)  # and the replica by the changelog
        self.path, self.schema = table(config, "changelog", "s"), arrow(COLUMNS)
        DeltaTable.create(self.path, self.schema, configuration={"delta.enableChangeDataFeed": "true"})
        for name in config.stores:
            rule = Rule(config.stores[name], ("STRING",), "BIGINT")
            settings = {DEFINITION: definition_of(rule), "delta.dataSkippingStatsColumns": ",".join(rule.keys)}
            path = table(config, "state", name)
            DeltaTable.create(path, arrow(rule.state_columns), configuration=settings, raise_if_key_not_exists=False)
            DeltaTable.create(
                table(config, "tombstones", name),
                arrow(rule.tombstone_columns),
                configuration={"delta.dataSkippingStatsColumns": "position"},
            )
        self.replica = replica_of(config)
        self.live: ProvisionalState = self.replica._streams["s"].provisional
        self.follow()

    def commit(self) -> None:
        """The changelog gets some more of it."""
        rows, some = [], self.dice.sample(PARTITIONS, self.dice.randrange(1, 4))
        for partition in some:
            begin, end = self.logged[partition], self.logged[partition] + self.dice.randrange(12)
            rows += [e.logged() for e in self.events[partition][begin:end] if not e.refused]
            self.logged[partition] = min(end, len(self.events[partition]))
        offsets = {str(p): o for p, o in self.logged.items() if o}
        done = CommitProperties(custom_metadata={"userMetadata": json.dumps({"topic": "t", "offsets": offsets})})
        full = [{name: row.get(name) for name in self.schema.names} for row in rows]
        found = pa.Table.from_pylist(full, schema=self.schema)
        write_deltalake(self.path, found, mode="append", commit_properties=done)

    def follow(self) -> None:
        """The replica reads the changelog, up to its end."""
        self.replica.refresh()
        self.folded = dict(self.logged)
        for name in self.config.stores:
            assert self.replica.status(name)["error"] is None

    def merge(self) -> None:
        """The state tables, and the tombstones, are what the replica has by the changelog."""
        for name, followed in self.replica._stores.items():
            snapshot, tail = followed.snapshot, followed.tail
            kept = tail.db.execute(f"SELECT * FROM {tail.fold.tombstones}").to_arrow_table()
            write_deltalake(table(self.config, "tombstones", name), kept, mode="overwrite")
            refs = {*(key for key in snapshot.overlay.refs), *map(snapshot.key_at, range(snapshot.size))}
            _, rows = snapshot.present(sorted({key[:1] for key in refs}))
            schema = arrow(snapshot.rule.state_columns)
            found = pa.table({n: pa.array(c.to_pylist(), schema.field(n).type) for n, c in rows.items()}, schema)
            txn = CommitProperties(app_transactions=[Transaction(app_id=POSITION, version=snapshot.position or 0)])
            write_deltalake(table(self.config, "state", name), found, mode="overwrite", commit_properties=txn)

    def read(self) -> None:
        """The API reads some more of the topic, in batches that begin anywhere before where it is."""
        if self.dice.random() < 0.2:
            self.live.skip()
        rows = []
        for partition in self.dice.sample(PARTITIONS, self.dice.randrange(1, 4)):
            now = self.live.read.get(partition, 0)
            begin, end = max(0, now - self.dice.choice((0, 0, 3))), now + self.dice.randrange(8)
            rows += [event.sent() for event in self.events[partition][begin:end]]
        if rows:
            self.live.arrived(arrivals.table(rows))

    def meant(self, logged: dict[int, int]) -> tuple[list[Any], list[Any]]:
        """What the changelog has up to some offsets, and what is pending then."""
        everything, seen = [e for p in PARTITIONS for e in self.events[p]], self.live.read
        truth = [e.meant(e.other) for e in everything if e.offset < logged[e.partition] and not e.refused]
        read = (e for e in everything if logged[e.partition] <= e.offset < seen.get(e.partition, 0))
        return truth, [e.meant(e.n) for e in read if not e.unseen]

    def check(self, whole: bool = False) -> None:
        """Every store is the oracle's, with and without what is pending; or, not the ``whole``, what is read of it is."""
        truth, pending = self.meant(self.folded)
        seen = self.live.read
        for name in self.config.stores:
            snapshot, now = self.replica.snapshot(name), right(truth + pending, name)
            # What is pending is folded when it is read: nobody reads, or one a few keys, or the first ones, before all are.
            way = "all" if whole else self.dice.choice(("none", "some", "first", "all"))
            if way == "none":
                continue
            if way == "some":
                for key in self.dice.sample([f"k{i}" for i in range(9)], 2):
                    found = snapshot.get([key]) or {}
                    assert values(found.get("windows", [found] if found else [])) == among(now, name, key, key)
                continue
            if way == "first":
                for least, most in (("", "z"), ("k3", "k6")):
                    rows, _ = snapshot.page(None, 3, Selection((least,), lambda key, most=most: key[0] <= most))
                    assert values(snapshot.rows(rows)) == among(now, name, least, most)[:3]
            assert shown(snapshot, name) == now, name
            assert shown(snapshot.truth(), name) == right(truth, name), name
            assert snapshot.keys == len(right(truth, name))
            for partition in PARTITIONS:
                reached = max(seen.get(partition, 0), self.folded[partition])
                for offset in (reached - 1, reached):
                    assert self.replica.covers(name, "t", partition, offset) == (offset < reached)
                by_log = self.folded[partition]
                for offset in (max(0, by_log - 1), by_log):
                    assert self.replica.covers(name, "t", partition, offset, snapshot.truth()) == (offset < by_log)


def values(rows):
    return [row["value"] for row in rows]


def among(states, name, least, most):
    """The oracle's values of the keys from one to another."""
    return [states[k] for k in sorted(states) if least <= (k[0] if name == "hours" else k) <= most]


def shown(snapshot, name):
    """What a scan gives, as the oracle gives it; what a key gives by itself is the same."""
    rows = snapshot.rows(snapshot.page(None, 100_000)[0])
    epoch, found = dt.datetime(1970, 1, 1), {}
    lookup = dict(zip((r["key"] for r in rows), snapshot.lookup([[r["key"]] for r in rows]), strict=True))
    for row in rows:
        one = snapshot.get([row["key"]])
        assert lookup[row["key"]] is not None
        if name == "hours":
            assert {c: v for c, v in row.items() if c != "key"} in one["windows"]
            found[row["key"], (row["window_start"] - epoch) // dt.timedelta(microseconds=1)] = row["value"]
        else:
            assert one == row
            found[row["key"]] = row["value"]
    return found


class Shop:
    """A real topic, an API that follows it, and a changelog that gets of it what it is told to."""

    def __init__(self, lake, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        text = f"""
api: {{freshness: live}}
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: key, value: n, reduce: latest}}
"""
        self.config = lake(text, broker.bootstrap)
        create_topic(self.config.kafka, topic)
        self.path = table(self.config, "changelog", "s")
        self.schema = arrow({"key": "STRING", "n": "BIGINT", **EVENT_COLUMNS})
        DeltaTable.create(self.path, self.schema, configuration={"delta.enableChangeDataFeed": "true"})
        for name, store in self.config.stores.items():
            rule = Rule(store, ("STRING",), "BIGINT")
            settings = {DEFINITION: definition_of(rule), "delta.dataSkippingStatsColumns": "key"}
            path = table(self.config, "state", name)
            DeltaTable.create(path, arrow(rule.state_columns), configuration=settings, raise_if_key_not_exists=False)
        self.app = create_app(self.config)
        self.replica: Replica = self.app.extensions["statehouse"].replica
        self.client = self.app.test_client()

    def send(self, *events: tuple[str, int], partition: int = 0) -> None:
        """Some events, in the topic when this returns."""
        produce(self.broker.bootstrap, self.topic, [(k, {"key": k, "n": n}, None, partition) for k, n in events])

    def log(self) -> None:
        """The changelog gets all that the topic has; as it has it now."""
        begin = {int(p): o for p, o in (metadata(self.path, "offsets") or {"offsets": {}})["offsets"].items()}
        rows, offsets = [], dict(begin)
        for message in read_all(self.broker.bootstrap, self.topic):
            partition, offset = message.partition(), message.offset()
            if offset >= begin.get(partition, 0):
                at = dt.datetime.fromtimestamp(message.timestamp()[1] / 1000, dt.timezone.utc)
                place = {"_topic": self.topic, "_partition": partition, "_offset": offset, "_event_time": at}
                rows.append({**json.loads(message.value()), **place, "_log_time": at, "_op": "report"})
                offsets[partition] = offset + 1
        id = find_topic(self.config.kafka, self.topic).id
        said = json.dumps({"topic": self.topic, "id": id, "offsets": {str(p): o for p, o in offsets.items()}})
        found = pa.Table.from_pylist([{n: r.get(n) for n in self.schema.names} for r in rows], schema=self.schema)
        done = CommitProperties(custom_metadata={"userMetadata": said})
        write_deltalake(self.path, found, mode="append", commit_properties=done)

    def get(self, key: str, store: str = "total", query: str = "") -> dict[str, Any] | None:
        """A point read; None where the key is absent."""
        response = self.client.get(f"/stores/{store}/keys/{key}{query}")
        assert response.status_code in (200, 404), response.text
        return response.get_json() if response.status_code == 200 else None

    def shows(self, key: str, value: int, seconds: float = 15.0) -> dict[str, Any]:
        """The answer, as soon as it has a value."""
        eventually(lambda: (self.get(key) or {}).get("value") == value, seconds)
        return self.get(key) or {}

    @property
    def live(self) -> dict[str, Any]:
        """What the API says of the topic."""
        return self.client.get("/stores/total").get_json()["live"]


def read_all(bootstrap: str, topic: str) -> list[Message]:
    """Every message of a topic that is there."""
    kafka = {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False, "log_level": 0}
    ends, found = end_offsets({"bootstrap.servers": bootstrap}, topic), []
    consumer = Consumer(kafka)
    consumer.assign([TopicPartition(topic, p, low) for p, (low, high) in ends.items() if high > low])
    while len(found) < sum(high - low for low, high in ends.values()):
        message = consumer.poll(20)
        assert message is not None and message.error() is None, message
        found.append(message)
    consumer.close()
    return found
