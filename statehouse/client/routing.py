"""Which instance is asked: in a fleet the one that has the key, by ``GET /processors``; else whoever answers.

Any instance answers for every key, so a map that is out of date costs a hop and no wrong answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from statehouse.client.values import decode
from statehouse.partitioner import murmur2, text

FRESH_SECONDS = 5.0  # for which a map of a fleet is new enough
ALONE_SECONDS = 60.0  # and the answer that there is no fleet
LOST_SECONDS = 10.0  # for which an instance that did not answer is not asked, where there is another


class Routes:
    """The instances, and who has which shard."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._map: Sequence[Sequence[str]] = ()
        self._others: tuple[str, ...] = ()
        self._due = -math.inf
        self._lost: dict[str, float] = {}

    @property
    def due(self) -> bool:
        """Whether the map is to be asked for."""
        return time.monotonic() > self._due

    def learn(self, content: bytes | None) -> None:
        """Take over what ``GET /processors`` answered. None, or what is no such answer, changes nothing."""
        with suppress(ValueError, TypeError, LookupError):
            document = decode(content or b"")
            owners = [[a for a in of if self._may_ask(a)] for of in document["map"]]
            others = tuple(i["address"] for i in document["instances"] if i["up"] and self._may_ask(i["address"]))
            self._map, self._others = owners, others
        self._due = time.monotonic() + (FRESH_SECONDS if self._map else ALONE_SECONDS)

    def lose(self, base: str) -> None:
        """Note that an instance did not answer: the map may have changed."""
        self._lost[base] = time.monotonic() + LOST_SECONDS
        self._due = -math.inf if self._map else self._due

    def candidates(self, key: Sequence[Any] | None) -> list[str]:
        """The instances to ask for a key (None: any), the best first; those that were lost a moment ago last."""
        known = self._map  # it may be another one in the next moment
        owners = known[murmur2(text(key).encode()) % len(known)] if key and known else ()
        bases = list(dict.fromkeys((*owners, self.url, *self._others)))
        now = time.monotonic()
        return sorted(bases, key=lambda base: self._lost.get(base, now) > now)

    def all_lost(self) -> bool:
        """Whether nobody is left who did not fail a moment ago."""
        now = time.monotonic()
        return all(self._lost.get(base, now) > now for base in (self.url, *self._others))

    def _may_ask(self, address: str) -> bool:
        """A token that is sent over TLS is sent to nobody without it."""
        return urlsplit(address).scheme == urlsplit(self.url).scheme
