"""Some records of a topic, or of a file of JSON lines."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from statehouse import kafka
from statehouse.errors import ConfigError, StatehouseError
from statehouse.formats.format import DEBEZIUM, JSON
from statehouse.formats.wire import ID_HEADER
from statehouse.headers import OP_HEADER
from statehouse.init.payloads import Encoding, Payload, detect, has_changes
from statehouse.payload import Refused, read_object

OPENERS = {".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True)
class Record:
    """A record whose ``payload`` means a JSON object: the ``text`` of that, its ``values`` as :func:`statehouse.payload.read` gives them,
    and Kafka's ``time`` in milliseconds since 1970."""

    payload: Payload
    text: str
    values: dict[str, Any]
    time: int | None = None

    @property
    def key(self) -> str | None:
        """Kafka's key as text."""
        return self.payload.key


@dataclass
class Sample:
    """What was read of a ``source``, and what that is written in: its records; how many payloads are refused, and the reason of the
    first; how many records only purge, set or ask for something."""

    source: str
    records: list[Record] = field(default_factory=list)
    refused: int = 0
    reason: str = ""
    controls: int = 0
    lines: bool = True  # the file is one that `statehouse load` reads
    encoding: Encoding = field(default_factory=Encoding)

    def add(self, payloads: Sequence[Payload], times: Sequence[int | None] | None = None) -> None:
        """Take more records, of which the payloads are given, and Kafka's times."""
        texts = self.encoding.objects(payloads)
        for payload, text, time in zip(payloads, texts, times or [None] * len(payloads), strict=True):
            try:
                if isinstance(text, Refused):
                    raise text
                self.records.append(Record(payload, text, read_object(text), time))
            except Refused as reason:
                self.refused += 1
                self.reason = self.reason or str(reason)

    @property
    def count(self) -> int:
        """All that was read."""
        return len(self.records) + self.refused + self.controls


def read_file(file: str | Path, most: int) -> Sample:
    """The first records of a file of JSON lines, also compressed (``.gz``, ``.bz2``), or of one JSON array of objects.

    Raises StatehouseError where the file cannot be read, or has no JSON object.
    """
    path = Path(file)
    sample = Sample(str(path))
    try:
        with OPENERS.get(path.suffix, open)(path, "rb") as stream:  # type: ignore[operator]
            payloads = [Payload(payload) for payload in islice(_payloads(stream, sample), most)]
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StatehouseError(
            f"{path}: found no file that can be read ({reason}), expected JSON lines", advice="name another --file"
        ) from None
    if has_changes(payloads):
        sample.encoding = Encoding(settings={"format": DEBEZIUM})
    sample.add(payloads)
    return _usable(sample)


def _payloads(stream: Iterable[bytes], sample: Sample) -> Iterator[bytes]:
    """The payload of each line; of a file that is one array, or one object over several lines, of each object."""
    lines = iter(stream)
    first = next((line for line in lines if line.strip()), b"")
    if first.lstrip().startswith(b"[") or first.strip() == b"{":
        sample.lines = False
        yield from _objects(first + b"".join(lines))
        return
    yield from (line.strip() for line in chain([first], lines) if line.strip())


def _objects(text: bytes) -> list[bytes]:
    try:
        if text.lstrip().startswith(b"["):
            return [bytes(raw) for raw in msgspec.json.decode(text, type=list[msgspec.Raw])]
    except msgspec.MsgspecError:
        pass
    return [text.strip()]


def read_topic(properties: dict[str, Any], given: Encoding, most: int) -> Sample:
    """The newest records of a topic, about as many of each partition; the user has ``given`` what is said of their encoding. Raises
    KafkaUnavailable, RegistryUnavailable, and StatehouseError where there is no such topic, or nothing in it that can be read."""
    topic = given.topic
    if kafka.find_topic(properties, topic) is None:
        names = ", ".join(topic_names(properties)) or "none: there are no topics yet"
        raise ConfigError(f"--topic: found {topic!r}, expected one of {names}", advice="name one of these with --topic")
    ends = kafka.end_offsets(properties, topic)
    each = max(1, most // max(1, len(ends)))
    starts = {partition: max(low, high - each) for partition, (low, high) in ends.items()}
    sample = Sample(f"topic {topic}")
    payloads, times = [], []
    for message in islice(kafka.records_from(properties, topic, starts), most):
        headers: Any = dict(message.headers() or [])
        if message.value() is None or OP_HEADER in headers:
            sample.controls += 1
            continue
        payloads.append(Payload(bytes(message.value() or b""), headers.get(ID_HEADER), _text(message.key())))
        times.append(kafka.usable_time(message.timestamp()[1]))
    sample.encoding = detect(payloads, given)
    sample.add(payloads, times)
    return _usable(sample)


def _text(key: Any) -> str | None:
    """Kafka's key; None where it is not UTF-8."""
    try:
        return None if key is None else bytes(key).decode()
    except UnicodeDecodeError:
        return None


def topic_names(properties: dict[str, Any], timeout: float = 10.0) -> list[str]:
    """The topics that the brokers have, without Kafka's own. Raises KafkaUnavailable."""
    return [name for name in kafka.topic_names(properties, timeout) if not name.startswith("_")]


def _usable(sample: Sample) -> Sample:
    if not sample.records:
        what = f"{sample.refused} payloads, of which the first is {sample.reason}" if sample.refused else "no records"
        expected = "JSON objects" if sample.encoding.format == JSON else f"payloads in {sample.encoding.format}"
        advice = "send some records first, name a --file of JSON lines, or say what they are with --format"
        raise StatehouseError(f"{sample.source}: found {what}, expected {expected}", advice=advice)
    return sample
