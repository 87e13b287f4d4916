"""Maintenance in a loop beside all else: `python -m bench.upkeep [MINUTES] [RATE]` (10 minutes, 200 requests a second).

The processes and requests of :mod:`bench.soak`, but the jobs look after their tables every five seconds, and what no version of the
last two minutes has is deleted (the configuration does not take less than an hour). Two readers ask for the tables in SQL, all the
time. Every tenth of the time: each table's files, those that the newest version has and those that are there. In the end every key's
total and last value is compared with what was sent, in the API's answers and in the tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from api.engine import duck
from bench.soak import Stage, measured, staged, status_of
from bench.stopped import Truth, rows
from statehouse.config.file import load
from statehouse.tables import position, table

EVERY, VERSIONS = "5 seconds", 120_000  # ms; a round of merges must not take longer
TABLES = ("changelog/s", "state/total", "state/last", "state/status", "tombstones/total", "quarantine/s")


class Upkept(Stage):
    """With jobs that look after their tables all the time."""

    def run_jobs(self) -> None:
        here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "STATEHOUSE_MAINTAIN_EVERY": EVERY}
        command = [sys.executable, "-m", "bench.upkeep", "jobs"]
        self.jobs = subprocess.Popen(command, cwd=self.folder, env=here, stdout=self.log, stderr=self.log)


def jobs() -> None:
    """`statehouse run`, but for how long versions are kept."""
    import signal

    from jobs.run import Jobs
    from statehouse import logs

    logs.to_stderr()
    config = load(Path("statehouse.yaml")).model_copy(update={"versions": VERSIONS})
    running = Jobs(config, spark_log=Path("spark.log"))
    signal.signal(signal.SIGTERM, lambda *_: running.stop())
    running.run()


class Reader(threading.Thread):
    """Asks for a table in SQL, over and over."""

    def __init__(self, path: Path, query: str) -> None:
        super().__init__(daemon=True)
        self.path, self.query, self.stopping = path, query, threading.Event()
        self.answers, self.failed = 0, list[str]()

    def run(self) -> None:
        while not self.stopping.wait(2.0):
            try:
                with duck.connect(threads=1) as db:
                    db.sql(self.query.format(f"delta_scan('{self.path}')")).fetchall()
                self.answers += 1
            except duckdb.Error as error:
                self.failed.append(str(error).splitlines()[0])


def files(lake: Path) -> str:
    """Of each table: files of the newest version, and those that are there."""
    found = []
    for name in TABLES:
        there = sum(1 for _ in (lake / name).glob("**/*.parquet") if "_delta_log" not in _.parts)
        found.append(f"{name} {len(DeltaTable(str(lake / name)).file_uris())}/{there}")
    return ", ".join(found)


def main(minutes: float = 10, rate: float = 200) -> None:
    """Run it all, and print what was found."""
    with staged(Truth, Upkept) as stage:
        source, lake, ended = stage.source, stage.folder / "lake", threading.Event()
        assert isinstance(source, Truth)
        readers = [
            Reader(lake / "state/total", "SELECT count(*), sum(value) FROM {}"),
            Reader(lake / "changelog/s", "SELECT count(*), sum(n) FROM {}"),
        ]
        for reader in readers:
            reader.start()

        def watch() -> None:
            while not ended.wait(minutes * 6):
                print(f"       files: {files(lake)}", flush=True)

        threading.Thread(target=watch, daemon=True).start()
        measured(stage, minutes * 60, rate)
        ended.set()
        for thread in (source, *readers):
            thread.stopping.set()
            thread.join()
        while status_of(stage.port)[0]["live"]["behind"] or any(
            s["position"] != s["head"] for s in status_of(stage.port)
        ):
            time.sleep(0.5)
        config, head = load(stage.folder / "statehouse.yaml"), lambda: DeltaTable(str(lake / "changelog/s")).version()
        while any(position(table(config, "state", store)) != head() for store in config.stores):
            time.sleep(0.5)
        for reader in readers:
            said = Counter(reader.failed).most_common(3)
            print(f"{reader.path.name}: {reader.answers} answers in SQL, {len(reader.failed)} failed {said}")
        print(f"in the end: {files(lake)}")
        for store, right in (("last", source.last), ("total", source.total)):
            with duck.connect() as db:
                kept = dict(db.sql(f"SELECT key, value FROM delta_scan('{lake / 'state' / store}')").fetchall())
            for where, found in (("the API", rows(stage.port, store)), ("the table", kept)):
                differing = [k for k in right if found.get(k) != right[k]]
                print(
                    f"{store}, {where}: {len(found):,} keys, {len(differing)} other than what was sent {differing[:5]}"
                )
        lines = (stage.folder / "log").read_text().splitlines()
        print(*[line for line in lines if line[2:3] == ":" and ("maintain " in line or "again" in line)][:10], sep="\n")
        print(f"{sum(' files → ' in line for line in lines)} compactions; {source.sent:,} events")


if __name__ == "__main__":
    jobs() if sys.argv[1:] == ["jobs"] else main(*map(float, sys.argv[1:]))
