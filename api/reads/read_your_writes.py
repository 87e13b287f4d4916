"""Who writes reads it: waiting until a write, by its token, is in the answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from api.engine.deadline import LOOK
from api.engine.places import Places
from api.errors import Problem, bad_parameter
from api.replica.replica import Replica
from api.replica.snapshot import Snapshot
from statehouse.config.models import Store
from statehouse.numbering import parse_place

Fresh = Callable[[Snapshot], Snapshot]
Gone = Callable[[], bool]


class ReadYourWrites:
    """One request's write, which it waits for until ``seconds`` are over, or its caller is ``gone``, in one of so many ``places``;
    ``fresh`` makes of a store's state what its answer is of.

    Raises a problem, also of what is no token of the store's topic, as its methods do where they wait for too long.
    """

    def __init__(
        self, replica: Replica, store: Store, token: str, seconds: float, fresh: Fresh, places: Places, gone: Gone
    ) -> None:
        stream, place = replica.config.streams[store.stream], parse_place(token)
        if place is None or not stream.reads(place[0]):
            raise bad_parameter("after", token, f"a write's token, {stream.topic or 'TOPIC'}:PARTITION:OFFSET")
        self._replica, self._store, self._token, self._fresh = replica, store.name, token, fresh
        self._place = place
        self._places, self._gone = places, gone
        self._seconds, self._until = seconds, time.monotonic() + seconds

    def wait(self) -> None:
        """Until the store's state has the write. A token names a topic, and not which of that name."""
        if trouble := self._replica.recreated(self._store, self._place[0]):
            raise Problem(409, "topic-recreated", trouble)
        if self._now():
            return
        with self._places:
            while not (seen := self._replica.wait(self._now, min(LOOK, self._until - time.monotonic()))):
                if time.monotonic() >= self._until or self._gone():
                    break
        if not seen:
            detail = f"found no {self._token!r} in {self._store} within {self._seconds} s"
            raise Problem(504, "not-yet", detail, position=self._replica.snapshot(self._store).position)

    def inside(self, snapshot: Snapshot) -> bool:
        """Whether a state that was read has it. What was pending may turn out not to be foldable when it is read, and is then in
        the answers when the changelog has it."""
        return self._replica.covers(self._store, *self._place, snapshot)

    def _now(self) -> bool:
        return self.inside(self._fresh(self._replica.snapshot(self._store)))
