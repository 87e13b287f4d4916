"""The replica: each store's state in this process's memory, following the lake in the background.

A store begins as a version of its state table (:mod:`api.replica.snapshot`); what the changelog brings after that is folded on top
(:mod:`api.replica.tail`), so that an answer does not wait for the MERGE. A new version is read only when the overlay has grown, when
the table was replaced, or when the store cannot be followed that way: then it has the MERGE's freshness.

On top of that comes what is in the topic and not in the changelog yet (:mod:`api.replica.topic`), where ``api: freshness`` is ``live``.

Readers take the current :class:`Snapshot` and never touch the lake: when it is gone, busy or broken, they go on with what is
here, and the store says so in ``error``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from api.engine import duck
from api.engine.change_feed import can_follow, feed
from api.engine.columns import Key
from api.engine.delta_log import Log, Mark
from api.engine.memory import give_back
from api.engine.pool import Pool
from api.engine.shards import Shards
from api.replica import read_through, storage
from api.replica.changed_keys import Recent, expired
from api.replica.pending import Offsets
from api.replica.snapshot import Snapshot
from api.replica.storage import epoch_of, load
from api.replica.tail import Made, Tail
from api.replica.topic import FOLLOWING, Live
from statehouse.config.models import Config, Store
from statehouse.failures import failing, failures_table
from statehouse.places import remote
from statehouse.tables import (
    commit_time,
    covered,
    definition_of,
    folded,
    offsets_at,
    rows_and_bytes,
    stored_rule,
    table,
)

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.05, 0.2  # a file's name is looked for in 14 us; elsewhere it is a request
OVERLAY = 50_000  # rows that may have changed, or a fifth of the store, before a newer version of its table is read
STEP, ROWS = 4, 100_000  # versions that are folded at once, at first; fewer where they hold more rows than that
AGAIN_SECONDS = 30.0  # until what could not be folded is tried again
STALE_SECONDS = 2.0  # after which a store that was up to date may no longer be
DIRECT = 4  # reads of the lake at once, with `replica: none`
BUSY_SECONDS = 10.0  # how long others wait for their turn
log = logging.getLogger("statehouse.api")


@dataclass
class Followed:
    """A store and what this process knows of it. Fields are replaced as wholes: a reader needs no lock."""

    store: Store
    log: Log
    snapshot: Snapshot = field(default_factory=Snapshot)
    mark: Mark | None = None  # the newest version of the table that was looked at
    wanted: Shards | None = None  # those that were wanted then
    tail: Tail | None = None  # None: the store is at its table's version
    behind: tuple[int, int | None] | None = None  # the first version not folded yet, and when it was committed
    seen: float = field(
        default_factory=time.time
    )  # of what was committed until then, it is known what is not folded yet
    error: str | None = None
    unfollowed: str | None = None  # why the changelog's events cannot be folded on top of the table
    again: float = 0.0  # when that is tried again, if no newer table comes before
    recent: Recent = field(default_factory=Recent)  # the keys that the tail has changed
    covered: Offsets | None = None  # what the snapshot's position has of the topic; None: it is not known


class Replica:
    """All stores of a configuration. ``start`` it once; its thread calls ``refresh`` many times a second."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # Of one thread: two have more to say to each other than a fold of a few rows takes.
        self._connection = duck.connect(root=config.root, threads=1)
        self._db = self._connection.cursor()
        self._pool = Pool(config.root, DIRECT, BUSY_SECONDS)
        self._stores = {s.name: Followed(s, Log(table(config, "state", s.name))) for s in config.stores.values()}
        self._changelogs = {s: Log(table(config, "changelog", s)) for s in config.streams}
        self._heads: dict[str, int | None] = {}
        self._feeds: dict[tuple[str, int, int], pa.Table] = {}  # of one refresh
        self._offsets: dict[str, deque[tuple[int, dict[int, int]]]] = {s: deque(maxlen=1000) for s in config.streams}
        self._topics: dict[str, str | None] = {}  # by stream, the id of the topic that its changelog is of
        self._lives = {
            s.name: Live(
                self._db, config, s, [f for f in self._stores.values() if f.store.stream == s.name], self._wake
            )
            for s in config.streams.values()
        }
        self._failures = {part: Log(failures_table(config, part)) for part in ("ingest", "merge")}
        self._failing: dict[str, tuple[Mark | None, dict[str, dict[str, str]]]] = {}  # by part, as of a version
        self._wanted: Shards | None = None
        self._refreshing = threading.Lock()
        self._refreshed = threading.Condition()
        self._stop = threading.Event()

    def start(self) -> None:
        """Load what is there, then follow it in the background."""
        self.refresh()
        threading.Thread(target=self._follow, name="replica", daemon=True).start()
        if self.config.api.freshness == "live" and self.config.api.replica != "none":
            for live in self._lives.values():
                live.start()

    def ends_within(self, seconds: float) -> bool:
        """Wait for so many seconds, or until :meth:`stop`; whether that was it."""
        return self._stop.wait(seconds)

    def stop(self) -> None:
        """End the background threads; reads go on as of now."""
        self._stop.set()
        for live in self._lives.values():
            live.stop()
        self._wake()

    def hold(self, shards: Shards | None) -> None:
        """Have the keys of these shards, None: all: with the next refresh, which reads each store's table again."""
        self._wanted = shards

    def held(self) -> frozenset[int]:
        """The shards that every store has here; of one of which nothing has been merged there is nothing to have."""
        found = self._wanted.numbers if self._wanted else frozenset()
        for followed in self._stores.values():
            if followed.snapshot.shards:
                found &= followed.snapshot.shards.numbers
            elif followed.mark is None and followed.error:  # there is something that cannot be read
                return frozenset()
        return found

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for SQL over what is here; to be closed."""
        return self._connection.cursor()

    def snapshot(self, store: str) -> Snapshot:
        """The store's current state."""
        return self._stores[store].snapshot

    def unread(self, store: str) -> str | None:
        """Why nothing of a store has been read, where there may be something; else None."""
        followed = self._stores[store]
        return followed.error if followed.snapshot.rule is None else None

    def covers(self, store: str, partition: int, offset: int, snapshot: Snapshot | None = None) -> bool:
        """Whether the store's current state, or another one of it, reflects the event at an offset of its topic."""
        followed = self._stores[store]
        snapshot = snapshot or followed.snapshot
        if snapshot.ahead.get(str(partition), 0) > offset:
            return True
        position = snapshot.position
        reached = [o for v, o in list(self._offsets[followed.store.stream]) if position is not None and v <= position]
        return bool(reached) and reached[-1].get(partition, 0) > offset

    def recreated(self, store: str) -> str | None:
        """That the store's topic is not the one that its state is of, and what to do; None where it is, or cannot be known."""
        return self._lives[self._stores[store].store.stream].recreated()

    def wait(self, seen: Callable[[], bool], seconds: float) -> bool:
        """Wait until something of the stores' is so; False where that took longer."""
        with self._refreshed:
            return self._refreshed.wait_for(seen, seconds)

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
        snapshot, topic = followed.snapshot, self._lives[followed.store.stream]
        live = topic.status()
        freshness = "changelog" if followed.tail else "state"
        if followed.tail and live["state"] == FOLLOWING:
            freshness = "live"
        return {
            "name": store,
            **followed.store.definition,
            "columns": snapshot.shown(),
            "keys": snapshot.keys,
            "shards": sorted(snapshot.shards.numbers) if snapshot.shards else None,
            "position": snapshot.position,
            "version": snapshot.version,
            "head": self._heads.get(followed.store.stream),
            "lag_ms": None if topic.error else _lag(followed),
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
            began = time.time()
            self._feeds.clear()
            unread: dict[str, str] = {}
            for stream, changelog in self._changelogs.items():
                try:
                    self._look(stream, changelog)
                except BaseException as error:
                    unread[stream] = f"changelog/{stream}: {_line(error)}"
            for followed in self._stores.values():
                trouble = unread.get(followed.store.stream)
                try:
                    trouble = self._load(followed) or trouble
                    if not trouble:
                        self._tail(followed)
                    self._measure(followed)
                    if not trouble:
                        followed.seen = began
                except BaseException as error:
                    trouble = f"state/{followed.store.name}: {_line(error)}"
                if trouble and trouble != followed.error:
                    log.warning("store %s: %s", followed.store.name, trouble)
                followed.error = trouble
            self._look_for_failures()
            for stream, live in self._lives.items():  # after its stores are there
                live.cover(self._covered(stream, self._heads.get(stream)), self._topics.get(stream))
        self._wake()

    def _wake(self) -> None:
        with self._refreshed:
            self._refreshed.notify_all()

    def _look(self, stream: str, changelog: Log) -> None:
        """Find out where a stream's changelog ends, and what it has of the topic there."""
        head = changelog.newest()
        if head is None or head.version == self._heads.get(stream):
            self._heads[stream] = head.version if head else None
            return
        while head is not None:  # until nothing was committed meanwhile: it would be that which was found
            newest = DeltaTable(changelog.path)
            found = covered(newest) or {"topic": None}
            head = changelog.newest()
            if head is None or head.version == newest.version():
                break
        if found.get("topic", self.config.streams[stream].topic) == self.config.streams[stream].topic:
            self._offsets[stream].append((newest.version(), found["offsets"]))
            self._topics[stream] = found.get("id")
        self._heads[stream] = newest.version()

    def _look_for_failures(self) -> None:
        with suppress(Exception):  # it is a hint
            for part, log_ in self._failures.items():
                mark = log_.newest()
                if mark != self._failing.get(part, (None, {}))[0]:
                    self._failing[part] = mark, failing(self.config, part) if mark else {}

    def _covered(self, stream: str, position: int | None) -> Offsets | None:
        """What a version of the changelog has of the topic; None where that is not known."""
        wanted = position or 0  # which is the table's creation
        return next((offsets for version, offsets in reversed(self._offsets[stream]) if version == wanted), None)

    def _load(self, followed: Followed) -> str | None:
        mark = followed.log.newest()
        if mark is None:
            gone = followed.snapshot.version is not None
            return f"state/{followed.store.name} is gone; serving version {followed.snapshot.version}" if gone else None
        wanted = self._wanted
        retry = followed.unfollowed is not None and time.monotonic() > followed.again
        if mark != followed.mark or wanted != followed.wanted or retry:
            if self._needed(followed, mark):
                for exactly in (False, True):  # what was kept may be older than what the changelog's feed has
                    if self._replace(followed, self._base(followed, mark, exactly), mark):
                        break
                give_back()
            followed.mark, followed.wanted = mark, wanted
        return None

    def _base(self, followed: Followed, mark: Mark, exactly: bool) -> Snapshot:
        """A version of the table to go on from: this one, or a little earlier one that this machine has kept."""
        if self.config.api.replica == "none":
            return read_through.of_table(self._pool, self.config, followed.store, mark.version)
        if self.config.api.replica == "disk":
            least = mark.version if exactly else None
            found = storage.kept(self.config, followed.store, mark.version, self._wanted, least)
            if found is not None and self._near(followed, found, mark):
                return found
        read = storage.read if self.config.api.replica == "disk" else load
        with duck.connect(root=self.config.root) as db:  # its memory ends with it
            return read(db, self.config, followed.store, mark.version, shards=self._wanted)

    def _near(self, followed: Followed, found: Snapshot, mark: Mark) -> bool:
        """Whether it is less to fold what came after a kept version than to read this version of the table."""
        now = followed.snapshot.version
        if found.version == mark.version:
            return True
        if now is not None and found.version is not None and found.version <= now:
            return False  # it is what has been outgrown
        position = folded(DeltaTable(followed.log.path, version=mark.version))
        if position is None or found.position is None:
            return False
        changelog = table(self.config, "changelog", followed.store.stream)
        try:
            events = rows_and_bytes(changelog, position)[0] - rows_and_bytes(changelog, found.position)[0]
        except DeltaError:  # the log no longer has that version
            return False
        return events <= max(OVERLAY, found.size // 5)

    def _replace(self, followed: Followed, snapshot: Snapshot, mark: Mark) -> bool:
        """Put a newer version of the table, caught up with the changelog, in the place of the older one and its tail; False
        where it is not the newest one and cannot be caught up."""
        before, old = followed.snapshot, followed.tail
        began, begun = snapshot.position or 0, self._tail_of(snapshot)
        tail, known = begun, began
        if snapshot.epoch == before.epoch:  # what changed up to there has been told of
            known = max(began, min(before.position or 0, followed.recent.end))
            tail, _ = self._catch_up(followed, tail, snapshot, known)
        tail, changed = self._catch_up(followed, tail, snapshot)
        if tail is None and snapshot.version != mark.version:
            return False
        if begun and not tail and old and snapshot.epoch == before.epoch and began < (before.position or 0):
            return True  # the changelog was vacuumed, but the older one has folded it: answers never go back
        if tail:
            followed.unfollowed = None
        gone = expired(before, snapshot)
        stream = followed.store.stream
        offsets = self._covered(stream, snapshot.position)
        live = self._lives[stream]
        with live.lock:
            live.settle(snapshot, tail, offsets)  # before anyone sees it: answers never go back
            followed.snapshot, followed.tail, followed.covered = snapshot, tail, offsets
        if snapshot.shards != before.shards:  # what changed in those that were not here is not known
            followed.recent.forget(snapshot)
        followed.recent.add(snapshot, known, changed)
        followed.recent.add(snapshot, snapshot.position or 0, gone)
        if old:
            before.settle()  # for those who have it in hand
            before.fold = None  # or the two would hold each other, and their memory, until Python looks for such
            with live.turn:
                old.close()
        return True

    def _needed(self, followed: Followed, mark: Mark) -> bool:
        """Whether a new version of the table has to be read."""
        tail, snapshot = followed.tail, followed.snapshot
        if snapshot.shards != self._wanted:
            return True
        if tail is None or followed.mark is None or mark.version <= followed.mark.version:
            return True
        delta = DeltaTable(followed.log.path, version=mark.version)
        rule, position = stored_rule(delta, followed.store.name), folded(delta)
        if rule is None or epoch_of(delta) != snapshot.epoch or definition_of(rule) != definition_of(tail.rule):
            return True  # replaced, by a recovery or by hand
        if position is None or snapshot.position is None or position > snapshot.position:
            return True  # the tail is behind its own table: something keeps it
        if len(snapshot.overlay) <= max(OVERLAY, snapshot.size // 5):
            return False
        left = followed.recent.count(position)  # to be folded again on top of it
        return left is not None and left <= len(snapshot.overlay) // 2

    def _tail_of(self, snapshot: Snapshot) -> Tail | None:
        """What goes on from a snapshot; None where DuckDB has no words for its rule, or where there is no feed."""
        if snapshot.rule is None or snapshot.rule.store.stream not in self.config.streams:
            return None
        if self.config.api.replica == "none":
            return None
        try:
            if not can_follow(table(self.config, "changelog", snapshot.rule.store.stream)):
                return None
            return Tail(self._db, snapshot, self.config)
        except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
            log.info("store %s follows its table: %s", snapshot.rule.store.name, _line(error))
            return None

    def _tail(self, followed: Followed) -> None:
        if followed.tail is None:
            return
        snapshot, stream = followed.snapshot, followed.store.stream
        began, live, ready = snapshot.position, self._lives[stream], followed.tail.ready

        def show(tail: Tail, made: Made) -> Collection[Key]:
            offsets = self._covered(stream, made.head)
            if offsets is None and self._covered(stream, self._heads[stream]) is not None:  # a step on the way
                offsets = offsets_at(tail.changelog, made.head)
            return live.take(followed, tail, made, offsets)

        tail, changed = self._catch_up(followed, followed.tail, snapshot, show=show)
        if tail is None or tail.begun() != ready:
            with live.lock:
                followed.tail, followed.covered = tail, self._covered(stream, snapshot.position)
                live.settle(snapshot, tail, followed.covered)
        followed.recent.add(snapshot, began or 0, changed)

    def _catch_up(
        self,
        followed: Followed,
        tail: Tail | None,
        snapshot: Snapshot,
        end: int | None = None,
        show: Callable[[Tail, Made], Collection[Key]] = Tail.show,
    ) -> tuple[Tail | None, Collection[Key]]:
        """Fold what the changelog has after the snapshot (up to the ``end``) and show it: the tail, and the keys that changed. Where that
        fails there is no tail any more: the store is at its table's versions, until one of those is read again."""
        head = self._heads.get(followed.store.stream)
        head = head if end is None or head is None else min(head, end)
        if tail is None or head is None or (snapshot.position or 0) >= head:
            return tail, ()
        changed: dict[Key, None] = {}
        step = STEP
        try:
            while tail.begun() and (position := snapshot.position or 0) < head:
                until = min(head, position + step)
                events = self._feed(tail.changelog, position, until, head)
                changed.update(dict.fromkeys(show(tail, tail.made(events, until))))
                step = max(1, step // 2 if events.num_rows > ROWS else step * 2)
            return tail, changed
        except BaseException as error:
            log.warning("store %s follows its table from now on: %s", followed.store.name, _line(error))
            followed.unfollowed = f"what is newer than the table cannot be folded: {_line(error)}"
            followed.again = time.monotonic() + AGAIN_SECONDS
            with self._lives[followed.store.stream].turn:
                tail.close()
            return None, changed

    def _feed(self, changelog: str, start: int, until: int, head: int) -> pa.Table:
        """What a changelog's versions brought. A stream's stores mostly want the same, as long as they are up to date."""
        wanted = (changelog, start, until)
        if wanted in self._feeds:
            return self._feeds[wanted]
        found = feed(*wanted)
        if until == head:
            self._feeds[wanted] = found
        return found

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
        seconds = REMOTE_POLL_SECONDS if remote(self.config.root) else POLL_SECONDS
        while not self._stop.wait(seconds):
            self.refresh()


def _lag(followed: Followed) -> int | None:
    """For how many milliseconds something is waiting to be folded; None: it is not known since when. Where it has not been
    looked for of late, something may be."""
    now, behind = time.time(), followed.behind
    if behind is None:
        return round((now - followed.seen) * 1000) if now - followed.seen > STALE_SECONDS else 0
    return None if behind[1] is None else max(0, round(now * 1000) - behind[1])


def _line(error: BaseException) -> str:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    # All else is the lake's. A panic in deltalake is no Exception to Python, but must not end the thread.
    return (str(error).strip() or type(error).__name__).splitlines()[0]
