"""The newest version of a Delta table, asked for twice a second: it must cost next to nothing.

On a file system that is a look whether the next commit's file is there. Elsewhere deltalake reads what is new
in the log.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from deltalake import DeltaTable

from statehouse.places import remote
from statehouse.tables import opened


class Mark(NamedTuple):
    """A version of a table, and what tells it from the same version of another table at the same place."""

    version: int
    stamp: tuple[int, int] | str


class Log:
    """Follows one table's log; not thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._mark: Mark | None = None
        self._table: DeltaTable | None = None

    def newest(self) -> Mark | None:
        """The newest version; None where there is no table. What cannot be read is raised."""
        self._mark = self._remote() if remote(self.path) else self._local()
        return self._mark

    def _local(self) -> Mark | None:
        known = self._mark and self._at(self._mark.version)
        # Deleted and made anew (or replaced, or cleaned up) since the last look: begin from the listing.
        mark = known if known and known == self._mark else self._listed()
        while mark and (following := self._at(mark.version + 1)):
            mark = following
        return mark

    def _at(self, version: int) -> Mark | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            commit = os.stat(f"{self.path}/_delta_log/{version:020}.json")
            return Mark(version, (commit.st_ino, commit.st_mtime_ns))
        return None

    def _listed(self) -> Mark | None:
        versions = []
        with suppress(FileNotFoundError, NotADirectoryError):
            names = os.listdir(f"{self.path}/_delta_log")
            versions = [int(n[:20]) for n in names if n[20:] == ".json" and n[:20].isdecimal()]
        return self._at(max(versions)) if versions else None

    def _remote(self) -> Mark | None:
        if self._table is None:
            self._table = opened(self.path)
            if self._table is None:
                return None
        else:
            self._table.update_incremental()
        return Mark(self._table.version(), str(self._table.metadata().id))
