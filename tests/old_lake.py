"""A lake as it was written before files had microseconds (INT96), and what is right in it.

``tests/fixtures/old-lake.tar.gz`` was made by the code of commit 4723bba, from a checkout of that:
``PYTHONPATH=. python …/tests/old_lake.py FOLDER``. It is not made anew: it stands for the lakes that are there.
"""

from __future__ import annotations

import json
import sys
import tarfile
from decimal import Decimal
from pathlib import Path

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
    """Kafka's records, batch by batch: topic, partition, offset, time (microseconds), key, payload, headers."""
    offset, batches = 0, []
    for batch in BATCHES:
        made = []
        for found in batch:
            key = payload = headers = None
            if isinstance(found, bytes):
                payload = found
            elif isinstance(found, str):
                key = found
            elif isinstance(found, tuple):
                store, key, body = found
                headers, payload = {"statehouse-op": "set", "statehouse-store": store}, json.dumps(body).encode()
            else:
                payload = json.dumps(found).encode()
            made.append((TOPIC, 0, offset, KAFKA_TIME + offset * 1_000_000, key, payload, headers))
            offset += 1
        batches.append(made)
    tasks = [json.dumps({"due": due, "send": {"topic": "told", "value": "x"}}).encode() for due in TASKS]
    batches[-1] += [(TOPIC, 0, offset + i, KAFKA_TIME, None, t, {"statehouse-op": "task"}) for i, t in enumerate(tasks)]
    return batches


def events(column):
    """The events of a column's value as :mod:`tests.oracle` wants them, by key, in the types that Python has: a report is in each
    store; a set or a purge has a ``store``, or None."""
    found = {}
    for batch, made in zip([*BATCHES], records(), strict=True):
        for (_, _, offset, kafka_time, _, _, _), one in zip(made, batch, strict=False):
            if isinstance(one, bytes):
                continue
            if isinstance(one, dict):
                time, key, op, store = micros(one["ts"]), one["key"], "report", None
                agent, value = one["agent"], one[column]
            else:
                op, time = ("purge" if isinstance(one, str) else "set"), kafka_time
                store, key, body = (None, one, {}) if isinstance(one, str) else one
                agent, value = body.get("agent", "api"), body.get("value")
            if column == "amount" and value is not None:
                value = Decimal(str(value))
            if column in ("at", "ts") and value is not None:
                value = micros(value)
            event = {"op": op, "agent": agent, "value": value, "order": (time, 0, offset), "store": store}
            found.setdefault(key, []).append(event)
    return found


def micros(text):
    """Microseconds since 1970 of a time in UTC."""
    import datetime as dt

    moment = dt.datetime.fromisoformat(text.replace("Z", "").replace(".5", ".500000"))
    return (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def unpacked(folder):
    """The lake in a folder, with its ``statehouse.yaml``: the file's path."""
    with tarfile.open(Path(__file__).parent / "fixtures" / "old-lake.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    file = Path(folder) / "statehouse.yaml"
    file.write_text(CONFIG)
    return file


def make(folder):
    """Write the lake with the code that is on the path."""
    from jobs.ingest import Ingest
    from jobs.merge import Merge
    from jobs.session import session
    from jobs.tasks import Tasks
    from statehouse.config import load
    from tests.records import SCHEMA, stamp

    folder.mkdir(parents=True)
    (folder / "statehouse.yaml").write_text(CONFIG)
    config = load(folder / "statehouse.yaml", {})
    spark = session("old", folder / "spark.log", **{"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"})
    ingest = Ingest(spark, config, config.streams["s"])
    tasks = Tasks(spark, config)
    for number, batch in enumerate(records()):
        rows = [
            (
                t,
                p,
                o,
                stamp(at),
                key and key.encode(),
                body,
                [(k, v.encode()) for k, v in heads.items()] if heads else None,
            )
            for t, p, o, at, key, body, heads in batch
        ]
        ingest.batch(spark.createDataFrame(rows, SCHEMA).coalesce(1))
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
