"""What a key's history takes: `python -m bench.history [MILLIONS]` (20 million events over a million keys).

A changelog as ingestion leaves it, as maintenance compacts it, and compacted by the key (``cluster_by``): its files, how many of them
may have a key by what the table's log says, and the time of `history` of some keys, each a question of the API's (:mod:`api.reads.lake`).
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from api.engine.changelog import may_have
from api.reads.lake import Lake
from api.replica.replica import Replica
from bench.growth import configured, write
from jobs.load import load as load_file
from jobs.maintain import Maintain
from jobs.merge import Merge
from jobs.spark.session import session
from jobs.spark.tables import create_stream
from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.tables import opened, table

KEYS, APPENDED, ASKED = 1_000_000, 250_000, 20  # keys; events of a load; keys that are asked for


def asked(config: Config, how: str) -> None:
    """Print what `history` of some keys takes."""
    replica, lake = Replica(config), Lake(config)
    replica.refresh()
    changelog = opened(table(config, "changelog", "s"))
    assert changelog is not None
    files = pa.table(changelog.get_add_actions(flatten=True))
    took, may, events = [], [], 0
    for number in random.Random(1).sample(range(KEYS), ASKED + 1):
        key = f"key-{number}"
        began = time.monotonic()
        events += len(lake.history(replica.snapshot("total"), [key], None, 1000)[0].rows)
        took.append(time.monotonic() - began)
        may.append(pc.sum(may_have({"key": key}, files)).as_py())
    size = pc.sum(files["size_bytes"]).as_py() / 2**20
    median, most = statistics.median(took[1:]), max(took[1:])  # the first one makes the connection
    print(
        f"{how:<26} {files.num_rows:>4} files, {size:,.0f} MiB; of a key {statistics.median(may):.0f}; "
        f"history: median {median * 1000:.0f} ms, most {most * 1000:.0f} ms; {events} events",
        flush=True,
    )


def main(millions: int = 20) -> None:
    """Print a line for each layout."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "lake"
        spark = session("bench", Path(name) / "spark.log")
        config = configured(folder)
        for number in range(millions * 1_000_000 // APPENDED):
            write(folder / "some.parquet", APPENDED, f"(hash(i, {number}) % {KEYS})", number)
            load_file(spark, config, config.streams["s"], folder / "some.parquet")
        Merge(spark, config, config.stores["total"]).round()
        asked(config, "as it is appended")
        Maintain(spark, config).logs(threading.Event())
        asked(config, "compacted")
        file = folder / "statehouse.yaml"
        file.write_text(file.read_text().replace("time: ts", "time: ts, cluster_by: key"))
        config = load(file, {})
        create_stream(spark, config, config.streams["s"])
        began = time.monotonic()
        Maintain(spark, config).logs(threading.Event())
        asked(config, f"by key, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
