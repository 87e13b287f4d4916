"""A store's pending events, and what they make on top of its state by the changelog: the fold as one prepared query."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot import exp

from api.engine.columns import Key, keys_of
from api.engine.duck import casts, quoted, selected
from api.engine.fold import GUARD, Fold
from api.engine.prepared import ArrowSource, Prepared, cursor
from api.replica.overlay import NUMBER, Rows
from statehouse.config.models import Stream
from statehouse.fold import Rule
from statehouse.tables import changelog_columns
from statehouse.transpile import to_duckdb

EVENTS, BEFORE = "_of", "_before"
COORDINATES = NUMBER, "_partition", "_offset"
Offsets = Mapping[int, int]


def after(rows: pa.Table, offsets: Offsets) -> pa.Table:
    """The rows whose offset is not before that of their partition."""
    if not offsets or not rows.num_rows:
        return rows
    partitions = rows["_partition"].to_numpy()
    least = np.zeros(max(int(partitions.max()), *offsets) + 1, np.int64)
    for partition, offset in offsets.items():
        least[partition] = offset
    later = rows["_offset"].to_numpy() >= least[partitions]
    return rows if later.all() else rows.filter(pa.array(later))


def changed_rows(rule: Rule, types: Mapping[str, str], folded: str) -> str:
    """SQL: of rows that a fold made, a relation, the state's columns, ``_present`` and ``_conflict``."""
    whole = "window_start IS NOT NULL" if rule.store.windows else "TRUE"  # a purge is remembered by its key
    return f"SELECT {casts(types)}, _present, _conflict FROM {folded} WHERE {whole}"


def keyed(rule: Rule, types: Mapping[str, str]) -> dict[str, str]:
    """Which key of a store an event is of, null where of none: an expression in DuckDB's words for each of its columns, by the name
    that :class:`PendingEvents` looks for. ``types`` are the state's; there are none of one that cannot be folded."""
    if not types:
        return {}
    keys = (f"CASE WHEN {rule.concerned(GUARD)} THEN {key} END" for key in rule.key_of(GUARD))
    named = zip(rule.key_columns, map(to_duckdb, keys), strict=True)
    return {f"_key of {rule.store.name}: {name}": f"CAST({key} AS {types[name]})" for name, key in named}


class PendingEvents:
    """Of one tail; ``types`` are the state's columns in DuckDB. Raises sqlglot's or DuckDB's errors as a fold does."""

    def __init__(self, fold: Fold, stream: Stream, types: Mapping[str, str]) -> None:
        self._db, self._fold, self._types = cursor(fold.db), fold, types
        rule, columns = fold.rule, changelog_columns(stream)
        self._events = ArrowSource(self._db, EVENTS, columns)
        self._before = ArrowSource(self._db, BEFORE, rule.state_columns)
        keys = keyed(rule, types)
        self._names, self._columns = list(keys), list(columns)
        self._keys = Prepared(self._db, "_keys", f"SELECT {selected(keys)} FROM {EVENTS}")
        self._rows = {False: self._combined(None)}  # by whether there are tombstones
        self.forget()

    def forget(self) -> None:
        """Nothing is pending."""
        self._pending = Rows()  # of the whole stream; its numbers are those below
        self._of: defaultdict[Key, list[int]] = defaultdict(list)  # the numbers of each key's events
        # Of each partition the offsets, in order, with their numbers and keys.
        self._places: defaultdict[int, deque[tuple[int, int, Key]]] = defaultdict(deque)
        self._covered: dict[Key, list[int]] = {}  # the numbers of what is to be dropped

    def add(self, new: pa.Table, pending: Rows) -> list[Key]:
        """Some of the rows that are pending are so here, too: with their numbers, and with their :func:`keyed` or without. The keys that
        they touch, without windows."""
        self._pending = pending
        if not new.num_rows:
            return []
        named = new
        if self._names[0] not in new.column_names:
            self._events.put(new)
            named = self._keys.rows()
        keys = keys_of(named[name] for name in self._names)
        touched: dict[Key, None] = {}
        for key, number, partition, offset in zip(keys, *(new[name].to_pylist() for name in COORDINATES), strict=True):
            if None not in key:
                self._places[partition].append((offset, number, key))
                self._of[key].append(number)
                touched[key] = None
        return list(touched)

    def cover(self, offsets: Mapping[int, int]) -> Collection[Key]:
        """What is before these offsets, by partition, is not pending any more: its keys. It is here until :meth:`drop`."""
        for partition, places in self._places.items():
            end = offsets.get(partition, 0)
            while places and places[0][0] < end:
                _, number, key = places.popleft()
                self._covered.setdefault(key, []).append(number)
        return self._covered.keys()

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget what is covered of some keys."""
        for key in keys:
            for number in self._covered.pop(key, ()):
                self._of[key].remove(number)
                if not self._of[key]:
                    del self._of[key]

    def among(self, keys: Iterable[Key]) -> set[Key]:
        """Those of some keys that have pending events."""
        return {key for key in keys if key in self._of}

    def of(self, keys: Iterable[Key]) -> pa.Table:
        """The pending events of keys that have some."""
        numbers = [number for key in keys for number in self._of[key]]
        numbers.sort()  # in any order, and in this one they are found sooner
        return pa.table(self._pending.take(numbers, self._columns))

    def of_one(self, key: Key) -> pa.Table | None:
        """The pending events of a key; None where it has none."""
        return self.of([key]) if key in self._of else None

    def rows(self, events: pa.Table, before: pa.Table) -> pa.Table:
        """What events make of the rows ``before`` of their keys: the state's columns, ``_present``, and whether a key has to be
        folded again from the whole changelog, ``_conflict``."""
        self._events.put(events)
        self._before.put(before)
        remembers = self._fold.remembers
        if remembers not in self._rows:
            self._rows[remembers] = self._combined(self._fold.tombstones)
        return self._rows[remembers].rows()

    def close(self) -> None:
        """Forget the queries."""
        self._db.close()

    def _combined(self, tombstones: str | None) -> Prepared:
        rule = self._fold.rule
        events = f"({rule.project(EVENTS, guard=GUARD)})"
        combined = rule.combine(rule.spread(f"({rule.fold(events)})", BEFORE, tombstones), BEFORE, tombstones)
        query = self._timed(changed_rows(rule, self._types, f"({to_duckdb(combined)})"))
        return Prepared(self._db, f"_rows {tombstones}", query)

    def _timed(self, query: str) -> str:
        """The query, for which it is now when the newest of its events was read."""
        now = sqlglot.parse_one(f"(SELECT max(_log_time) FROM {quoted(EVENTS)})", dialect="duckdb")

        def replaced(node: exp.Expr) -> exp.Expr:
            return now.copy() if isinstance(node, exp.CurrentTimestamp) else node

        return sqlglot.parse_one(query, dialect="duckdb").transform(replaced).sql("duckdb")


class FoldRequest(NamedTuple):
    """Keys whose pending events a reader waits to be folded."""

    tail: str  # its name
    keys: Sequence[Key]
    done: threading.Event


class PendingReader(NamedTuple):
    """How readers of a snapshot get at its pending events. Nothing of it leads to who folds them."""

    events: PendingEvents
    lock: threading.Lock  # of the stream's state: a commit moves the position and the events together
    requests: SimpleQueue[FoldRequest]
    tail: str  # the name of the one that folds on from the snapshot

    def fold(self, keys: Sequence[Key]) -> None:
        """Have what is pending of some keys folded: when this returns it is, or it cannot be and is not shown."""
        request = FoldRequest(self.tail, keys, threading.Event())
        self.requests.put(request)
        request.done.wait()
