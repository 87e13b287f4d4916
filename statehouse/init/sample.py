"""Some records of a topic, or of a file of JSON lines."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from statehouse import kafka
from statehouse.errors import ConfigError, StatehouseError
from statehouse.headers import OP_HEADER
from statehouse.payload import Refused, read_object

OPENERS = {".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True)
class Record:
    """A record whose payload is a JSON object: its ``text``, its ``values`` as :func:`statehouse.payload.read` gives them, Kafka's
    ``key`` as text, and Kafka's ``time`` in milliseconds since 1970."""

    text: str
    values: dict[str, Any]
    key: str | None = None
    time: int | None = None


@dataclass
class Sample:
    """What was read of a ``source``: its records; how many payloads are no JSON objects, and the reason of the first; how many
    records only purge, set or ask for something."""

    source: str
    records: list[Record] = field(default_factory=list)
    refused: int = 0
    reason: str = ""
    controls: int = 0
    lines: bool = True  # the file is one that `statehouse load` reads

    def add(
        self, payload: bytes | None, key: str | None = None, time: int | None = None, control: bool = False
    ) -> None:
        """Take one more record."""
        if payload is None or control:
            self.controls += 1
            return
        try:
            text = payload.decode()
            self.records.append(Record(text, read_object(text), key, time))
        except (UnicodeDecodeError, Refused) as error:
            self.refused += 1
            self.reason = self.reason or ("not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error))

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
            for payload in islice(_payloads(stream, sample), most):
                sample.add(payload)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StatehouseError(
            f"{path}: found no file that can be read ({reason}), expected JSON lines", advice="name another --file"
        ) from None
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


def read_topic(properties: dict[str, Any], topic: str, most: int) -> Sample:
    """The newest records of a topic, about as many of each partition. Raises KafkaUnavailable, and StatehouseError where there is no
    such topic, or no JSON object in it."""
    if kafka.find_topic(properties, topic) is None:
        names = ", ".join(topic_names(properties)) or "none: there are no topics yet"
        raise ConfigError(f"--topic: found {topic!r}, expected one of {names}", advice="name one of these with --topic")
    ends = kafka.end_offsets(properties, topic)
    each = max(1, most // max(1, len(ends)))
    starts = {partition: max(low, high - each) for partition, (low, high) in ends.items()}
    sample = Sample(f"topic {topic}")
    for message in islice(kafka.records_from(properties, topic, starts), most):
        _, time = message.timestamp()
        headers: Any = message.headers() or []
        sample.add(message.value(), _text(message.key()), kafka.usable_time(time), OP_HEADER in dict(headers))
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
        advice = "send some records first, or name a --file of JSON lines; payloads of other formats cannot be read yet"
        raise StatehouseError(f"{sample.source}: found {what}, expected JSON objects", advice=advice)
    return sample
