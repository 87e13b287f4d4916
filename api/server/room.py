"""Room for what is kept for slow callers: the bodies that they have not sent to their end, the answers that they do not read.

There is only so much of it for all together. Who needs more than is left takes it from those who have kept theirs for the
longest: they are the slow ones, and are cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple


class Kept(NamedTuple):
    """What one caller keeps, and what cuts it off."""

    size: int
    cut: Callable[[], None]


class Room:
    """Bytes for all callers of an event loop, and for that alone."""

    def __init__(self, size: int) -> None:
        self._size, self._sum = size, 0
        self._kept: dict[Hashable, Kept] = {}  # the oldest first

    def keep(self, caller: Hashable, size: int, cut: Callable[[], None]) -> None:
        """A caller keeps so many bytes, for the first time or by now. The oldest others are cut off while it is too much for all."""
        before = self._kept.get(caller)
        self._sum += size - (before.size if before else 0)
        self._kept[caller] = Kept(size, cut)
        while self._sum > self._size:
            oldest = next((other for other in self._kept if other != caller), None)
            if oldest is None:
                return
            kept = self._kept[oldest]
            self.free(oldest)
            kept.cut()

    def free(self, caller: Hashable) -> None:
        """A caller keeps nothing any more."""
        if kept := self._kept.pop(caller, None):
            self._sum -= kept.size
