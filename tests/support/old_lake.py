"""A lake as it was written before files had microseconds (INT96), and what is right in it.

``tests/fixtures/old-lake.tar.gz`` was made by the code of commit 4723bba, from a checkout of that, when this module was there:
``PYTHONPATH=. python …/tests/old_lake.py FOLDER`` (the last batch but one is merged with the last). It is not made anew: it stands for the lakes that are there.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import tarfile
from decimal import Decimal
from pathlib import Path

from tests.support.oracle import fold, windowed
from tests.support.records import SCHEMA, iso, stamp

TOPIC = "old"
CONFIG = """
root: ./lake
tombstones: 36500 days
streams:
  s:
    topic: old
    schema: >-
      key STRING, agent STRING, word STRING, amount DECIMAL(38,6), day DATE, at TIMESTAMP,
      place STRUCT<Town: STRING, houseNumber: INT, since: TIMESTAMP, inner: STRUCT<deepField: DOUBLE>>,
      tags ARRAY<STRING>, notes MAP<STRING, STRING>, ts TIMESTAMP
    time: ts
tasks: {}
stores:
  total: {stream: s, key: key, value: amount, reduce: sum}
  votes: {stream: s, key: key, agent: agent, value: word, reduce: majority}
  place: {stream: s, key: key, value: place, reduce: latest}
  places: {stream: s, key: key, agent: agent, value: place, reduce: majority}
  when: {stream: s, key: key, value: at, reduce: latest}
  longest: {stream: s, key: key, value: at, reduce: max}
  first_day: {stream: s, key: [key, agent], value: day, reduce: first}
  by_time: {stream: s, key: at, reduce: count}
  hours: {stream: s, key: key, window: 1 hour, reduce: count}
  weeks: {stream: s, key: key, window: 1 week, reduce: count}
  quarters: {stream: s, key: key, window: 1 hour every 15 minutes, reduce: count}
"""
TIMES = [  # of the edges of what nanoseconds can hold, of the calendars, and of Python's own
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:40:00.000001Z",
    "1582-10-04T12:30:00Z",
    "1582-10-15T00:00:00.5Z",
    "1677-09-21T00:12:43Z",
    "1677-09-21T00:12:44Z",
    "1969-12-31T23:59:59.999999Z",
    "1970-01-01T00:00:00Z",
    "2024-02-29T13:37:00.123456Z",
    "2262-04-11T23:47:16.854775Z",
    "2262-04-11T23:47:17Z",
    "2500-06-01T12:00:00Z",
    "9999-12-31T23:59:59.999999Z",
]
KAFKA_TIME = 1_700_000_000_000_000


def report(key, number, **values):
    """A report whose values are made of a number: of its column's edges, and different from those of the next."""
    time = TIMES[number % len(TIMES)]
    other = TIMES[(number * 5 + 3) % len(TIMES)]
    made = {
        "key": key,
        "agent": "pqr"[number % 3],
        "word": "ab"[number % 2],
        "amount": number * 1234567 + 0.25,
        "day": other[:10],
        "at": other,
        "place": {
            "Town": f"t{number % 4}",
            "houseNumber": number % 3,
            "since": other,
            "inner": {"deepField": number / 4},
        },
        "tags": ["x", f"y{number}"],
        "notes": {"Key": f"v{number}"},
        "ts": time,
    }
    return {**made, **values}


# Payloads by batch: a dict is a report, a tuple a set (store, key, body), text a key that is purged, bytes are refused.
BATCHES = [
    [report(f"k{n % 5}", n) for n in range(20)],
    [report(f"k{n % 5}", n) for n in range(20, 40)]
    + [report("gone", 8), report("late", 4), b'{"key": 1, "at": "no time"}'],
    [
        "gone",
        ("total", "k1", {"value": "5.5"}),
        ("votes", "k2", {"value": "c", "agent": "z"}),
        report("k0", 12, place=None),
    ],
    [
        report("late", 12),
        report("gone", 1),
        ("place", "put", {"value": {"Town": "set", "houseNumber": 7}}),
        b"not JSON",
    ],
]
TASKS = ["9999-12-31T00:00:00Z", "2500-01-01T00:00:00Z"]


def records():
    """Kafka's records, batch by batch: topic, partition, offset, time (microseconds), key, payload, headers. Tasks come last."""
    made = as_records(BATCHES)
    for due in TASKS:
        task = json.dumps({"due": due, "send": {"topic": "told", "value": "x"}}).encode()
        made[-1].append((TOPIC, 0, made[-1][-1][2] + 1, KAFKA_TIME, None, task, {"statehouse-op": "task"}))
    return made


def as_records(batches):
    """The same of other batches, without tasks."""
    offset, made = 0, []
    for batch in batches:
        made.append([])
        for one in batch:
            key = headers = None
            payload = one if isinstance(one, bytes) else json.dumps(one).encode()
            if isinstance(one, str):
                key, payload = one, None
            elif isinstance(one, tuple):
                store, key, body = one
                headers, payload = {"statehouse-op": "set", "statehouse-store": store}, json.dumps(body).encode()
            made[-1].append((TOPIC, 0, offset, KAFKA_TIME + offset * 1_000_000, key, payload, headers))
            offset += 1
    return made


def rows_of(batch):
    """Records as Spark's source gives them."""
    for topic, partition, offset, time, key, payload, headers in batch:
        pairs = [(name, value.encode()) for name, value in headers.items()] if headers else None
        yield topic, partition, offset, stamp(time), key and key.encode(), payload, pairs


STORES = {  # store: the value's column, the reducer, and the window's length and step
    "total": ("amount", "sum", None),
    "votes": ("word", "majority", None),
    "place": ("place", "latest", None),
    "places": ("place", "majority", None),
    "when": ("at", "latest", None),
    "longest": ("at", "max", None),
    "hours": ("key", "count", (3600, 3600)),
    "weeks": ("key", "count", (604_800, 604_800)),
    "quarters": ("key", "count", (3600, 900)),
}
MENDED = ("place", "places", "quarters")  # by themselves: they were stored wrongly


def right(store, batches=None):
    """The oracle's state of a store: value and event time (microseconds) by key, or by key and the start of the window; structs are
    JSON text. ``batches`` are those of the lake, if they are no others."""
    column, reducer, window = STORES[store]
    states = {}
    for key, events in _events(store, column, batches or BATCHES).items():
        if window:
            size, step = (seconds * 1_000_000 for seconds in window)
            found = {(key, start): state for start, state in windowed(reducer, events, size, step).items()}
        else:
            found = {key: fold(reducer, events)}
        states |= {key: state for key, state in found.items() if state}
    return states


def _events(store, column, batches):
    found, offset = {}, 0
    for one in (one for batch in batches for one in batch):
        at = offset
        offset += 1
        if isinstance(one, bytes):
            continue
        if isinstance(one, dict):
            key, op, time = one["key"], "report", micros(one["ts"])
            agent, value = one["agent"], plain(column, one[column])
        elif isinstance(one, str):
            key, op, time, agent, value = one, "purge", KAFKA_TIME + at * 1_000_000, None, None
        else:
            target, key, body = one
            if target != store:
                continue
            op, time, agent, value = (
                "set",
                KAFKA_TIME + at * 1_000_000,
                body.get("agent", "api"),
                plain(column, body["value"]),
            )
        found.setdefault(key, []).append({"op": op, "agent": agent, "value": value, "order": (time, 0, at)})
    return found


def plain(column, value):
    """A value of a payload as the oracle compares it."""
    if value is None:
        return None
    if column == "amount":
        return Decimal(str(value))
    if column == "at":
        return micros(value)
    if column == "place":
        inner = {"deepField": value["inner"]["deepField"]} if value.get("inner") else None
        since = iso(micros(value["since"])) if value.get("since") else None
        return json.dumps(
            {"Town": value.get("Town"), "houseNumber": value.get("houseNumber"), "since": since, "inner": inner}
        )
    return value


def micros(text):
    """Microseconds since 1970 of a time in UTC."""
    moment = dt.datetime.fromisoformat(text.replace("Z", "").replace(".5", ".500000"))
    return (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def unpacked(folder):
    """The lake in a folder, with its ``statehouse.yaml``: the file's path."""
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "old-lake.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    file = Path(folder) / "statehouse.yaml"
    file.write_text(CONFIG)
    return file


def make(folder):
    """Write the lake with the code that is on the path."""
    from jobs.ingest import Ingest
    from jobs.merge import Merge
    from jobs.spark.session import session
    from jobs.tasks.job import Tasks
    from statehouse.config.file import load

    folder.mkdir(parents=True)
    (folder / "statehouse.yaml").write_text(CONFIG)
    config = load(folder / "statehouse.yaml", {})
    spark = session("old", folder / "spark.log", **{"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"})
    ingest = Ingest(spark, config, config.streams["s"])
    tasks = Tasks(spark, config)
    for number, batch in enumerate(records()):
        ingest.batch(spark.createDataFrame([*rows_of(batch)], SCHEMA).coalesce(1))
        if number == 2:
            continue  # the last batch but one is merged with the last
        for store in config.stores.values():
            Merge(spark, config, store).round()
    tasks._begin()
    tasks._register("s")
    for kind in ("tombstones", "state", "changelog", "quarantine"):
        for path in sorted((folder / "lake" / kind).iterdir()):
            print(kind, path.name, spark.read.format("delta").load(str(path)).count())
    spark.stop()
    with tarfile.open(folder / "old-lake.tar.gz", "w:gz") as archive:
        archive.add(
            folder / "lake", "lake",
            filter=lambda i: None if "/_locks" in i.name or "/_checkpoints" in i.name or i.name.endswith((".crc", ".log")) else i,
        )  # fmt: skip


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
