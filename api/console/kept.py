"""What may take long to make and need not be of this second, such as how a store's values are spread: made once for all who look."""

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
        self._making: dict[str, threading.Thread] = {}
        self._lock = threading.Lock()

    def get(self, name: str, of: Hashable, make: Callable[[], Any], wait: float = 0.0) -> Any:
        """The thing of a name. Where the state ``of`` which it was made is another one by now, and it is not that new, it is made anew: if
        that takes more than ``wait`` seconds, for the next who looks. None where there is none yet."""
        with self._lock:
            made = self._made.get(name)
            stale = made is None or (made.of != of and time.monotonic() - made.at > SECONDS)
            if stale and name not in self._making:
                work = copy_current_request_context(self._make)
                self._making[name] = threading.Thread(target=work, args=(name, of, make), name="console", daemon=True)
                self._making[name].start()
            making = self._making.get(name)
        if stale and making:
            making.join(wait)
            made = self._made.get(name)
        return made.what if made else None

    def _make(self, name: str, of: Hashable, make: Callable[[], Any]) -> None:
        what: Any = None
        state: Hashable = self  # which is none: what could not be made is tried again in a while
        try:
            with suppress(Problem):  # it is one more thing on the page, and no reason to show none
                what, state = make(), of
        finally:
            with self._lock:
                self._made[name] = Made(state, time.monotonic(), what)
                del self._making[name]
