"""Which topics there are by the names of a stream's. Kafka's client follows a name: a topic that is deleted and made again goes on for it
as if nothing had been. Its id tells, and has to be asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka.admin import AdminClient

from statehouse.errors import KafkaUnavailable
from statehouse.kafka import Topic, find_topics, librdkafka

TIMEOUT, AWAY_SECONDS = 1.0, 1.0


class Lookout:
    """Asks for some topics; thread-safe. Who comes while another asks has the same answer."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self._properties, self._names = properties, frozenset[str]()
        self._admin: AdminClient | None = None
        self._asking = threading.Lock()
        self._found: dict[str, Topic] = {}
        self._asked = self._failed = float("-inf")  # when the answer was asked for, and when there was none
        self._away: KafkaUnavailable | None = None

    def find(self, names: Sequence[str], age: float) -> dict[str, Topic]:
        """Those of the topics that are there, as they were at most ``age`` seconds ago. Raises KafkaUnavailable, for a moment also without
        asking again."""
        with self._asking:
            now = time.monotonic()
            if now - self._asked <= age and self._names.issuperset(names):
                return {name: topic for name, topic in self._found.items() if name in names}
            if self._away and now - self._failed < AWAY_SECONDS:
                raise self._away
            if self._admin is None:
                self._admin = AdminClient({"reconnect.backoff.max.ms": 1000, **librdkafka(self._properties)})
            try:
                self._found = find_topics(self._properties, names, TIMEOUT, self._admin)
            except KafkaUnavailable as error:
                self._away, self._failed = error, time.monotonic()
                raise
            self._asked, self._names = now, frozenset(names)
            return self._found
