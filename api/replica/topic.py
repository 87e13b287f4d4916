"""A stream's topic, read by each process itself: what is in it is shown ahead of the changelog (:mod:`api.replica.provisional`).

Only records are events. What was aborted, compacted away, or marks a transaction has an offset and is no record: how far the topic is
read, Kafka's client says at its end (``_PARTITION_EOF``).

Offsets are of one topic. Of a topic that was deleted and made again nothing is shown: its id is asked for after records were read, and
before they are shown, unless that was done a moment ago.

Where events come faster than they can be shown, or too many are pending, it steps aside: what is shown stays until the changelog has
overtaken it, and it goes on from there when there is little left to read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import sqlglot
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from api.replica.arrivals import records
from api.replica.locks import ChangeSignal
from api.replica.lookout import Lookout
from api.replica.priority import FOLD_PRIORITY, PollInterval
from api.replica.provisional import ProvisionalState
from statehouse.config.models import Config, Stream
from statehouse.errors import KafkaUnavailable, TopicRecreated
from statehouse.formats.wire import ID_HEADER, ids_of
from statehouse.kafka import Topic, librdkafka
from statehouse.numbering import Numbering, Place

IDLE = 0.2  # seconds to wait for a first event; for more of them, see PollInterval
AT_ONCE = 2000  # events of one fold
PENDING = 250_000  # events that are shown ahead of the changelog at the most
BEHIND = 100_000  # events that are in the topic and not read yet, from which on it steps aside
PARTITIONS_SECONDS, ASIDE_SECONDS, AGAIN_SECONDS = 5.0, 1.0, 1.0
# How long ago the topic's id was asked for, at most, where its records are shown. To delete a topic, to make it again, to fill it and
# for Kafka's client to go on there takes longer.
SAME_SECONDS = 0.1
log = logging.getLogger("statehouse.api")


class State(str, Enum):
    """What is done with a topic, as ``GET /stores/{store}`` says it. It begins ``OFF``."""

    FOLLOWING = "following"  # what comes is shown
    ASIDE = "aside"  # there is too much of it; what is shown stays
    AWAY = "away"  # Kafka, or what is needed to read its records; tried again
    RECREATED = "recreated"  # it is another topic of the same name, of which nothing is shown; looked for again
    OFF = "off"  # it is not followed, or not any more: its records cannot be read here


TRANSITIONS = {
    State.OFF: {State.FOLLOWING, State.AWAY, State.RECREATED},
    State.FOLLOWING: {State.ASIDE, State.AWAY, State.RECREATED, State.OFF},
    State.ASIDE: {State.FOLLOWING, State.AWAY, State.RECREATED},
    State.AWAY: {State.FOLLOWING, State.RECREATED},
    State.RECREATED: {State.FOLLOWING, State.AWAY},
}


class TopicFollower:
    """Follows one stream's topic in a thread of its own, for what its stores show ahead of the changelog."""

    def __init__(self, config: Config, stream: Stream, provisional: ProvisionalState, changes: ChangeSignal) -> None:
        self.state = State.OFF
        self.error: str | None = None  # why nothing of what is in the topic is shown
        self._config, self._stream, self._provisional, self._changes = config, stream, provisional, changes
        self._lookout = Lookout(config.kafka)
        self._stop = threading.Event()

    def start(self) -> None:
        """Follow the topic in the background."""
        threading.Thread(target=self._run, name=f"live {self._stream.name}", daemon=True).start()

    def stop(self) -> None:
        """End the thread; what is shown stays."""
        self._stop.set()

    def recreated(self, name: str) -> str | None:
        """That a topic is not the one that the changelog is of, as of a moment ago; None where it is, or it cannot be known."""
        try:
            return self._provisional.numbering.recreated(self._lookout.find([name], SAME_SECONDS))
        except KafkaUnavailable:
            return self.error

    def status(self) -> dict[str, Any]:
        """What ``GET /stores/{store}`` says of it; ``pending`` are events, ``behind`` offsets. None: what there is is of another topic."""
        behind = self._provisional.behind
        lag_ms = max(0, round((time.time() - self._provisional.newest) * 1000)) if behind else 0
        return {
            "state": self.state.value,
            "offsets": {str(p): o for p, o in sorted(dict(self._provisional.read).items())},
            "pending": self._provisional.pending,
            "behind": None if self.error else behind,
            "lag_ms": None if self.error else lag_ms,
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._provisional.covered is None:  # nothing to show it on top of
                    self._stop.wait(IDLE)
                    continue
                self._check(AGAIN_SECONDS)
                consumer = self._consumer()
                try:
                    self._follow(consumer)
                finally:
                    consumer.close()
            except (KeyboardInterrupt, SystemExit):
                raise
            except sqlglot.errors.SqlglotError as error:
                log.info("stream %s is not followed ahead of its changelog: %s", self._stream.name, error)
                self._become(State.OFF)
                return
            except TopicRecreated as error:
                self._rest(State.RECREATED, str(error))
            except BaseException as error:
                self._rest(State.AWAY, f"{error}; trying again")

    def _become(self, state: State) -> None:
        """Raises ValueError where one state cannot follow the other."""
        if state is not self.state and state not in TRANSITIONS[self.state]:
            raise ValueError(f"found {state.value} after {self.state.value}")
        self.state = state

    def _rest(self, state: State, reason: str) -> None:
        if self.state is not state:
            log.warning("stream %s: %s", self._stream.name, reason)
        self._become(state)
        self._stop.wait(AGAIN_SECONDS)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "fetch.wait.max.ms": 100,
                "queued.max.messages.kbytes": 16_384,
                "reconnect.backoff.max.ms": 1000,
                **librdkafka(self._config.kafka),
                "group.id": "statehouse-live",  # wanted by the client, and not used: nothing is committed
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )

    def _check(self, age: float) -> dict[str, Topic]:
        """The topics that have numbers and are there, as they were at most ``age`` seconds ago. Raises KafkaUnavailable, and TopicRecreated
        where the only one is not that of the changelog, or of what is pending: then nothing is shown of either."""
        numbering = self._provisional.numbering
        topics = self._lookout.find([*filter(self._stream.reads, numbering.topics)], age)
        topics = numbering.same(topics) if self._stream.several else topics
        self.error = self._provisional.is_of(topics)
        if self.error is None:
            return topics
        self._changes.send()
        raise TopicRecreated(self.error)

    def _follow(self, consumer: Consumer) -> None:
        assigned: dict[int, Place] = {}
        interval = PollInterval()
        while not self._stop.is_set() and self._provisional.covered is not None:
            topics, numbering = self._check(PARTITIONS_SECONDS), self._provisional.numbering
            self._become(State.FOLLOWING)
            places = [(name, partition) for name, topic in topics.items() for partition in topic.partitions]
            partitions = {n: place for place in places if (n := numbering.number(*place)) is not None}
            if partitions != assigned:
                self._assign(consumer, partitions)
                assigned = partitions
            first = consumer.poll(IDLE)
            # One without a payload is false to Python.
            messages = [] if first is None else [first, *consumer.consume(AT_ONCE - 1, interval.wait())]
            if arrived := [message for message in messages if message.error() is None]:
                self._check(SAME_SECONDS)
                self._learn(arrived)
                # Once in a round: whenever it is left, the loop takes the interpreter.
                with interval.round(), FOLD_PRIORITY:
                    self._provisional.arrived(records(arrived, numbering))
            if ends := _ends(messages, numbering):
                self._provisional.reached(ends)
            self._measure(consumer, assigned, cached=True)
            if self._too_many(1.0):
                self._measure(consumer, assigned, cached=False)  # what is in an open transaction cannot be read yet
            if self._too_many(1.0):
                self._step_aside(consumer, assigned)
                self._assign(consumer, assigned)
            elif self._provisional.overtaken():
                self._assign(consumer, assigned)

    def _learn(self, messages: Sequence[Message]) -> None:
        """Ask for the schemas that records have and nobody knows, before the loop is to wait: it would wait for the registry."""
        if self._stream.registered:
            named = ((message.value(), dict(message.headers() or ()).get(ID_HEADER)) for message in messages)
            self._provisional.learn(ids_of(named))

    def _assign(self, consumer: Consumer, partitions: Mapping[int, Place]) -> None:
        """Read on from what is read or covered; a partition of which nothing is, from its beginning."""
        self._provisional.skip()
        read = self._provisional.read
        consumer.assign([TopicPartition(*place, read.get(p, OFFSET_BEGINNING)) for p, place in partitions.items()])

    def _measure(self, consumer: Consumer, partitions: Mapping[int, Place], cached: bool) -> None:
        """Find out where the partitions end. ``cached`` is what the last fetch has said, which costs nothing: it counts transactions that
        are open, but for a partition whose end is reached."""
        for partition, place in partitions.items():
            if cached and self._provisional.at_end(partition):
                continue
            watermarks = consumer.get_watermark_offsets(TopicPartition(*place), timeout=1.0, cached=cached)
            if watermarks and watermarks[1] >= 0:
                self._provisional.ends[partition] = watermarks[1]

    def _too_many(self, share: float) -> bool:
        """Whether more than a share of the limits is left to read, or pending."""
        return self._provisional.unread() > share * BEHIND or self._provisional.pending > share * PENDING

    def _step_aside(self, consumer: Consumer, partitions: Mapping[int, Place]) -> None:
        self._become(State.ASIDE)
        log.info("stream %s: more events than can be shown ahead of the changelog", self._stream.name)
        consumer.unassign()
        while not self._stop.wait(ASIDE_SECONDS) and self._too_many(0.5):
            self._check(PARTITIONS_SECONDS)
            self._measure(consumer, partitions, cached=False)


def _ends(messages: Sequence[Message], numbering: Numbering) -> dict[int, int]:
    """Where the ends of partitions are that the client has come to."""
    at_end = [m for m in messages if (error := m.error()) and error.code() == KafkaError._PARTITION_EOF]
    ends = ((numbering.number(m.topic() or "", m.partition() or 0), m.offset()) for m in at_end)
    return {number: offset for number, offset in ends if number is not None and offset is not None}
