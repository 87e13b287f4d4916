"""What the changelog's change data feed brings after a snapshot's position, folded onto it: the same fold as in Spark.

Only the keys that the new events touch are looked at: their rows are taken from the snapshot, folded in DuckDB, and put
into its overlay. By the law the result is what the next MERGE will make of the same events.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.engine.changelog import CHANGELOG, attach, filled
from api.engine.columns import Columns, Key, keys_of, taken
from api.engine.delta import pinned, unpin
from api.engine.duck import ROWS, Connection, quoted
from api.engine.fold import Fold, spoken, touched
from api.replica.overlay import RowRef, Rows
from api.replica.pending import PendingEvents, changed_rows
from api.replica.snapshot import Snapshot
from statehouse.config.models import Config
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.tables import changelog_columns, generation, opened, table

TOUCHED, PENDING = "_touched", "_pending"
PART = 5000  # keys
HOT, HOT_SECONDS = 1000, 10.0
_numbers = itertools.count()


class FoldResult(NamedTuple):
    """What the changelog makes of some keys up to a version, the ``head``: the arguments of :meth:`api.replica.snapshot.Snapshot.change`,
    and what is to be remembered of those that are absent."""

    head: int
    touched: Sequence[Key]  # without windows; of a purge no window may be left
    refs: Mapping[Key, RowRef]
    keys: Sequence[Key]
    present: Sequence[bool]
    rows: Columns
    absent: pa.Table | None
    last: bool = True  # no other parts of the same follow


class Tail:
    """The fold that goes on from a snapshot. Raises sqlglot's or DuckDB's error where DuckDB has no words for the rule, or others."""

    def __init__(self, db: Connection, snapshot: Snapshot, config: Config) -> None:
        assert snapshot.rule is not None
        self.db, self.config, self.snapshot, self.rule = db.cursor(), config, snapshot, snapshot.rule
        self.types = snapshot.types
        self.stream = config.streams[self.rule.store.stream]
        self.rule = spoken(self.rule, self.stream)
        self.changelog = table(config, "changelog", self.stream.name)
        self.name = f"tail{next(_numbers)}"
        self.fold = Fold(self.db, self.rule, self.name)
        self._pending: PendingEvents | None = None
        self._newer: dict[Key, int] = {}  # of keys that are shown as of a later position than the snapshot's: which
        # Keys that were read of late, and until when they are folded without being asked.
        self._hot: dict[Key, float] = {}
        self._other_fold: Fold | None = None
        self.ready = False  # whether it can go on
        self.begin()

    def begin(self) -> bool:
        """Whether it can go on: not before a recovery has written the store's tombstones, too. Asked by one thread."""
        if self.ready:
            return True
        tombstones = table(self.config, "tombstones", self.rule.store.name)
        delta = opened(tombstones)
        ready = (generation(delta) if delta else 0) == self.snapshot.generation
        if delta and ready and delta.version() > 0:
            columns = ", ".join(map(quoted, self.rule.tombstone_columns))
            with pinned(self.db, tombstones, delta.version(), "_remembered") as remembered:
                self.fold.remember(self._query(f"SELECT {columns} FROM {remembered}"))
        self.ready = ready
        return ready

    def fold_events(self, events: pa.Table, head: int) -> FoldResult:
        """Fold the changelog's rows of (the snapshot's position, head]; nobody sees it yet."""
        if not events.num_rows:
            return FoldResult(head, (), {}, (), (), {}, None)
        self.db.register("_events", events)
        try:
            relation = filled(self.db, "_events", self.stream, events.column_names)
            keys = self._touched(relation)
            if not keys:
                return FoldResult(head, (), {}, (), (), {}, None)
            refs, before = self.snapshot.present(keys)
            of = None
            if self.snapshot.shards:
                of = TOUCHED
                self._name(self.db, keys)
            changelog = partial(attach, self.db, self.config, self.stream, head)
            folded = self.fold.apply(pa.table(before), relation, changelog, of)
            rows = self._query(changed_rows(self.rule, self.types, quoted(folded)))
            return FoldResult(head, keys, refs, *self._split(rows), self.fold.absent(head))
        finally:
            self.db.unregister("_events")
            self.db.unregister(TOUCHED)
            unpin(self.db, CHANGELOG)

    def parts(self, result: FoldResult) -> Iterator[FoldResult]:
        """What was made in parts of some keys each, with their every window, to be shown one by one."""
        if len(result.touched) <= PART:
            yield result
            return
        depth, part = len(self.rule.key_columns), {key: number // PART for number, key in enumerate(result.touched)}
        of = np.array([part[key[:depth]] for key in result.keys], int)
        present = np.array(result.present, bool)
        row = np.cumsum(present) - 1
        absent = result.absent if result.absent is not None and result.absent.num_rows else None
        gone = np.array([part[key] for key in keys_of(absent[n] for n in self.rule.key_columns)] if absent else [], int)
        for first in range(0, len(result.touched), PART):
            number = first // PART
            here = np.flatnonzero(of == number)
            yield result._replace(
                touched=result.touched[first : first + PART],
                keys=[result.keys[place] for place in here.tolist()],
                present=present[here].tolist(),
                rows=taken(result.rows, row[here[present[here]]]),
                absent=absent.take(np.flatnonzero(gone == number)) if absent else None,
                last=first + PART >= len(result.touched),
            )

    def show(self, result: FoldResult) -> Collection[Key]:
        """Put what was made, or a part of it, into the snapshot; the keys (and windows) that the events touch. The position moves with
        the last part: until then some rows are newer than it says."""
        if result.absent is not None:
            self.fold.remember(result.absent)
        position = result.head if result.last else self.snapshot.position
        self.snapshot.change(result.keys, result.present, result.rows, result.refs, position)
        self._newer.update(dict.fromkeys(result.touched, result.head))
        if result.last:
            self._newer.clear()
        return result.keys

    def pending(self) -> PendingEvents:
        """What keeps the events by key that the changelog does not have yet."""
        self._pending = self._pending or PendingEvents(self.fold, self.stream, self.types)
        return self._pending

    def lay(self, events: pa.Table, pending: Rows, ahead: dict[str, int]) -> None:
        """Show what events will make of their keys that the changelog does not have yet: all that there are, by their numbers among
        what is pending. Kafka has them up to some offsets.

        That is folded when somebody asks for a key, and nothing is kept of it but the row that is shown: it is always the
        changelog's state with the pending events on top.
        """
        self.pending().forget()
        self.add(events, pending, ahead)

    def add(self, events: pa.Table, pending: Rows, ahead: dict[str, int]) -> None:
        """Show some more, besides those of before."""
        touched = self.snapshot.ours(self.pending().add(events, pending))
        self.snapshot.pend(touched, ahead)
        self._fold_pending(self._hot_of(touched))

    def cover(self, offsets: Mapping[int, int]) -> Collection[Key]:
        """The keys of what is pending and before some offsets, by partition: the changelog has that, now or in a moment."""
        return self.pending().cover(offsets)

    def rebase(self, keys: Iterable[Key], ahead: dict[str, int]) -> None:
        """The changelog's state of some keys is another, and has what is covered (:meth:`cover`): show what else is pending on top of it."""
        self.pending().drop(keys)
        touched = self.snapshot.ours(keys)
        left = self.pending().among(touched)
        self.snapshot.pend(left, ahead, set(touched) - left)
        self._fold_pending(self._hot_of(left))

    def fold_asked(self, asked: Sequence[Sequence[Key]]) -> None:
        """Fold what is pending of the keys that each of some ask for, where that is not done, and show it. Of a key that is asked for
        alone, what comes in the next time is folded at once: who asks again need not wait."""
        stale = self.snapshot.stale
        for keys in asked:
            if len(keys) == 1 and keys[0] in stale:
                if len(self._hot) == HOT:
                    self._hot.clear()
                self._hot[keys[0]] = time.monotonic() + HOT_SECONDS
        self._fold_pending([key for key in dict.fromkeys(itertools.chain(*asked)) if key in stale])

    def fold_some(self, count: int) -> None:
        """The same of as many keys that nobody asks for, or of all that there are."""
        self._fold_pending(self.snapshot.unfolded(count))

    def _hot_of(self, keys: Iterable[Key]) -> list[Key]:
        now = time.monotonic()
        return [key for key in keys if self._hot.get(key, now) > now]

    def _fold_pending(self, wanted: Sequence[Key]) -> None:
        if not wanted:
            return
        events = self.pending().of(wanted)
        refs, rows = self.snapshot.present(wanted)
        folded = self.pending().rows(events, pa.table(rows))
        if pc.any(folded["_conflict"]).as_py():
            at: dict[int, list[Key]] = {}
            for key in wanted:
                at.setdefault(self._newer.get(key, self.snapshot.position or 0), []).append(key)
            folded = pa.concat_tables([self._fold_changelog(keys, position) for position, keys in at.items()])
        self.snapshot.lay(wanted, *self._split(folded), refs)

    def close(self) -> None:
        """Drop the fold's tables."""
        folds = (self.fold, self._other_fold) if self._other_fold else (self.fold,)
        for name in (*(fold.state for fold in folds), self.fold.tombstones):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        if self._other_fold:
            self._other_fold.db.close()
        if self._pending:
            self._pending.close()
        self.db.close()

    def _touched(self, events: str) -> list[Key]:
        """The keys of the store that some events touch and that are here, without windows."""
        keys = self._query(touched(self.rule, events, self.rule.key_columns, self.types))
        return self.snapshot.ours(keys_of(keys.columns))

    def _name(self, db: Connection, keys: Sequence[Key]) -> None:
        """Keys as the relation :data:`TOUCHED`, until it is unregistered."""
        columns = dict(zip(self.rule.key_columns, zip(*keys, strict=True), strict=True))
        db.register(TOUCHED, pa.table({name: list(values) for name, values in columns.items()}))

    def _query(self, query: str) -> pa.Table:
        return self.db.execute(query).to_arrow_table(ROWS)

    def _split(self, folded: pa.Table) -> tuple[list[Key], list[bool], Columns]:
        """The keys (and windows), which of them are present, and the rows of those."""
        keys, present = keys_of(folded[name] for name in self.rule.keys), folded["_present"]
        now = folded.filter(present)
        return keys, present.to_pylist(), {name: now[name].combine_chunks() for name in self.types}

    def _fold_changelog(self, touched: Sequence[Key], position: int) -> pa.Table:
        """What is pending on top of the changelog at a position, where a late reset tore a key: from the whole of it."""
        _, rows = self.snapshot.present(touched)
        # With a cursor of its own, as :meth:`fold_events` may be at work.
        if self._other_fold is None:
            self._other_fold = Fold(self.db.cursor(), self.rule, f"{self.name}_anew", self.fold.tombstones)
        fold, db = self._other_fold, self._other_fold.db
        self._name(db, touched)
        db.register(PENDING, self.pending().of(touched))

        def everything() -> str:
            columns = ", ".join(map(spark_quoted, changelog_columns(self.stream)))
            log = attach(db, self.config, self.stream, position)
            return f"(SELECT {columns} FROM {log} UNION ALL SELECT {columns} FROM {PENDING})"

        try:
            folded = fold.apply(pa.table(rows), PENDING, everything, TOUCHED)
            return db.execute(changed_rows(self.rule, self.types, quoted(folded))).to_arrow_table(ROWS)
        finally:
            db.unregister(TOUCHED)
            db.unregister(PENDING)
            unpin(db, CHANGELOG)
