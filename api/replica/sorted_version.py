"""One version of a state's table in memory: Arrow columns in the order of the key.

A key is found by a binary search, and the rows from one key to another are a slice: no read is an SQL query. The columns have the
reducer's own too, so that a fold can go on from them; callers see them without (:meth:`SortedVersion.public`).
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from api.engine.cells import cell, value_of, values
from api.engine.columns import Columns, Key, count, keys_of, public, rank_in, time_of
from api.engine.shards import Shards
from api.replica.overlay import ABSENT, UNCHANGED, RowRef
from statehouse.fold import Rule
from statehouse.reducers import ORDER

MANY = 32  # rows from which on it takes less time to make them a column at a time
STRIDE = 64  # a key in so many is kept as Python's values
SEARCHED = pa.types.is_large_string, pa.types.is_string, pa.types.is_integer  # kinds of keys that Arrow searches for
Row = dict[str, Any]


@dataclass(eq=False)
class SortedVersion:
    """A version of a store's table; without a rule there is none. It does not change.

    A key here is a tuple of values, one for each column of the key (with ``window_start`` last in a windowed store), as :meth:`key`
    makes it of text.
    """

    rule: Rule | None = None
    version: int | None = None
    generation: int = 0
    epoch: str = ""  # names the table and its generation: another one is another state, whatever the position
    columns: Columns = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # DuckDB's, by column
    shards: Shards | None = None  # only the keys of these are here; None: all

    def __post_init__(self) -> None:
        self.size = count(self.columns)  # rows
        self._names = list(self.rule.keys) if self.rule else []
        self._keys = [self.columns[name] for name in self._names]
        self._key_cells = [cell(column) for column in self._keys]
        self._shown = {name: column for name, column in self.columns.items() if not name.startswith("_")}
        self._cells = [(name, cell(column)) for name, column in self._shown.items()]
        self._floats = {name for name in self._shown if self.types[name] == "FLOAT"}
        # A search begins in these, which are Python's, and ends in Arrow's columns.
        self._marks = keys_of(column[::STRIDE] for column in self._keys)

    def key(self, parts: Sequence[str]) -> Key:
        """A key of its parts as text; the first ones will do. Raises ValueError where one is not of its column's type."""
        return tuple([_value(part, self.types[name]) for name, part in zip(self._names, parts, strict=False)])

    def has(self, parts: Sequence[str]) -> bool:
        """Whether a key would be here if it were there: whether its shard is."""
        return self.shards is None or not self.rule or bool(self.shards.kept([self.key(parts)]))

    def ours(self, keys: Iterable[Key]) -> list[Key]:
        """Those of some keys, without windows, whose shard is here."""
        return list(keys) if self.shards is None else self.shards.kept(keys)

    def key_at(self, index: int) -> Key:
        """The key at a place of the version."""
        return tuple([at(index) for at in self._key_cells])

    def _place(self, key: Key, after: bool = False) -> int:
        """The first place in the version whose key is not before this one (or begins with it), or is ``after`` it."""
        find, depth = bisect.bisect_right if after else bisect.bisect_left, len(key)
        first = (lambda mark: mark[:depth]) if depth < len(self._keys) else None
        mark = find(self._marks, key, key=first)
        least, most = max(0, mark - 1) * STRIDE, min(mark * STRIDE, self.size)
        if depth == len(self._keys) == 1:  # the common case, in half the time
            return find(range(self.size), key[0], least, most, key=self._key_cells[0])
        return find(range(self.size), key, least, most, key=lambda place: self.key_at(place)[:depth])

    def _ref(self, key: Key) -> RowRef:
        """Where the version has a key, if it has it."""
        place = self._place(key)
        there = place < self.size and self.key_at(place) == key
        return RowRef(place, there, UNCHANGED if there else ABSENT)

    def _refs(self, keys: Sequence[Key], known: Sequence[RowRef | None]) -> list[RowRef]:
        """Where keys are, of which it is known or not: where the version has those of which it is not."""
        kind = self._keys[0].type
        if len(keys) < MANY or len(self._keys) > 1 or not any(of_kind(kind) for of_kind in SEARCHED):
            return [ref or self._ref(key) for key, ref in zip(keys, known, strict=True)]
        # All at once, in a sixth of the time, and other threads have their turn meanwhile.
        wanted = pa.array([key[0] for key, ref in zip(keys, known, strict=True) if ref is None], kind)
        places = pc.search_sorted(self._keys[0], wanted).to_pylist()
        inside = [place if place < self.size else None for place in places]
        there = pc.equal(self._keys[0].take(pa.array(inside, pa.int64())), wanted).to_pylist()
        searched = (RowRef(p, bool(t), UNCHANGED if t else ABSENT) for p, t in zip(places, there, strict=True))
        return [ref or next(searched) for ref in known]

    def shown(self) -> dict[str, str]:
        """The columns that callers see, with their types as Spark writes them."""
        if self.rule is None:
            return {}
        types = {n: t.replace(f", _order: {ORDER}", "") for n, t in self.rule.state_columns.items()}
        reset = "BIGINT" if self.rule.ranked else "TIMESTAMP"
        return {n: reset if n == "reset" else t for n, t in types.items() if not n.startswith("_")}

    def schema(self) -> pa.Schema:
        """The same columns as Arrow has them."""
        none = self.public({name: column[:0] for name, column in self.columns.items()})
        return pa.schema({name: column.type for name, column in none.items()})

    def public(self, columns: Columns) -> Columns:
        """Rows as callers see them."""
        rule = self.rule
        return public(columns, self._floats, bool(rule and rule.store.reducer.per_agent), bool(rule and rule.ranked))

    def windowed(self, rows: Sequence[Row]) -> Row | None:
        """The rows of a key's windows as one."""
        if self.rule is None or not rows:
            return None
        names = list(self.rule.key_columns)
        windows = [{c: v for c, v in row.items() if c not in names} for row in rows]
        return {**{k: rows[0][k] for k in names}, "windows": windows}

    def rows(self, columns: dict[str, pa.Array]) -> list[Row]:
        """The rows of some Arrow columns as Python's values."""
        by_column = {
            # As the shortest number that it is (1.1), not as the double next to it (1.100000023841858).
            name: [None if text is None else float(text) for text in column.cast(pa.string()).to_pylist()]
            if name in self._floats
            else values(column)
            for name, column in columns.items()
        }
        return [dict(zip(by_column, row, strict=True)) for row in zip(*by_column.values(), strict=True)]

    def shown_row(self, row: Row) -> Row:
        """A row as callers see it: what :meth:`public` makes of many."""
        return self._shown_row({n: v for n, v in row.items() if not n.startswith("_")})

    def _shown_row(self, row: Row) -> Row:
        if row.get("reset") is not None:
            row["reset"] = (rank_in if self.rule and self.rule.ranked else time_of)(row["reset"])
        if self.rule and self.rule.store.reducer.per_agent:
            # A report of null is a withdrawn one: in the row only so that a late one does not bring it back.
            standing = (row["reports"] or {}).items()
            row["reports"] = {
                agent: {"value": r["value"], "event_time": r["event_time"]}
                for agent, r in standing
                if r["value"] is not None
            }
        return row

    def _row(self, columns: Columns, place: int) -> Row:
        """What callers see of a row: the same as ``rows`` of one, in a fraction of the time."""
        if self._floats:
            return self._shown_row(self.rows({name: columns[name][place : place + 1] for name in self._shown})[0])
        if columns is self._shown:
            return self._shown_row({name: at(place) for name, at in self._cells})
        return self._shown_row({name: value_of(columns[name][place]) for name in self._shown})


def _value(text: str, kind: str) -> Any:
    """A part of a key of its text, in the form of :func:`api.engine.types.canonical`."""
    if kind == "VARCHAR":
        return text
    if kind.endswith("INT") or kind == "INTEGER":
        return int(text)
    if kind.startswith("DECIMAL"):
        return Decimal(text)
    if kind == "BOOLEAN":
        return {"true": True, "false": False}[text]
    if kind == "DATE":
        return dt.date.fromisoformat(text)
    if kind.startswith("TIMESTAMP"):
        return dt.datetime.fromisoformat(text.removesuffix("Z"))
    raise ValueError(f"found a key of type {kind}")
