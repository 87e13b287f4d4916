"""The replica: each store's state in this process's memory, following the lake in the background.

Readers take the current :class:`Snapshot` and keep it for their request; a new one is swapped in when it is
complete, so nobody waits and nobody sees a half. Readers never touch the lake: when it is gone, busy or
broken, they go on with what is here, and the store says so in ``error``.

What the lake brings arrives through :meth:`Replica.refresh` alone; a tail that is fresher than the MERGE (the
changelog's change feed, the topic) belongs beside it, between the snapshot and the readers.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from api import duck
from api.log import Log, Mark
from api.snapshot import Snapshot, load
from statehouse.config import Config, Store
from statehouse.tables import commit_time, table

POLL_SECONDS = 0.5
log = logging.getLogger("statehouse.api")


@dataclass
class Followed:
    """A store and what this process knows of it. Fields are replaced as wholes: a reader needs no lock."""

    store: Store
    log: Log
    snapshot: Snapshot = field(default_factory=Snapshot)
    mark: Mark | None = None
    behind: tuple[int, int | None] | None = None  # the first version not folded yet, and when it was committed
    error: str | None = None


class Replica:
    """All stores of a configuration. ``start`` it once; its thread calls ``refresh`` twice a second."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._connection = duck.connect()
        self.cursors = duck.Cursors(self._connection)
        self._loader = self._connection.cursor()
        self._stores = {s.name: Followed(s, Log(table(config, "state", s.name))) for s in config.stores.values()}
        self._changelogs = {s: Log(table(config, "changelog", s)) for s in config.streams}
        self._heads: dict[str, int | None] = {}
        self._discarded: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._refreshing = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        """Load what is there, then follow it in the background."""
        self.refresh()
        threading.Thread(target=self._follow, name="replica", daemon=True).start()

    def stop(self) -> None:
        """End the background thread; reads go on as of now."""
        self._stop.set()

    def snapshot(self, store: str) -> Snapshot:
        """The store's current state."""
        return self._stores[store].snapshot

    def status(self, store: str) -> dict[str, Any]:
        """What ``GET /stores/{store}`` says; ``statehouse status`` shows the same numbers."""
        followed = self._stores[store]
        snapshot, behind = followed.snapshot, followed.behind
        lag = 0 if behind is None else None if behind[1] is None else max(0, round(time.time() * 1000) - behind[1])
        return {
            "name": store,
            **followed.store.definition,
            "columns": snapshot.columns(),
            "keys": snapshot.keys,
            "position": snapshot.position,
            "version": snapshot.version,
            "head": self._heads.get(followed.store.stream),
            "lag_ms": lag,
            "error": followed.error,
        }

    def refresh(self) -> None:
        """Bring every store up to the newest version of its table. Never raises: a store keeps its error."""
        with self._refreshing:
            self._drop_discarded()
            unread: dict[str, str] = {}
            for stream, changelog in self._changelogs.items():
                try:
                    head = changelog.newest()
                    self._heads[stream] = head.version if head else None
                except BaseException as error:
                    unread[stream] = f"changelog/{stream}: {_line(error)}"
            for followed in self._stores.values():
                trouble = unread.get(followed.store.stream)
                try:
                    trouble = self._load(followed) or trouble
                    self._measure(followed)
                except BaseException as error:
                    trouble = f"state/{followed.store.name}: {_line(error)}"
                if trouble and trouble != followed.error:
                    log.warning("store %s: %s", followed.store.name, trouble)
                followed.error = trouble

    def _drop_discarded(self) -> None:
        while not self._discarded.empty():
            self._loader.execute(f"DROP TABLE IF EXISTS {self._discarded.get()}")

    def _load(self, followed: Followed) -> str | None:
        mark = followed.log.newest()
        if mark is None:
            gone = followed.snapshot.version is not None
            return f"state/{followed.store.name} is gone; serving version {followed.snapshot.version}" if gone else None
        if mark != followed.mark:
            followed.snapshot = load(self._loader, self.config, followed.store, mark.version, self._discarded.put)
            followed.mark = mark
        return None

    def _measure(self, followed: Followed) -> None:
        head, position = self._heads.get(followed.store.stream), followed.snapshot.position
        first = (position or 0) + 1  # version 0 is the table's creation
        if head is None or first > head:
            followed.behind = None
        elif followed.behind is None or followed.behind[0] != first:
            # Asked for once for each version: it reads the log.
            followed.behind = (
                first,
                commit_time(table(self.config, "changelog", followed.store.stream), first),
            )

    def _follow(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            self.refresh()


def _line(error: BaseException) -> str:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    # All else is the lake's. A panic in deltalake is no Exception to Python, but must not end the thread.
    return (str(error).strip() or type(error).__name__).splitlines()[0]
