"""What has changed since a version of the state's table: each key's row now, in Arrow's columns, in the order of the keys."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sortedcontainers import SortedDict

from api.columns import Columns, count, joined

UNCHANGED, ABSENT = -1, -2  # in place of a row
SPARE = 10_000  # rows that nobody refers to any more, besides as many as are referred to
Key = tuple[Any, ...]


class Spot(NamedTuple):
    """Where a key's row is: the version's row ``place`` if it is ``there`` (or it would be before that one), and ``row`` among
    what has changed, or one of the constants above."""

    place: int
    there: bool
    row: int


class Rows:
    """Rows that only become more. A row's number is its own as long as there is this object; any thread may take some."""

    def __init__(self) -> None:
        self._parts: tuple[tuple[int, Columns], ...] = ()  # the number of the first row, and the rows
        self._count = 0

    def append(self, rows: Columns) -> int:
        """Take in some rows, which nobody refers to yet: the number of the first."""
        first, more = self._count, count(rows)
        if more:
            parts = [*self._parts, (first, rows)]
            # Few parts, each at least twice as long as the next one: a row is copied only so often.
            while len(parts) > 1 and 2 * count(parts[-1][1]) > count(parts[-2][1]):
                (begin, before), (_, last) = parts[-2:]
                parts[-2:] = [(begin, joined([before, last]))]
            self._parts = tuple(parts)
            self._count += more
        return first

    def row(self, number: int) -> tuple[Columns, int]:
        """Some columns, and where in them a row is."""
        parts = self._parts
        first, rows = parts[bisect.bisect_right(parts, number, key=lambda part: part[0]) - 1]
        return rows, number - first

    def take(self, numbers: Sequence[int], names: Iterable[str]) -> Columns:
        """Rows in the order asked for; of these columns."""
        parts, wanted = self._parts, np.asarray(numbers, np.int64)
        which = np.searchsorted([first for first, _ in parts], wanted, side="right") - 1
        found, order = [], []
        for part in np.unique(which):
            (first, rows), here = parts[part], np.flatnonzero(which == part)
            found.append(taken(rows, wanted[here] - first, names))
            order.append(here)
        if len(found) == 1:
            return found[0]
        return taken(joined(found), np.argsort(np.concatenate(order)))


class Overlay(Rows):
    """The keys that have changed. One thread changes it; any may look up and take, and those who go through
    ``spots`` in order keep it from changing."""

    def __init__(self) -> None:
        super().__init__()
        self.spots: SortedDict = SortedDict()  # what is shown
        # Of keys that are shown ahead of the changelog: where they are by the changelog.
        self.under: dict[Key, Spot] = {}

    def __len__(self) -> int:
        return len(self.spots)

    def truth(self, key: Key) -> Spot | None:
        """Where a key is by the changelog; None where it has not changed. Not while this is changed."""
        return self.under.get(key) or self.spots.get(key)

    def tidied(self) -> Overlay:
        """The same, without the rows that nobody refers to, if they are many."""
        if self._count <= 2 * (len(self.spots) + len(self.under)) + SPARE:
            return self
        made, spots = Overlay(), (self.spots, self.under)
        rows = [spot.row for some in spots for spot in some.values() if spot.row >= 0]
        made.append(self.take(rows, self._parts[0][1]) if rows else {})
        numbers = itertools.count()
        made.spots = SortedDict(_renumbered(self.spots, numbers))
        made.under = dict(_renumbered(self.under, numbers))
        return made


class Truth:
    """An overlay as the changelog has it: without what is ahead of it. ``lock`` is held by who changes the overlay."""

    def __init__(self, overlay: Overlay, lock: threading.Lock) -> None:
        self.spots, self.row, self.take = Beneath(overlay, lock), overlay.row, overlay.take
        self.under: dict[Key, Spot] = {}


class Beneath:
    """The spots of the same; who goes through them holds the lock."""

    def __init__(self, overlay: Overlay, lock: threading.Lock) -> None:
        self._overlay, self._lock, self.irange = overlay, lock, overlay.spots.irange

    def get(self, key: Key) -> Spot | None:
        with self._lock:  # or a spot might be that of a moment later, when the key is shown ahead
            return self._overlay.truth(key)

    def __getitem__(self, key: Key) -> Spot:
        return self._overlay.under.get(key) or self._overlay.spots[key]


def _renumbered(spots: Mapping[Key, Spot], numbers: Iterator[int]) -> Iterator[tuple[Key, Spot]]:
    for key, spot in spots.items():
        yield key, Spot(spot.place, spot.there, next(numbers)) if spot.row >= 0 else spot


def taken(columns: Columns, places: Sequence[int] | np.ndarray, names: Iterable[str] | None = None) -> Columns:
    """The rows of some columns at these places; of all of the columns, or of those named."""
    chosen = pa.array(places, pa.int64())
    return {name: columns[name].take(chosen) for name in (columns if names is None else names)}


def keys_of(columns: Iterable[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """The keys that some columns hold."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
