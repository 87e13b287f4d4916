"""Some connections for reads of the lake itself, for traffic: with `replica: none` each read is one."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import duckdb
from deltalake.exceptions import DeltaError

from api.engine.delta import pin, unpin
from api.engine.duck import Connection, connect, quoted
from statehouse.errors import LakeBusy

SCANS = 500  # of one connection: DuckDB keeps what it has learnt of every file


class Pool:
    """Some connections for reads of the lake itself, each for one caller at a time and made anew every so often."""

    def __init__(self, root: str, count: int, seconds: float) -> None:
        self._root, self._seconds = root, seconds
        self._free: queue.LifoQueue[_Used | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)

    @contextmanager
    def table(self, path: str, version: int) -> Iterator[tuple[Connection, str]]:
        """A connection, and what a version of a table is called there. Raises LakeBusy where all are taken for too long, or
        what is read is gone."""
        try:
            used = self._free.get(timeout=self._seconds)
        except queue.Empty:
            raise LakeBusy(f"found too many reads of {path}, expected a turn within {self._seconds} s") from None
        try:
            if used is None or used.scans >= SCANS:
                if used:
                    used.connection.close()
                used = _Used(connect(root=self._root, footers=True))
            used.scans += 1
            if used.versions.get(path) != version:
                unpin(used.connection, path)
                pin(used.connection, path, version, path)
                used.versions[path] = version
            yield used.connection, quoted(path)
        except (duckdb.Error, DeltaError) as error:
            raise LakeBusy(f"{path} cannot be read at version {version}: {str(error).splitlines()[0]}") from error
        finally:
            self._free.put(used)


@dataclass
class _Used:
    connection: Connection
    scans: int = 0
    versions: dict[str, int] = field(default_factory=dict)  # attached, by path
