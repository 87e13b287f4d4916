"""How long a request may work: until its time is over, or its caller has left.

Who works in steps asks between them (:meth:`Deadline.check`); a query of DuckDB's is interrupted. Only so many requests scan at
once, the others wait for their turn: else those who ask a lot would take the processor from those who ask for a key.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import duckdb

from api.engine.duck import Connection
from api.engine.places import Places
from api.errors import Problem

AGAIN = 0.05  # seconds between interruptions: one that comes between two queries is lost
LOOK = 0.2  # seconds between two looks whether the caller is there
AT_ONCE = max(4, os.cpu_count() or 1)  # requests that scan
WAITING = 32  # requests that wait to scan


class Turns:
    """Who may scan now, and who may wait for it."""

    def __init__(self, at_once: int = AT_ONCE, waiting: int = WAITING) -> None:
        self.turns = threading.Semaphore(at_once)
        self.places = Places(at_once + waiting, f"found {WAITING} scans that wait, expected fewer")


class Deadline:
    """So many seconds from now on, or until ``gone`` says that the caller is."""

    def __init__(self, seconds: float, gone: Callable[[], bool], turns: Turns | None = None) -> None:
        self._seconds, self._gone, self._turns = seconds, gone, turns
        self._until = time.monotonic() + seconds
        self._streams = False

    def renew(self) -> None:
        """The time begins anew: for the next piece of a stream. From now on its turns need no place among those who wait: whoever
        has it made lets only so many pieces be made at once."""
        self._until, self._streams = time.monotonic() + self._seconds, True

    @property
    def left(self) -> float:
        """The seconds that are left; 0 also where the caller has left."""
        return 0.0 if self._gone() else max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        """Raises a problem where nothing is left."""
        if not self.left:
            raise self.problem()

    def problem(self) -> Problem:
        """What to say then."""
        detail = f"found no answer within {self._seconds * 1000:g} ms, expected one (api: max_time)"
        return Problem(503, "too-slow", detail)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The turn to scan; a problem where too many wait for it, or it does not come in time."""
        if self._turns is None:
            yield
            return
        with nullcontext() if self._streams else self._turns.places:
            while not self._turns.turns.acquire(timeout=LOOK):
                self.check()
            try:
                yield
            finally:
                self._turns.turns.release()

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Interrupt the query of a connection when nothing is left: a problem."""
        self.check()
        WATCH.begin(self, connection)
        try:
            yield
        except duckdb.InterruptException:
            raise self.problem() from None
        finally:
            WATCH.end(self)


class Watch:
    """A thread that interrupts the queries whose time is over; there is one while there are any."""

    def __init__(self) -> None:
        self._running: dict[Deadline, Connection] = {}
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self, deadline: Deadline, connection: Connection) -> None:
        """A query may begin."""
        with self._change:
            self._running[deadline] = connection
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="deadlines", daemon=True)
                self._thread.start()
            elif len(self._running) == 1:
                self._change.notify()

    def end(self, deadline: Deadline) -> None:
        """It has ended: the connection is another one's now."""
        with self._change:
            del self._running[deadline]

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._running:
                    self._change.wait()
                for deadline, connection in self._running.items():
                    if not deadline.left:
                        with suppress(duckdb.Error):  # it may be closed by now
                            connection.interrupt()
            time.sleep(AGAIN)


WATCH = Watch()
