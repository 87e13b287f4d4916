"""Point reads over HTTP, and how soon a replica is ready: `python -m bench.reads [KEYS]`; needs `wrk`.

A state table of that many keys is written, `statehouse serve` started on it, and wrk asks for random keys over eight
connections, on the same machine: beside a handler that does nothing (`/healthz`) in the same run, to compare with. With
`replica: disk` the first process reads the table and leaves its file, the second maps it. Then the same keys in Kafka Streams
(:mod:`bench.peer`), restored from their topic, and with what it has on disk.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Producer
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake

from api.engine import duck
from bench import peer
from bench.soak import children, memory
from demo.broker import Broker
from statehouse.config.file import load
from statehouse.fold import Rule
from statehouse.tables import DEFINITION, POSITION, definition_of, table

CONFIG = """root: ./lake
streams:
  s: {topic: t, schema: "key STRING, n BIGINT, ts TIMESTAMP", time: ts}
stores:
  total: {stream: s, key: key, value: n, reduce: sum}
"""
OURS, PEERS = "/stores/total/keys/", "/keys/"
LUA = """
math.randomseed(os.time())
request = function() return wrk.format("GET", "%skey-" .. math.random(0, %d)) end
"""


def write(folder: Path, keys: int) -> None:
    """A state table as a merge leaves it, its configuration, and what wrk asks of it."""
    (folder / "statehouse.yaml").write_text(CONFIG)
    (folder / "keys.lua").write_text(LUA % (OURS, keys - 1))
    config = load(folder / "statehouse.yaml", {})
    rule = Rule(config.stores["total"], ("STRING",), "BIGINT")
    rows = (
        duck.connect()
        .sql(f"""
        SELECT 'key-' || i AS key, CAST(hash(i) % 1000000 AS BIGINT) AS value, CAST(value AS DECIMAL(38,0)) AS total,
            CAST(i AS DECIMAL(38,0)) AS _first, CAST(i AS DECIMAL(38,0)) AS _last, TIMESTAMPTZ '2024-01-01 00:00:00+00' AS _time,
            _time AS event_time, _time AS changed_at, CAST(NULL AS DECIMAL(38,0)) AS reset FROM range({keys}) AS t(i)
        """)
        .to_arrow_table()
    )
    path = table(config, "state", "total")
    properties = {DEFINITION: definition_of(rule)}
    DeltaTable.create(path, Schema.from_arrow(rows.schema), configuration=properties, raise_if_key_not_exists=False)
    done = CommitProperties(app_transactions=[Transaction(app_id=POSITION, version=1)])
    write_deltalake(path, rows, mode="append", commit_properties=done)


def wrk(url: str, script: Path | None = None, seconds: int = 10) -> str:
    """Requests per second and latencies over eight connections."""
    words = ["wrk", "-t1", "-c8", f"-d{seconds}s", "--latency", *(["-s", str(script)] if script else []), url]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = {name: (re.search(pattern, said) or ["", "?"])[1] for name, pattern in PATTERNS.items()}
    bad = "" if "Non-2xx" not in said else ", errors!"
    return f"{float(found['rate']):8,.0f}/s, p50 {found['p50']}, p99 {found['p99']}{bad}"


PATTERNS = {"rate": r"Requests/sec:\s+([\d.]+)", "p50": r"\n\s+50%\s+(\S+)", "p99": r"\n\s+99%\s+(\S+)"}


def ready(url: str, key: str, began: float) -> float:
    """Seconds until it says that it is ready, and a read is answered."""
    for path in ("/readyz", f"/stores/total/keys/{key}"):
        while True:
            with suppress(OSError):
                urllib.request.urlopen(url + path, timeout=5).close()
                break
            time.sleep(0.02)
    return time.monotonic() - began


def fill(bootstrap: str, keys: int) -> None:
    """Send each key's first value to the topic ``t``."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for i in range(keys):
        value = f'{{"key":"key-{i}","value":{i % 1_000_000},"event_time":"2024-01-01T00:00:00Z"}}'
        while True:
            try:
                producer.produce("t", key=f"key-{i}", value=value)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise SystemExit("Kafka did not take all of the keys")


def kafka_streams(folder: Path, keys: int) -> None:
    """The same figures of it."""
    script = folder / "peer.lua"
    script.write_text(LUA % (PEERS, keys - 1))
    with Broker(folder / "kafka", partitions=2) as broker:
        fill(broker.bootstrap, keys)
        with peer.serving(folder, broker.bootstrap, keys):  # reads it all once, so that there is something to restore
            pass
        shutil.rmtree(folder / "peer")
        for what in ("restored", "from its disk"):
            time.sleep(10)  # until the group has forgotten the last process
            with peer.serving(folder, broker.bootstrap, keys) as (url, took):
                print(f"Kafka Streams, {what}: ready after {took:.1f} s (load {os.getloadavg()[0]:.1f})")
                print(f"  point reads  {wrk(url, script)}", flush=True)


def main(keys: int = 1_000_000) -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, keys)
        print(f"{keys} keys")
        for replica, workers in (("memory", 1), ("memory", 2), ("disk", 1), ("disk", 1), ("disk", 2)):
            began = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "statehouse.cli", "serve", "--port", "0", "--workers", str(workers)],
                cwd=folder,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "STATEHOUSE_API__REPLICA": replica, "STATEHOUSE_API__CACHE": f"{name}/cache"},
            )
            try:
                assert process.stdout
                url = process.stdout.readline().split()[-1]
                took = ready(url, f"key-{keys - 1}", began)
                print(f"{replica}, {workers} workers: ready after {took:.1f} s (load {os.getloadavg()[0]:.1f})")
                print(f"  nothing      {wrk(f'{url}/healthz')}")
                print(f"  point reads  {wrk(url, folder / 'keys.lua')}")
                sizes = [memory(pid) for pid in children(process.pid)]
                print(f"  resident     {', '.join(f'{size:.0f} MiB' for size in sizes)}", flush=True)
            finally:
                process.terminate()
                process.wait()
        kafka_streams(folder, keys)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
