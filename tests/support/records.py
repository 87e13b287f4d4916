"""Kafka's records as Spark's source gives them, and ways to send the same to a real Kafka."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import random
import socket
import time
from pathlib import Path

from statehouse.progress import Progress

SCHEMA = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
EPOCH = dt.datetime(1970, 1, 1)


def stamp(microseconds):
    """A naive UTC datetime."""
    return EPOCH + dt.timedelta(microseconds=microseconds)


def iso(microseconds):
    """ISO 8601, UTC."""
    return stamp(microseconds).isoformat() + "Z"


def payload(value):
    """Bytes as they are, None as it is, anything else as JSON."""
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def record(topic, partition, offset, time_us, key, value, headers=None):
    """A row of SCHEMA."""
    pairs = [(k, v.encode()) for k, v in (headers or {}).items()] or None
    return (
        topic,
        partition,
        offset,
        stamp(time_us),
        None if key is None else key.encode(),
        payload(value),
        pairs,
    )


def control(op, store=None):
    """The headers of a set or purge."""
    return {"statehouse-op": op, **({"statehouse-store": store} if store else {})}


def rows(spark, path):
    """A table's rows as dicts."""
    return [r.asDict(recursive=True) for r in spark.read.format("delta").load(str(path)).collect()]


class Heard(Progress):
    """What a job tells of its steps: what each is, how many there are to do, and how many are done."""

    def __init__(self):
        self.steps = []

    def begin(self, text, total=None, of="events"):
        self.steps.append([text, total and total(), 0])

    def advance(self, count=1):
        self.steps[-1][2] += count


def free_port():
    """A loopback port that was free a moment ago. Not one of the kernel's own choice, which it would also give to a client
    for its end of a connection; and another process of the same run is given others."""
    worker, workers = (
        os.environ.get("PYTEST_XDIST_WORKER", "gw0"),
        int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")),
    )
    for port in random.sample(range(10_000 + int(worker.removeprefix("gw")), 20_000, workers), k=100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def children(pid):
    """The processes that a process has started, by any of its threads."""
    return [int(n) for found in Path(f"/proc/{pid}/task").glob("*/children") for n in found.read_text().split()]


def wait(condition, seconds=300, step=0.05, what="the condition"):
    """Wait for a condition; fail when it does not come."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(step)
    return found


def produce(bootstrap, topic, records, partitions=1):
    """Send (key, value, headers, partition) tuples and wait for every acknowledgement."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "message.max.bytes": 16_000_000})
    failed = []
    for key, value, headers, partition in records:
        producer.produce(
            topic, key=key, value=payload(value), headers=headers or {}, partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(60) == 0 and not failed, failed


def create(bootstrap, topic, partitions=1, **settings):
    """Create a topic; the names of settings have _ for the dots."""
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {name.replace("_", "."): str(value) for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(20)


def recreate(bootstrap, topic, partitions=1):
    """Delete a topic and make it again: as soon as it is gone for the broker."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})  # held by a name: the request dies with it
    admin.delete_topics([topic])[topic].result(20)

    def created():
        try:
            create(bootstrap, topic, partitions)
        except KafkaException as error:
            assert error.args[0].name() == "TOPIC_ALREADY_EXISTS", error
            return False
        return True

    wait(created, what="the topic's end")
