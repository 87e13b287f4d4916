"""Which number each partition of a stream's topics has: ``_partition`` in its tables, and the key of its offsets.

Of a stream with one ``topic:`` a partition has Kafka's own number. With ``topics:`` the partitions of all topics are numbered through,
as they are seen first, and the changelog's position says which is which. So an event is known by a number and an offset, whatever
topic it came from, and events of one time are ordered by them. A topic that was deleted and made again is read no further: its
coordinates would name other events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from statehouse import kafka

if TYPE_CHECKING:
    from statehouse.config.models import Stream

Place = tuple[str, int]  # a topic, and Kafka's number of one of its partitions


def topic_names(properties: dict[str, Any], stream: Stream) -> list[str]:
    """The topics that a stream reads now, by name: those of its file, or those of Kafka's that its pattern names. Raises
    KafkaUnavailable."""
    if not isinstance(stream.topics, str):
        return stream.topics or [stream.topic]
    return [name for name in kafka.topic_names(properties) if stream.reads(name)]


@dataclass(frozen=True)
class Numbering:
    """The numbers of a stream's partitions. ``topic`` is that of a stream with one: its numbers are Kafka's, and ``numbers`` is empty.
    ``ids`` are those of the topics, by name, where they are known; ``next`` is the next number."""

    topic: str | None = None
    ids: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[Place, int] = field(default_factory=dict)
    next: int = 0

    @classmethod
    def of(cls, stream: Stream, position: Mapping[str, Any]) -> Numbering:
        """As a changelog's ``position`` has it (see :mod:`statehouse.tables`). A stream that has got more topics than the one of the
        position goes on with the numbers of that one."""
        offsets, was = position.get("offsets") or {}, position.get("topic")
        topics = position.get("topics") or ({was: {"id": position.get("id")}} if was else {})
        ids = {name: known["id"] for name, known in topics.items() if known.get("id")}
        if stream.topics is None:
            return cls(stream.topic, ids)
        given = {was: {str(p): int(p) for p in offsets}} if was else {n: t["partitions"] for n, t in topics.items()}
        numbers = {(name, int(p)): number for name, of in given.items() for p, number in of.items()}
        return cls(None, ids, numbers, 1 + max([-1, *numbers.values(), *map(int, offsets)]))

    @property
    def topics(self) -> list[str]:
        """The topics that have numbers, or an id."""
        named = [self.topic] if self.topic else [topic for topic, _ in self.numbers]
        return list(dict.fromkeys([*named, *self.ids]))

    @property
    def places(self) -> dict[int, dict[str, Any]]:
        """By number the ``topic`` and the ``topic_partition``, of a stream with several topics."""
        return {number: {"topic": name, "topic_partition": p} for (name, p), number in self.numbers.items()}

    def number(self, topic: str, partition: int) -> int | None:
        """The number of a partition; None where it has none yet."""
        if self.topic is None:
            return self.numbers.get((topic, partition))
        return partition if topic == self.topic else None

    def of_topic(self, topic: str, values: Mapping[int, int]) -> dict[int, int]:
        """What is known by number, such as offsets, of one topic's partitions."""
        if self.topic is not None:
            return dict(values) if topic == self.topic else {}
        return {p: values[n] for (name, p), n in self.numbers.items() if name == topic and n in values}

    def grown(self, places: Iterable[Place]) -> Numbering:
        """The same, with numbers for partitions that have none."""
        if self.topic is not None or not (new := sorted(set(places) - set(self.numbers))):
            return self
        numbers = {place: number for number, place in enumerate(new, self.next)}
        return replace(self, numbers={**self.numbers, **numbers}, next=self.next + len(new))

    def recreated(self, current: Mapping[str, kafka.Topic]) -> str | None:
        """Which of the topics is not the one that the position is of, and what to do; None where all are, or where ids are not known."""
        told = (kafka.recreated(name, self.ids.get(name), topic) for name, topic in current.items())
        return next(filter(None, told), None)

    def same(self, current: Mapping[str, kafka.Topic]) -> dict[str, kafka.Topic]:
        """Those of the topics, as they are ``current``, that are the ones that the position is of."""
        return {name: topic for name, topic in current.items() if not self.recreated({name: topic})}

    def seen(self, current: Mapping[str, kafka.Topic]) -> Numbering:
        """The same, with the ids of the topics as they are ``current``, and numbers for all of their partitions."""
        ids = {**self.ids, **{name: topic.id for name, topic in current.items() if topic.id}}
        places = ((name, partition) for name, topic in current.items() for partition in topic.partitions)
        return replace(self, ids=ids).grown(places)

    def without_ids_of_unread(self, offsets: Mapping[int, int]) -> Numbering:
        """The same, with the ids of topics alone of which something was read: one that was made anew is as good where nothing was."""
        read = {topic for (topic, _), number in self.numbers.items() if offsets.get(number)}
        if self.topic is not None and any(offsets.values()):
            read = {self.topic}
        return replace(self, ids={name: id for name, id in self.ids.items() if name in read})

    def described(self) -> dict[str, Any]:
        """What a position says of it, besides its offsets."""
        if self.topic is not None:
            return {"topic": self.topic, **({"id": id} if (id := self.ids.get(self.topic)) else {})}
        topics: dict[str, Any] = {name: {"id": self.ids.get(name), "partitions": {}} for name in self.topics}
        for (name, partition), number in self.numbers.items():
            topics[name]["partitions"][str(partition)] = number
        return {"topics": topics}


def differs(stream: Stream, position: Mapping[str, Any]) -> str | None:
    """Why a changelog's position is not of a stream's topics, and what to do; None where it is."""
    topics, was = position.get("topics"), position.get("topic")
    if stream.topics is not None:
        fits = was is None or stream.reads(was)
    elif topics is None:
        fits = was in (None, stream.topic)
    else:  # of a number that is not Kafka's another partition would be read
        numbers = [(int(p), number) for known in topics.values() for p, number in known["partitions"].items()]
        fits = list(topics) == [stream.topic] and all(partition == number for partition, number in numbers)
    if fits:
        return None
    was = was or ", ".join(topics or ())
    return (
        f"its changelog is of the topic {was}, found {stream.topic_text}: "
        "the position is that topic's. Give the stream a new name"
    )


def parse_place(token: str) -> tuple[str, int, int] | None:
    """The topic, Kafka's number of the partition, and the offset that a token names, ``topic:0:17``; None: it is no token."""
    match = re.fullmatch(r"([A-Za-z0-9._-]+):([0-9]{1,9}):([0-9]{1,18})", token)
    return (match[1], int(match[2]), int(match[3])) if match else None
