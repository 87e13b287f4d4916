"""The locks of the replica: which there are, what each guards, who holds it, and in which order they are taken.

=====  ======================  =========================================================================================
order  lock                    guards, and who holds it
=====  ======================  =========================================================================================
1      ``Replica._refreshing`` One refresh at a time: the replica's thread, over what it reads of the lake. No reader takes it.
2      ``StreamLocks.state``   What is pending of a stream, how far its topic is read and its changelog covers it, and of each of its
                               stores which snapshot, tail and offsets belong together. Held by the replica's thread for a whole
                               commit, by the topic's thread for a batch of events, and by who reads what is pending of a key
                               (``PendingReader.lock`` is this lock).
3      ``StreamLocks.turn``    The stores' folds of pending events (DuckDB, one at a time), and the writing of their snapshots. Held for
                               one part of a commit, for a batch of events, or for what readers wait for: the fold's thread takes this
                               one alone, so that it waits for a part and not for the commit.
4      ``Snapshot.lock``       A snapshot's overlay and its stale keys. Held for microseconds: to change them, to look a key up, to go
                               through some of them; for longer only when rows that nobody refers to any more are dropped.
leaf   ``Recent``'s            The keys that changed of late.
leaf   ``Lookout``'s           One question for the topic's id at a time, over a request to Kafka: nobody asks with another lock held.
leaf   ``ChangeSignal``'s      Who waits for a change. What it looks at takes no lock.
leaf   ``FoldPriority``'s      How many folds run, for the loop to wait for (:mod:`api.replica.priority`); for an instant, whatever else is held.
=====  ======================  =========================================================================================

Who has one takes only such as come after it, and of the leaves one at most. A reader who waits for a fold holds none. Neither 2 nor 3 is held
over a request to Kafka or to the lake, but for one case: where a late reset tore a pending key, the changelog is read for it (3, and 2 if
a commit came across it). ``tests/api/test_locks.py`` holds the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class FairLock:
    """A lock. Who has had it and wants it again comes after those who wait for it."""

    def __init__(self) -> None:
        self._door, self._room = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._room.acquire()

    def __exit__(self, *_: object) -> None:
        self._room.release()


class StreamLocks:
    """The two of a stream."""

    def __init__(self) -> None:
        self.state, self.turn = threading.Lock(), FairLock()


class ChangeSignal:
    """Tells those who wait that something of the stores may be another."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def send(self) -> None:
        """Wake all that wait."""
        with self._condition:
            self._condition.notify_all()

    def wait_for(self, seen: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is so; False where that took longer."""
        with self._condition:
            return self._condition.wait_for(seen, seconds)
