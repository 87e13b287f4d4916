"""The replica: each store's state in this process's memory, following the lake in the background.

A store begins as a version of its state table (:mod:`api.replica.storage`); what the changelog brings after that is folded on top
(:mod:`api.replica.store`), so that an answer does not wait for the MERGE. On top of that comes what is in the topic and not in the changelog
yet (:mod:`api.replica.provisional`), where ``api: freshness`` is ``live``.

Readers take the current :class:`Snapshot` and never touch the lake: when it is gone, busy or broken, they go on with what is
here, and the store says so in ``error``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from api.engine import duck
from api.engine.columns import Key
from api.engine.delta_log import Log, Mark
from api.engine.duck import Connection
from api.engine.pool import Pool
from api.engine.shards import Shards
from api.replica.locks import ChangeSignal
from api.replica.provisional import ProvisionalState
from api.replica.snapshot import Snapshot
from api.replica.store import FollowedStore, first_line
from api.replica.stream import FollowedStream
from api.replica.topic import State
from statehouse.config.models import Config, Store
from statehouse.failures import failing, failures_table
from statehouse.places import remote

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.05, 0.2  # a file's name is looked for in 14 us; elsewhere it is a request
DIRECT = 4  # reads of the lake at once, with `replica: none`
BUSY_SECONDS = 10.0  # how long others wait for their turn
log = logging.getLogger("statehouse.api")


class Replica:
    """All stores of a configuration. ``start`` it once; its thread calls ``refresh`` many times a second."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # Of one thread: two have more to say to each other than a fold of a few rows takes.
        self._connection = duck.connect(root=config.root, threads=1)
        self._db = self._connection.cursor()
        pool = Pool(config.root, DIRECT, BUSY_SECONDS)
        self._changes = ChangeSignal()
        self._stores = {s.name: FollowedStore(config, s, self._db, pool) for s in config.stores.values()}
        self._streams: dict[str, FollowedStream] = {}
        for name, stream in config.streams.items():
            stores = [store for store in self._stores.values() if store.store.stream == name]
            provisional = ProvisionalState(self._db, config, stream, stores, self._changes)
            self._streams[name] = FollowedStream(config, stream, provisional, self._changes)
            for store in stores:
                store.stream = self._streams[name]
        self._failures = {part: Log(failures_table(config, part)) for part in ("ingest", "merge")}
        self._failing: dict[str, tuple[Mark | None, dict[str, dict[str, str]]]] = {}  # by part, as of a version
        self._wanted: Shards | None = None
        self._refreshing = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        """Load what is there, then follow it in the background."""
        self.refresh()
        threading.Thread(target=self._follow, name="replica", daemon=True).start()
        if self.config.api.freshness == "live" and self.config.api.replica != "none":
            for stream in self._streams.values():
                stream.follower.start()

    def ends_within(self, seconds: float) -> bool:
        """Wait for so many seconds, or until :meth:`stop`; whether that was it."""
        return self._stop.wait(seconds)

    def stop(self) -> None:
        """End the background threads; reads go on as of now."""
        self._stop.set()
        for stream in self._streams.values():
            stream.follower.stop()
        self._changes.send()

    def hold(self, shards: Shards | None) -> None:
        """Have the keys of these shards, None: all: with the next refresh, which reads each store's table again."""
        self._wanted = shards

    def held(self) -> frozenset[int]:
        """The shards that every store has here; of one of which nothing has been merged there is nothing to have."""
        shards = self._wanted.numbers if self._wanted else frozenset()
        for store in self._stores.values():
            if store.snapshot.shards:
                shards &= store.snapshot.shards.numbers
            elif store.mark is None and store.error:  # there is something that cannot be read
                return frozenset()
        return shards

    def cursor(self) -> Connection:
        """A cursor for SQL over what is here; to be closed."""
        return self._connection.cursor()

    def snapshot(self, store: str) -> Snapshot:
        """The store's current state."""
        return self._stores[store].snapshot

    def unread(self, store: str) -> str | None:
        """Why nothing of a store has been read, where there may be something; else None."""
        followed = self._stores[store]
        return followed.error if followed.snapshot.rule is None else None

    def covers(self, store: str, topic: str, place: int, offset: int, snapshot: Snapshot | None = None) -> bool:
        """Whether the store's current state, or another one of it, reflects the event at a topic's place and offset."""
        followed = self._stores[store]
        partition = followed.stream.provisional.numbering.number(topic, place)
        if partition is None:  # nothing of it was read yet
            return False
        snapshot = snapshot or followed.snapshot
        if snapshot.ahead.get(str(partition), 0) > offset:
            return True
        return followed.stream.has(snapshot.position, partition, offset)

    def recreated(self, store: str, topic: str) -> str | None:
        """That a topic of the store's is not the one that its state is of, and what to do; None where it is, or cannot be known."""
        return self._stores[store].stream.follower.recreated(topic)

    def wait(self, seen: Callable[[], bool], seconds: float) -> bool:
        """Wait until something of the stores' is so; False where that took longer."""
        return self._changes.wait_for(seen, seconds)

    def changes(self, store: str, since: int) -> tuple[Snapshot, int, list[Key] | None] | None:
        """A state, a position that it has reached, and the keys that changed up to that from another one; None for the keys
        where that is too long ago, None for all of it where what changes in this store is not known, or not just now."""
        followed = self._stores[store]
        for _ in range(100):
            if followed.tail is None or self._stop.is_set():
                break
            epoch, end, keys = followed.recent.since(since)
            snapshot = followed.snapshot  # after the keys: it has all of their changes
            if snapshot.epoch == epoch and (snapshot.position or 0) >= end:
                return snapshot.truth(), end, keys  # positions are the changelog's
            time.sleep(0.01)  # another version takes its place just now
        return None

    def moved(self, store: str, epoch: str, position: int, seconds: float) -> bool:
        """Wait until :meth:`changes` has news for one who is at a position of an epoch; False where that took longer."""
        followed = self._stores[store]

        def news() -> bool:
            recent = followed.recent
            return self._stop.is_set() or followed.tail is None or recent.epoch != epoch or recent.end > position

        return self.wait(news, seconds)

    def follows(self, store: str) -> bool:
        """Whether it is known what changes in a store."""
        return self._stores[store].tail is not None

    def unreplaced(self, store: str) -> bool:
        """Whether no other state was in the store's place before, as far as can be known."""
        return self._stores[store].recent.whole

    def status(self, store: str) -> dict[str, Any]:
        """What ``GET /stores/{store}`` says: ``position`` is the changelog's version that answers reflect, ``version`` the
        state table's that they go on from, ``freshness`` what they follow."""
        followed = self._stores[store]
        snapshot, topic = followed.snapshot, followed.stream.follower
        live = topic.status()
        freshness = "changelog" if followed.tail else "state"
        if followed.tail and live["state"] == State.FOLLOWING:
            freshness = "live"
        return {
            "name": store,
            **followed.store.definition,
            "columns": snapshot.shown(),
            "keys": snapshot.keys,
            "shards": sorted(snapshot.shards.numbers) if snapshot.shards else None,
            "position": snapshot.position,
            "version": snapshot.version,
            "head": followed.stream.head,
            "lag_ms": None if topic.error else followed.lag(),
            "freshness": freshness,
            "live": live,
            "error": followed.error or topic.error or followed.unfollowed or self._job_error(followed.store),
        }

    def _job_error(self, store: Store) -> str | None:
        """What keeps the jobs from a store's table, as far as the lake tells."""
        for part, name in (("merge", store.name), ("ingest", store.stream)):
            _, failing = self._failing.get(part, (None, {}))
            if name in failing:
                return f"{part} {name} is failing since {failing[name]['since']}: {failing[name]['error']}"
        return None

    def refresh(self) -> None:
        """Bring every store up to its changelog's head, or to its table's newest version. Never raises: a store keeps
        its error."""
        with self._refreshing:
            looked = time.time()
            trouble: dict[str, str] = {}
            for name, stream in self._streams.items():
                try:
                    stream.look()
                except BaseException as error:
                    trouble[name] = f"changelog/{name}: {first_line(error)}"
            for store in self._stores.values():
                store.refresh(self._wanted, looked, trouble.get(store.store.stream))
            self._look_for_failures()
            for stream in self._streams.values():  # after its stores are there
                stream.cover()
        self._changes.send()

    def _look_for_failures(self) -> None:
        with suppress(Exception):  # it is a hint
            for part, log_ in self._failures.items():
                mark = log_.newest()
                if mark != self._failing.get(part, (None, {}))[0]:
                    self._failing[part] = mark, failing(self.config, part) if mark else {}

    def _follow(self) -> None:
        seconds = REMOTE_POLL_SECONDS if remote(self.config.root) else POLL_SECONDS
        while not self._stop.wait(seconds):
            self.refresh()
