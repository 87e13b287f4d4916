"""A store as a replica follows it: a version of its table, and what the changelog brought after that, folded on top.

A new version is read only when the overlay has grown, when the table was replaced, or when the store cannot be followed by its
changelog: then it has the MERGE's freshness.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

import duckdb
import sqlglot
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from api.engine import duck
from api.engine.change_feed import can_follow
from api.engine.columns import Key
from api.engine.delta_log import Log, Mark
from api.engine.duck import Connection
from api.engine.memory import give_back
from api.engine.pool import Pool
from api.engine.shards import Shards
from api.replica import read_through, storage
from api.replica.changed_keys import Recent, expired
from api.replica.provisional import StoreState
from api.replica.snapshot import Snapshot
from api.replica.storage import epoch_of
from api.replica.stream import FollowedStream
from api.replica.tail import FoldResult, Tail
from statehouse.config.models import Config, Store
from statehouse.tables import commit_time, definition_of, folded, offsets_at, rows_and_bytes, stored_rule, table

OVERLAY = 50_000  # rows that may have changed, or a fifth of the store, before a newer version of its table is read
STEP, ROWS = 4, 100_000  # versions that are folded at once, at first; fewer where they hold more rows than that
AGAIN_SECONDS = 30.0  # until what could not be folded is tried again
STALE_SECONDS = 2.0  # after which a store that was up to date may no longer be
log = logging.getLogger("statehouse.api")


class FollowedStore(StoreState):
    """A store and what this process knows of it. Its methods are for the replica's thread; fields are replaced as wholes: a reader needs no
    lock."""

    def __init__(self, config: Config, store: Store, db: Connection, pool: Pool) -> None:
        super().__init__()
        self.store, self.log = store, Log(table(config, "state", store.name))
        self.stream: FollowedStream  # which the replica makes of its stores
        self.mark: Mark | None = None  # the newest version of the table that was looked at
        self.wanted: Shards | None = None  # those that were wanted then
        self.behind: tuple[int, int | None] | None = None  # the first version not folded yet, and when it was committed
        self.seen = time.time()  # of what was committed until then, it is known what is not folded yet
        self.error: str | None = None
        self.unfollowed: str | None = None  # why the changelog's events cannot be folded on top of the table
        self.again = 0.0  # when that is tried again, if no newer table comes before
        self.recent = Recent()  # the keys that the tail has changed
        self._config, self._db, self._pool = config, db, pool

    def lag(self) -> int | None:
        """For how many milliseconds something is waiting to be folded; None: it is not known since when. Where it has not been
        looked for of late, something may be."""
        now, behind = time.time(), self.behind
        if behind is None:
            return round((now - self.seen) * 1000) if now - self.seen > STALE_SECONDS else 0
        return None if behind[1] is None else max(0, round(now * 1000) - behind[1])

    def refresh(self, wanted: Shards | None, looked: float, trouble: str | None) -> None:
        """Bring it up to its changelog's head, or to its table's newest version, with the keys of the shards that are ``wanted``. The head
        was looked for at a time, unless there was ``trouble``. Never raises: it keeps its error."""
        try:
            trouble = self._load(wanted) or trouble
            if not trouble:
                self._follow()
            self._measure()
            if not trouble:
                self.seen = looked
        except BaseException as error:
            trouble = f"state/{self.store.name}: {first_line(error)}"
        if trouble and trouble != self.error:
            log.warning("store %s: %s", self.store.name, trouble)
        self.error = trouble

    def _load(self, wanted: Shards | None) -> str | None:
        mark = self.log.newest()
        if mark is None:
            gone = self.snapshot.version is not None
            return f"state/{self.store.name} is gone; serving version {self.snapshot.version}" if gone else None
        retry = self.unfollowed is not None and time.monotonic() > self.again
        if mark != self.mark or wanted != self.wanted or retry:
            if self._needed(mark, wanted):
                for exactly in (False, True):  # what was kept may be older than what the changelog's feed has
                    if self._replace(self._base(mark, wanted, exactly), mark):
                        break
                give_back()
            self.mark, self.wanted = mark, wanted
        return None

    def _base(self, mark: Mark, wanted: Shards | None, exactly: bool) -> Snapshot:
        """A version of the table to go on from: this one, or a little earlier one that this machine has kept."""
        config = self._config
        if config.api.replica == "none":
            return read_through.of_table(self._pool, config, self.store, mark.version)
        if config.api.replica == "disk":
            snapshot = storage.read_file(config, self.store, mark.version, wanted, mark.version if exactly else None)
            if snapshot is not None and self._near(snapshot, mark):
                return snapshot
        read = storage.load_by_file if config.api.replica == "disk" else storage.load
        with duck.connect(root=config.root) as db:  # its memory ends with it
            return read(db, config, self.store, mark.version, shards=wanted)

    def _near(self, kept: Snapshot, mark: Mark) -> bool:
        """Whether it is less to fold what came after a kept version than to read this version of the table."""
        now = self.snapshot.version
        if kept.version == mark.version:
            return True
        if now is not None and kept.version is not None and kept.version <= now:
            return False  # it is what has been outgrown
        position = folded(DeltaTable(self.log.path, version=mark.version))
        if position is None or kept.position is None:
            return False
        changelog = table(self._config, "changelog", self.store.stream)
        try:
            events = rows_and_bytes(changelog, position)[0] - rows_and_bytes(changelog, kept.position)[0]
        except DeltaError:  # the log no longer has that version
            return False
        return events <= max(OVERLAY, kept.size // 5)

    def _replace(self, snapshot: Snapshot, mark: Mark) -> bool:
        """Put a newer version of the table, caught up with the changelog, in the place of the older one and its tail; False
        where it is not the newest one and cannot be caught up."""
        before, old = self.snapshot, self.tail
        began, begun = snapshot.position or 0, self._tail_of(snapshot)
        tail, known = begun, began
        if snapshot.epoch == before.epoch:  # what changed up to there has been told of
            known = max(began, min(before.position or 0, self.recent.end))
            tail, _ = self._catch_up(tail, snapshot, known)
        tail, changed = self._catch_up(tail, snapshot)
        if tail is None and snapshot.version != mark.version:
            return False
        if begun and not tail and old and snapshot.epoch == before.epoch and began < (before.position or 0):
            return True  # the changelog was vacuumed, but the older one has folded it: answers never go back
        if tail:
            self.unfollowed = None
        gone = expired(before, snapshot)
        self.stream.provisional.replace(self, snapshot, tail, self.stream.covered(snapshot.position))
        if snapshot.shards != before.shards:  # what changed in those that were not here is not known
            self.recent.forget(snapshot)
        self.recent.add(snapshot, known, changed)
        self.recent.add(snapshot, snapshot.position or 0, gone)
        if old:
            before.settle()  # for those who have it in hand
            self.stream.provisional.close(old)
        return True

    def _needed(self, mark: Mark, wanted: Shards | None) -> bool:
        """Whether a new version of the table has to be read."""
        tail, snapshot = self.tail, self.snapshot
        if snapshot.shards != wanted:
            return True
        if tail is None or self.mark is None or mark.version <= self.mark.version:
            return True
        delta = DeltaTable(self.log.path, version=mark.version)
        rule, position = stored_rule(delta, self.store.name), folded(delta)
        if rule is None or epoch_of(delta) != snapshot.epoch or definition_of(rule) != definition_of(tail.rule):
            return True  # replaced, by a recovery or by hand
        if position is None or snapshot.position is None or position > snapshot.position:
            return True  # the tail is behind its own table: something keeps it
        if len(snapshot.overlay) <= max(OVERLAY, snapshot.size // 5):
            return False
        left = self.recent.count(position)  # to be folded again on top of it
        return left is not None and left <= len(snapshot.overlay) // 2

    def _tail_of(self, snapshot: Snapshot) -> Tail | None:
        """What goes on from a snapshot; None where DuckDB has no words for its rule, or where there is no feed."""
        config = self._config
        if snapshot.rule is None or snapshot.rule.store.stream not in config.streams or config.api.replica == "none":
            return None
        try:
            if not can_follow(table(config, "changelog", snapshot.rule.store.stream)):
                return None
            return Tail(self._db, snapshot, config)
        except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
            log.info("store %s follows its table: %s", snapshot.rule.store.name, first_line(error))
            return None

    def _follow(self) -> None:
        """Fold what the changelog has, and show it with what is ahead of it."""
        if self.tail is None:
            return
        snapshot, stream = self.snapshot, self.stream
        began, ready = snapshot.position, self.tail.ready

        def show(tail: Tail, result: FoldResult) -> Collection[Key]:
            offsets = stream.covered(result.head)
            if offsets is None and stream.covered(stream.head) is not None:  # a step on the way
                offsets = offsets_at(tail.changelog, result.head)
            return stream.provisional.commit(self, tail, result, offsets)

        tail, changed = self._catch_up(self.tail, snapshot, show=show)
        if tail is None or tail.begin() != ready:
            stream.provisional.replace(self, snapshot, tail, stream.covered(snapshot.position))
        self.recent.add(snapshot, began or 0, changed)

    def _catch_up(
        self,
        tail: Tail | None,
        snapshot: Snapshot,
        end: int | None = None,
        show: Callable[[Tail, FoldResult], Collection[Key]] = Tail.show,
    ) -> tuple[Tail | None, Collection[Key]]:
        """Fold what the changelog has after the snapshot (up to the ``end``) and show it: the tail, and the keys that changed. Where that
        fails there is no tail any more: the store is at its table's versions, until one of those is read again."""
        head = self.stream.head
        head = head if end is None or head is None else min(head, end)
        if tail is None or head is None or (snapshot.position or 0) >= head:
            return tail, ()
        changed: dict[Key, None] = {}
        step = STEP
        try:
            while tail.begin() and (position := snapshot.position or 0) < head:
                until = min(head, position + step)
                events = self.stream.feed(tail.changelog, position, until, last=until == head)
                changed.update(dict.fromkeys(show(tail, tail.fold_events(events, until))))
                step = max(1, step // 2 if events.num_rows > ROWS else step * 2)
            return tail, changed
        except BaseException as error:
            log.warning("store %s follows its table from now on: %s", self.store.name, first_line(error))
            self.unfollowed = f"what is newer than the table cannot be folded: {first_line(error)}"
            self.again = time.monotonic() + AGAIN_SECONDS
            self.stream.provisional.close(tail)
            return None, changed

    def _measure(self) -> None:
        head, position = self.stream.head, self.snapshot.position
        first = (position or 0) + 1  # version 0 is the table's creation
        if head is None or first > head:
            self.behind = None
        elif self.behind is None or self.behind[0] != first:
            # Asked for once for each version: it reads the log.
            self.behind = first, commit_time(table(self._config, "changelog", self.store.stream), first)


def first_line(error: BaseException) -> str:
    """What an error of the lake's says. A panic in deltalake is no Exception to Python, but must not end the thread; what is to end it is
    raised again."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    return (str(error).strip() or type(error).__name__).splitlines()[0]
