"""How long a recovery takes, and how much memory: `python -m bench.recovery [EVENTS] [KEYS]`.

A Parquet file of random events is loaded and merged, then the store is recovered; each command is a process of its own,
whose tree's resident memory is looked at ten times a second (`/proc`, so Linux only).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb

CONFIG = """root: ./lake
streams:
  s: {topic: t, schema: "key STRING, agent STRING, value STRING, n BIGINT, ts TIMESTAMP", time: ts}
stores:
  total: {stream: s, key: key, value: n, reduce: sum}
"""


def usage(pid: int) -> tuple[int, float]:
    """Of a process and its descendants: bytes of resident memory, and seconds of both cores' time."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:13]))
    family, total, spent = [pid], 0, 0
    while family:
        one = family.pop()
        family += parents.get(one, [])
        spent += ticks.get(one, 0)
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total, spent / os.sysconf("SC_CLK_TCK")


def watched(command: list[str], folder: Path) -> tuple[float, int, float]:
    """Run a command in a folder, its output to ``log`` there: seconds, bytes of memory at the most, seconds of the processor."""
    began, peak, spent = time.monotonic(), 0, 0.0
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while process.poll() is None:
            memory, seconds = usage(process.pid)
            peak, spent = max(peak, memory), max(spent, seconds)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit((folder / "log").read_text()[-3000:])
    return time.monotonic() - began, peak, spent


def measured(folder: Path, *words: str) -> str:
    """Run a subcommand; its name, seconds, peak of memory, and seconds of the processor."""
    took, peak, spent = watched([sys.executable, "-m", "statehouse.cli", *words], folder)
    return f"statehouse {' '.join(words):28} {took:6.0f} s, peak {peak / 2**30:.2f} GiB, processor {spent:.0f} s"


def main(events: int = 5_000_000, keys: int = 1_000_000) -> None:
    """Print a line for each command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG)
        duckdb.sql(f"""
            COPY (SELECT 'key-' || (hash(i) % {keys}) AS key, 'agent-' || (i % 7) AS agent, 'v' || (i % 5) AS value,
                CAST(hash(i, 1) % 1000 AS BIGINT) AS n, TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_seconds(i) AS ts
            FROM range({events}) AS t(i)) TO '{folder}/old.parquet'""")
        print(f"{events} events, {keys} keys, load average {os.getloadavg()[0]:.1f}")
        for words in (("load", "s", "old.parquet"), ("merge", "--once"), ("recover", "total")):
            print(measured(folder, *words), flush=True)
        print((folder / "log").read_text().splitlines()[-2:])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
