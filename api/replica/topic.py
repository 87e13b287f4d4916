"""Ahead of the changelog: a stream's topic, read by each process itself and shown on top of what the changelog has.

An event is in the topic a moment after it was sent, and in the changelog a second or two later. Meanwhile it is *pending*: parsed
here (:mod:`api.replica.arrivals`), folded by the same rule on top of the changelog's state when somebody reads its key
(:meth:`api.replica.tail.Tail.settle`), and forgotten when the changelog covers its offset. So nothing is counted twice, what this parser sees otherwise than Spark's is put right with the next
batch, and without Kafka a replica is as fresh as the changelog.

Only records are events. What was aborted, compacted away, or marks a transaction has an offset and is no record: how far the topic is
read, Kafka's client says at its end (``_PARTITION_EOF``).

Offsets are of one topic. Of a topic that was deleted and made again nothing is shown: its id is asked for after records were read, and
before they are shown, unless that was done a moment ago.

Where events come faster than they can be shown, or too many are pending, it steps aside: what is shown stays until the changelog has
overtaken it, and it goes on from there when there is little left to read.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import pyarrow as pa
import sqlglot
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from api.engine.columns import Key
from api.engine.prepared import cursor
from api.replica.arrivals import Parser, records
from api.replica.lookout import Lookout
from api.replica.overlay import NUMBER, Rows
from api.replica.pending import PLACE, Ahead, Offsets, after, keyed
from api.replica.priority import WAY, Turn
from api.replica.snapshot import Pending, Snapshot
from api.replica.tail import Made, Tail
from statehouse.config.models import Config, Stream
from statehouse.errors import KafkaUnavailable, TopicRecreated
from statehouse.fold import Rule
from statehouse.formats.wire import ID_HEADER, ids_of
from statehouse.kafka import Topic, librdkafka, recreated
from statehouse.tables import changelog_columns

IDLE = 0.2  # seconds to wait for a first event
WAIT, SHARE, QUIET, BUSY = 0.003, 12, 0.01, 0.1  # and then for more of them, see Pace
AT_ONCE = 2000  # events of one fold
PENDING = 250_000  # events that are shown ahead of the changelog at the most
BEHIND = 100_000  # events that are in the topic and not read yet, from which on it steps aside
PARTITIONS_SECONDS, ASIDE_SECONDS, AGAIN_SECONDS = 5.0, 1.0, 1.0
UNASKED, UNASKED_SECONDS = 2000, 0.2  # keys that are folded before anybody asks: how many at once, and how often
READ_SECONDS = 10.0  # that goes on for so long after somebody had to wait
# How long ago the topic's id was asked for, at most, where its records are shown. To delete a topic, to make it again, to fill it and
# for Kafka's client to go on there takes longer.
SAME_SECONDS = 0.1
FOLLOWING, ASIDE, AWAY, RECREATED, OFF = "following", "aside", "away", "recreated", "off"
log = logging.getLogger("statehouse.api")


class Store(Protocol):
    """What is needed of a store: fields that :mod:`api.replica.replica` replaces while it holds the lock."""

    snapshot: Snapshot
    tail: Tail | None
    covered: Offsets | None


class Asked(NamedTuple):
    """Keys that somebody waits for."""

    tail: Tail
    keys: Sequence[Key]
    done: threading.Event


class Pace:
    """How long to wait for more events. A round takes some milliseconds of work whatever is in it, and all else in the process has to do
    without that: so it waits ``SHARE`` times as long, but for ``QUIET`` at the most, or ``BUSY`` where they have so much to do."""

    def __init__(self) -> None:
        self._due = 0.0  # when the next round should be
        self._work = 0.0  # seconds of the processor that a round takes
        self._others = 0.0  # and that all else does each second
        self._then = self._now()

    def wait(self) -> float:
        """Seconds."""
        return max(WAIT, self._due - time.monotonic())

    @contextmanager
    def round(self) -> Iterator[None]:
        """One is in here."""
        began = time.thread_time()  # not what it waits: that is others' work
        yield
        (then, all_then, own_then), (now, all_now, own_now) = self._then, self._now()
        self._then = now, all_now, own_now
        others = (all_now - all_then) - (own_now - own_then)
        # Smoothed: one round says little.
        self._work += (own_now - began - self._work) / 8
        self._others += (others / (now - then) - self._others) / 8 if now > then else 0.0
        # Where readers ask one after the other a quarter of a core is enough; many at once have at least half of one.
        busy = min(1.0, max(0.0, 4 * self._others - 1))
        self._due = now + min(SHARE * self._work, QUIET + (BUSY - QUIET) * busy)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return time.monotonic(), time.process_time(), time.thread_time()


class Live:
    """One stream. ``lock`` is held by whoever changes what its stores show, and ``turn`` as well while a part of it is changed: who folds
    for readers waits only for that."""

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        config: Config,
        stream: Stream,
        stores: Sequence[Store],
        wake: Callable[[], None],
    ) -> None:
        self.lock, self.turn = threading.RLock(), Turn()
        self.state = OFF
        self._config, self._stream, self._stores, self._wake = config, stream, stores, wake
        self._db = cursor(db)
        self._parser: tuple[list[tuple[Rule, dict[str, str]]], Parser] | None = None
        self._columns = list(changelog_columns(stream))
        self._pending: Rows | None = None  # None: nothing was read yet
        self._since: dict[int, int] = {}  # what is pending is all that came from here on, by partition
        self._next: dict[int, int] = {}  # up to what is read of the topic
        self._covered: Offsets | None = None  # what the changelog has of it
        self._highest: dict[int, int] = {}  # what the topic has
        self._ended: dict[int, int] = {}  # where its end was when it was reached last
        self._lookout = Lookout(config.kafka, stream.topic)
        self._id: str | None = None  # of the topic that the changelog and what is pending are of
        self._seen = 0.0  # when the newest event that is shown came to Kafka
        self._error = ""
        self.error: str | None = None  # why nothing of what is in the topic is shown
        self._stop = threading.Event()
        self._asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self._folder: threading.Thread | None = None

    def start(self) -> None:
        """Follow the topic in the background."""
        threading.Thread(target=self._run, name=f"live {self._stream.name}", daemon=True).start()

    def stop(self) -> None:
        """End the thread; what is shown stays."""
        self._stop.set()

    def cover(self, offsets: Offsets | None, id: str | None = None) -> None:
        """What the changelog's newest version has of the topic, and the topic's id; None: it is not known. The stores are there."""
        with self.lock:
            if id not in (None, self._id):
                if self._id is not None:  # what is pending is of another one
                    self._forget()
                self._id = id
            if offsets != self._covered:
                self._covered = offsets
                self._trim()

    def take(self, store: Store, tail: Tail, made: Made, covered: Offsets | None) -> Collection[Key]:
        """The changelog has made this of a store's keys, and has this of the topic then: show it, and on top what is pending still. The
        keys (and windows) that changed."""
        snapshot = store.snapshot
        with self.lock:
            ahead, fits = self._ahead(), self._fits(tail, covered)
            if snapshot.ahead and fits:
                tail.covered(covered or {})
            for part in tail.parts(made):
                with self.turn, WAY:
                    if not fits:
                        snapshot.clear()
                    tail.show(part)
                    if snapshot.ahead:  # with the row what is in it goes: it would be counted twice
                        with self._shown(snapshot):
                            tail.cover(part.touched, ahead)
                    if part.last:
                        store.covered = covered
                        self._lay(snapshot, tail, covered, None)
        return made.keys

    def settle(self, snapshot: Snapshot, tail: Tail | None, covered: Offsets | None) -> None:
        """A store's state by the changelog is another now, and has this of the topic: show on top of it what is pending still.
        None: that is not known, or it cannot be folded on; then nothing is."""
        with self.lock, self.turn, WAY:
            self._lay(snapshot, tail, covered, None)

    def arrived(self, found: pa.Table) -> None:
        """Show some records of the topic (:data:`api.replica.arrivals.RECORDS`), in the order of their offsets. Those that were here
        before are passed over."""
        found = after(found, self._next)
        if not found.num_rows:
            return
        new = self._parse(found)
        with self.lock:
            if self._parser and self._parser[0] != self._known():  # another one took a store's place meanwhile
                new = self._parse(found)
            places = zip(found["_partition"].to_pylist(), found["_offset"].to_pylist(), strict=True)
            self._next.update({partition: offset + 1 for partition, offset in places})
            if (newest := found["_timestamp"][-1].value) is not None:
                self._seen = newest / 1000
            before = Rows() if self._pending is None else self._pending
            self._pending = before.added({name: new[name].combine_chunks() for name in self._columns})
            new = new.append_column(NUMBER, pa.array(np.arange(before.end, self._pending.end)))
            with self.turn:  # once: each time it may have to wait for a fold
                for store in self._stores:
                    self._lay(store.snapshot, store.tail, store.covered, new)
        self._wake()

    def reached(self, ends: Offsets) -> None:
        """Up to some partitions' ends all is read; what was there besides events is none."""
        with self.lock:
            self._ended.update(ends)
            further = {partition: end for partition, end in ends.items() if end > self._next.get(partition, 0)}
            if further:
                self._next.update(further)
                with self.turn, WAY:
                    for store in self._stores:
                        self._lay(store.snapshot, store.tail, store.covered, None)
        if further:
            self._wake()

    def skip(self) -> None:
        """Go on from where the changelog is, if that is further."""
        with self.lock:
            for partition, offset in (self._covered or {}).items():
                if offset > self._next.get(partition, 0):
                    self._next[partition] = self._since[partition] = offset

    def recreated(self) -> str | None:
        """That the topic is not the one that the changelog is of, as of a moment ago; None where it is, or cannot be known."""
        if self._id is None:
            return None
        try:
            return recreated(self._stream.topic, self._id, self._lookout.find(SAME_SECONDS))
        except KafkaUnavailable:
            return self.error

    def status(self) -> dict[str, Any]:
        """What ``GET /stores/{store}`` says of it; ``pending`` are events, ``behind`` offsets. None: what there is is of another topic."""
        behind = sum(max(0, high - self._next.get(p, 0)) for p, high in self._highest.items())
        lag_ms = max(0, round((time.time() - self._seen) * 1000)) if behind else 0
        pending = self._pending
        return {
            "state": self.state,
            "offsets": {str(p): o for p, o in sorted(self._next.items())},
            "pending": 0 if pending is None else len(pending),
            "behind": None if self.error else behind,
            "lag_ms": None if self.error else lag_ms,
        }

    def _parse(self, found: pa.Table) -> pa.Table:
        known = self._known()
        if self._parser is None or self._parser[0] != known:
            stores = self._config.stores_of(self._stream.name)
            more: dict[str, str] = {}
            for rule, types in known:
                more |= keyed(rule, types)
            self._parser = known, Parser(self._db, self._stream, [rule for rule, _ in known], stores, more)
        return self._parser[1].parse(found)

    def _known(self) -> list[tuple[Rule, dict[str, str]]]:
        """The stores' rules, and the types of the states that are folded on; of the others none."""
        stores = ((store.snapshot, store.tail) for store in self._stores)
        return [(found.rule, found.types if tail else {}) for found, tail in stores if found.rule]

    def _forget(self) -> None:
        """Show nothing but the changelog."""
        self._pending = None
        self._since, self._next, self._highest, self._ended = {}, {}, {}, {}
        with self.turn, WAY:
            for store in self._stores:
                store.snapshot.clear()

    def _trim(self) -> None:
        """Forget what every store has by the changelog."""
        if self._pending is None:
            return
        known = [store.covered for store in self._stores if store.tail is not None and store.covered is not None]
        least = dict(self._next)
        if known:
            least = {p: min(covered.get(p, 0) for covered in known) for p in set().union(*known)}
        self._since = {p: max(least.get(p, 0), self._since.get(p, 0)) for p in {*least, *self._since}}
        if not len(self._pending):
            return
        left = after(self._pending.numbered().select(PLACE), least)
        if left.num_rows < len(self._pending):
            self._pending = self._pending.kept(left[NUMBER].to_numpy())

    def _ahead(self) -> dict[str, int]:
        return {str(p): o for p, o in self._next.items()}

    def _fits(self, tail: Tail | None, covered: Offsets | None) -> bool:
        """Whether what is pending can be shown on top of what a store has by the changelog."""
        if tail is None or covered is None or not tail.ready or self._pending is None:
            return False
        # Not where something between the two is missing: the store is behind its changelog, which has overtaken the topic's.
        return all(since <= covered.get(p, 0) for p, since in self._since.items())

    def _lay(self, snapshot: Snapshot, tail: Tail | None, covered: Offsets | None, new: pa.Table | None) -> None:
        """Show the pending events on top of a store's state: again, or only some new ones. For whose turn it is."""
        ahead = self._ahead()
        if not self._fits(tail, covered):
            snapshot.clear()
            return
        assert tail and covered is not None and self._pending is not None
        with self._shown(snapshot):
            if not snapshot.ahead:  # nothing is shown so far, or nothing any more
                snapshot.fold = partial(self._settle, tail)
                events = tail.lay(after(self._pending.numbered(), covered), self._pending, ahead)
                # Not of the tail, which has the snapshot: the two would hold each other.
                snapshot.pending = partial(self._pending_of, events)
            elif new is not None:
                tail.more(after(new, covered), self._pending, ahead)
            else:
                tail.cover(list(tail.covered(covered)), ahead)

    def _pending_of(self, events: Ahead, snapshot: Snapshot, key: Key) -> Pending:
        """What is pending of a key on top of the position that the snapshot has."""
        with self.lock:  # or a commit could move the one and not yet the other
            ahead = snapshot.ahead
            return Pending(snapshot.position, events.of_one(key) if ahead else None, ahead)

    def _settle(self, tail: Tail, keys: Sequence[Key]) -> None:
        done = threading.Event()
        self._asked.put(Asked(tail, keys, done))
        if self._folder is None:
            with self.turn:
                if self._folder is None:
                    self._folder = threading.Thread(target=self._fold, name=f"fold {self._stream.name}", daemon=True)
                    self._folder.start()
        done.wait()

    def _fold(self) -> None:
        """Fold what is asked for; and of a store that is read now and then the rest, or ever more of those who read would have to wait.
        In one thread: each that ever did keeps some memory, and there are hundreds."""
        # Until when. One that was replaced is not kept for that, nor by what was asked for while this waits for more.
        read: WeakKeyDictionary[Tail, float] = WeakKeyDictionary()
        due = 0.0
        while True:
            self._fold_asked(self._all_asked(max(0.0, due - time.monotonic()) if read else None), read)
            if time.monotonic() >= due and not self._fold_unasked(read):
                due = time.monotonic() + UNASKED_SECONDS

    def _all_asked(self, timeout: float | None) -> list[Asked]:
        asked: list[Asked] = []
        with suppress(queue.Empty):
            asked.append(self._asked.get(timeout=timeout))
            while True:
                asked.append(self._asked.get_nowait())
        return asked

    def _fold_asked(self, asked: Sequence[Asked], read: WeakKeyDictionary[Tail, float]) -> None:
        """All that waits at once."""
        for tail in dict.fromkeys(found.tail for found in asked):
            read[tail] = time.monotonic() + READ_SECONDS
            here = [found for found in asked if found.tail is tail]
            try:
                with self.turn, WAY, self._shown(tail.snapshot):
                    tail.settle([found.keys for found in here])
            finally:
                for found in here:
                    found.done.set()

    def _fold_unasked(self, read: WeakKeyDictionary[Tail, float]) -> bool:
        """Some keys that nobody waits for; whether there are as many more of them."""
        left = False
        for tail, until in list(read.items()):
            snapshot = tail.snapshot
            with self.turn, WAY, self._shown(snapshot):
                tail.settle_some(UNASKED)
            left |= len(snapshot.stale) >= UNASKED
            if time.monotonic() > until or not snapshot.fold:
                del read[tail]
        return left

    @contextmanager
    def _shown(self, snapshot: Snapshot) -> Iterator[None]:
        """Where what is pending cannot be shown, nothing of it is."""
        try:
            yield
        except BaseException as error:
            _raise(error)
            if str(error) != self._error:
                log.warning("stream %s: what is not in the changelog yet is not shown: %s", self._stream.name, error)
            self._error = str(error)
            snapshot.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self._covered is None:  # nothing to show it on top of
                    self._stop.wait(IDLE)
                    continue
                self._check(AGAIN_SECONDS)
                consumer = self._consumer()
                try:
                    self._follow(consumer)
                finally:
                    consumer.close()
            except sqlglot.errors.SqlglotError as error:
                log.info("stream %s is not followed ahead of its changelog: %s", self._stream.name, error)
                self.state = OFF
                return
            except TopicRecreated as error:
                self._rest(RECREATED, str(error))
            except BaseException as error:
                _raise(error)
                self._rest(AWAY, f"{error}; trying again")

    def _rest(self, state: str, reason: str) -> None:
        if self.state != state:
            log.warning("stream %s: %s", self._stream.name, reason)
        self.state = state
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

    def _check(self, age: float) -> Topic | None:
        """The topic, as it was at most ``age`` seconds ago; None where there is none. Raises KafkaUnavailable, and TopicRecreated where it
        is not the one that the changelog, or what is pending, is of: then nothing is shown of either."""
        found = self._lookout.find(age)
        with self.lock:
            if self._id is None and found:
                self._id = found.id
            self.error = recreated(self._stream.topic, self._id, found)
            if self.error is None:
                return found
            self._forget()
            if not self._covered:  # nothing is in the changelog: the new one is as good
                self._id = None
        self._wake()
        raise TopicRecreated(self.error)

    def _follow(self, consumer: Consumer) -> None:
        assigned: set[int] = set()
        pace = Pace()
        while not self._stop.is_set() and self._covered is not None:
            topic = self._check(PARTITIONS_SECONDS)
            self.state = FOLLOWING
            found = set(topic.partitions) if topic else set()
            if found != assigned:
                self._assign(consumer, found)
                assigned = found
            first = consumer.poll(IDLE)
            # One without a payload is false to Python.
            messages = [] if first is None else [first, *consumer.consume(AT_ONCE - 1, pace.wait())]
            if good := [message for message in messages if message.error() is None]:
                self._check(SAME_SECONDS)
                self._learn(good)
                with pace.round(), WAY:  # once in a round: whenever it is left, the loop takes the interpreter
                    self.arrived(records(good))
            if ends := _ends(messages):
                self.reached(ends)
            self._measure(consumer, assigned, cached=True)
            if self._too_many(1.0):
                self._measure(consumer, assigned, cached=False)  # what is in an open transaction cannot be read yet
            if self._too_many(1.0):
                self._step_aside(consumer, assigned)
                self._assign(consumer, assigned)
            elif self._overtaken():
                self._assign(consumer, assigned)

    def _learn(self, messages: Sequence[Message]) -> None:
        """Ask for the schemas that records have and nobody knows, before the loop is to wait: it would wait for the registry."""
        if self._stream.registered and self._parser:
            named = ((message.value(), dict(message.headers() or ()).get(ID_HEADER)) for message in messages)
            self._parser[1].learn(ids_of(named))

    def _assign(self, consumer: Consumer, partitions: set[int]) -> None:
        """Read on from what is read or covered; a partition of which nothing is, from its beginning."""
        self.skip()
        start = {p: self._next.get(p, OFFSET_BEGINNING) for p in partitions}
        consumer.assign([TopicPartition(self._stream.topic, p, offset) for p, offset in start.items()])

    def _overtaken(self) -> bool:
        return any(offset > self._next.get(p, 0) for p, offset in (self._covered or {}).items())

    def _measure(self, consumer: Consumer, partitions: set[int], cached: bool) -> None:
        """Find out where the partitions end. ``cached`` is what the last fetch has said, which costs nothing: it counts transactions that
        are open, but for a partition whose end is reached."""
        for partition in partitions:
            if cached and partition in self._ended and self._ended[partition] == self._next.get(partition):
                self._highest[partition] = self._ended[partition]
                continue
            place = TopicPartition(self._stream.topic, partition)
            found = consumer.get_watermark_offsets(place, timeout=1.0, cached=cached)
            if found and found[1] >= 0:
                self._highest[partition] = found[1]

    def _too_many(self, share: float) -> bool:
        """Whether more than a share of the limits is left to read, or pending."""
        with self.lock:
            covered = self._covered or {}
            read = {p: max(self._next.get(p, 0), covered.get(p, 0)) for p in self._highest}
            left = sum(max(0, high - read[p]) for p, high in self._highest.items())
            pending = 0 if self._pending is None else len(self._pending)
        return left > share * BEHIND or pending > share * PENDING

    def _step_aside(self, consumer: Consumer, partitions: set[int]) -> None:
        self.state = ASIDE
        log.info("stream %s: more events than can be shown ahead of the changelog", self._stream.name)
        consumer.unassign()
        while not self._stop.wait(ASIDE_SECONDS) and self._too_many(0.5):
            self._check(PARTITIONS_SECONDS)
            self._measure(consumer, partitions, cached=False)


def _ends(messages: Sequence[Message]) -> dict[int, int]:
    """Where the ends of partitions are that the client has come to."""
    ends: dict[int, int] = {}
    for message in messages:
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error and error.code() == KafkaError._PARTITION_EOF and partition is not None and offset is not None:
            ends[partition] = offset
    return ends


def _raise(error: BaseException) -> None:
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
