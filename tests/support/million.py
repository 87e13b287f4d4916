"""Many random events, told twice, in any order; and what is right of them."""

from __future__ import annotations

import random

from tests.support.oracle import fold, windowed
from tests.support.records import control, iso, payload

EVENTS = 1_000_000
T0 = 1_700_000_000_000  # milliseconds, as Kafka's own times; each event has one of its own, so that no two tie
HOUR = 3_600_000
CONFIG = """root: ./lake
kafka:
  bootstrap.servers: {bootstrap}
merge_every: 1 second
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING, value STRING, n BIGINT, ts TIMESTAMP
    time: ts
stores:
  last: {{stream: s, key: key, value: value, reduce: latest}}
  votes: {{stream: s, key: key, agent: agent, value: value, reduce: majority}}
  total: {{stream: s, key: key, value: n, reduce: sum}}
  hours: {{stream: s, key: key, value: n, window: 1 hour, reduce: max}}
"""
REDUCE = {"last": ("latest", "value"), "votes": ("majority", "value"), "total": ("sum", "n"), "hours": ("max", "n")}


def drawn(seed):
    """The events in their order: (time, operation, key, agent, value, n)."""
    dice = random.Random(seed)
    keys, step = max(10, EVENTS // 50), max(1, 6 * HOUR // EVENTS)
    for number in range(EVENTS):
        op = dice.choices(("report", "purge", "set"), (97, 1, 2))[0]
        value = dice.choice("abcd") if dice.random() < 0.97 else None
        yield T0 + number * step, op, f"k{dice.randrange(keys)}", dice.choice("pqrs"), value, dice.randrange(-9, 10)


def send(producer, topic, event, partition):
    time_ms, op, key, agent, value, n = event
    body = headers = None
    if op == "report":
        body = {"key": key, "agent": agent, "value": value, "n": n, "ts": iso(time_ms * 1000)}
    elif op == "set":
        body, headers = {"value": n}, control("set", "total")
    while True:
        try:
            producer.produce(
                topic, key=key, value=payload(body), headers=headers or {}, timestamp=time_ms, partition=partition
            )
            return
        except BufferError:
            producer.poll(0.1)


def send_all(producer, topic, events, dice):
    """Send events to either of two partitions, and wait for every acknowledgement."""
    for event in events:
        send(producer, topic, event, dice.randrange(2))
    assert producer.flush(120) == 0


def producer_of(bootstrap):
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 50})


def right(events, store):
    """The oracle's values."""
    name, column = REDUCE[store]
    keys = {}
    for time_ms, op, key, agent, value, n in events:
        if op != "set" or store == "total":
            event = {
                "op": op,
                "agent": agent,
                "value": value if column == "value" else n,
                "order": (time_ms * 1000, 0, 0),
            }
            keys.setdefault(key, []).append(event)
    if store == "hours":
        found = {k: windowed(name, e, HOUR * 1000, HOUR * 1000) for k, e in keys.items()}
        return {(k, start): value for k, w in found.items() for start, (value, _) in w.items()}
    found = {k: fold(name, e) for k, e in keys.items()}
    return {k: value[0] for k, value in found.items() if value}
