"""What grows with the keys and with a topic's partitions: `python -m bench.growth [MILLIONS ...]`; needs `wrk`.

2,000,000 events in a topic of 1, 2 and 4 partitions are ingested by one warm Spark application. Then for each number of keys (1, 4 and
16 million): a lake with one event of each is loaded and merged, then batches of random events are, some of each size; then `statehouse
serve` and wrk, as in :mod:`bench.reads`. The same merges again with the state in buckets.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from api.engine import duck
from bench.reads import LUA, OURS, ready, wrk
from bench.soak import children, memory
from bench.throughput import send
from demo.broker import Broker
from jobs.ingest import Ingest
from jobs.load import load as load_file
from jobs.merge import Merge
from jobs.spark.session import session
from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.status import stream_status
from statehouse.tables import opened, table

CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, agent STRING, n BIGINT, ts TIMESTAMP", time: ts}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum{buckets}}}
"""
BATCHES, TIMES = (10, 1_000, 100_000), 3  # events, and how often, after one to warm up
BUCKETS = 64
EVENTS, PARTITIONS = 2_000_000, (1, 2, 4)


def configured(folder: Path, bootstrap: str = "127.0.0.1:1", buckets: int = 0) -> Config:
    """A lake of its own in a folder."""
    folder.mkdir()
    layout = f", buckets: {buckets}" if buckets else ""
    (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=bootstrap, buckets=layout))
    return load(folder / "statehouse.yaml", {})


def write(file: Path, count: int, key: str, seed: int) -> None:
    """Events, as many as are to be, whose keys are an expression of ``i``."""
    duck.connect().execute(f"""
        COPY (SELECT 'key-' || {key} AS key, 'agent-' || (i % 7) AS agent, CAST(hash(i, {seed}) % 1000 AS BIGINT) AS n,
            TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_seconds({seed % 1000} * 1000000 + i % 1000000) AS ts
        FROM range({count}) AS t(i)) TO '{file}' (FORMAT PARQUET)""")


def keys(spark, folder: Path, count: int, buckets: int = 0) -> None:
    """The figures for a number of keys, and of the API's where the state is not in buckets."""
    config = configured(folder, buckets=buckets)
    stream, merge = config.streams["s"], Merge(spark, config, config.stores["total"])
    for place in range(0, count, 4_000_000):  # each as a file
        write(folder / "some.parquet", min(count, 4_000_000), f"(i + {place})", place)
        load_file(spark, config, stream, folder / "some.parquet")
    began = time.monotonic()
    merge.round()
    print(
        f"{count:,} keys, {buckets} buckets: first merge {time.monotonic() - began:.1f} s (load average {os.getloadavg()[0]:.1f})"
    )
    for size in BATCHES:
        took = []
        for number in range(TIMES + 1):
            write(folder / "some.parquet", size, f"(hash(i, {number}) % {count})", 100 + number)
            load_file(spark, config, stream, folder / "some.parquet")
            began = time.monotonic()
            merge.round()
            took.append(time.monotonic() - began)
        measured = took[1:]
        print(
            f"  MERGE of {size:>7,} events: {statistics.median(measured):5.2f} s ({min(measured):.2f} to {max(measured):.2f})"
        )
    state = opened(table(config, "state", "total"))
    assert state is not None
    files = pa.table(state.get_add_actions(flatten=True)).to_pydict()
    print(f"  the state: {len(files['path'])} files, {sum(files['size_bytes']) / 2**20:.0f} MiB", flush=True)
    if not buckets:
        reads(folder, count)


def reads(folder: Path, count: int) -> None:
    """Point reads over HTTP of a lake's keys."""
    (folder / "keys.lua").write_text(LUA % (OURS, count - 1))
    began = time.monotonic()
    command = [sys.executable, "-m", "statehouse.cli", "serve", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = process.stdout.readline().split()[-1]
        took = ready(url, f"key-{count - 1}", began)
        said = wrk(url, folder / "keys.lua")
        (worker,) = [p for p in children(process.pid) if memory(p) > 50]
        print(f"  ready after {took:.1f} s, {memory(worker):,.0f} MiB, point reads {said}", flush=True)
    finally:
        process.terminate()
        process.wait()


def partitions(spark, folder: Path) -> None:
    """The figures for each number of a topic's partitions; the first run warms up."""
    for number, count in enumerate((2, *PARTITIONS)):
        with Broker(folder / f"kafka{number}", partitions=count) as broker:
            config = configured(folder / f"of{number}", broker.bootstrap)
            send(broker.bootstrap, EVENTS, 1_000_000)
            began = time.monotonic()
            Ingest(spark, config, config.streams["s"]).run(once=True)
            took = time.monotonic() - began
            assert stream_status(config, "s")["events"] == EVENTS
            if number:
                print(
                    f"{count} partitions: {EVENTS / took:,.0f} events/s ingested (load average {os.getloadavg()[0]:.1f})",
                    flush=True,
                )


def main(*millions: int) -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = session("bench", folder / "spark.log")
        partitions(spark, folder)
        for number in millions or (1, 4, 16):
            for buckets in (0, BUCKETS) if number <= 4 else (0,):  # it would take too long
                keys(spark, folder / f"{number}m{buckets}", number * 1_000_000, buckets)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
