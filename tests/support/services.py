"""A running service over a real lake and a real Kafka, with stores of every kind: for those who try to break it."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.config.file import load
from statehouse.config.models import Config
from tests.support.records import SCHEMA, control, iso, record

TOKENS = {"all": "may-read-and-write", "read": "may-only-read"}
CONFIG = """
root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
api: {{tokens: tokens.yaml, max_rows: 50, max_key: {max_key}}}
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING, n INT, m DECIMAL(12,2), x DOUBLE, b BOOLEAN, d DATE, ts TIMESTAMP, tags ARRAY<STRING>
    time: ts
stores:
  votes: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority}}
  texts: {{stream: s, key: key, value: key, reduce: latest}}
  money: {{stream: s, key: [key, n], value: m, reduce: sum}}
  names: {{stream: s, key: [key, "tags[0] AS tag"], value: b, reduce: latest}}
  tills: {{stream: s, key: n, value: x, reduce: avg}}
  days: {{stream: s, key: d, value: ts, reduce: max}}
  times: {{stream: s, key: ts, value: tags, reduce: latest}}
  prices: {{stream: s, key: m, value: d, reduce: first}}
  hours: {{stream: s, key: key, value: n, window: 1 hour, reduce: count}}
  fresh: {{stream: s, key: [key, n], value: n, reduce: sum}}    # never merged
tasks: {{topics: [told, 'ops-*']}}
"""
TOPIC = "tried.events"
MAX_KEY = 4000
# Keys of the store `texts`.
ODD = [
    "",
    "a",
    "b/c",
    "/",
    "//x/",
    "a%2Fb",
    "%",
    "+",
    " ",
    "é",
    "Jürgen 🙂",
    "tab\tline\n",
    "nul\0",
    "q?x=1#f",
    ".",
    "..",
    "../..",
    "\ufeff",
]
ODD += ["k" * MAX_KEY]
T0 = 1_700_000_000_000_000


@dataclass(frozen=True)
class Service:
    """Where it is, and what it serves."""

    url: str
    port: int
    bootstrap: str
    config: Config


def events(count: int = 76) -> list[tuple]:
    """Random records, some purges, sets and some that are refused."""
    dice, made = random.Random(7), []
    for offset in range(count):
        key, time = ODD[offset % len(ODD)], T0 + dice.randrange(4 * 3600) * 1_000_000
        body = {
            "key": key,
            "agent": dice.choice("pq"),
            "n": dice.randrange(-3, 4),
            "m": round(dice.uniform(-9, 9), 2),
            "x": dice.uniform(-1, 1),
            "b": dice.random() < 0.5,
            "d": iso(time + dice.randrange(9) * 86_400_000_000)[:10],
            "ts": iso(time),
            "tags": dice.sample(["red", "green/blue"], dice.randrange(3)),
        }
        made.append(record(TOPIC, 0, offset, time, key, body))
    made.append(record(TOPIC, 0, count, T0 + 10**12, "purged", None))
    made.append(record(TOPIC, 0, count + 1, T0, "a", {"value": 7, "agent": "z"}, control("set", "votes")))
    made += [record(TOPIC, 0, count + 2 + i, T0, "a", b"?" * i) for i in range(5)]
    return made


@pytest.fixture(scope="session")
def tried(spark, broker, tmp_path_factory):
    """The service of those who try it, with ``statehouse serve``."""
    folder = tmp_path_factory.mktemp("tried")
    names = "".join(
        f"{name}: {{token: {token}, scopes: [{'read, write' if name == 'all' else 'read'}]}}\n"
        for name, token in TOKENS.items()
    )
    (folder / "tokens.yaml").write_text(names)
    (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=TOPIC, max_key=MAX_KEY))
    config = load(folder / "statehouse.yaml", {})
    topic = NewTopic(TOPIC, num_partitions=2, replication_factor=1)
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_topics([topic])[TOPIC].result(20)
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(events(), SCHEMA))
    with ThreadPoolExecutor(2) as threads:
        list(
            threads.map(
                lambda s: Merge(spark, config, s).round(), [s for n, s in config.stores.items() if n != "fresh"]
            )
        )
    command = [sys.executable, "-m", "statehouse.cli", "serve", "--port", "0"]
    with (
        open(folder / "serve.log", "wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            line = process.stdout.readline()
            assert line.startswith("serving on "), (folder / "serve.log").read_text()
            url = line.removeprefix("serving on ").strip()
            yield Service(url, int(url.rpartition(":")[2]), broker.bootstrap, config)
            assert process.poll() is None, "it still runs"
        finally:
            process.terminate()
            process.wait(120)
            said = (folder / "serve.log").read_text()
        assert "Traceback" not in said, said[-3000:]
