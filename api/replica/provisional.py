"""What a stream's stores show: the changelog's states, and on top of them what is in the topic and not in the changelog yet.

An event is in the topic a moment after it was sent, and in the changelog a second or two later. Meanwhile it is *pending*: parsed
here (:mod:`api.replica.arrivals`), folded by the same rule on top of the changelog's state when somebody reads its key
(:mod:`api.replica.fold_thread`), and forgotten when the changelog covers its offset. So nothing is counted twice, what this parser sees
otherwise than Spark's is put right with the next batch, and without Kafka a replica is as fresh as the changelog.

:class:`ProvisionalState` is the one that says what readers of a store see, and calls all else: who follows the topic and who follows the
changelog tell it what came, it writes the snapshots by their tails. What it calls does not call it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from api.engine.columns import Key
from api.engine.duck import Connection
from api.engine.prepared import cursor
from api.replica.arrivals import Parser
from api.replica.fold_thread import FoldThread
from api.replica.locks import ChangeSignal, StreamLocks
from api.replica.overlay import NUMBER, Rows
from api.replica.pending import COORDINATES, Offsets, after, keyed
from api.replica.priority import FOLD_PRIORITY
from api.replica.snapshot import Snapshot
from api.replica.tail import FoldResult, Tail
from statehouse.config.models import Config, Stream
from statehouse.fold import Rule
from statehouse.kafka import Topic
from statehouse.numbering import Numbering
from statehouse.tables import changelog_columns


@dataclass(eq=False)
class StoreState:
    """What readers of a store see. The stream's :class:`ProvisionalState` writes the fields, each as a whole: a reader needs no lock."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    tail: Tail | None = None  # None: the store is at its table's version
    covered: Offsets | None = None  # what the snapshot's position has of the topic; None: it is not known


class ProvisionalState:
    """One stream's; thread-safe. ``stores`` are its stores, ``changes`` is told of what readers may wait for."""

    def __init__(
        self, db: Connection, config: Config, stream: Stream, stores: Sequence[StoreState], changes: ChangeSignal
    ) -> None:
        self.locks = StreamLocks()
        self._config, self._stream, self._stores, self._changes = config, stream, stores, changes
        self._folds = FoldThread(stream.name, self.locks)
        self._db = cursor(db)
        self._parser: tuple[list[tuple[Rule, dict[str, str]]], Parser] | None = None
        self._columns = list(changelog_columns(stream))
        self._pending: Rows | None = None  # None: nothing was read yet
        self._since: dict[int, int] = {}  # what is pending is all that came from here on, by partition
        self.read: dict[int, int] = {}  # up to which offset the topic is read
        self.covered: Offsets | None = None  # what the changelog has of it
        self.ends: dict[int, int] = {}  # where its partitions end, as far as was heard
        self._reached: dict[int, int] = {}  # where its end was when it was reached last
        self.numbering = Numbering.of(stream, {})  # of the topics that the changelog and what is pending are of
        self.newest = 0.0  # when the newest event that is shown came to Kafka

    @property
    def pending(self) -> int:
        """How many events are pending."""
        pending = self._pending
        return 0 if pending is None else len(pending)

    @property
    def behind(self) -> int:
        """How many offsets of the topic are not read."""
        return sum(max(0, end - self.read.get(p, 0)) for p, end in dict(self.ends).items())

    def cover(self, offsets: Offsets | None, numbering: Numbering | None = None) -> None:
        """What the changelog's newest version has of the topics, and which these are; None: it is not known. The stores are there."""
        with self.locks.state:
            if numbering is not None:
                known = self.numbering.ids
                if any(id != known.get(name, id) for name, id in numbering.ids.items()):
                    self._forget()  # what is pending is of another one
                self.numbering = replace(numbering, ids={**known, **numbering.ids})
            if offsets != self.covered:
                self.covered = offsets
                self._trim()

    def is_of(self, topics: Mapping[str, Topic]) -> str | None:
        """Told which topics there are now: why one is not the one that the changelog, or what is pending, is of, or None where all are.
        Then nothing is shown of either."""
        with self.locks.state:
            ids = {name: topic.id for name, topic in topics.items() if topic.id}
            self.numbering = replace(self.numbering, ids={**ids, **self.numbering.ids})
            done, numbers = self.covered or {}, self.numbering.numbers.items()
            gone = [name for (name, _), n in numbers if name not in topics and self.read.get(n, 0) > done.get(n, 0)]
            lost = f"the topic {gone[0]} is gone, with events that were shown and are in no table" if gone else None
            if trouble := self.numbering.recreated(topics) or lost:
                self._forget()
                if not self.covered:  # nothing is in the changelog: the new one is as good
                    self.numbering = replace(self.numbering, ids={})
            return trouble

    def commit(self, store: StoreState, tail: Tail, result: FoldResult, covered: Offsets | None) -> Collection[Key]:
        """The changelog has made this of a store's keys, and has this of the topic then: show it, and on top what is pending still. The
        keys (and windows) that changed."""
        snapshot = store.snapshot
        with self.locks.state:
            read, fits = self._read(), self._fits(tail, covered)
            if snapshot.ahead and fits:
                tail.cover(covered or {})
            for part in tail.parts(result):
                with self.locks.turn, FOLD_PRIORITY:
                    if not fits:
                        snapshot.clear()
                    tail.show(part)
                    if snapshot.ahead:  # with the row what is in it goes: it would be counted twice
                        with self._folds.shown_or_cleared(snapshot):
                            tail.rebase(part.touched, read)
                    if part.last:
                        store.covered = covered
                        self._show_pending(snapshot, tail, covered, None)
        return result.keys

    def replace(self, store: StoreState, snapshot: Snapshot, tail: Tail | None, covered: Offsets | None) -> None:
        """A store's state by the changelog is another one, and has this of the topic: before anyone sees it, show on top of it what is
        pending still, as answers never go back. None: that is not known, or it cannot be folded on; then nothing is."""
        with self.locks.state:
            with self.locks.turn, FOLD_PRIORITY:
                self._show_pending(snapshot, tail, covered, None)
            store.snapshot, store.tail, store.covered = snapshot, tail, covered

    def close(self, tail: Tail) -> None:
        """Drop the fold of a tail, which nobody is to fold by any more."""
        with self.locks.turn:
            tail.close()

    def arrived(self, records: pa.Table) -> None:
        """Show some records of the topic (:data:`api.replica.arrivals.RECORDS`), in the order of their offsets. Those that were here
        before are passed over."""
        records = after(records, self.read)
        if not records.num_rows:
            return
        events = self._parse(records)
        with self.locks.state:
            if self._parser and self._parser[0] != self._known():  # another one took a store's place meanwhile
                events = self._parse(records)
            offsets = zip(records["_partition"].to_pylist(), records["_offset"].to_pylist(), strict=True)
            self.read.update({partition: offset + 1 for partition, offset in offsets})
            if (newest := records["_timestamp"][-1].value) is not None:
                self.newest = newest / 1000
            before = Rows() if self._pending is None else self._pending
            self._pending = before.added({name: events[name].combine_chunks() for name in self._columns})
            events = events.append_column(NUMBER, pa.array(np.arange(before.end, self._pending.end)))
            self._show_all(events)
        self._changes.send()

    def reached(self, ends: Offsets) -> None:
        """Up to some partitions' ends all is read; what was there besides events is none."""
        with self.locks.state:
            self._reached.update(ends)
            further = {partition: end for partition, end in ends.items() if end > self.read.get(partition, 0)}
            if further:
                self.read.update(further)
                with FOLD_PRIORITY:
                    self._show_all(None)
        if further:
            self._changes.send()

    def at_end(self, partition: int) -> bool:
        """Whether a partition is read to its end, as it was when that was reached."""
        end = self._reached.get(partition)
        if end is None or end != self.read.get(partition):
            return False
        self.ends[partition] = end
        return True

    def skip(self) -> None:
        """Go on from where the changelog is, if that is further."""
        with self.locks.state:
            for partition, offset in (self.covered or {}).items():
                if offset > self.read.get(partition, 0):
                    self.read[partition] = self._since[partition] = offset

    def overtaken(self) -> bool:
        """Whether the changelog has more of the topic than was read."""
        return any(offset > self.read.get(p, 0) for p, offset in (self.covered or {}).items())

    def unread(self) -> int:
        """How many offsets neither the changelog has nor were read."""
        with self.locks.state:
            covered = self.covered or {}
            read = {p: max(self.read.get(p, 0), covered.get(p, 0)) for p in self.ends}
            return sum(max(0, end - read[p]) for p, end in self.ends.items())

    def learn(self, ids: Iterable[str]) -> None:
        """Ask for schemas that records have and nobody knows. Raises RegistryUnavailable."""
        if self._parser:
            self._parser[1].learn(ids)

    def _parse(self, records: pa.Table) -> pa.Table:
        known = self._known()
        if self._parser is None or self._parser[0] != known:
            stores = self._config.stores_of(self._stream.name)
            keys: dict[str, str] = {}
            for rule, types in known:
                keys |= keyed(rule, types)
            self._parser = known, Parser(self._db, self._stream, [rule for rule, _ in known], stores, keys)
        return self._parser[1].parse(records)

    def _known(self) -> list[tuple[Rule, dict[str, str]]]:
        """The stores' rules, and the types of the states that are folded on; of the others none."""
        stores = ((store.snapshot, store.tail) for store in self._stores)
        return [(snapshot.rule, snapshot.types if tail else {}) for snapshot, tail in stores if snapshot.rule]

    def _forget(self) -> None:
        """Show nothing but the changelog."""
        self._pending = None
        self._since, self.read, self.ends, self._reached = {}, {}, {}, {}
        with self.locks.turn, FOLD_PRIORITY:
            for store in self._stores:
                store.snapshot.clear()

    def _trim(self) -> None:
        """Forget what every store has by the changelog."""
        if self._pending is None:
            return
        known = [store.covered for store in self._stores if store.tail is not None and store.covered is not None]
        least = dict(self.read)
        if known:
            least = {p: min(covered.get(p, 0) for covered in known) for p in set().union(*known)}
        self._since = {p: max(least.get(p, 0), self._since.get(p, 0)) for p in {*least, *self._since}}
        if not len(self._pending):
            return
        left = after(self._pending.numbered().select(COORDINATES), least)
        if left.num_rows < len(self._pending):
            self._pending = self._pending.kept(left[NUMBER].to_numpy())

    def _read(self) -> dict[str, int]:
        """Up to where the topic is read, as answers say it."""
        return {str(p): o for p, o in self.read.items()}

    def _fits(self, tail: Tail | None, covered: Offsets | None) -> bool:
        """Whether what is pending can be shown on top of what a store has by the changelog."""
        if tail is None or covered is None or not tail.ready or self._pending is None:
            return False
        # Not where something between the two is missing: the store is behind its changelog, which has overtaken the topic's.
        return all(since <= covered.get(p, 0) for p, since in self._since.items())

    def _show_all(self, events: pa.Table | None) -> None:
        """Show new events in every store; None: how far the topic is read."""
        with self.locks.turn:  # once: each time it may have to wait for a fold
            for store in self._stores:
                self._show_pending(store.snapshot, store.tail, store.covered, events)

    def _show_pending(
        self, snapshot: Snapshot, tail: Tail | None, covered: Offsets | None, events: pa.Table | None
    ) -> None:
        """Show the pending events on top of a store's state: again, or only some new ones. For whose turn it is."""
        if not self._fits(tail, covered):
            snapshot.clear()
            return
        assert tail and covered is not None and self._pending is not None
        read = self._read()
        with self._folds.shown_or_cleared(snapshot):
            if not snapshot.ahead:  # nothing is shown so far, or nothing any more
                snapshot.pending = self._folds.reader(tail, tail.pending())  # before there is something to be folded
                tail.lay(after(self._pending.numbered(), covered), self._pending, read)
            elif events is not None:
                tail.add(after(events, covered), self._pending, read)
            else:
                tail.rebase(list(tail.cover(covered)), read)
