"""What takes long to make and need not be of this second, such as how a store's values are spread: made once for all who look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

from flask import copy_current_request_context

from api.errors import Problem

SECONDS = 10.0  # for which something that was made is new enough


class Made(NamedTuple):
    """Something, of which state it is, and when it was made, on the monotonic clock."""

    of: Hashable
    at: float
    what: Any


class Kept:
    """Things by name, each made by one thread at a time. Thread-safe."""

    def __init__(self) -> None:
        self._made: dict[str, Made] = {}
        self._making: set[str] = set()
        self._lock = threading.Lock()

    def get(self, name: str, of: Hashable, make: Callable[[], Any], waits: bool) -> Any:
        """The thing of a name. Where the state ``of`` which it was made is another one by now, and it is not that new, it is made anew for the
        next who looks. None where it was never made: unless this one ``waits``, it is made meanwhile."""
        with self._lock:
            made = self._made.get(name)
            stale = made is None or (made.of != of and time.monotonic() - made.at > SECONDS)
            begins = stale and name not in self._making
            if begins:
                self._making.add(name)
        if begins and waits and made is None:
            return self._make(name, of, make)
        if begins:
            work = copy_current_request_context(self._make)
            threading.Thread(target=work, args=(name, of, make), name="console", daemon=True).start()
        return made.what if made else None

    def _make(self, name: str, of: Hashable, make: Callable[[], Any]) -> Any:
        what: Any = None
        state: Hashable = self  # which is none: what could not be made is tried again in a while
        try:
            with suppress(Problem):  # it is one more thing on the page, and no reason to show none
                what, state = make(), of
            return what
        finally:
            with self._lock:
                self._made[name] = Made(state, time.monotonic(), what)
                self._making.discard(name)
