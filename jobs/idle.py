"""Whether there is anything for ``run --once`` to do, told without Spark, which takes longer to start than most runs have to do.

A run that leaves nothing undone notes what it has seen: the settings, and the version of every table that it reads or writes. The next
one has nothing to do where all of that is the same, Kafka has no more than the changelogs, and no task has fallen due. What only time
brings about, such as the end of a retention, is seen to once in :data:`LONGEST`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from jobs.spark.position import Position
from statehouse.config.models import Config
from statehouse.status import offsets_behind
from statehouse.tables import (
    FOLDS,
    byte_count,
    metadata,
    opened,
    publish_position,
    route_position,
    rows_since,
    table,
    tasks_table,
)

LONGEST = 3600.0  # seconds
# Events, and bytes of all states together, that take less time than to compile what handles them fast.
FEW, SMALL = 10_000, 16 << 20


class Idle:
    """Whether the ``parts`` of the jobs that run once would find anything new in a lake."""

    def __init__(self, config: Config, parts: tuple[str, ...]) -> None:
        self.config, self.parts = config, parts
        self._noted = Position(table(config, "positions", "once"), f"once:{','.join(parts)}")

    def lasts(self) -> bool:
        """Whether nothing is new since the note."""
        noted = self._noted.read_note()
        if not noted or noted["until"] < time.time() or noted["seen"] != self._look():
            return False
        return self._behind == 0

    def is_little(self) -> bool:
        """Whether there are at most :data:`FEW` events that a run before, which left nothing undone, has not seen, and the states that
        they are merged into are small."""
        noted = self._noted.read_note()
        if not noted or noted["seen"]["settings"] != self._settings() or self._behind is None:
            return False
        before = noted["seen"]["tables"]
        states = [opened(table(self.config, "state", store)) for store in self.config.stores]
        if sum(byte_count(state) for state in states if state) > SMALL:
            return False
        return self._behind + sum(rows_since(path, before.get(path)) for path in self.changelogs()) <= FEW

    @cached_property
    def _behind(self) -> int | None:
        """How many offsets Kafka is ahead of the changelogs; None: it is not known."""
        config, behind = self.config, []
        for stream in config.streams.values() if "ingest" in self.parts else ():
            known = metadata(table(config, "changelog", stream.name), "offsets") or {}
            behind.append(offsets_behind(config, stream, known)[0])
        return None if None in behind else sum(filter(None, behind))

    def changelogs(self) -> dict[str, int | None]:
        """The version of each changelog, by its path."""
        return _versions(table(self.config, "changelog", stream) for stream in self.config.streams)

    def note(self, done: dict[str, int | None], due: float | None = None) -> None:
        """Note that nothing is left to do. ``done`` are the :meth:`changelogs` before the run merged them, ``due`` is when the next
        task falls due, in seconds since 1970. Call it while the other tables are locked."""
        if done != self.changelogs():  # a file was loaded meanwhile
            return
        until = min(time.time() + LONGEST, due if due is not None else float("inf"))
        self._noted.move((self._noted.get() or 0) + 1, {"seen": self._look(), "until": until})

    def _look(self) -> dict[str, Any]:
        return {"settings": self._settings(), "tables": _versions(self._tables())}

    def _settings(self) -> str:
        return hashlib.sha256(f"{FOLDS} {self.config.model_dump_json()}".encode()).hexdigest()

    def _tables(self) -> Iterator[str]:
        config = self.config
        for stream in config.streams:
            yield table(config, "changelog", stream)
        for store in config.stores.values():
            yield from (table(config, kind, store.name) for kind in ("state", "tombstones"))
            if store.publish and (state := opened(table(config, "state", store.name))):
                yield publish_position(config, store, state)[0]
        for route in config.routes.values():
            yield route_position(config, route)[0]
        if config.tasks is not None:
            yield tasks_table(config)


def _versions(paths: Iterable[str]) -> dict[str, int | None]:
    return {path: delta.version() if (delta := opened(path)) else None for path in paths}
