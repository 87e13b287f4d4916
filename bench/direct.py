"""What direct reads leave in memory: `python -m bench.direct [READS]` (3,000).

The same reads of `?version=`, in a process each: by DuckDB's delta extension, which leaks some of every scan, and by the files
that deltalake names (`api/engine/delta.py`).
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import bench.reads
from api.engine import delta
from api.reads.lake import Lake
from api.replica.replica import Replica
from bench.soak import memory
from statehouse.config.file import load

KEYS = 100_000


def read(folder: Path, reads: int, extension: bool) -> None:
    """Print the memory after each sixth of the reads."""
    if extension:
        delta._plain = lambda *_: False
    config = load(folder / "statehouse.yaml", {})
    replica, direct = Replica(config), Lake(config)
    replica.refresh()
    snapshot, store, found = replica.snapshot("total"), config.stores["total"], []
    began = time.monotonic()
    for number in range(reads):
        if number % max(1, reads // 6) == 0:
            found.append(memory(os.getpid()))
        row, _ = direct.version(store, [f"key-{number}"], snapshot, 1)
        assert row and row["key"] == f"key-{number}"
    found.append(memory(os.getpid()))
    each = (time.monotonic() - began) / reads * 1000
    print(
        f"{'extension' if extension else 'files':9} {' '.join(f'{m:6.0f}' for m in found)} MiB, {each:.1f} ms a read",
        flush=True,
    )


def main(reads: int = 3000) -> None:
    """Both, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        bench.reads.write(Path(name), KEYS)
        for extension in (True, False):
            process = multiprocessing.get_context("spawn").Process(target=read, args=(Path(name), reads, extension))
            process.start()
            process.join()
            assert process.exitcode == 0


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
