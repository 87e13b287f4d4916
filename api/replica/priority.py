"""Who goes first: what works on events that are to be shown, for a moment, and then the event loop. And a lock that is fair.

A worker's event loop takes the interpreter whenever it is let go. What follows the topic and folds is in Arrow or DuckDB again and
again, and would wait for the interpreter after each: 2 ms of work become 20, and whoever waits for it waits as long. So the loop waits.
"""

from __future__ import annotations

import asyncio
import threading
import time

MOST = 0.01  # seconds


class Way:
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

    def give(self) -> None:
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


class Turn:
    """A lock. Who has had it and wants it again comes after those who wait for it."""

    def __init__(self) -> None:
        self._door, self._room = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._room.acquire()

    def __exit__(self, *_: object) -> None:
        self._room.release()


WAY = Way()  # one in a process, as there is one interpreter
