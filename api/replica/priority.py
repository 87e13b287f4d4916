"""Who goes first, and how often: what works on events that are to be shown, for a moment, and then the event loop.

The event loop and the threads that fold compete for the interpreter (the GIL). Each call of Arrow or DuckDB lets it go and has to get it
back, so 2 ms of work become 20, and whoever waits for the fold waits as long. So while a fold runs, the loop waits, for 10 ms at the most
(:class:`FoldPriority`). And the topic is polled no more often than its work leaves room for all else (:class:`PollInterval`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST = 0.01  # seconds that the loop waits
WAIT, SHARE, QUIET, BUSY = 0.003, 12, 0.01, 0.1  # see PollInterval; seconds, but for the second


class FoldPriority:
    """Entered while there is something to do, by any thread, also within itself."""

    def __init__(self) -> None:
        self._lock, self._free = threading.Lock(), threading.Event()
        self._inside, self._again, self._waited = 0, 0.0, False
        self._free.set()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self._free.clear()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._free.set()

    def yield_to_fold(self) -> None:
        """Wait until it is left, for ``MOST`` seconds; and then not again for as long as that took, nor in the same turn of the loop:
        all that is to be done in it would wait for all its waits. In the loop's thread."""
        if self._inside and not self._waited and (began := time.monotonic()) >= self._again:
            self._waited = True
            asyncio.get_running_loop().call_soon(self._turned)
            self._free.wait(MOST)
            ended = time.monotonic()
            self._again = ended + (ended - began)

    def _turned(self) -> None:
        self._waited = False


class PollInterval:
    """How long to wait for more events. A round takes some milliseconds of work whatever is in it, and all else in the process has to do
    without that: so it waits ``SHARE`` times as long, but for ``QUIET`` at the most, or ``BUSY`` where they have so much to do."""

    def __init__(self) -> None:
        self._due = 0.0  # when the next round should be
        self._work = 0.0  # seconds of the processor that a round takes
        self._others = 0.0  # and that all else does each second
        self._then = self._now()

    def wait(self) -> float:
        """Seconds."""
        return max(WAIT, self._due - time.monotonic())

    @contextmanager
    def round(self) -> Iterator[None]:
        """One is in here."""
        began = time.thread_time()  # not what it waits: that is others' work
        yield
        (then, all_then, own_then), (now, all_now, own_now) = self._then, self._now()
        self._then = now, all_now, own_now
        others = (all_now - all_then) - (own_now - own_then)
        # Smoothed: one round says little.
        self._work += (own_now - began - self._work) / 8
        self._others += (others / (now - then) - self._others) / 8 if now > then else 0.0
        # Where readers ask one after the other a quarter of a core is enough; many at once have at least half of one.
        busy = min(1.0, max(0.0, 4 * self._others - 1))
        self._due = now + min(SHARE * self._work, QUIET + (BUSY - QUIET) * busy)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()


FOLD_PRIORITY = FoldPriority()  # one in a process, as there is one interpreter
