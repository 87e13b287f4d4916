"""The thread that folds what is pending of a stream's stores: the keys that readers wait for, and of a store that is read now and then
the rest, or ever more of those who read would have to wait.

One thread, as each that ever folded keeps some memory, and there are hundreds that read. A reader puts a request into its queue
(:class:`api.replica.pending.PendingReader`) and waits; nothing that is read knows who folds.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary, WeakValueDictionary

from api.replica.locks import StreamLocks
from api.replica.pending import FoldRequest, PendingEvents, PendingReader
from api.replica.priority import FOLD_PRIORITY
from api.replica.snapshot import Snapshot
from api.replica.tail import Tail

UNASKED, UNASKED_SECONDS = 2000, 0.2  # keys that are folded before anybody asks: how many at once, and how often
READ_SECONDS, OFTEN = 10.0, 4  # how long that goes on after readers had to wait so often within two seconds
log = logging.getLogger("statehouse.api")


class FoldThread:
    """Of one stream. It begins with the first events that are pending."""

    def __init__(self, stream: str, locks: StreamLocks) -> None:
        self._stream, self._locks = stream, locks
        self._requests: queue.SimpleQueue[FoldRequest] = queue.SimpleQueue()
        # It keeps no tail: one that was replaced, and its version, leave memory at once.
        self._tails: WeakValueDictionary[str, Tail] = WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._waits: WeakKeyDictionary[Tail, deque[float]] = WeakKeyDictionary()  # when the last ones had to
        self._error = ""

    def reader(self, tail: Tail, events: PendingEvents) -> PendingReader:
        """What readers of a tail's snapshot ask for its pending events. For whose turn it is."""
        self._tails[tail.name] = tail
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"fold {self._stream}", daemon=True)
            self._thread.start()
        return PendingReader(events, self._locks.state, self._requests, tail.name)

    @contextmanager
    def shown_or_cleared(self, snapshot: Snapshot) -> Iterator[None]:
        """Where what is pending cannot be shown in a snapshot, nothing of it is."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if str(error) != self._error:
                log.warning("stream %s: what is not in the changelog yet is not shown: %s", self._stream, error)
            self._error = str(error)
            snapshot.clear()

    def _run(self) -> None:
        read: WeakKeyDictionary[Tail, float] = WeakKeyDictionary()  # until when the rest is folded, too
        due = 0.0
        while True:
            self._fold_asked(self._take(max(0.0, due - time.monotonic()) if read else None), read)
            if time.monotonic() >= due and not self._fold_unasked(read):
                due = time.monotonic() + UNASKED_SECONDS

    def _take(self, timeout: float | None) -> list[FoldRequest]:
        """All requests that wait, or the first one that comes in time."""
        requests: list[FoldRequest] = []
        with suppress(queue.Empty):
            requests.append(self._requests.get(timeout=timeout))
            while True:
                requests.append(self._requests.get_nowait())
        return requests

    def _fold_asked(self, requests: Sequence[FoldRequest], read: WeakKeyDictionary[Tail, float]) -> None:
        """All that waits at once, a store after the other."""
        for name in dict.fromkeys(request.tail for request in requests):
            here = [request for request in requests if request.tail == name]
            try:
                if (tail := self._tails.get(name)) is not None:  # else nothing is pending there any more
                    now, waits = time.monotonic(), self._waits.setdefault(tail, deque(maxlen=OFTEN))
                    waits.extend([now] * len(here))
                    if len(waits) == OFTEN and now - waits[0] < 2:
                        read[tail] = now + READ_SECONDS
                    with self._locks.turn, FOLD_PRIORITY, self.shown_or_cleared(tail.snapshot):
                        tail.fold_asked([request.keys for request in here])
            finally:
                for request in here:
                    request.done.set()

    def _fold_unasked(self, read: WeakKeyDictionary[Tail, float]) -> bool:
        """Some keys that nobody waits for; whether there are as many more of them."""
        left = False
        for tail, until in list(read.items()):
            with self._locks.turn, FOLD_PRIORITY, self.shown_or_cleared(tail.snapshot):
                tail.fold_some(UNASKED)
            left |= len(tail.snapshot.stale) >= UNASKED
            if time.monotonic() > until:
                del read[tail]
        return left
