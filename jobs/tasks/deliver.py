"""Messages to topics, of which each is told what has become of it: one that is refused keeps no other.

(:mod:`jobs.spark.kafka_sink` sends many at once, of which all are taken or it fails as a whole.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from statehouse import kafka

PATIENCE = 30.0  # seconds for Kafka to take them
LARGEST = 100_000_000  # bytes of a message: what a topic takes is its broker's to say


class Message(NamedTuple):
    """What is sent."""

    topic: str
    key: str | bytes | None
    value: str | bytes | None
    headers: Mapping[str, str | bytes | None]


class Outcome(NamedTuple):
    """What became of a message. It is in its topic, or it was ``refused`` for its own sake and would be again, or it is ``delayed``:
    Kafka has not taken it for now, and may have; each says why."""

    refused: str | None = None
    delayed: str | None = None


def deliver(properties: dict[str, Any], messages: Sequence[Message], batch_size: int) -> list[Outcome]:
    """Send messages, in their order, and wait until it is known what became of each. ``batch_size`` is the least that one of their
    topics takes, in bytes. Each that is taken is sent once."""
    outcomes = _produce(properties, messages, {"batch.size": batch_size})
    doubtful = [index for index, outcome in enumerate(outcomes) if outcome.refused]
    if doubtful and len(messages) > 1:  # a broker refuses a whole batch for one of its messages
        alone = _produce(properties, [messages[index] for index in doubtful], {"batch.num.messages": 1})
        for index, outcome in zip(doubtful, alone, strict=True):
            outcomes[index] = outcome
    return outcomes


def _produce(properties: dict[str, Any], messages: Sequence[Message], batches: Mapping[str, int]) -> list[Outcome]:
    limits = {"message.timeout.ms": int(PATIENCE * 1000), "message.max.bytes": LARGEST, **batches}
    settings = {"partitioner": "murmur2_random", **kafka.librdkafka(properties), "enable.idempotence": True, **limits}
    producer = Producer(settings)
    where = f"Kafka at {properties.get('bootstrap.servers')}"
    outcomes = [Outcome(delayed=f"{where}: {message.topic}: no acknowledgement") for message in messages]

    def callback(index: int) -> Callable[[KafkaError | None, Delivered], None]:
        def note(error: KafkaError | None, _message: Delivered) -> None:
            outcomes[index] = _outcome(properties, messages[index], error)

        return note

    for index, message in enumerate(messages):
        headers = dict(message.headers)
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, headers=headers, on_delivery=callback(index)
                )
            except BufferError:  # the client's queue is full: it is emptied, for messages arrive or time out
                producer.poll(1)
                continue
            except KafkaException as error:
                outcomes[index] = _outcome(properties, message, error.args[0])
            break
    producer.flush(PATIENCE + 5)
    return outcomes


def _outcome(properties: dict[str, Any], message: Message, error: KafkaError | None) -> Outcome:
    if error is None:
        return Outcome()
    if kafka.is_refusal(error):
        return Outcome(refused=f"{message.topic}: {error.str()}")
    return Outcome(delayed=str(kafka.unavailable(properties, f"{message.topic}: {error.str()}")))
