"""A store's state as readers read it: one version of its table, and what the changelog and the topic brought since.

The version is :class:`SortedVersion`. What has changed since is in the overlay, row by row; :mod:`api.replica.tail` folds it.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from api.engine.columns import Columns, Key, count, fitting, joined, lines, size, taken
from api.engine.deadline import Deadline
from api.engine.exact_json import dumps
from api.engine.where import Where
from api.replica.overlay import ABSENT, UNCHANGED, Overlay, RowRef, Rows, Truth
from api.replica.pending import PendingReader
from api.replica.sorted_version import MANY, Row, SortedVersion
from statehouse.partitioner import text_of

BYTES = 1 << 20  # of a page, about
MOST_BYTES = 16 * BYTES  # that are looked through at once
SHORTEST, LONGEST = 16, 4096  # rows that a scan takes at once
AT_ONCE = 5000  # keys that are folded while what is new waits
Inside = Callable[[Key], bool]
Refs = Mapping[Key, RowRef]
After = Sequence[str] | None  # the key, as text, after which rows are wanted; None: from the first one on


class Selection(NamedTuple):
    """What a scan is of: the keys from one on (or from some first parts of one), as long as a test holds, whose rows meet a condition.
    ``at_once``: what is pending of them was folded before the first page, and as of then will do."""

    least: Key = ()
    inside: Inside | None = None  # its first failure ends the scan
    where: Where | None = None
    at_once: bool = False


ALL = Selection()


class Pending(NamedTuple):
    """The events of a key that the changelog does not have at a position: as rows of it, None where there are none. Kafka has them up
    to some offsets."""

    position: int | None
    events: pa.Table | None = None
    offsets: Mapping[str, int] = {}


@dataclass(eq=False)
class Snapshot(SortedVersion):
    """A store as of one version of its state table and, on top, as of a later position of the changelog.

    All None and empty: nothing has been merged yet.
    """

    position: int | None = None
    keys: int = 0
    overlay: Overlay = field(default_factory=Overlay)  # what has changed since
    ahead: dict[str, int] = field(default_factory=dict)  # what is shown ahead of the changelog is up to these offsets
    # Keys, without windows, with pending events that have not been folded yet: that is done when somebody asks, by way of ``pending``.
    # Those that came first are first: what is folded together was read together, and is together in memory.
    stale: dict[Key, None] = field(default_factory=dict)
    pending: PendingReader | None = None  # set where something is ahead of the changelog
    lock: threading.Lock = field(default_factory=threading.Lock)  # held to change the overlay, and to go through it

    def get(self, parts: Sequence[str]) -> Row | None:
        """The state of a key, whose parts are given as text; None where it is absent. In a windowed store it is the key
        and its ``windows``, oldest first."""
        if self.rule is None:
            return None
        key = self.key(parts)
        self._settle([key])
        return self._state(key)

    def at_once(self, parts: Sequence[str]) -> tuple[Row, dict[str, int] | None] | None:
        """The same, and :meth:`offsets`, for an event loop, where nobody has to be waited for; None also where somebody has to."""
        key = self.key(parts)
        # Who takes the lock in between changes the overlay's rows, and no more.
        row = None if key in self.stale or self.lock.locked() else self._state(key)
        return None if row is None else (row, self._offsets(key))

    def _state(self, key: Key) -> Row | None:
        windows = self.rule is not None and self.rule.store.windows
        return self.windowed(self.windows(key)) if windows else self.now(key)

    def lookup(self, keys: Sequence[Sequence[str]]) -> list[str | None]:
        """What :meth:`get` gives of each of these, as JSON text."""
        if self.rule is None:
            return [None] * len(keys)
        wanted = [self.key(parts) for parts in keys]
        self._settle(wanted)
        if self.rule.store.windows:
            return [dumps(row) if (row := self.windowed(self.windows(key))) else None for key in wanted]
        return self.lines(wanted)

    def lines(self, keys: Sequence[Key]) -> list[str | None]:
        """The states of keys (and windows) of the form above as JSON text; None where one is absent."""
        if len(keys) < MANY:
            return [dumps(row) if (row := self.now(key)) else None for key in keys]
        with self.lock:
            held, known = self.overlay.rows, [self.overlay.refs.get(key) for key in keys]
        texts: list[str | None] = [None] * len(keys)
        refs = self._refs(keys, known)
        here = [i for i, ref in enumerate(refs) if ref.row >= 0]
        there = [i for i, ref in enumerate(refs) if ref.row == UNCHANGED]
        rows = [held.take([refs[i].row for i in here], self._shown)] if here else []
        rows += [taken(self._shown, [refs[i].place for i in there])] if there else []
        for i, line in zip(here + there, lines(self.public(joined(rows))) if rows else (), strict=True):
            texts[i] = line
        return texts

    def now(self, key: Key) -> Row | None:
        """The state of a key (and window) of the form above; None where it is absent."""
        with self.lock:
            held, ref = self.overlay.rows, self.overlay.refs.get(key)
        ref = ref or self._ref(key)
        if ref.row == ABSENT:
            return None
        return self._row(*(self._shown, ref.place) if ref.row == UNCHANGED else held.row(ref.row))

    def windows(self, key: Key) -> list[Row]:
        """The states of a key's every window, oldest first."""
        rows = joined(list(self._runs(key, lambda window: window[:-1] == key, wanted=LONGEST)))
        return [self.shown_row(row) for row in self.rows(rows)]

    def page(
        self, after: After, limit: int, of: Selection = ALL, deadline: Deadline | None = None
    ) -> tuple[Columns, bool]:
        """The next states in the order of the key's columns, after a key that need not be there any more, and whether there may be
        more: they are at most ``limit``, and about :data:`BYTES`.

        Raises ValueError where a part of ``after`` is not of its column's type, and a problem where it is not made by the deadline.
        """
        if self.rule is None:
            return {}, False
        last = self.key(after) if after is not None else ()
        begun = after is not None and last >= of.least
        rows: list[Columns] = []
        left, room = limit, BYTES
        for run in self._runs(last if begun else of.least, of.inside, begun, limit, of.where, of.at_once, deadline):
            fit = fitting(run, left, room, some=left == limit)
            rows.append({name: column[:fit] for name, column in run.items()})
            left -= fit
            room -= size(rows[-1])
            if left <= 0 or fit < count(run):
                return self.public(joined(rows)), True
        return self.public(joined(rows)), False

    def settle(self, least: Key = (), inside: Inside | None = None) -> None:
        """Have what is pending of all keys folded, or of those from a key on and as long as they are ``inside``."""
        if self.stale and self.rule:
            least = least[: len(self.rule.key_columns)]
            with self.lock:
                stale = [key for key in self.stale if key >= least and (inside is None or inside(key))]
            for first in range(0, len(stale), AT_ONCE):
                self._settle(stale[first : first + AT_ONCE])

    def _settle(self, keys: Sequence[Key]) -> None:
        """Have what is pending of some keys folded, where there is any."""
        if self.pending and (stale := [key for key in keys if key in self.stale]):
            self.pending.fold(stale)

    def unfolded(self, count: int) -> list[Key]:
        """Some keys whose pending events have not been folded yet."""
        with self.lock:
            return list(itertools.islice(self.stale, count))

    @property
    def place(self) -> str:
        """Where one who has read it all goes on from; see :mod:`api.reads.changes`."""
        return f"{self.position or 0}-{self.epoch}"

    def last(self, rows: Columns) -> list[str]:
        """The key of the last of some public rows, as text that :meth:`key` makes the same key of."""
        assert self.rule is not None
        return [text_of(rows[name][-1].as_py()) for name in self.rule.keys]

    def truth(self) -> Snapshot:
        """This state as the changelog has it, without what is ahead of it."""
        truth = copy.copy(self)
        truth.overlay, truth.ahead, truth.stale = Truth(self.overlay), {}, {}  # type: ignore[assignment]  # as far as readers go
        return truth

    def offsets(self, parts: Sequence[str]) -> dict[str, int] | None:
        """Of a key whose state is ahead of the changelog, up to which offset of each partition; else None."""
        return self._offsets(self.key(parts)) if self.rule else None

    def _offsets(self, key: Key) -> dict[str, int] | None:
        return self.ahead if self.overlay.under and self._ahead_of((key,)) else None

    def pending_of(self, parts: Sequence[str]) -> Pending:
        """The events of a key that are shown ahead of the changelog, and the position that they are on top of: what :meth:`get` shows is
        folded from them and what the changelog has there."""
        if self.pending is None:
            return Pending(self.position)
        key = self.key(parts)
        self._settle([key])  # what cannot be folded is not shown, and is not here either
        with self.pending.lock:
            ahead = self.ahead
            return Pending(self.position, self.pending.events.of_one(key) if ahead else None, ahead)

    def present(self, keys: Sequence[Key]) -> tuple[dict[Key, RowRef], Columns]:
        """Where the rows of these keys are by the changelog (in a windowed store those of their every window), and the rows."""
        refs: dict[Key, RowRef] = {}
        if self.rule and self.rule.store.windows:
            for key in keys:
                for place in range(self._place(key), self._place(key, after=True)):
                    refs[self.key_at(place)] = RowRef(place, True, UNCHANGED)
            with self.lock:
                overlay, held = self.overlay, self.overlay.rows
                for key in keys:
                    windows = self._windows_of(key)
                    refs.update((window, overlay.truth(window) or overlay.refs[window]) for window in windows)
        else:
            with self.lock:
                held, known = self.overlay.rows, [self.overlay.truth(key) for key in keys]
            refs = dict(zip(keys, self._refs(keys, known), strict=True))
        here = [ref.row for ref in refs.values() if ref.row >= 0]
        there = [ref.place for ref in refs.values() if ref.row == UNCHANGED]
        rows = [taken(self.columns, there)]
        return refs, joined([*rows, held.take(here, self.columns)] if here else rows)

    def change(
        self, keys: Sequence[Key], present: Sequence[bool], rows: Columns, refs: Refs, position: int | None
    ) -> None:
        """What the changelog says: put keys into the overlay, with the ``rows`` of those that are present, and move the
        position: at once, for those who scan. ``refs`` has what is known of where they are. A key that is shown ahead of the
        changelog stays so."""
        overlay, added = self.overlay, 0
        changed: dict[Key, RowRef] = {}
        under: dict[Key, RowRef] = {}
        for key, old, now in self._placed(keys, present, overlay.rows.end, refs):
            (under if key in overlay.under else changed)[key] = now
            added += (now.row != ABSENT) - (old.row != ABSENT)
        more = overlay.rows.added(rows)
        with self.lock:
            overlay.rows = more
            overlay.under.update(under)
            overlay.refs.update(changed)
            overlay.tidy()
            self.keys += added
            self.position = position

    def pend(self, keys: Iterable[Key], ahead: dict[str, int], covered: Iterable[Key] = ()) -> None:
        """More events of some keys are pending, up to some offsets, and none any more of those that are ``covered``. Who asks for
        one of the former has them folded, the others are shown as the changelog has them. Keys are without windows here."""
        back = self._ahead_of(covered)
        with self.lock:
            self.overlay.restore(back)
            self._fresh(covered)
            self.stale.update(dict.fromkeys(keys))
            self.overlay.tidy()
            self.ahead = ahead

    def clear(self) -> None:
        """Nothing is ahead of the changelog any more."""
        with self.lock:
            self.overlay.restore(list(self.overlay.under))
            self.stale.clear()
            self.overlay.tidy()
            self.ahead = {}

    def lay(self, of: Iterable[Key], keys: Sequence[Key], present: Sequence[bool], rows: Columns, refs: Refs) -> None:
        """Show keys (and windows) ahead of the changelog: what all that is pending ``of`` some keys makes of them. ``refs`` has
        where they are by the changelog."""
        overlay = self.overlay
        under: dict[Key, RowRef] = {}
        changed: dict[Key, RowRef] = {}
        for key, old, now in self._placed(keys, present, overlay.rows.end, refs):
            under[key], changed[key] = old, now
        back = [window for window in self._ahead_of(of) if window not in under]
        more = overlay.rows.added(rows)
        with self.lock:
            overlay.rows = more
            overlay.under.update(under)
            overlay.refs.update(changed)
            self.overlay.restore(back)
            self._fresh(of)
            overlay.tidy()

    def _fresh(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.stale.pop(key, None)

    def _ahead_of(self, keys: Iterable[Key]) -> list[Key]:
        """Those of some keys that are shown ahead of the changelog; in a windowed store their windows that are."""
        overlay = self.overlay
        if not overlay.under or not self.rule:
            return []
        if not self.rule.store.windows:
            return [key for key in keys if key in overlay.under]
        with self.lock:
            return [w for key in keys for w in self._windows_of(key) if w in overlay.under]

    def _windows_of(self, key: Key) -> Iterator[Key]:
        """A key's windows that have changed, oldest first; for who holds the lock."""
        return itertools.takewhile(lambda window: window[:-1] == key, self.overlay.refs.irange(key))

    def _placed(
        self, keys: Sequence[Key], present: Sequence[bool], number: int, refs: Refs
    ) -> Iterator[tuple[Key, RowRef, RowRef]]:
        """Where keys are by the changelog, and where they are with rows of the overlay from a number on."""
        for key, is_present in zip(keys, present, strict=True):
            old = refs.get(key) or self._ref(key)
            yield key, old, RowRef(old.place, old.there, number if is_present else ABSENT)
            number += is_present

    def _runs(
        self,
        start: Key,
        inside: Inside | None,
        begun: bool = False,
        wanted: int = SHORTEST,
        where: Where | None = None,
        settled: bool = True,
        deadline: Deadline | None = None,
    ) -> Iterator[Columns]:
        """The rows that are present from a key on, or after it where that has ``begun``, as long as they are ``inside``. They come
        in runs of about as many as are wanted; the last may be empty. What changes between two runs is seen or not. Where they are
        not ``settled`` yet, that is done run by run."""
        place, run = self._place(start, after=begun), min(max(wanted, SHORTEST), LONGEST)
        stop = self.size
        if inside is not None:
            stop = bisect.bisect_left(range(stop), True, place, key=lambda i: not inside(self.key_at(i)))
        while True:
            until = min(place + run, stop)
            if until - place > SHORTEST:
                rows = {name: column[place:until] for name, column in self._shown.items()}
                until = place + fitting(rows, run, MOST_BYTES, some=True)
            if not settled:
                self.settle(start, inside if until == stop else self._before(until))
            held, changed = self._changed(start, begun, inside, range(place, until), until == stop, run)
            full = len(changed) == run
            if changed:
                (start, last), begun = changed[-1], True
                until = min(until, last.place + last.there) if full else until
            rows = self._merged(place, until, held, [ref for _, ref in changed])
            if deadline:
                deadline.check()
            if where is not None:
                rows, run = taken(rows, where.places(rows, deadline)), min(4 * run, 16 * LONGEST)
            yield rows
            place = until
            if place >= stop and not full:
                return

    def _before(self, place: int) -> Inside:
        """Whether a key, without a window, comes before a place of the version, or has its window there."""
        end = self.key_at(place)
        return lambda key: key <= end

    def _changed(
        self, start: Key, begun: bool, inside: Inside | None, places: range, end: bool, most: int
    ) -> tuple[Rows, list[tuple[Key, RowRef]]]:
        """Of the keys that have changed those whose rows come among some of the version, or also after them, at the ``end``."""
        changed: list[tuple[Key, RowRef]] = []
        with self.lock:
            refs = self.overlay.refs
            for key in refs.irange(start, None, (not begun, True)):
                ref = refs[key]
                if (ref.place >= places.stop and not end) or (inside is not None and not inside(key)):
                    break
                if ref.place >= places.start:  # else it was added where this has been already
                    changed.append((key, ref))
                    if len(changed) == most:
                        break
            return self.overlay.rows, changed

    def _merged(self, place: int, until: int, held: Rows, changed: Sequence[RowRef]) -> Columns:
        """The version's rows from one place to another, with those in between that have changed."""
        if not changed:
            return {name: column[place:until] for name, column in self._shown.items()}
        gone = [ref.place - place for ref in changed if ref.there and ref.row != UNCHANGED]
        same = np.delete(np.arange(place, until), gone)
        present = [ref for ref in changed if ref.row >= 0]
        rows = taken(self._shown, same)
        if not present:
            return rows
        # One that is not in the version comes before the row at its place; they are in order among themselves.
        order = np.argsort(np.concatenate([2 * same + 1, [2 * ref.place for ref in present]]), kind="stable")
        return taken(joined([rows, held.take([ref.row for ref in present], self._shown)]), order)
