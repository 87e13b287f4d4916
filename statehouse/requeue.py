"""Refused records sent back to their topic, once each: after the schema was mended they are events like any other.

A record goes back as it came, with its key, payload, headers and time. One header more names the record that was refused. What was
sent before is therefore known, without a note that could be missing after a crash: from the table ``requeued/<stream>``, where
ingestion notes what has come back, up to the changelog's position, and from the topic behind that. One at a time sends, in one of
Kafka's transactions: a second one ends that of the first, of which then nothing was sent.

What a route could not send is in the quarantine too, and is passed over: its event is in the changelog.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from statehouse import kafka
from statehouse.config.models import ISOLATION, Config, Stream
from statehouse.headers import REQUEUED_HEADER
from statehouse.numbering import Numbering, topic_names
from statehouse.numbering import Place as Partition
from statehouse.tables import batches, metadata, opened, select, table

MOST = 10_000  # records of a transaction
SECONDS = 10.0  # that Kafka may take for a step
FOUND = "found .*?(, expected|$)"  # of a reason, what differs from record to record
KIND = f"regexp_replace(reason, '{FOUND}', 'found …\\1', 's')"  # :func:`kind_of`, in SQL
COLUMNS = 'topic, partition, "offset", reason, key, payload, payload_bytes, headers, timestamp'

Place = tuple[int, int]  # the number of a partition, and an offset


@dataclass
class Requeued:
    """How many records were ``sent``, and how many not, as they were ``before``; whether there are ``more``; and where the last
    one is of each partition."""

    sent: int = 0
    before: int = 0
    more: bool = False
    ends: dict[Partition, int] = field(default_factory=dict)


def kind_of(reason: str) -> str:
    """A reason without what differs from record to record: ``n: found …, expected INT``."""
    return re.sub(FOUND, r"found …\1", reason, count=1, flags=re.DOTALL)


def requeue(
    config: Config, stream: Stream, reason: str | None = None, places: Container[Place] | None = None, most: int = MOST
) -> Requeued:
    """Send refused records of a stream again: those of a reason (or of one of its :func:`kind_of`), those at some places, or all; at
    most so many at once. Raises KafkaUnavailable: then some may have been sent, which are not sent twice when one asks again."""

    def wanted_rows() -> Iterator[dict[str, Any]]:
        for row in _refused_rows(config, stream):
            named = reason is None or reason in (row["reason"], kind_of(row["reason"]))
            if named and stream.reads(row["topic"] or stream.topic) and (places is None or _place(row) in places):
                yield row

    done = Requeued()
    if next(wanted_rows(), None) is None:
        return done
    sender = _Sender(config.kafka, stream)
    position = metadata(table(config, "changelog", stream.name), "offsets") or {}
    before = {*_returned_places(config, stream), *_pending_places(config, stream, position)}
    chosen: list[dict[str, Any]] = []
    for row in wanted_rows():
        if _place(row) in before:
            done.before += 1
        elif len(chosen) == most:
            done.more = True
            break
        else:
            chosen.append(row)
    if chosen:
        done.ends = sender.send(sorted(chosen, key=_place))
        done.sent = len(chosen)
    return done


def _place(row: dict[str, Any]) -> Place:
    return row["partition"], row["offset"]


def _refused_rows(config: Config, stream: Stream) -> Iterator[dict[str, Any]]:
    """The rows of a stream's quarantine, but for what a route could not send."""
    delta = opened(table(config, "quarantine", stream.name))
    for batch in batches(delta, f"SELECT {COLUMNS} FROM found WHERE reason NOT LIKE 'route %: %'") if delta else ():
        yield from batch.to_pylist()


def _returned_places(config: Config, stream: Stream) -> set[Place]:
    """The refused records that ingestion has seen again."""
    delta = opened(table(config, "requeued", stream.name))
    rows = select(delta, 'SELECT DISTINCT partition, "offset" FROM found') if delta else []
    return {(row["partition"], row["offset"]) for row in rows}


def _pending_places(config: Config, stream: Stream, position: Mapping[str, Any]) -> set[Place]:
    """The refused records that were sent again and lie behind the changelog's position. From the first open transaction on, whoever's it
    is, records that are not committed count too: they may yet be."""
    numbering, offsets = Numbering.of(stream, position), {int(p): o for p, o in position.get("offsets", {}).items()}
    every = {**config.kafka, ISOLATION: "read_uncommitted"}
    places = set()
    for topic in topic_names(config.kafka, stream):
        read = numbering.of_topic(topic, offsets)
        open_from = {p: end for p, (_, end) in kafka.end_offsets(config.kafka, topic).items()}
        for message in chain(
            kafka.records_from(config.kafka, topic, read), kafka.records_from(every, topic, open_from)
        ):
            headers: Any = message.headers() or []
            origin = dict(headers).get(REQUEUED_HEADER)
            if origin and (match := re.fullmatch(rb"(-?\d{1,9}):(\d{1,18})", origin)):
                places.add((int(match[1]), int(match[2])))
    return places


class _Sender:
    """The one that sends: from its making on no other one can commit."""

    def __init__(self, properties: dict[str, Any], stream: Stream) -> None:
        self._topic, self._properties = stream.topic, properties
        name = f"{stream.name}-several" if stream.several else stream.topic
        settings = {"partitioner": "murmur2_random", **kafka.librdkafka(properties)}  # as Java's clients
        limits = {"transaction.timeout.ms": int(SECONDS * 1000), "message.max.bytes": 100_000_000}
        self._client = Producer({**settings, **limits, "transactional.id": f"statehouse-requeue-{name}"})
        self._run_step(lambda: self._client.init_transactions(SECONDS))

    def send(self, rows: list[dict[str, Any]]) -> dict[Partition, int]:
        """Send all of these rows or none, each to where it came from; the last offset of each partition."""
        ends: dict[Partition, int] = {}

        def note_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                ends[message.topic() or "", message.partition() or 0] = message.offset() or 0

        def produce_all() -> None:
            self._client.begin_transaction()
            for row in rows:
                self._produce(row, note_delivery)
            self._client.commit_transaction(SECONDS)

        self._run_step(produce_all)
        return ends

    def _produce(self, row: dict[str, Any], on_delivery: Callable[..., None]) -> None:
        text = row["payload"]
        payload = text.encode() if text is not None else row["payload_bytes"]
        key = None if row["key"] is None else row["key"].encode()
        headers = [(h["key"], h["value"]) for h in row["headers"] or [] if h["key"] != REQUEUED_HEADER]
        headers.append((REQUEUED_HEADER, f"{row['partition']}:{row['offset']}".encode()))
        time = row["timestamp"]
        at = {} if time is None else {"timestamp": round(time.timestamp() * 1000)}
        while True:
            try:
                self._client.produce(
                    row["topic"] or self._topic, payload, key, headers=headers, on_delivery=on_delivery, **at
                )
                return
            except BufferError:  # its queue is full
                self._client.poll(0.1)

    def _run_step(self, step: Callable[[], None]) -> None:
        try:
            step()
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                with suppress(KafkaException):  # it ends by itself, or with the next sender
                    self._client.abort_transaction(SECONDS)
            fenced = reason.code() in (
                KafkaError._FENCED,
                KafkaError.PRODUCER_FENCED,
                KafkaError.INVALID_PRODUCER_EPOCH,
            )
            explanation = "another one sends refused records of this topic again; none was sent here"
            if not fenced:
                explanation = (
                    f"{reason.str()}. They may have been sent or not: ask again, what was sent is not sent twice"
                )
            raise kafka.unavailable(self._properties, explanation) from None
