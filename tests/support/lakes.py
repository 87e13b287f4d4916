"""Lakes of random events: made once a test run, copied by those who change them; and what is right in them."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.config.file import load
from tests.support.oracle import fold, windowed
from tests.support.records import SCHEMA, control, iso, record, rows

T0 = 1_700_000_000_000_000
CONFIG = """
tombstones: {tombstones}
streams:
  s:
    topic: t
    schema: key STRING, agent STRING, n BIGINT, ts TIMESTAMP
    time: ts
stores:
  total: {{stream: s, key: key, value: n, reduce: sum{where}}}
  votes: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority}}
  hours: {{stream: s, key: key, value: n, window: 1 hour, reduce: count}}
"""


def written(lake, where="", tombstones="7 days"):
    """The configuration; ``where`` changes the rule of ``total``."""
    return lake(CONFIG.format(where=f', where: "{where}"' if where else "", tombstones=tombstones))


def drawn(seed, count=120, partition=0, first=0, resets=True):
    """Random events: the records, and each as the oracle wants it, with its key and the stores that it is for. Without ``resets`` none is
    a set or a purge: then a merge takes a third of the time."""
    dice, records, events = random.Random(seed), [], []
    for offset in range(first, first + count):
        key, agent, n = f"k{dice.randrange(9)}", dice.choice("pqr"), dice.randrange(-5, 6)
        time, kind = T0 + dice.randrange(4 * 3600) * 1_000_000, dice.random()
        op, stores, body, headers = "report", ("total", "votes", "hours"), None, None
        if resets and kind < 0.05:
            op = "purge"
        elif resets and kind < 0.1:
            op, stores, body, headers = "set", ("total",), {"value": n}, control("set", "total")
        else:
            body = {"key": key, "agent": agent, "n": n, "ts": iso(time)}
        records.append(record("t", partition, offset, time, key, body, headers))
        events.append((key, stores, {"op": op, "agent": agent, "n": n, "order": (time, partition, offset)}))
    return records, events


def right(events, store, where=lambda event: True):
    """The oracle's values: by key, or by key and the start of the window."""
    keys = {}
    for key, stores, event in events:
        if store in stores and (event["op"] != "report" or where(event)):
            value = event["n"] if store != "votes" else int(abs(event["n"]) % 3 * (1 if event["n"] > 0 else -1))
            keys.setdefault(key, []).append({**event, "value": value})
    if store == "hours":
        hour = 3_600_000_000
        found = {k: windowed("count", e, hour, hour) for k, e in keys.items()}
        return {(k, start): value for k, w in found.items() for start, (value, _) in w.items()}
    found = {k: fold({"total": "sum", "votes": "majority"}[store], e) for k, e in keys.items()}
    return {k: value[0] for k, value in found.items() if value}


def state(spark, config, store):
    """The live state by key (and window), as the oracle gives it."""
    epoch = dt.datetime(1970, 1, 1)
    table = rows(spark, f"{config.root}/state/{store}")
    if store == "hours":
        return {(r["key"], (r["window_start"] - epoch) // dt.timedelta(microseconds=1)): r["value"] for r in table}
    return {r["key"]: r["value"] for r in table}


def whole(spark, config, store):
    """Every row with every column, in an order."""
    return sorted(rows(spark, f"{config.root}/state/{store}"), key=lambda r: (r["key"], str(r.get("window_start"))))


def merged(spark, config, *stores):
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda store: Merge(spark, config, config.stores[store]).round(), stores or config.stores))


def more(spark, config, records, *stores):
    """Some more records, merged."""
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(records, SCHEMA))
    merged(spark, config, *stores)


BATCHES, COUNT = 3, 181  # of the lake that most tests begin with


@pytest.fixture(scope="session")
def base(spark, tmp_path_factory):
    """A lake of random events, merged in batches, to be copied; and the events. The key `gone` is purged."""
    folder, known = tmp_path_factory.mktemp("base"), []
    (folder / "statehouse.yaml").write_text("root: ./lake\n" + CONFIG.format(where="", tombstones="7 days"))
    config = load(folder / "statehouse.yaml", {})
    ingest = Ingest(spark, config, config.streams["s"])
    for batch in range(BATCHES):
        records, events = drawn(1 + batch, 60, first=60 * batch)
        known += events
        if batch == BATCHES - 1:
            records.append(record("t", 0, COUNT - 1, T0 + 10**12, "gone", None))
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        merged(spark, config)
    return folder / "lake", known


@pytest.fixture
def filled(lake, base):
    """A copy of that lake: its configuration, and the events."""
    config = written(lake)
    shutil.copytree(base[0], config.root)
    return config, base[1]


def compacted(spark, config):
    """The changelog after maintenance: one file, the old ones deleted, the old log entries gone."""
    path = f"{config.root}/changelog/s"
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    log = Path(path, "_delta_log")
    kept = max(log.glob("*.checkpoint.parquet")).name.split(".")[0]
    for file in [*log.glob("*.json"), *log.glob("*.crc"), *log.glob(".*.crc")]:
        if file.name.lstrip(".").split(".")[0] < kept:
            file.unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
