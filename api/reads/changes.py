"""What changes in a store, as it changes: the server-sent events that tell it.

Only positions count: a caller who was at one is sent every key that changed after it, with its state as it is *now*. So it does
not matter which worker goes on from there, or how often a connection breaks: the last state of each key always arrives; one in
between may be left out, and one may come twice.

The ids are ``POSITION-EPOCH``. The epoch names the state: where a recovery has put another one in its place, a caller is told to
read all again (``reset``). Only the last event of a batch has an id, or a connection that breaks before would skip the rest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from api.engine.columns import Key
from api.engine.exact_json import dumps
from api.engine.places import Places
from api.engine.shards import Shards
from api.errors import Problem
from api.reads.lake import Lake
from api.replica.replica import Replica
from api.replica.snapshot import Snapshot
from statehouse.tables import opened, table

STREAMS = 64  # of a process: each holds a thread
HEARTBEAT = 5.0  # seconds; with it, it is noticed that a caller is gone
PIECE = 500  # events that are sent at once


class StreamPosition(NamedTuple):
    """How far a caller is; ``epoch`` is None for one who comes from a scan, which only says the position."""

    position: int
    epoch: str | None


class Held:
    """A stream of events that holds one of so many places until it is closed; a problem where all are taken."""

    def __init__(self, places: Places) -> None:
        self._places: Places | None = None
        self.events: Iterator[bytes] = iter(())
        places.__enter__()
        self._places = places

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self.events)

    def close(self) -> None:
        """Give the place back."""
        self.events = iter(())
        places, self._places = self._places, None
        if places is not None:
            places.release()

    __del__ = close


class Changes:
    """What one caller is sent, from a place on (None: from now on), of all keys or those of some ``shards``, as long as they are
    here. Raises a problem where that place is wrong or gone."""

    def __init__(
        self, replica: Replica, lake: Lake, store: str, place: StreamPosition | None, shards: Shards | None = None
    ) -> None:
        self._replica, self._lake, self._store, self._shards = replica, lake, store, shards
        found = replica.changes(store, place.position if place else 0)
        if found is None:
            raise Problem(503, "not-ready", f"{store} is being read anew")
        snapshot, end, keys = found
        self._epoch, self._position, self._begin = snapshot.epoch, end, "position"
        if place is not None and place.epoch not in (None, snapshot.epoch):
            self._begin = "reset"
        elif place is not None:
            self._position = place.position
            if place.position > end:
                self._check(place, snapshot)
            elif keys is None:
                keys = self._touched(place, snapshot, end)
        self._first = snapshot, end, keys

    def events(self, seconds: float) -> Iterator[bytes]:
        """The events in pieces, for so many seconds: or until the replica stops, or no longer knows what changes."""
        until = time.monotonic() + seconds
        yield f"retry: 1000\n\n{self._said(self._begin)}".encode()
        changes: tuple[Snapshot, int, list[Key] | None] | None = self._first
        del self._first
        while changes is not None:
            snapshot, end, keys = changes
            if self._shards and snapshot.shards and not self._shards.numbers <= snapshot.shards.numbers:
                return
            if snapshot.epoch != self._epoch:
                yield self._reset(snapshot, end)
            elif end > self._position:
                try:
                    keys = self._lake.touched(snapshot, self._position, end) if keys is None else keys
                except Problem:  # too late for a status
                    yield self._reset(snapshot, end)
                else:
                    yield from self._batch(snapshot, keys, end)
                    self._position = end
            del snapshot, keys, changes  # an old version would stay in memory while nothing happens
            while (left := until - time.monotonic()) > 0:
                if self._replica.moved(self._store, self._epoch, self._position, min(HEARTBEAT, left)):
                    break
                yield b": \n\n"
            else:
                return
            changes = self._replica.changes(self._store, self._position)

    def _check(self, place: StreamPosition, snapshot: Snapshot) -> None:
        """A position that this process has not reached yet: another one may have, if the changelog has."""
        assert snapshot.rule is not None
        changelog = opened(table(self._replica.config, "changelog", snapshot.rule.store.stream))
        if changelog is None or changelog.version() < place.position:
            detail = f"found position {place.position}, expected one up to {snapshot.position or 0}"
            raise Problem(404, "unknown-position", detail)

    def _touched(self, place: StreamPosition, snapshot: Snapshot, end: int) -> list[Key]:
        """The keys since a place that is too long ago for this process to remember."""
        if place.epoch is None and not self._replica.unreplaced(self._store):
            detail = f"{self._store} was replaced, and position {place.position} may be of the state before"
            raise Problem(410, "changes-gone", f"{detail}: read the whole store again, and go on from there")
        return self._lake.touched(snapshot, place.position, end)

    def _reset(self, snapshot: Snapshot, end: int) -> bytes:
        self._epoch, self._position = snapshot.epoch, end
        return self._said("reset").encode()

    def _said(self, event: str) -> str:
        data = dumps({"position": self._position})
        return f"id: {self._position}-{self._epoch}\nevent: {event}\ndata: {data}\n\n"

    def _batch(self, snapshot: Snapshot, keys: list[Key], end: int) -> Iterator[bytes]:
        """The states of keys; the last event has the id."""
        if self._shards:
            depth = len(snapshot.rule.key_columns) if snapshot.rule else 0
            here = set(self._shards.kept(dict.fromkeys(key[:depth] for key in keys)))
            keys = [key for key in keys if key[:depth] in here]
        last = f"id: {end}-{self._epoch}\n"
        if not keys:
            yield f"{last}\n".encode()  # no event, but where to go on from
        for place in range(0, len(keys), PIECE):
            texts = [f"event: {event}\ndata: {data}\n" for event, data in _shown(snapshot, keys[place : place + PIECE])]
            if place + PIECE >= len(keys):
                texts[-1] = last + texts[-1]
            yield ("\n".join(texts) + "\n").encode()


def _shown(snapshot: Snapshot, keys: list[Key]) -> Iterator[tuple[str, str]]:
    """The events that tell the states of keys now, with their data."""
    assert snapshot.rule is not None
    whole = [key for key in keys if key[-1] is not None]
    texts = dict(zip(whole, snapshot.lines(whole), strict=True))
    for key in keys:
        named = dict(zip(snapshot.rule.keys, key, strict=True))
        if key[-1] is None:  # every window of a key: what is not told again is gone
            named.pop("window_start")
            yield "purge", dumps(named)
            yield from (("state", dumps(row)) for row in snapshot.windows(key[:-1]))
        else:
            line = texts[key]
            yield ("purge", dumps(named)) if line is None else ("state", line)
