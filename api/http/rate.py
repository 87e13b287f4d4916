"""How often a caller may ask: a bucket of tokens for each, in the process's memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST = 10_000  # callers


class Rate:
    """At most ``per_second`` requests a second of each caller, a second's worth of them at once; thread-safe.

    Of more than ``most`` callers those are forgotten that have been quiet for the longest.
    """

    def __init__(self, per_second: float, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size = per_second, max(1.0, per_second)
        self._most, self._now = most, now
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # what was left, and when
        self._lock = threading.Lock()

    def wait(self, caller: Hashable) -> float:
        """0: the request may pass, and is counted. Else how many seconds to wait before the next one may."""
        with self._lock:
            now = self._now()
            left, then = self._buckets.pop(caller, (self._size, now))
            left = min(self._size, left + (now - then) * self._rate)
            passes = left >= 1
            self._buckets[caller] = (left - 1 if passes else left, now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - left) / self._rate
