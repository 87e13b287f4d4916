"""One Kafka producer a process. A write is done when the broker has acknowledged it, and not before.

Requests wait side by side: one thread takes the acknowledgements and wakes each. Only so many may wait, so
that while Kafka is away the writes cannot take all of the server's threads from the reads.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as Client

from api.problems import Problem
from statehouse.errors import KafkaUnavailable
from statehouse.kafka import librdkafka

ACKNOWLEDGED_MS = 8000  # after that Kafka's client gives a message up
PATIENCE = 10.0  # seconds; more than the client's, so that its verdict is always heard
WAITING = 32  # writes at once


class Token(NamedTuple):
    """Where an event is in Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Producer:
    """Sends events; thread-safe. Nothing is opened before the first one."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self._properties = properties
        self._client: Client | None = None
        self._opening = threading.Lock()
        self._places = threading.BoundedSemaphore(WAITING)

    def send(self, topic: str, key: str, payload: str | None, headers: dict[str, str]) -> Token:
        """Send an event and wait for the acknowledgement.

        Raises KafkaUnavailable when there is none in time: the event may have arrived all the same.
        """
        if not self._places.acquire(blocking=False):
            raise self._away(f"{WAITING} writes are waiting for it already")
        try:
            return self._send(topic, key, payload, headers)
        finally:
            self._places.release()

    def _send(self, topic: str, key: str, payload: str | None, headers: dict[str, str]) -> Token:
        done: Future[Token] = Future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error:
                done.set_exception(KafkaException(error))
            else:
                done.set_result(Token(topic, message.partition() or 0, message.offset() or 0))

        try:
            client = self._open()
            body = None if payload is None else payload.encode()
            client.produce(topic, key=key.encode(), value=body, headers=list(headers.items()), on_delivery=delivered)
            return done.result(PATIENCE)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        except BufferError:
            raise self._away("the client's queue is full") from None
        except Late:
            raise self._away("no acknowledgement") from None

    def _failed(self, error: KafkaError) -> Exception:
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Problem(413, "too-large", "Kafka refuses a message of this size: see the topic's max.message.bytes")
        if error.fatal():  # this client is done for; the next write opens another
            self._client = None
        return self._away(error.str())

    def _away(self, reason: str) -> KafkaUnavailable:
        return KafkaUnavailable(f"Kafka at {self._properties.get('bootstrap.servers')}: {reason}")

    def _open(self) -> Client:
        with self._opening:
            if self._client is None:
                client = Client(
                    {
                        "linger.ms": 1,
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
