"""What has changed since a version of the state's table: each key's row now, in Arrow's columns, in the order of the keys."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedList

from api.engine.columns import Columns, Key, count, joined, taken

UNCHANGED, ABSENT = -1, -2  # in place of a row
SPARE = 10_000  # rows that nobody refers to any more, besides as many as are referred to
TOGETHER = 4  # parts that are made one
NUMBER = "_number"
Part = tuple[int, np.ndarray, Columns]  # the first of its numbers, all of them in order, and the rows


class RowRef(NamedTuple):
    """Where a key's row is: the version's row ``place`` if it is ``there`` (or it would be before that one), and ``row`` among
    what has changed, or one of the constants above."""

    place: int
    there: bool
    row: int


class Rows:
    """Rows by numbers of their own, which they keep: a value that does not change, and from which others are made."""

    def __init__(self, parts: Sequence[Part] = (), end: int = 0) -> None:
        self._parts = parts
        self.end = end  # the number of the next row

    def __len__(self) -> int:
        return _many(self._parts)

    def added(self, rows: Columns) -> Rows:
        """With more rows: their numbers go on from the ``end``."""
        end = self.end + count(rows)
        if end == self.end:
            return self
        parts = [*self._parts, (self.end, np.arange(self.end, end), rows)]
        # Few parts, and a row is copied only so often: with each copy its part becomes some times as long.
        while len(parts) >= TOGETHER and _many(parts[1 - TOGETHER :]) >= _many(parts[-TOGETHER : 1 - TOGETHER]):
            merged = parts[-TOGETHER:]
            numbers = np.concatenate([numbers for _, numbers, _ in merged])
            parts[-TOGETHER:] = [(merged[0][0], numbers, joined([rows for _, _, rows in merged]))]
        return Rows(parts, end)

    def numbered(self) -> pa.Table:
        """All of them, with their numbers as the column :data:`NUMBER`; nothing is copied."""
        tables = [pa.table({**rows, NUMBER: numbers}) for _, numbers, rows in self._parts]
        return pa.concat_tables(tables) if tables else pa.table({})

    def kept(self, wanted: np.ndarray) -> Rows:
        """Only those with these numbers."""
        parts = []
        for _, numbers, rows in self._parts:
            here = np.flatnonzero(np.isin(numbers, wanted))
            if len(here):
                parts.append((int(numbers[here[0]]), numbers[here], taken(rows, here)))
        return Rows(parts, self.end)

    def row(self, number: int) -> tuple[Columns, int]:
        """Some columns, and where in them a row is."""
        _, numbers, rows = self._parts[bisect.bisect_right(self._parts, number, key=lambda part: part[0]) - 1]
        return rows, bisect.bisect_left(numbers, number)  # of one number in a fifth of searchsorted's time

    def take(self, wanted: Sequence[int], names: Iterable[str]) -> Columns:
        """Rows in the order asked for; of these columns."""
        places = np.asarray(wanted, np.int64)
        which = np.searchsorted([first for first, _, _ in self._parts], places, side="right") - 1
        found, order = [], []
        for part in np.unique(which):
            (_, numbers, rows), here = self._parts[part], np.flatnonzero(which == part)
            found.append(taken(rows, numbers.searchsorted(places[here]), names))
            order.append(here)
        rows, asked = joined(found), np.concatenate(order)
        # Where they were asked for in the order of their numbers, that is it.
        return rows if (asked[1:] > asked[:-1]).all() else taken(rows, np.argsort(asked))


def _many(parts: Sequence[Part]) -> int:
    return sum(len(numbers) for _, numbers, _ in parts)


class RowRefs(dict[Key, RowRef]):
    """Where rows are, by key, for who holds the snapshot's lock. The keys are put in order when somebody goes through them: who asks for one
    key need not wait for that."""

    def __init__(self) -> None:
        super().__init__()
        self._ordered: SortedList = SortedList()
        self._new: dict[Key, None] = {}  # not among those yet

    def __setitem__(self, key: Key, ref: RowRef) -> None:
        if key not in self:
            self._new[key] = None
        super().__setitem__(key, ref)

    def __delitem__(self, key: Key) -> None:
        super().__delitem__(key)
        if key in self._new:
            del self._new[key]
        else:
            self._ordered.remove(key)

    def update(self, refs: Mapping[Key, RowRef]) -> None:  # type: ignore[override]  # what is needed of it
        """Have these, too, or in the place of those there are."""
        self._new.update(dict.fromkeys(key for key in refs if key not in self))
        super().update(refs)

    def irange(
        self, least: Key | None = None, most: Key | None = None, inclusive: tuple[bool, bool] = (True, True)
    ) -> Iterator[Key]:
        """The keys from one to another, in order."""
        if self._new:
            self._ordered.update(self._new)
            self._new.clear()
        return self._ordered.irange(least, most, inclusive)


class Overlay:
    """The keys that have changed. One thread changes it at a time; who holds the snapshot's lock meanwhile may look keys up, and
    take their rows from the ``rows`` of then also later."""

    def __init__(self) -> None:
        self.refs = RowRefs()  # what is shown
        # Of keys that are shown ahead of the changelog: where they are by the changelog.
        self.under: dict[Key, RowRef] = {}
        self.rows = Rows()

    def __len__(self) -> int:
        return len(self.refs)

    def truth(self, key: Key) -> RowRef | None:
        """Where a key is by the changelog; None where it has not changed."""
        return self.under.get(key) or self.refs.get(key)

    def restore(self, keys: Iterable[Key]) -> None:
        """Show keys that are shown ahead of the changelog as it has them."""
        for key in keys:
            ref = self.under.pop(key)
            if ref.row == (UNCHANGED if ref.there else ABSENT):
                del self.refs[key]
            else:
                self.refs[key] = ref

    def tidy(self) -> None:
        """Drop the rows that nobody refers to, if they are many."""
        if len(self.rows) > 2 * (len(self.refs) + len(self.under)) + SPARE:
            refs = itertools.chain(self.refs.values(), self.under.values())
            self.rows = self.rows.kept(np.fromiter((ref.row for ref in refs), np.int64))


class Truth:
    """An overlay as the changelog has it: without what is ahead of it."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay, self.refs = overlay, Beneath(overlay)
        self.under: dict[Key, RowRef] = {}

    @property
    def rows(self) -> Rows:
        return self._overlay.rows


class Beneath:
    """Where its rows are."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay, self.irange, self.get = overlay, overlay.refs.irange, overlay.truth

    def __getitem__(self, key: Key) -> RowRef:
        return self._overlay.under.get(key) or self._overlay.refs[key]
