"""Which keys of a store have changed of late: what those who follow its changes go on from."""

from __future__ import annotations

import datetime as dt
import threading
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from api.engine.columns import Key, keys_of
from api.replica.overlay import ABSENT
from api.replica.snapshot import Snapshot
from statehouse.values import milliseconds

MOST = 100_000  # keys that are remembered of a store; the newest batch is, however large


class Batch(NamedTuple):
    """So many keys that changed up to a position; by their columns in Arrow, in a tenth of the memory that Python needs."""

    end: int
    size: int
    columns: list[pa.Array]


class Recent:
    """The keys that changed, batch by batch, as far back as ``most`` of them reach. One thread adds, any may ask.

    ``epoch`` names the state that changed: after a recovery, or where its table was made anew, it is another one, and what
    was before says nothing about it. ``whole``: it is the only one that there has been, as far as can be known.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._count = most, 0
        self._batches: deque[Batch] = deque()
        self._waiting: set[Key] = set()
        self._lock = threading.Lock()
        self._start = self.end = 0  # changes after the one are known, up to the other
        self.epoch = ""
        self.whole = True

    def add(self, snapshot: Snapshot, start: int, keys: Collection[Key]) -> None:
        """The keys that changed from a position to the one that the snapshot is at now; more of them do no harm."""
        end = snapshot.position or 0
        with self._lock:
            if snapshot.epoch != self.epoch or start > self.end:  # another state; or changes that nobody has told of
                self.whole &= snapshot.generation == 0 and self.epoch in ("", snapshot.epoch)
                self._begin(start)
                self.epoch = snapshot.epoch
            if end <= self.end:
                self._waiting.update(keys if start == end else ())
                return
            batch = self._waiting.union(keys) if self._waiting else keys
            self._waiting = set()
            self._batches.append(Batch(end, len(batch), [pa.array(column) for column in zip(*batch, strict=True)]))
            self._count += len(batch)
            self.end = end
            while self._count > self._most and len(self._batches) > 1:
                dropped = self._batches.popleft()
                self._start = dropped.end
                self._count -= dropped.size

    def forget(self, snapshot: Snapshot) -> None:
        """What changed until now is not known any more."""
        with self._lock:
            self._begin(snapshot.position or 0)

    def _begin(self, position: int) -> None:
        self._batches.clear()
        self._waiting.clear()
        self._count, self._start, self.end = 0, position, position

    def count(self, position: int) -> int | None:
        """How many keys changed after a position, each as often as it did; None: it is too long ago."""
        with self._lock:
            known = position >= self._start
            return sum(batch.size for batch in self._batches if batch.end > position) if known else None

    def since(self, position: int) -> tuple[str, int, list[Key] | None]:
        """The epoch, the position up to which changes are known, and the keys that changed between; None: it is too long ago."""
        with self._lock:
            newer = [batch for batch in self._batches if batch.end > position]
            epoch, end, known = self.epoch, self.end, position >= self._start
        keys = (key for batch in newer for key in keys_of(batch.columns))
        return epoch, end, list(dict.fromkeys(keys)) if known else None


def expired(old: Snapshot, new: Snapshot) -> list[Key]:
    """The windows that a newer version no longer has because their retention is over: no event tells of it."""
    rule = new.rule
    if rule is None or not rule.store.retention or old.epoch != new.epoch or "window_start" not in old.columns:
        return []
    assert rule.store.windows
    lifetime = dt.timedelta(microseconds=rule.store.windows[0], milliseconds=milliseconds(rule.store.retention))
    over = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) - lifetime
    places = pc.indices_nonzero(pc.less(old.columns["window_start"], pa.scalar(over, old.columns["window_start"].type)))
    windows = [old.key_at(place) for place in places.to_pylist()]
    windows += [key for key, ref in old.overlay.refs.items() if ref.row != ABSENT and key[-1] < over]
    here = set(new.ours(dict.fromkeys(key[:-1] for key in windows)))
    return [key for key in windows if key[:-1] in here and new.now(key) is None]
