"""Writes that a caller repeats, told by their ``Idempotency-Key``: one event, and every repeat has the first answer.

This is remembered in the process's memory, for a day and for so many keys. What another worker or a restart would
not know goes with the event, as the header ``statehouse-idempotency-key``.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from api.engine.places import Places
from api.errors import Problem

HEADER = "statehouse-idempotency-key"
MOST = 10_000  # keys
SECONDS = 24 * 3600.0
Clock = Callable[[], float]
WAITING = 16  # repeats that wait at once; with those that wait for Kafka they leave threads for the reads


@dataclass
class _Write:
    request: Hashable
    until: float
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Idempotency:
    """Which keys were used for what, and what was answered; thread-safe."""

    def __init__(
        self, most: int = MOST, seconds: float = SECONDS, waiting: int = WAITING, now: Clock = time.monotonic
    ) -> None:
        self._most, self._seconds, self._now = most, seconds, now
        self._writes: OrderedDict[Hashable, _Write] = OrderedDict()  # the oldest first
        self._lock = threading.Lock()
        self._places = Places(waiting, "too many repeats wait for their first request's answer already")

    def once(self, key: Hashable, request: Hashable, send: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``send`` gives the first time; later, and at the same time, that same answer.

        What ``send`` raises is raised to all that wait for it, and not remembered. Raises a problem where the key was
        used for another ``request`` (422), or where too many wait already (503).
        """
        with self._lock:
            self._forget()
            write = self._writes.get(key)
            first = write is None
            if write is None:
                write = self._writes[key] = _Write(request, self._now() + self._seconds)
        if first:
            return self._first(key, write, send)
        if write.request != request:
            detail = "found an Idempotency-Key that was used for another request, expected a new one"
            raise Problem(422, "idempotency-key-reused", detail)
        if write.answer.done():
            return write.answer.result()
        with self._places:
            return write.answer.result()

    def _first(self, key: Hashable, write: _Write, send: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = send()
        except BaseException as error:
            with self._lock:
                del self._writes[key]
            write.answer.set_exception(error)
            raise
        write.answer.set_result(answer)
        return answer

    def _forget(self) -> None:
        """Make room. A write that is not answered yet stays: its repeats would be sent again."""
        ended = (k for k, w in self._writes.items() if w.answer.done())
        while (oldest := next(ended, None)) is not None:
            if self._writes[oldest].until > self._now() and len(self._writes) < self._most:
                break
            del self._writes[oldest]
            ended = (k for k, w in self._writes.items() if w.answer.done())
