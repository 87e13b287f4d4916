"""The tables of the lake and what each commit did, as their Delta logs tell it, without reading a row."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deltalake import DeltaTable

from api.errors import unknown
from api.reads.sql import tables as tables_of
from statehouse.config.models import Config
from statehouse.tables import byte_count, files, opened, row_count

FRESH_SECONDS = 1.0  # for which what was read of a log is new enough
REMEMBERED = 2000  # commits of a table
MINUTES = 15
# What of a commit's metrics counts as rows, by Spark's names and by deltalake's.
ADDED = ("numTargetRowsInserted", "num_target_rows_inserted", "numOutputRows", "num_added_rows")
CHANGED = ("numTargetRowsUpdated", "num_target_rows_updated", "numUpdatedRows")
REMOVED = ("numTargetRowsDeleted", "num_target_rows_deleted", "numDeletedRows", "num_deleted_rows")
TOOK = ("executionTimeMs", "execution_time_ms")
# Of its files, and of their bytes, which deltalake does not say.
FILES = (
    ("numTargetFilesAdded", "numAddedFiles", "numFiles", "num_added_files"),
    ("numTargetFilesRemoved", "numRemovedFiles", "num_removed_files"),
)
BYTES = (("numTargetBytesAdded", "numAddedBytes", "numOutputBytes"), ("numTargetBytesRemoved", "numRemovedBytes"))
REWRITES = ("OPTIMIZE", "VACUUM START", "VACUUM END")  # the rows stay the same


class Size(NamedTuple):
    """A version of a table."""

    version: int
    rows: int
    size: int  # bytes
    files: int


class Log:
    """The log of one table, read on from where it was read before. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._delta: DeltaTable | None = None
        self._read = float("-inf")  # when, on the monotonic clock
        self.commits: list[dict[str, Any]] = []  # newest first
        self.size: Size | None = None  # None: the table is not there yet

    def refresh(self) -> Log:
        """Read what was committed since, unless that was done a moment ago."""
        with self._lock:
            if time.monotonic() - self._read < FRESH_SECONDS:
                return self
            if self._delta is None:
                self._delta = opened(self._path)
            else:
                self._delta.update_incremental()
            if self._delta is not None and (self.size is None or self._delta.version() != self.size.version):
                self._look(self._delta)
            self._read = time.monotonic()
        return self

    def _look(self, delta: DeltaTable) -> None:
        since = self.size.version if self.size else delta.version() - REMEMBERED
        new = delta.history(min(REMEMBERED, max(1, delta.version() - since)))
        self.commits = [*map(commit, new), *self.commits][:REMEMBERED]
        self.size = Size(delta.version(), row_count(delta), byte_count(delta), files(delta).num_rows)

    def sized_commits(self) -> Iterator[dict[str, Any]]:
        """The commits, newest first, with the ``files`` and ``bytes`` that the table had after each, as far back as its log tells."""
        now: dict[str, int | None] = {"files": self.size.files, "bytes": self.size.size} if self.size else {}
        for changes in self.commits:
            yield {**changes, **now}
            now = {n: None if size is None or changes[n] is None else size - changes[n] for n, size in now.items()}


class Logs:
    """The logs of a configuration's tables, by the names that SQL has for them."""

    def __init__(self, config: Config) -> None:
        self._logs = {name: Log(path) for name, path in tables_of(config).items()}

    def __iter__(self) -> Any:
        return iter(self._logs)

    def of(self, name: str) -> Log:
        """A table's log as it is now; a problem where there is no such table."""
        if name not in self._logs:
            raise unknown("table", name, self._logs)
        return self._logs[name].refresh()


def commit(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a commit did: its ``version``, when (``at``), the ``operation``, the rows that it ``added``, ``changed`` and ``removed``,
    and how many milliseconds it took, where it says so (``ms``); by how much it changed ``files`` and ``bytes`` (None: it does not
    say)."""
    metrics = {**(entry.get("operationMetrics") or {})}
    operation = str(entry.get("operation", ""))
    rows = operation not in REWRITES

    def said(names: tuple[str, ...]) -> int | None:
        return next((int(metrics[n]) for n in names if str(metrics.get(n, "")).isdigit()), None)

    def count(names: tuple[str, ...]) -> int:
        return (said(names) or 0) if rows else 0

    def grown(added: tuple[str, ...], removed: tuple[str, ...]) -> int | None:
        more, less = said(added), said(removed)
        overwritten = (entry.get("operationParameters") or {}).get("mode") == "Overwrite"
        return None if more is None or (less is None and overwritten) else more - (less or 0)

    writes = said(FILES[0]) is not None
    sizes = {name: grown(*names) if writes else 0 for name, names in (("files", FILES), ("bytes", BYTES))}
    took = said(TOOK)
    at = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=entry.get("timestamp") or 0)
    counts = {"added": count(ADDED), "changed": count(CHANGED), "removed": count(REMOVED)}
    if operation == "MERGE":  # which says there how many rows its files have, too
        counts["added"] = count(ADDED[:2])
    return {"version": entry.get("version"), "at": at, "operation": operation, **counts, "ms": took, **sizes}


def per_minute(commits: list[dict[str, Any]], kinds: tuple[str, ...], now: dt.datetime) -> list[int]:
    """The rows of some kinds in each of the last minutes, the oldest first."""
    minutes = [0] * MINUTES
    for found in commits:
        past = int((now - found["at"]) / dt.timedelta(minutes=1))
        if past >= MINUTES:
            break
        minutes[MINUTES - 1 - max(0, past)] += sum(found[kind] for kind in kinds)
    return minutes
