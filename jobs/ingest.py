"""Kafka → ``changelog/<stream>`` and ``quarantine/<stream>``: each event once, identified by its coordinates.

A batch is committed in three steps; what a crash after each leaves behind:

1. Parse the batch once, kept in memory, and count it. *Nothing is written.*
2. Append what is refused to the quarantine, and to ``requeued/<stream>`` which refused records have come back
   (:mod:`statehouse.requeue`). *The batch comes again; its rows are known by their coordinates, which the quarantine's own rows
   tell at the next start, and are not appended again. That a record has come back may be noted twice, and says no more.*
3. Append what is accepted to the changelog, with the topic's id and the next offset of every partition in the very
   same commit (``userMetadata``). *The batch is done: the next start goes on from those offsets.*

So the position is in the table and nowhere else. Spark wants a checkpoint folder; each start gets a new,
empty one, which makes "the checkpoint was lost" the way that every start goes.

The next offset is where the batch ends, and not behind its last record: a transaction's marker has an offset and is no
record, nor is what was aborted or compacted away. A batch of nothing else moves the position by a commit without rows.

Offsets are of one topic. Before a batch is committed, and after its records were read, the brokers are asked for the topic's
id: a topic that was deleted and made again has another one, whatever its offsets are.

The module is longer than others: the topics, the numbers of their partitions, the position and the three steps are one writer's state.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from jobs import metrics
from jobs.spark import databricks
from jobs.spark.change_feed import from_offsets
from jobs.spark.consumer import is_unreadable, read_records
from jobs.spark.expressions import rule_of
from jobs.spark.guard import Guard
from jobs.spark.lookup import Lookups
from jobs.spark.parse import accepted_rows, numbered, parse, refused_rows, requeued_rows, time_reason
from jobs.spark.session import ADAPTIVE
from jobs.spark.tables import create_requeued, create_stream, next_offsets, numbers_by_rows
from statehouse import kafka
from statehouse.config.models import ISOLATION, Config, Stream
from statehouse.errors import (
    DefinitionChanged,
    KafkaUnavailable,
    LakeBusy,
    RegistryUnavailable,
    StatehouseError,
    TopicRecreated,
    first_line,
)
from statehouse.formats.columns import grown, registry
from statehouse.formats.format import UNKNOWN, Schemas
from statehouse.formats.registry import wanted_by
from statehouse.numbering import Numbering, Place, differs, topic_names
from statehouse.progress import SILENT, Progress
from statehouse.records import RecordDecoder, decoder_for, fields_of
from statehouse.tables import LOADED, metadata, opened, table

log = logging.getLogger("statehouse")
COMMITS = "ingest"  # the application id of the changelog's txn action: a number that each commit raises
BATCH = 1_000_000  # events a micro-batch at the most: bounds its memory when there is much to catch up on
USABLE_TIME = f"CASE WHEN timestamp BETWEEN '{kafka.FIRST_TIME}' AND '{kafka.LAST_TIME}' THEN timestamp END"
FEW = 10_000  # records that are read sooner without Spark's source than its query starts
WAITING = f"CASE WHEN startswith(_reason, '{UNKNOWN}') THEN _reason END"  # for a schema
REGISTRY_SECONDS = 5.0  # until a registry that was away is asked again
TOPIC_SECONDS = 5.0  # how often it is looked whether the topic is still the same: without a batch nothing else tells


class Ingest:
    """One stream's ingestion: holds the position in memory and moves it with each commit. ``working`` is called now and then while
    batches succeed; ``progress`` is told of what there is to ingest, and of each batch."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        stream: Stream,
        working: Callable[[], None] = lambda: None,
        progress: Progress = SILENT,
    ) -> None:
        self.working, self.progress = working, progress
        self.behind = 0  # offsets to go, when the topics were looked at last
        self.ends: dict[Place, int] = {}  # of their partitions then
        self.names: set[str] = set()  # of the topics that were there then
        self.followed: list[str] = []  # and those of them that are read
        self.spark, self.config, self.stream = spark, config, stream
        self.changelog = table(config, "changelog", stream.name)
        self.quarantine = table(config, "quarantine", stream.name)
        stores = config.stores_of(stream.name)
        self.lookups = Lookups(spark, config, stream) if stream.lookups else None
        rules = [rule_of(spark, config, store) for store in stores]
        self.decoder = decoder_for(stream, stores, rules, config.settable if config.tasks is not None else None)
        self.guard = Guard(f"stream {stream.name}")
        self.busy = threading.Lock()
        self.stopping = threading.Event()
        self.events = self.refused = 0  # of this run
        self.away: RegistryUnavailable | None = None  # why the batch in hand failed, where that is the registry's fault
        create_stream(spark, config, stream)
        self._restore()

    def _restore(self) -> None:
        """Read the position from the changelog, and how far the quarantine is ahead of it."""
        self.committed = position = metadata(self.changelog, "offsets")
        if position is None:  # the log is cleaned of old commits after a month: then the rows themselves tell
            position = {
                "offsets": next_offsets(self.changelog, f"> {LOADED}"),
                **numbers_by_rows(self.changelog, self.quarantine),
            }
        if trouble := differs(self.stream, position):
            raise DefinitionChanged(f"stream {self.stream.name}: {trouble}")
        self.offsets = {int(p): o for p, o in position["offsets"].items()}
        self.numbering = Numbering.of(self.stream, position)
        self.quarantined_to = next_offsets(self.quarantine, f"> {LOADED}")
        log = opened(self.changelog)
        self.commit = (log.transaction_version(COMMITS) or 0) if log else 0

    def starting_offsets(self, topics: Mapping[str, kafka.Topic]) -> str:
        """Spark's ``startingOffsets``: the position, and the earliest of a partition that is new."""
        return json.dumps(
            {name: {str(p): self._offset((name, p), -2) for p in topic.partitions} for name, topic in topics.items()}
        )

    def _offset(self, place: Place, default: int = 0) -> int:
        """The next offset of a partition."""
        number = self.numbering.number(*place)
        return default if number is None else self.offsets.get(number, default)

    def check_topics(self) -> dict[str, kafka.Topic]:
        """The topics, by name; says what Kafka no longer has, refuses a topic that was made anew, whose coordinates would lie: of several
        it is left out."""
        topics = kafka.find_topics(self.config.kafka, topic_names(self.config.kafka, self.stream))
        self.names = set(topics)
        if self.stream.several:
            if trouble := self.numbering.recreated(topics):
                log.warning("%s: %s. Its other topics go on", self.stream.name, trouble)
            topics = self.numbering.same(topics)
        else:
            self._check_ids(topics)
        self.numbering, self.followed = self.numbering.seen(topics), list(topics)
        # A position may be amid a transaction: of a lake from when those that are open were read, too.
        every = {**self.config.kafka, ISOLATION: "read_uncommitted"}
        self.behind, self.ends = 0, {}
        for (topic, partition), (low, high) in kafka.ends_of(every, topics, timeout=10).items():
            self.ends[topic, partition] = high
            position = self._offset((topic, partition))
            if position > high:
                raise TopicRecreated(
                    f"stream {self.stream.name}: {topic}/{partition} ends at {high}, the changelog has it to "
                    f"{position}: the topic was deleted and made again. Give the stream a new name"
                )
            self.behind += high - max(position, low)
            if position < low:
                lost = low - position
                log.warning(
                    f"{self.stream.name}: Kafka has deleted up to {lost} events of {topic}/{partition} before they were read"
                )
        return topics

    def _check_ids(self, topics: Mapping[str, kafka.Topic] | None = None) -> None:
        """Raise TopicRecreated where one of the topics, as they are now, is not the one that the position is of."""
        if topics is None:
            topics = kafka.find_topics(self.config.kafka, self.followed or self.numbering.topics)
        if trouble := self.numbering.recreated(topics):
            raise TopicRecreated(f"stream {self.stream.name}: {trouble}")

    def batch(self, records: DataFrame, ends: Mapping[Place, int] | None = None, here: bool = False) -> None:
        """Commit one batch: the three steps above. Called by Spark's ``foreachBatch``, and by tests. ``ends`` is where the batch
        ends in each partition; None: behind its last records. ``here`` as in :func:`jobs.spark.parse.parse`."""
        with self.busy:
            if self.stopping.is_set():
                return
            records.sparkSession.conf.set("spark.sql.shuffle.partitions", "2")
            records.sparkSession.conf.set(ADAPTIVE, "false")
            places = ends or (records.select("topic", "partition").distinct().collect() if self.stream.several else ())
            numbering = self.numbering.grown((topic, partition) for topic, partition in places)
            if numbering is not self.numbering:  # before anything is written by these numbers
                self._commit_nothing(numbering)
            records = numbered(records, numbering) if self.stream.several else records
            new_records = records.where(from_offsets(self.offsets)).withColumn("timestamp", F.expr(USABLE_TIME))
            parsed, counts = self.guard.run(records.sparkSession, lambda: self._parse(new_records, here))
            try:
                reached = {row[0]: row[3] + 1 for row in counts}
                if ends is not None:
                    reached = {n: o for place, o in ends.items() if (n := numbering.number(*place)) is not None}
                # Never back: an open transaction may begin before a position from when such were read, too.
                further = {p: o for p, o in reached.items() if o > self.offsets.get(p, 0)}
                if numbering.ids:  # the records are read: they are these topics' if they are still there
                    self._check_ids()
                if not further:
                    return
                count, bad, again = (sum(row[n] for row in counts) for n in (1, 2, 4))
                if bad:
                    self._append_refused(parsed)
                if again:
                    path = create_requeued(self.spark, self.config, self.stream)
                    requeued_rows(parsed, self.stream).coalesce(1).write.format("delta").mode("append").save(path)
                self._append_accepted(parsed, numbering, {**self.offsets, **further}, count - bad, bad)
                self.progress.advance(count)
            finally:
                parsed.unpersist()

    def _parse(self, records: DataFrame, here: bool) -> tuple[DataFrame, list[Row]]:
        """The parsed records, kept in memory, and of each partition its number, how many there are, how many of them are refused, the
        last offset, and how many were sent again. Where one has a schema that is not known, the registry is asked and all are parsed
        again; RegistryUnavailable where it does not tell."""
        decoder = self.decoder
        while True:
            parsed = parse(records, self.stream, decoder, self.lookups, self.guard.text, here).persist()
            try:
                waiting = [F.collect_set(F.expr(WAITING))] if self.stream.registered else []
                counts = parsed.groupBy("_partition").agg(
                    F.count("*"), F.count("_reason"), F.max("_offset"), F.count("_requeued"), *waiting
                )
                rows = counts.collect()
                ids = wanted_by(reason for row in rows for reason in row[5]) if waiting else []
                if not ids:
                    return parsed, rows
                decoder = self._learn(registry(self.stream).find(ids), decoder)
            except Exception:
                parsed.unpersist()
                raise
            parsed.unpersist()

    def _learn(self, schemas: Schemas, decoder: RecordDecoder) -> RecordDecoder:
        """A batch's decoder that knows further schemas. They are kept with the changelog, which gets the columns that are new in them."""
        # That there is none of an id may not stay so.
        known = {id: schema for id, schema in schemas.items() if schema is not None}
        if known:
            stream = grown(self.stream, known)
            create_stream(self.spark, self.config, stream)
            self.stream, fields = stream, fields_of(stream)
            self.decoder = dataclasses.replace(self.decoder.knowing(known), fields=fields)
            decoder = dataclasses.replace(decoder, fields=fields)
        return decoder.knowing(schemas)

    def _append_refused(self, parsed: DataFrame) -> None:
        reason = [time_reason(parsed, self.stream)] if self.guard.up else []
        rows = refused_rows(parsed, self.stream, *reason).where(from_offsets(self.quarantined_to))
        rows.coalesce(1).write.format("delta").mode("append").save(self.quarantine)

    def _append_accepted(
        self, parsed: DataFrame, numbering: Numbering, offsets: dict[int, int], good: int, bad: int
    ) -> None:
        self._commit(accepted_rows(parsed, self.stream), numbering, offsets, good)
        self.events += good
        self.refused += bad
        metrics.EVENTS.labels(self.stream.name).inc(good)
        metrics.QUARANTINED.labels(self.stream.name).inc(bad)

    def _commit(self, rows: DataFrame, numbering: Numbering, offsets: dict[int, int], good: int) -> None:
        """Append rows, as many as are ``good``, and the position behind them."""
        position = {**numbering.described(), "offsets": {str(p): o for p, o in sorted(offsets.items())}}
        done = {"userMetadata": json.dumps(position)}
        # A txn makes a commit of a batch without accepted events, and a conflict of a second writer where no lock
        # keeps that one out. It costs as much as all the rest of a small batch: Delta lists the whole table for it.
        if not good or databricks.has_no_locks(self.changelog):
            self.commit += 1
            done |= {"txnAppId": COMMITS, "txnVersion": str(self.commit)}
        self._check_alone(self.committed)
        rows.write.format("delta").mode("append").options(**done).save(self.changelog)
        self._check_alone(position)  # a commit number that is there already is passed over in silence
        self.committed, self.numbering, self.offsets = position, numbering, offsets

    def _commit_nothing(self, numbering: Numbering) -> None:
        """Commit which numbers there are."""
        nothing = self.spark.read.format("delta").load(self.changelog).limit(0)
        self._commit(nothing, numbering, self.offsets, 0)

    def _check_alone(self, position: dict[str, Any] | None) -> None:
        """The changelog's position is the one that we know of."""
        if metadata(self.changelog, "offsets") != position:
            raise LakeBusy(f"{self.changelog} was written by another process meanwhile; one writer a table")

    def begin(self) -> dict[str, kafka.Topic]:
        """The topics that are to be read, by name, once all is known of them; none where there is nothing to read."""
        self.numbering = self.numbering.without_ids_of_unread(self.offsets)
        topics = self.check_topics()
        if not topics:
            return topics
        if self.stream.several and (self.committed or {}).get("topics") != self.numbering.described()["topics"]:
            # At once: who follows the topics ahead of the changelog has the numbers from there.
            self._commit_nothing(self.numbering)
        self.progress.begin(f"ingesting {self.stream.name}", lambda: self.behind)
        return topics

    def start(self, topics: Mapping[str, kafka.Topic], once: bool = False) -> Any:
        """Start the streaming query from the position; ``once``: what is there now, then it ends."""
        folder = Path(self.config.root, "_checkpoints", self.stream.name)
        if databricks.has_no_locks(
            self.config.root
        ):  # nothing is read back from there: it would be requests, and litter
            folder = Path(tempfile.mkdtemp(prefix="statehouse-"))
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint = folder / str(uuid.uuid4())

        def commit(records: DataFrame, batch: int) -> None:
            try:
                self.batch(records, self._ends(checkpoint, batch))
            except RegistryUnavailable as error:  # Spark tells of it in many words
                self.away = error
                raise

        reader = (
            self.spark.readStream.format("kafka")
            .options(**{f"kafka.{k}": v for k, v in databricks.client(self.config.kafka).items()})
            .option("subscribe", ",".join(topics))
            .option("includeHeaders", True)
            .option("startingOffsets", self.starting_offsets(topics))
            .option("maxOffsetsPerTrigger", BATCH)
            .option("failOnDataLoss", False)  # what Kafka has deleted is said in check_topics; the rest goes on
        )
        if not once:
            # Each batch is a commit, and all commits of a table are listed for each. After a pause a batch is at once.
            delay = f"{self.config.merge_every}ms"
            reader = reader.option("minOffsetsPerTrigger", BATCH).option("maxTriggerDelay", delay)
        writer = (
            reader.load()
            .writeStream.queryName(f"ingest {self.stream.name}")
            .foreachBatch(commit)
            .option("checkpointLocation", checkpoint.as_uri())
        )
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _ends(self, checkpoint: Path, batch: int) -> dict[Place, int]:
        """Where a batch ends in each partition: Spark notes it before the batch begins, in the last line of a file."""
        noted = json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
        return {(topic, int(p)): offset for topic, ends in noted.items() for p, offset in ends.items()}

    def stop(self, query: Any) -> None:
        """Let the batch in hand finish, then stop the query; a batch that begins meanwhile does nothing."""
        self.stopping.set()
        with self.busy:
            pass
        query.stop()

    def run(self, once: bool = False) -> None:
        """Ingest until stopped (or once), through what Kafka does meanwhile: away, back, slow. A registry that is away is waited for.

        ``once`` gives Kafka 30 seconds to answer; without it there is no limit. Raises StatehouseError where a batch fails thrice.
        """
        patience = 30.0 if once else float("inf")
        failures = 0
        while not self.stopping.is_set():
            try:
                names = functools.partial(topic_names, self.config.kafka, self.stream)
                create = not isinstance(self.stream.topics, str)
                kafka.await_topics(self.config.kafka, names, create, self.stopping.is_set, log.warning, patience)
                topics = self.begin()
                if once and (not topics or (self.behind <= FEW and self._read_few())):
                    return None
                if not topics:
                    self.stopping.wait(TOPIC_SECONDS)
                    continue
                query = self.start(topics, once)
            except (TopicRecreated, DefinitionChanged):
                raise
            except StatehouseError as error:
                if self.stopping.is_set():
                    return None
                if once:
                    raise
                log.warning(f"{self.stream.name}: {error}; trying again")
                self.stopping.wait(1)
                continue
            before = dict(self.offsets)
            try:
                more = self._watch(query, once)
            except TopicRecreated:
                with self.busy:  # what is in hand is committed or refused
                    pass
                query.stop()
                if self.offsets and not self.stream.several:
                    raise
                continue
            if self.stopping.is_set():
                return self.stop(query)
            if more:  # a batch in hand comes again
                query.stop()
                self._restore()
                continue
            failure = query.exception()
            if failure is None:
                return None
            away, self.away = self.away, None
            if away is not None:
                if once:
                    raise away
                log.warning(f"{self.stream.name}: {away}; trying again")
                self.stopping.wait(REGISTRY_SECONDS)
                continue
            failures = 0 if self.offsets != before else failures + 1
            if failures >= 3:
                raise StatehouseError(f"stream {self.stream.name}: {first_line(failure)}")
            log.warning(f"{self.stream.name}: {first_line(failure)}; going on from the changelog's offsets")
            self.stopping.wait(min(2**failures, 30))
            self._restore()  # the batch that failed may have been committed
            if is_unreadable(failure) and self._read_past():
                failures = 0
        return None

    def _read_few(self) -> bool:
        """Ingest what there is now without Spark's source; whether that went well."""
        try:
            while self.behind > 0 and self._read_some():
                self.behind = sum(max(0, end - self._offset(place)) for place, end in self.ends.items())
        except StatehouseError as error:
            if not (self.stream.several and isinstance(error, TopicRecreated)):
                raise
            return False  # the query leaves that topic out
        except Exception as error:
            log.warning(f"{self.stream.name}: {first_line(error)}; going on from the changelog's offsets")
            self._restore()  # the batch that failed may have been committed
            return False
        return True

    def _read_past(self) -> bool:
        """Ingest what comes next without Spark's source; whether anything did."""
        try:
            self.check_topics()
            return self._read_some()
        except KafkaUnavailable as error:
            log.warning(f"{self.stream.name}: {error}; trying again")
            return False

    def _read_some(self) -> bool:
        before = self.offsets
        starts = {place: self._offset(place) for place in self.ends}
        self.batch(*read_records(self.spark, self.config.kafka, starts), here=True)
        return self.offsets != before

    def _watch(self, query: Any, once: bool) -> bool:
        """Until a query has ended, or is to be; whether that is since there are further topics. Raises TopicRecreated, also where the
        query sees nothing new in the new topic."""
        due = time.monotonic() + TOPIC_SECONDS
        while query.isActive and not self.stopping.is_set():
            self.stopping.wait(0.1 if once else 0.2)  # awaiting its end would raise what ended it
            if time.monotonic() < due:
                continue
            due = time.monotonic() + TOPIC_SECONDS
            with suppress(KafkaUnavailable):  # the query waits for it
                self._check_ids()
                if self.stream.several and not once:
                    names = topic_names(self.config.kafka, self.stream)
                    if not set(names) <= self.names:
                        return True
                if query.lastProgress:
                    self.working()
        return False
