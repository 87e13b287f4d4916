"""Which topic there is by a stream's topic's name. Kafka's client follows a name: a topic that is deleted and made again goes on for it as
if nothing had been. Its id tells, and has to be asked for.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from confluent_kafka.admin import AdminClient

from statehouse.errors import KafkaUnavailable
from statehouse.kafka import Topic, find_topic, librdkafka

TIMEOUT, AWAY_SECONDS = 1.0, 1.0


class Lookout:
    """Asks for one topic; thread-safe. Who comes while another asks has the same answer."""

    def __init__(self, properties: dict[str, Any], topic: str) -> None:
        self._properties, self._topic = properties, topic
        self._admin: AdminClient | None = None
        self._asking = threading.Lock()
        self._found: Topic | None = None
        self._asked = float("-inf")  # when the answer was asked for
        self._away: KafkaUnavailable | None = None
        self._failed = float("-inf")

    def find(self, age: float) -> Topic | None:
        """The topic as it was at most ``age`` seconds ago; None where there is none. Raises KafkaUnavailable, for a moment also
        without asking again."""
        with self._asking:
            now = time.monotonic()
            if now - self._asked <= age:
                return self._found
            if self._away and now - self._failed < AWAY_SECONDS:
                raise self._away
            if self._admin is None:
                self._admin = AdminClient({"reconnect.backoff.max.ms": 1000, **librdkafka(self._properties)})
            try:
                self._found = find_topic(self._properties, self._topic, TIMEOUT, self._admin)
            except KafkaUnavailable as error:
                self._away, self._failed = error, time.monotonic()
                raise
            self._asked = now
            return self._found
