"""One Kafka producer a process. A write is done when the broker has acknowledged it, and not before.

Requests wait side by side: one thread takes the acknowledgements and wakes each. Only so many may wait, so
that while Kafka is away the writes cannot take all of the server's threads from the reads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from api.errors import Problem
from statehouse.errors import KafkaUnavailable
from statehouse.kafka import librdkafka, unavailable

ACKNOWLEDGED_MS = 8000  # after that Kafka's client gives a message up
PATIENCE = 10.0  # seconds; more than the client's, so that its verdict is always heard
PARTITION_UA = -1  # librdkafka's name: the partitioner chooses
WAITING = 32  # writes at once


class Token(NamedTuple):
    """Where an event is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Record(NamedTuple):
    """An event as it goes to Kafka."""

    key: str
    payload: str | None
    headers: tuple[tuple[str, str], ...]


class Producer:
    """Sends events; thread-safe. Nothing is opened before the first one."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self._properties = properties
        self._client: Client | None = None
        self._opening = threading.Lock()
        self._places = threading.BoundedSemaphore(WAITING)

    def send(self, topic: str, records: Sequence[Record], partition: int | None = None) -> list[Token]:
        """Send events, to where their keys belong or to one partition, and wait until Kafka has acknowledged all of them; their
        tokens, in no particular order.

        Raises KafkaUnavailable when that is not so in time, or the client's queue is full: of the events some, or
        all, may have arrived all the same. Raises a problem where one is larger than Kafka takes.
        """
        if not self._places.acquire(blocking=False):
            raise self._away(f"{WAITING} writes are waiting for it already")
        try:
            return self._send(topic, records, PARTITION_UA if partition is None else partition)
        finally:
            self._places.release()

    def _send(self, topic: str, records: Sequence[Record], partition: int) -> list[Token]:
        arrived: queue.SimpleQueue[Token | KafkaError] = queue.SimpleQueue()

        def delivered(error: KafkaError | None, message: Message) -> None:
            arrived.put(error or Token(topic, message.partition() or 0, message.offset() or 0))

        tokens: list[Token] = []
        failure: KafkaError | str | None = None
        produced, until = 0, time.monotonic() + PATIENCE
        try:
            client = self._open()
            for key, payload, headers in records:
                body = None if payload is None else payload.encode()
                client.produce(topic, body, key.encode(), partition, delivered, headers=list(headers))
                produced += 1
        except KafkaException as error:
            failure = error.args[0]
        except BufferError:
            failure = "the client's queue is full"
        for _ in range(produced):  # also after a failure: how many have arrived is worth telling
            try:
                outcome = arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                failure = failure or "no acknowledgement"
                break
            if isinstance(outcome, Token):
                tokens.append(outcome)
            else:
                failure = failure or outcome
        if failure:
            raise self._failed(failure, len(tokens), len(records))
        return tokens

    def _failed(self, reason: KafkaError | str, arrived: int, count: int) -> Exception:
        so_far = f"; {arrived} of {count} events were acknowledged" if count > 1 else ""
        if isinstance(reason, str):
            return self._away(reason + so_far)
        if reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            detail = f"Kafka refuses a message of this size: see the topic's max.message.bytes{so_far}"
            return Problem(413, "too-large", detail)
        if reason.fatal():  # this client is done for; the next write opens another
            self._client = None
        return self._away(reason.str() + so_far)

    def _away(self, reason: str) -> KafkaUnavailable:
        return unavailable(self._properties, reason)

    def _open(self) -> Client:
        with self._opening:
            if self._client is None:
                client = Client(
                    {
                        "linger.ms": 1,
                        "partitioner": "murmur2_random",  # Java's: a key's events are in one partition, whoever sent them
                        "reconnect.backoff.max.ms": 1000,
                        **librdkafka(self._properties),
                        "acks": "all",
                        "enable.idempotence": True,
                        "message.timeout.ms": ACKNOWLEDGED_MS,
                        "message.max.bytes": 8_000_000,  # the API limits the body, the broker the message
                    }
                )
                self._client = client
                threading.Thread(target=self._listen, args=(client,), name="acknowledgements", daemon=True).start()
            return self._client

    def _listen(self, client: Client) -> None:
        while self._client is client or len(client):
            client.poll(0.5)
