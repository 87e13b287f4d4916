"""What both halves say to Kafka: the client's settings, and a topic that is there."""

from __future__ import annotations

import concurrent.futures
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from statehouse import kafka_clients as clients
from statehouse.errors import KafkaRefused, KafkaUnavailable, TopicRefused, TopicUnavailable

# A record's own time counts in these years. Before them Spark takes it for one of another calendar, after them it is no time in JSON.
FIRST_TIME, LAST_TIME = "1583-01-01 00:00:00", "9999-12-31 23:59:59.999"
FIRST_MS, LAST_MS = -12_212_553_600_000, 253_402_300_799_999
URL_SAFE = str.maketrans("+/", "-_")  # as Kafka's own tools show ids
# What a broker says and passes by itself, as the protocol has it (or when a broker comes back), and what is about the client as a
# whole: its credentials, its numbers as an idempotent producer, its version.
PASSING = {
    KafkaError.INVALID_MSG,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LOG_DIR_NOT_FOUND,
    KafkaError.REASSIGNMENT_IN_PROGRESS,
    KafkaError.LISTENER_NOT_FOUND,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.STALE_BROKER_EPOCH,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError.INCONSISTENT_TOPIC_ID,
    KafkaError.REBOOTSTRAP_REQUIRED,
}
OF_THE_CLIENT = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.SECURITY_DISABLED,
    KafkaError.UNSUPPORTED_VERSION,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.DUPLICATE_SEQUENCE_NUMBER,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.PRODUCER_FENCED,
}
# What this client says itself of what it was given to send; whatever else it says is about the connection.
NOT_TO_BE_SENT = {
    KafkaError._INVALID_ARG,
    KafkaError._BAD_MSG,
    KafkaError._INVALID_DIFFERENT_RECORD,  # another message of the batch is not to be sent
}
NO_ID = "A" * 22  # in base64, of a topic whose brokers know no ids: they are older than Kafka 2.8


class _Refusal(NamedTuple):
    """Why brokers did not let a client in, and when it said so. Where that is not ``sure``, a broker that stops looks the same."""

    at: float
    reason: str
    sure: bool


_REFUSED: dict[int, _Refusal] = {}  # the last one, by the settings' hash
REFUSED_SECONDS = 15.0  # that this explains what fails
REFUSED_AGAIN = 5.0  # until one tries again: brokers may lock out who tries too often
TLS_FAILED = re.compile("SSL handshake failed|SSL routines|security.protocol")


def librdkafka(properties: dict[str, Any]) -> dict[str, Any]:
    """The file's ``kafka:`` section for confluent-kafka. Why brokers do not let it in is remembered."""
    return {"error_cb": functools.partial(_hear, _number(properties)), **clients.librdkafka(properties)}


def _number(properties: Mapping[str, Any]) -> int:
    return hash(tuple(sorted((name, str(value)) for name, value in properties.items())))


def _hear(number: int, error: KafkaError) -> None:
    text = error.str()
    sure = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL) or "SSL alert" in text
    if sure or TLS_FAILED.search(text):
        reason = re.sub(r"^\w+://\S+: | \(after \d+ms in state .*\)$", "", text)
        _REFUSED[number] = _Refusal(time.monotonic(), reason, sure)


def _refusal(properties: Mapping[str, Any], since: float = float("-inf")) -> _Refusal | None:
    """Why brokers did not let a client with these properties in, where that was a moment ago and after ``since`` (of the monotonic
    clock); else None. A client says it when it is polled."""
    last = _REFUSED.get(_number(properties))
    return last if last and last.at >= max(since, time.monotonic() - REFUSED_SECONDS) else None


def usable_time(milliseconds: int) -> int | None:
    """A record's own time, since 1970; None where it is outside of the years 1583 to 9999: it is as if there were none."""
    return milliseconds if FIRST_MS <= milliseconds <= LAST_MS else None


def is_refusal(error: KafkaError) -> bool:
    """Whether this topic or this message is refused for its own sake, and would be again."""
    if error.fatal() or error.retriable():
        return False
    if error.code() < KafkaError.UNKNOWN:  # of the client's own
        return error.code() in NOT_TO_BE_SENT
    return error.code() not in PASSING | OF_THE_CLIENT


class Topic(NamedTuple):
    """A topic as the brokers have it. Another one of the same name has another ``id``; None: these brokers give none."""

    id: str | None
    partitions: list[int]


def find_topic(properties: dict[str, Any], topic: str, timeout: float = 10.0) -> Topic | None:
    """The topic of that name; None where there is none. Raises :class:`KafkaUnavailable`."""
    return find_topics(properties, [topic], timeout).get(topic)


def find_topics(
    properties: dict[str, Any], names: Sequence[str], timeout: float = 10.0, admin: AdminClient | None = None
) -> dict[str, Topic]:
    """The topics of these names that are there. Raises :class:`KafkaUnavailable`. Who asks often has an ``admin``."""
    client = admin or AdminClient(librdkafka(properties))  # held by a name: the request dies with it
    topics: dict[str, Topic] = {}
    try:
        requests = client.describe_topics(TopicCollection(list(names)), request_timeout=timeout) if names else {}
        for name, request in requests.items():
            try:
                description = _answer(properties, client, request, timeout)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
            else:
                id = str(description.topic_id).translate(URL_SAFE)
                numbers = sorted(partition.id for partition in description.partitions)
                topics[name] = Topic(None if id == NO_ID else id, numbers)
    except KafkaException as error:
        raise _unavailable(properties, error) from None
    return topics


def topic_names(properties: dict[str, Any], timeout: float = 10.0) -> list[str]:
    """The names of all topics, in the alphabet's order. Raises :class:`KafkaUnavailable`."""
    admin = AdminClient(librdkafka(properties))  # held by a name: the request dies with it
    try:
        return sorted(admin.list_topics(timeout=timeout).topics)
    except KafkaException as error:
        admin.poll(0)
        raise _unavailable(properties, error) from None


def recreated(topic: str, known: str | None, current: Topic | None) -> str | None:
    """That the topic of that name is not the one that the changelog's position is of, and what to do; None where it is, or where
    an id is not known."""
    if known is None or current is None or current.id in (None, known):
        return None
    return (
        f"the topic {topic} was deleted and made again: the changelog has the one with the id {known}, found {current.id}, whose "
        "offsets are of other events. Give the stream a new name: its changelog begins with the new topic"
    )


def partitions(properties: dict[str, Any], topic: str, timeout: float = 10.0) -> list[int]:
    """The topic's partitions; empty where there is no such topic. Raises :class:`KafkaUnavailable`."""
    description = find_topic(properties, topic, timeout)
    return description.partitions if description else []


def _answer(properties: dict[str, Any], admin: AdminClient, request: Any, timeout: float) -> Any:
    """What brokers answer to a request of an ``admin``. Raises KafkaException; and KafkaRefused as soon as they do not let it in,
    which the client itself would try until the timeout."""
    began = time.monotonic()
    while True:
        try:
            return request.result(0.1)
        except concurrent.futures.TimeoutError:
            if time.monotonic() > began + timeout + 5:
                raise
        except KafkaException:
            admin.poll(0)  # it may know why
            raise
        admin.poll(0)
        refusal = _refusal(properties, began)
        if refusal and refusal.sure:
            raise _refused(properties, refusal)


def _refused(properties: Mapping[str, Any], refusal: _Refusal) -> KafkaRefused:
    return KafkaRefused(f"Kafka at {properties.get('bootstrap.servers')} does not let us in: {refusal.reason}")


def unavailable(properties: Mapping[str, Any], reason: str) -> KafkaUnavailable:
    """That Kafka did not answer, for a ``reason``; or that it did not let us in, where that is why."""
    if why := _refusal(properties):
        return _refused(properties, why)
    return KafkaUnavailable(f"Kafka at {properties.get('bootstrap.servers')}: {reason}")


def _unavailable(properties: dict[str, Any], error: KafkaException | KafkaError, what: str = "") -> KafkaUnavailable:
    reason = error.args[0] if isinstance(error, KafkaException) else error
    if reason.code() < KafkaError.UNKNOWN and (why := _refusal(properties)):  # of the client's own
        return _refused(properties, why)
    of_topic = TopicUnavailable if reason.code() in PASSING else KafkaUnavailable
    kind = TopicRefused if is_refusal(reason) else of_topic
    return kind(f"Kafka at {properties.get('bootstrap.servers')}: {what}{reason.str()}")


def create_topic(
    properties: dict[str, Any], topic: str, settings: Mapping[str, str] | None = None, timeout: float = 10.0
) -> None:
    """Create a topic with the broker's own defaults, but for some ``settings``, unless it is there. Raises :class:`KafkaUnavailable`,
    as one of its kinds where it is about this topic alone."""
    new = NewTopic(topic, num_partitions=-1, replication_factor=-1, config=dict(settings or {}))
    admin = AdminClient(librdkafka(properties))  # held by a name: the request dies with it
    try:
        _answer(properties, admin, admin.create_topics([new], request_timeout=timeout)[topic], timeout)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise _unavailable(properties, error, f"topic {topic!r} cannot be created: ") from None


def topic_settings(properties: dict[str, Any], topic: str, timeout: float = 10.0) -> dict[str, str]:
    """A topic's settings, such as ``max.message.bytes`` and ``cleanup.policy``. Raises :class:`KafkaUnavailable`."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin, until = AdminClient(librdkafka(properties)), time.monotonic() + timeout
    while True:
        try:
            request = admin.describe_configs([resource], request_timeout=timeout)[resource]
            entries = _answer(properties, admin, request, timeout)
            break
        except KafkaException as error:
            # One that was made a moment ago is not known to every broker yet.
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > until:
                raise _unavailable(properties, error) from None
            time.sleep(0.1)
    return {name: entry.value for name, entry in entries.items()}


def await_topics(
    properties: dict[str, Any],
    names: Callable[[], Sequence[str]],
    create: bool,
    stopping: Callable[[], bool],
    say: Callable[[str], None],
    patience: float,
) -> dict[str, Topic]:
    """The topics of some names, by name, of which those that are absent are passed over, or created; waits while Kafka is away.

    ``patience`` is in seconds; after them the last :class:`KafkaUnavailable` is raised. Who has an end to it is told at once that
    Kafka does not let us in.
    """
    until, announced = time.monotonic() + patience, False
    while True:
        try:
            wanted = names()
            topics = find_topics(properties, wanted, timeout=5)
            absent = [name for name in wanted if name not in topics or not topics[name].partitions]
            if not absent or not create:
                return topics
            for name in absent:
                create_topic(properties, name)
                say(f"created the topic {name}")
        except KafkaUnavailable as error:
            known = _refusal(properties)
            refused = isinstance(error, KafkaRefused) and known is not None and known.sure
            if time.monotonic() > until or stopping() or (refused and patience != float("inf")):
                raise
            if not announced:
                say(f"{error}; waiting for it")
                announced = True
            again = time.monotonic() + (REFUSED_AGAIN if refused else 0.5)
            while time.monotonic() < again and not stopping():
                time.sleep(0.1)


@contextmanager
def _reading(
    properties: dict[str, Any], topic: str, starts: Mapping[int, int], group: str, reset: str = "earliest"
) -> Iterator[Callable[[Callable[[], float]], Message]]:
    """A consumer of a topic's partitions, each from its offset in ``starts`` on: the function that gives its next message.

    The function takes one that says how many seconds are left to wait. The message has an error where a partition ends, or where it has
    no such offset and ``reset`` is ``error``. Errors that pass are skipped. It raises :class:`KafkaUnavailable` for others, and where no
    message comes in time.
    """
    settings = {**librdkafka(properties), "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": reset})
    ends = [KafkaError._PARTITION_EOF, *([KafkaError._AUTO_OFFSET_RESET] if reset == "error" else [])]

    def poll(left: Callable[[], float]) -> Message:
        while True:
            message = consumer.poll(max(0.0, left()))
            if message is None:
                raise unavailable(properties, f"no records of {topic!r} in time")
            error = message.error()
            if error is None or error.code() in ends:
                return message
            if error.code() != KafkaError._ALL_BROKERS_DOWN and not error.retriable():
                raise _unavailable(properties, error)

    try:
        consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in starts.items()])
        yield poll
    finally:
        consumer.close()


def first_time(properties: dict[str, Any], topic: str, offsets: Mapping[int, int], timeout: float = 10.0) -> float:
    """The time of the oldest record from each partition's offset on (which defaults to its beginning), in seconds since 1970;
    infinity where there are none. Raises :class:`KafkaUnavailable`."""
    numbers = partitions(properties, topic, timeout)
    if not numbers:
        return float("inf")
    starts = {p: offsets.get(p, 0) for p in numbers}
    times: dict[int | None, float] = {}
    with _reading(properties, topic, starts, "statehouse-tasks") as poll:
        until = time.monotonic() + timeout
        while len(times) < len(numbers):
            message = poll(lambda: until - time.monotonic())
            at_end = message.error() is not None
            times.setdefault(message.partition(), float("inf") if at_end else message.timestamp()[1] / 1000)
    return min(times.values())


def records_from(
    properties: dict[str, Any], topic: str, offsets: Mapping[int, int], timeout: float = 10.0
) -> Iterator[Message]:
    """The records of a topic from each partition's offset on (which defaults to its beginning) to where it ends by now. Raises
    :class:`KafkaUnavailable`, also where none comes for so many seconds."""
    left = set(partitions(properties, topic, timeout))
    with _reading(properties, topic, {p: offsets.get(p, 0) for p in left}, "statehouse-requeue") as poll:
        while left:
            message = poll(lambda: timeout)
            if message.error() is None:
                yield message
            else:
                left.discard(message.partition())


def headers_at(
    properties: dict[str, Any], topic: str, partition: int, offset: int, timeout: float = 5.0
) -> dict[str, bytes] | None:
    """The headers of the record at a place; None where there is none. Raises :class:`KafkaUnavailable`."""
    with _reading(properties, topic, {partition: offset}, "statehouse-tasks", reset="error") as poll:
        until = time.monotonic() + timeout
        message = poll(lambda: until - time.monotonic())
        if message.error() is not None or message.offset() != offset:
            return None
        headers: Any = message.headers() or []
        return dict(headers)


def end_offsets(properties: dict[str, Any], topic: str, timeout: float = 5.0) -> dict[int, tuple[int, int]]:
    """Each partition's first kept and next offset; under ``read_committed`` up to the first transaction that is open. Raises
    :class:`KafkaUnavailable`."""
    ends = ends_of(properties, find_topics(properties, [topic], timeout), timeout)
    return {partition: end for (_, partition), end in ends.items()}


def ends_of(
    properties: dict[str, Any], topics: Mapping[str, Topic], timeout: float = 5.0
) -> dict[tuple[str, int], tuple[int, int]]:
    """The same of the partitions of some topics, by the topic's name and the partition. Raises :class:`KafkaUnavailable`."""
    places = [(name, partition) for name, topic in topics.items() for partition in topic.partitions]
    consumer = Consumer({**librdkafka(properties), "group.id": "statehouse-status", "enable.auto.commit": False})
    try:
        return {p: consumer.get_watermark_offsets(TopicPartition(*p), timeout=timeout) for p in places}
    except KafkaException as error:
        raise _unavailable(properties, error) from None
    finally:
        consumer.close()
