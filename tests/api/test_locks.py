"""The locks of the replica are taken in the order that api/replica/locks.py says, and a topic's states follow one another as they may."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from api.replica.changed_keys import Recent
from api.replica.replica import Replica
from api.replica.snapshot import Snapshot
from api.replica.topic import TRANSITIONS, State
from statehouse.config.models import Config
from tests.support.api_lake import eventually
from tests.support.lakes import written
from tests.support.live import Topic

REFRESH, STATE, TURN, SNAPSHOT, LEAF = range(1, 6)


class Watched:
    """A lock in whose place in the order nobody may take it who has one of those after it."""

    held = threading.local()
    wrong: list[tuple[list[int], int]]
    pairs: set[tuple[int, int]]

    def __init__(self, lock: Any, order: int) -> None:
        self.lock, self.order = lock, order

    def __enter__(self) -> None:
        orders = self.held.__dict__.setdefault("orders", [])
        if orders and max(orders) >= self.order:
            self.wrong.append(([*orders], self.order))
        self.pairs.update((order, self.order) for order in orders)
        self.lock.__enter__()
        orders.append(self.order)

    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(*error)
        self.held.orders.remove(self.order)

    def locked(self) -> bool:
        return bool(self.lock.locked())


def watched(config: Config) -> Replica:
    """A replica whose locks are watched."""
    replica = Replica(config)
    replica._refreshing = Watched(replica._refreshing, REFRESH)  # type: ignore[assignment]
    for stream in replica._streams.values():
        locks = stream.provisional.locks
        locks.state, locks.turn = Watched(locks.state, STATE), Watched(locks.turn, TURN)  # type: ignore[assignment]
    return replica


def watch(monkeypatch: pytest.MonkeyPatch, kind: type, begin: str, lock: str, order: int) -> None:
    """Have the lock of each object of a class watched, from its beginning on."""
    original = getattr(kind, begin)

    def begun(self: Any, *given: Any) -> None:
        original(self, *given)
        setattr(self, lock, Watched(getattr(self, lock), order))

    monkeypatch.setattr(kind, begin, begun)


def test_locks_are_taken_in_one_order(lake, monkeypatch):
    monkeypatch.setattr("api.replica.store.OVERLAY", 10)  # so that newer versions are read, too
    monkeypatch.setattr("api.replica.tail.PART", 2)
    Watched.wrong, Watched.pairs = [], set()
    watch(monkeypatch, Snapshot, "__post_init__", "lock", SNAPSHOT)
    watch(monkeypatch, Recent, "__init__", "_lock", LEAF)
    dice = random.Random(7)
    topic = Topic(written(lake), dice, watched)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for store in topic.config.stores:
                snapshot, key = topic.replica.snapshot(store), [f"k{dice.randrange(9)}"]
                snapshot.get(key)
                snapshot.lookup([key])
                snapshot.pending_of(key)
                snapshot.page(None, 3)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for step in (topic.read, topic.commit, topic.follow, topic.read, topic.merge, topic.follow) * 4:
            step()
    finally:
        stop.set()
        reader.join()
    eventually(lambda: not topic.live.locks.turn.lock._room.locked())
    assert Watched.wrong == []
    assert {(REFRESH, STATE), (STATE, TURN), (TURN, SNAPSHOT), (REFRESH, LEAF)} <= Watched.pairs


def test_a_state_follows_another_one_as_it_may(lake):
    follower = Replica(written(lake))._streams["s"].follower
    assert follower.state is State.OFF and TRANSITIONS.keys() == set(State)
    for before in State:
        for state in State:
            follower.state = before
            if state is before or state in TRANSITIONS[before]:
                follower._become(state)
                assert follower.state is state
            else:
                with pytest.raises(ValueError, match=f"found {state.value} after {before.value}"):
                    follower._become(state)
