"""One version of a state table in memory, and what the changelog brought since: what readers read.

The version is a table of Arrow columns in the order of the key, so that a key is found by a binary search and a page of a
scan is a slice: no read is an SQL query. What has changed since is in the overlay, row by row; :mod:`api.tail` folds it.
The columns have the reducer's own too, so that a fold can go on from them.
"""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from sortedcontainers import SortedDict

from api import duck
from api.delta import pin, unpin
from api.duck import quoted
from api.exact import time
from api.where import Where
from statehouse.config import Config, Store
from statehouse.errors import StatehouseError
from statehouse.fold import Rule
from statehouse.reducers import ORDER
from statehouse.tables import folded, generation, stored_rule, table

SOME = 100_000  # rows of a chunk, where few are expected
STRIDE = 64  # a key in so many is kept as Python's values
SHORTEST, LONGEST = 16, 4096  # rows that a scan turns into Python's values at once
MICROSECOND = 10**20  # what a microsecond is in the packed order key, see statehouse.reducers.ORDER
EPOCH = dt.datetime(1970, 1, 1)
Row = dict[str, Any]
Inside = Callable[[tuple[Any, ...]], bool]


@dataclass(eq=False)
class Snapshot:
    """A store as of one version of its state table and, on top, as of a later position of the changelog.

    All None and empty: nothing has been merged yet. A key here is a tuple of values, one for each column of the key (with
    ``window_start`` last in a windowed store), as :meth:`key` makes it of text.
    """

    rule: Rule | None = None
    version: int | None = None
    generation: int = 0
    epoch: str = ""  # names the table and its generation: another one is another state, whatever the position
    position: int | None = None
    keys: int = 0
    columns: dict[str, pa.Array] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)  # DuckDB's, by column
    size: int = 0  # rows of the version
    overlay: SortedDict = field(default_factory=SortedDict)  # a key's row now; None: it is absent
    lock: threading.Lock = field(default_factory=threading.Lock)  # held to change the overlay and to scan it

    def __post_init__(self) -> None:
        self._keys = [self.columns[name] for name in self.rule.keys] if self.rule else []
        self._shown = {name: column for name, column in self.columns.items() if not name.startswith("_")}
        self._floats = {n for n, t in self.types.items() if t == "FLOAT"}
        # A search begins in these, which are Python's, and ends in Arrow's columns.
        self._marks = list(zip(*(column[::STRIDE].to_pylist() for column in self._keys), strict=True))

    def get(self, parts: Sequence[str]) -> Row | None:
        """The state of a key, whose parts are given as text; None where it is absent. In a windowed store it is the key
        and its ``windows``, oldest first."""
        if self.rule is None:
            return None
        key = self.key(parts)
        if not self.rule.store.windows:
            return self.now(key)
        return self.windowed(self.windows(key))

    def windowed(self, rows: Sequence[Row]) -> Row | None:
        """The rows of a key's windows as one."""
        if self.rule is None or not rows:
            return None
        names = list(self.rule.key_columns)
        windows = [{c: v for c, v in row.items() if c not in names} for row in rows]
        return {**{k: rows[0][k] for k in names}, "windows": windows}

    def lookup(self, keys: Sequence[Sequence[str]]) -> list[Row | None]:
        """What :meth:`get` gives of each of these."""
        return [self.get(parts) for parts in keys]

    def now(self, key: tuple[Any, ...]) -> Row | None:
        """The state of a key (and window) of the form above; None where it is absent."""
        if key in self.overlay:
            found = self.overlay[key]
        else:
            place = self._find(key)
            found = None if place is None else self._row(place)
        return self.public(found) if found else None

    def windows(self, key: tuple[Any, ...]) -> list[Row]:
        """The states of a key's every window, oldest first."""
        with self.lock:
            return [self.public(row) for _, row in itertools.takewhile(lambda r: r[0][:-1] == key, self._rows(key))]

    def changed_windows(self, key: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """The windows of a key that are in the overlay."""
        return itertools.takewhile(lambda found: found[:-1] == key, self.overlay.irange(key))

    def page(
        self,
        after: Sequence[str] | None,
        limit: int,
        bounds: tuple[tuple[Any, ...], Inside] = ((), lambda key: True),
        where: Where | None = None,
    ) -> tuple[list[Row], int | None]:
        """The next states in the order of the key's columns, after a key that need not be there any more, and the position.

        ``bounds``: the key (or some first parts of one) to begin with, and a test whose first failure ends the scan;
        ``where``: a condition that each of them meets. Raises ValueError where a part of ``after`` is not of its column's type.
        """
        if self.rule is None:
            return [], self.position
        least, inside = bounds
        last = self.key(after) if after is not None else None
        start = least if last is None else max(least, last)
        with self.lock:
            following = itertools.takewhile(lambda found: inside(found[0]), self._rows(start, where))
            rows = itertools.islice((row for key, row in following if key != last), limit)
            return [self.public(row) for row in rows], self.position

    @property
    def place(self) -> str:
        """Where one who has read it all goes on from; see :mod:`api.changes`."""
        return f"{self.position or 0}-{self.epoch}"

    def texts(self, row: Row) -> list[str]:
        """A public row's key as text that :meth:`key` makes the same key of."""
        assert self.rule is not None
        return [_text(row[name]) for name in self.rule.keys]

    def key(self, parts: Sequence[str]) -> tuple[Any, ...]:
        """A key of its parts as text; the first ones will do. Raises ValueError where one is not of its column's type."""
        assert self.rule is not None
        return tuple(_value(part, self.types[name]) for name, part in zip(self.rule.keys, parts, strict=False))

    def shown(self) -> dict[str, str]:
        """The columns that callers see, with their types as Spark writes them."""
        if self.rule is None:
            return {}
        shown = {n: t.replace(f", _order: {ORDER}", "") for n, t in self.rule.state_columns.items()}
        return {n: "TIMESTAMP" if n == "reset" else t for n, t in shown.items() if not n.startswith("_")}

    def schema(self) -> pa.Schema:
        """The same columns as Arrow has them."""
        assert self.rule is not None
        types = {n: c.type for n, c in self.columns.items() if not n.startswith("_")}
        types |= {n: pa.float64() for n in self._floats} | {"reset": pa.string()}
        if self.rule.store.reducer.per_agent:
            report = types["reports"].item_type
            types["reports"] = pa.map_(pa.string(), pa.struct([report.field("value"), report.field("event_time")]))
        return pa.schema(types)

    def places(self, keys: Sequence[tuple[Any, ...]]) -> list[int]:
        """Where the version has the rows of these keys: of a key's every window, where windowed."""
        if self.rule and self.rule.store.windows:
            return [i for key in keys for i in range(self._place(key), self._place(key, after=True))]
        return [place for key in keys if (place := self._find(key)) is not None]

    def change(self, rows: dict[tuple[Any, ...], Row | None], position: int) -> None:
        """Put rows into the overlay, and move the position: at once, for those who scan."""
        with self.lock:
            for key, row in rows.items():
                there = self.overlay[key] is not None if key in self.overlay else self._find(key) is not None
                self.keys += (row is not None) - there
                self.overlay[key] = row
            self.position = position

    def public(self, row: Row) -> Row:
        """A row as callers see it."""
        shown = {n: v for n, v in row.items() if not n.startswith("_")}
        if shown.get("reset") is not None:
            shown["reset"] = _iso(int(shown["reset"]) // MICROSECOND)
        if self.rule and self.rule.store.reducer.per_agent:
            # A report of null is a withdrawn one: in the row only so that a late one does not bring it back.
            standing = (shown["reports"] or {}).items()
            shown["reports"] = {
                agent: {"value": r["value"], "event_time": r["event_time"]}
                for agent, r in standing
                if r["value"] is not None
            }
        return shown

    def rows(self, columns: dict[str, pa.Array]) -> list[Row]:
        """The rows of some Arrow columns as Python's values."""
        values = {
            # As the shortest number that it is (1.1), not as the double next to it (1.100000023841858).
            name: [None if text is None else float(text) for text in column.cast(pa.string()).to_pylist()]
            if name in self._floats
            else column.to_pylist(maps_as_pydicts="strict")
            for name, column in columns.items()
        }
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def _row(self, place: int) -> Row:
        """What callers see of a row of the version: the same as ``rows`` of one, in a fraction of the time."""
        if self._floats:
            return self.rows({name: column[place : place + 1] for name, column in self._shown.items()})[0]
        return {name: column[place].as_py(maps_as_pydicts="strict") for name, column in self._shown.items()}

    def _find(self, key: tuple[Any, ...]) -> int | None:
        """Where the version has a key."""
        place = self._place(key)
        return place if place < self.size and self.key_at(place) == key else None

    def key_at(self, index: int) -> tuple[Any, ...]:
        """The key at a place of the version."""
        return tuple(column[index].as_py() for column in self._keys)

    def _place(self, key: tuple[Any, ...], after: bool = False) -> int:
        """The first place in the version whose key is not before this one (or begins with it), or is ``after`` it."""
        find, depth = bisect.bisect_right if after else bisect.bisect_left, len(key)
        first = (lambda mark: mark[:depth]) if depth < len(self._keys) else None
        mark = find(self._marks, key, key=first)
        least, most = max(0, mark - 1) * STRIDE, min(mark * STRIDE, self.size)
        if depth == len(self._keys) == 1:  # the common case, in half the time
            (column,), (value,) = self._keys, key
            return find(range(self.size), value, least, most, key=lambda place: column[place].as_py())
        return find(range(self.size), key, least, most, key=lambda place: self.key_at(place)[:depth])

    def _rows(self, start: tuple[Any, ...], where: Where | None = None) -> Iterator[tuple[tuple[Any, ...], Row]]:
        """The keys that are present, from ``start`` on, with their rows; the caller holds the lock.

        They are taken in runs, whose columns become Python's values at once: a short one first, as some ask for few.
        """
        assert self.rule is not None
        place, run, fresh = self._place(start), SHORTEST, True
        while True:
            changed = list(itertools.islice(self.overlay.irange(start, None, (fresh, True)), run))
            ends = [self.key_at(place + run - 1)] if place + run <= self.size else []
            ends += [changed[-1]] if len(changed) == run else []
            end = min(ends, default=None)
            until = self.size if end is None else self._place(end, after=True)
            here = [(k, row) for k in changed if (end is None or k <= end) and (row := self.overlay[k]) is not None]
            there = slice(place, until)
            if where:
                here = [here[i] for i in where.places(self._arrow([row for _, row in here]))]
                chosen = where.places({name: column[there] for name, column in self.columns.items()})
                base = {name: column[there].take(pa.array(chosen, pa.int64())) for name, column in self._shown.items()}
            else:
                base = {name: column[there] for name, column in self._shown.items()}
            rows = [(tuple(row[name] for name in self.rule.keys), row) for row in self.rows(base)]
            kept = [found for found in rows if found[0] not in self.overlay]
            # Two runs in order already. By the key alone: rows have none.
            yield from sorted(kept + here, key=lambda found: found[0]) if here else kept
            if end is None:
                return
            place, run, start, fresh = until, min(4 * run, LONGEST if where is None else 16 * LONGEST), end, False

    def _arrow(self, rows: list[Row]) -> dict[str, pa.Array]:
        return {name: pa.array([row[name] for row in rows], column.type) for name, column in self.columns.items()}


def _value(text: str, kind: str) -> Any:
    """A part of a key of its text, in the form of :func:`api.typed.canonical`."""
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


def _text(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return time(value)
    return (
        str(value).lower()
        if isinstance(value, bool)
        else format(value, "f")
        if isinstance(value, Decimal)
        else str(value)
    )


def _iso(micros: int) -> str | int:
    try:
        return time(EPOCH + dt.timedelta(microseconds=micros))
    except OverflowError:
        return micros


def load(
    cursor: duckdb.DuckDBPyConnection, config: Config, store: Store, version: int, wanted: str | None = None
) -> Snapshot:
    """A version of a store's state table, copied into memory; of ``wanted``, a table of keys, only those."""
    path = table(config, "state", store.name)
    delta = DeltaTable(path, version=version)
    position, rule = folded(delta), stored_rule(delta, store.name)
    if rule is None:
        raise StatehouseError(f"{path} has no definition: it was not made by statehouse")
    names = ", ".join(map(quoted, rule.key_columns))
    where = f"WHERE ({names}) IN (SELECT {names} FROM {wanted})" if wanted else ""
    try:
        pin(cursor, path, version, "lake")
        types = duck.types(cursor, "lake")
        order = ", ".join(map(quoted, rule.keys))
        # Moments are made plain UTC below: DuckDB asks its calendar for each of them, half of the time that this takes.
        columns = casts(types, but="TIMESTAMP")
        chunk = SOME
        if not wanted:  # all as one chunk, or they would have to be copied together; but it is allocated at once
            ((rows,),) = cursor.execute("SELECT count(*) FROM lake").fetchall()
            chunk = max(1, rows)
        found = cursor.execute(f"SELECT {columns} FROM lake {where} ORDER BY {order}").to_arrow_table(chunk)
    finally:
        unpin(cursor, "lake")
    made = of_table(found, rule, types)
    made.version, made.generation, made.position = version, generation(delta), position
    made.epoch = epoch_of(delta)
    return made


def epoch_of(delta: DeltaTable) -> str:
    """What names the state that a table holds: a recovery puts another one in its place, and so does who makes it anew."""
    return f"{delta.metadata().id:.8}.{generation(delta)}"


def casts(types: dict[str, str], but: str = "") -> str:
    """A select list of columns, each cast to its type (``but`` those of one type); moments become plain UTC."""
    return ", ".join(quoted(n) if t == but else f"CAST({quoted(n)} AS {t}) AS {quoted(n)}" for n, t in types.items())


def of_table(found: pa.Table, rule: Rule, types: dict[str, str]) -> Snapshot:
    """Rows in the order of their keys as a snapshot; a column's moments, if not plain UTC, are made so."""
    arrays = {name: _one(found[name]) for name in types}
    return Snapshot(rule, keys=found.num_rows, columns=arrays, types=types, size=found.num_rows)


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return array.view(pa.timestamp(array.type.unit)) if pa.types.is_timestamp(array.type) else array
