"""``changelog/<stream>`` → a topic or a table of the user's: those events that pass, in the shape that is asked for. (Of a store's
events see :mod:`jobs.store_route`.)

A round of one route, over the changelog's rows of (p, head], p being its position; what a crash after each step leaves behind:

* To a table: append the rows; the same commit holds ``txn(route:<name>) = head``. *Exactly once.*
* To a topic: 1. Send the messages. *They are sent again, with the same headers: the event's coordinates, and which of its
  messages each one is. A reader that has seen them can drop them.* 2. Commit the position, to the table ``positions``. *Done.*

It is reports that are routed: what agents said. Sets and purges concern states.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from jobs.spark import change_feed, registered
from jobs.spark.guard import TRY, Guard, error_of
from jobs.spark.kafka_sink import Sent, headers, json, send, size
from jobs.spark.position import Position
from jobs.spark.session import new_session
from statehouse import kafka
from statehouse.config.models import Config, Route, Stream
from statehouse.errors import DefinitionChanged, StatehouseError
from statehouse.fold import Rule
from statehouse.formats.format import AVRO
from statehouse.headers import PART_HEADER, REVISION_HEADER, SOURCE_HEADER
from statehouse.spark_sql import quoted
from statehouse.tables import TOPIC_PARTITION, changelog_columns, coordinates, opened, route_position, table
from statehouse.values import safe

STATE = "state"  # beside offsets: of which version of the state the position is
SOURCE, PART, ORDERED = "_made_of", "_part", "_ordered"
THROWN = "what is asked for cannot be computed"
REPORTED = "_op = 'report'"
# What the events of a store have besides.
BEFORE, AFTER, REVISION, RESEND = "before", "after", "revision", "resend"
REVISED = re.compile(r"\brevision\b", re.IGNORECASE)


def columns_of(stream: Stream, route: Route, rule: Rule | None) -> tuple[dict[str, str], list[str]]:
    """The columns that a route's expressions may name, with their types; and the names that ``*`` stands for. ``rule`` is that of the store
    whose events are passed on: its key, ``before`` and ``after`` hide columns of the event with the same name."""
    types, named = changelog_columns(stream), [column.name for column in stream.columns]
    if rule is None:
        return types, named
    states = ", ".join(f"{quoted(name)}: {kind}" for name, (kind, _) in shown_columns(rule).items())
    own = {**rule.keys, **dict.fromkeys((BEFORE, AFTER), f"STRUCT<{states}>")}
    if route.late == RESEND:
        own[REVISION] = "INT"
    hidden = [name.lower() for name in own]
    return (
        {**{name: kind for name, kind in types.items() if name.lower() not in hidden}, **own},
        [*(name for name in named if name.lower() not in hidden), *own],
    )


def shown_columns(rule: Rule) -> dict[str, tuple[str, str]]:
    """The columns of ``before`` and ``after``: for each its type, and Spark's SQL for it over rows of the state. They are those that the API
    shows, without the key, and without ``changed_at`` and ``reset``, which do not come from the event."""
    hidden = (*rule.keys, "changed_at", "reset")
    columns = {n: (t, quoted(n)) for n, t in rule.state_columns.items() if not n.startswith("_") and n not in hidden}
    if rule.store.reducer.per_agent:
        standing = "map_filter(reports, (_agent, _report) -> _report.value IS NOT NULL)"
        shown = "struct(_report.value AS value, _report.event_time AS event_time)"
        columns["reports"] = (
            f"MAP<STRING, STRUCT<value: {rule.value_input}, event_time: TIMESTAMP>>",
            f"transform_values({standing}, (_agent, _report) -> {shown})",
        )
    return columns


def shape_events(events: DataFrame, route: Route, everything: Sequence[str], *more: str) -> DataFrame:
    """Rows of the changelog as the route's rows, with ``more`` columns; ``everything`` is what ``*`` stands for. Raises Spark's
    AnalysisException or ParseException."""
    passing = events if route.store else events.where(REPORTED)
    if route.where:
        passing = passing.where(safe(route.where))
    rows = passing.selectExpr(*more, *_select_list(route, everything))
    names, own = [name.lower() for name in rows.columns], {name.lower() for name in everything}
    if len(set(names)) < len(names):  # which is refused
        return rows
    # Of text that is not UTF-8, as bytes that are cast can be, no reader takes the file.
    texts = {f.name for f in rows.schema if isinstance(f.dataType, StringType) and f.name.lower() not in own}
    cells = ((quoted(name), name in texts) for name in rows.columns)
    return rows.selectExpr(*(f"try_validate_utf8({cell}) AS {cell}" if text else cell for cell, text in cells))


def _select_list(route: Route, everything: Sequence[str]) -> list[str]:
    names = [*map(quoted, everything)]
    expressions = [part for given in route.select for part in (names if given.strip() == "*" else [safe(given)])]
    # Without it nobody could tell a row from the one that it takes the place of.
    return (
        [*expressions, REVISION] if route.late == RESEND and not REVISED.search(" ".join(expressions)) else expressions
    )


class Router:
    """One route: holds nothing but what the file says; its position is in the table."""

    kind = "route"
    order: Sequence[str] = ()  # of a topic's messages with the same key
    in_order = False  # whether the rows come in that order, those of a message's key together
    several = False  # whether an event may have several rows before anything is selected

    def __init__(self, spark: SparkSession, config: Config, route: Route) -> None:
        self.spark, self.config, self.route = new_session(spark), config, route
        self.name = route.name
        self.stream = config.streams[config.stream_of(route)]
        self.changelog = table(config, "changelog", self.stream.name)
        self.position = Position(*route_position(config, route))
        self.guard = Guard(f"route {route.name}")
        self.columns, self.everything = columns_of(self.stream, route, None)

    def round(self) -> Sent | None:
        """Send what is new; None where nothing is. Raises StatehouseError where the changelog is another than the one that was
        sent, KafkaUnavailable, DefinitionChanged where the table's columns have other types."""
        return self.guard.run(self.spark, self._round)

    def _round(self) -> Sent | None:
        start, head, began = self.position.get(), self.head(), time.monotonic()
        if not head or start == head:  # version 0 is the empty table
            return None
        if start is not None and start > head:
            raise StatehouseError(
                f"route {self.name}: {self.changelog} ends at version {head}, the route has sent {start}: it was made anew. "
                "Give the route a new name"
            )
        try:
            return self._send_rows(
                change_feed.events(self.spark, self.config, self.stream, start, head), start, head, began
            )
        except Exception as error:
            if start is None or not change_feed.is_gone(error):
                raise
        # What the log has forgotten is told by the events' own coordinates.
        known = {int(part): offset for part, offset in self.position.read_note().items() if part != STATE}
        left = change_feed.events(self.spark, self.config, self.stream, None, head).where(
            change_feed.from_offsets(known, "_")
        )
        return self._send_rows(left, start, head, began)

    def head(self) -> int | None:
        """The changelog's version that there is to send; None: there is none yet."""
        log = opened(self.changelog)
        return log.version() if log else None

    def rows(self, log: DataFrame, start: int | None, head: int) -> DataFrame:
        """What is sent of some rows of the ``log``, those of (start, head]: rows of the :attr:`columns`."""
        return log

    def more(self) -> dict[str, Any]:
        """What is noted with the position, besides offsets."""
        return {}

    def _send_rows(self, log: DataFrame, start: int | None, head: int, began: float) -> Sent:
        ends = log.groupBy("_partition").agg(F.max("_offset"), F.count("*")).collect()
        note = {**self.position.read_note(), **{str(row[0]): row[1] + 1 for row in ends}, **self.more()}
        count = sum(row[2] for row in ends)
        events = self.rows(log, start, head)
        if self.guard.up:
            events = self._computable(events.localCheckpoint())
        if self.route.to.table:
            self._append(events, head, note)
        else:
            if count:
                self._send(events)
            self.position.move(head, note)
        return Sent(self.kind, self.name, start, head, count, time.monotonic() - began)

    def _append(self, events: DataFrame, head: int, note: dict[str, Any]) -> None:
        try:
            self.position.append(shape_events(events, self.route, self.everything), head, note)
        except AnalysisException as error:
            if "MERGE" not in str(error.getCondition()) and "SCHEMA" not in str(error.getCondition()):
                raise
            raise DefinitionChanged(
                f"route {self.name}: {self.route.to.table} has other columns: {str(error).splitlines()[0]}. Undo the change, or "
                "name another table"
            ) from error

    def _send(self, events: DataFrame) -> None:
        topic = self.route.to.topic
        assert topic
        kafka.create_topic(self.config.kafka, topic)
        largest = int(kafka.topic_settings(self.config.kafka, topic)["max.message.bytes"])
        messages = self.messages(events).persist()
        try:
            long = messages.where(size() > largest)
            if not long.isEmpty():
                self._refuse(long, events, largest)
            send(messages.where(size() <= largest), self.config, topic, largest)
        finally:
            messages.unpersist()

    def messages(self, events: DataFrame) -> DataFrame:
        """The messages of some rows of the changelog, and the event that each is made of."""
        given = [
            f"concat_ws(':', {', '.join(coordinates(self.stream))}) AS {SOURCE}",
            f"struct({', '.join(self.order)}) AS {ORDERED}",
        ]
        rows = shape_events(events, self.route, self.everything, *(given if self.order else given[:1]))
        told = StructType([field for field in rows.schema if field.name not in (SOURCE, ORDERED)])
        cells = [quoted(c) for c in told.names]
        value = F.struct(*cells) if self.route.to.format == AVRO else json(cells)
        if self.route.to.registered:
            schema = registered.schema_of(self.route.to, told)
            id = registered.register(self.config, self.route.to, schema)
            value = value if self.route.to.format == AVRO else registered.framed_json(value, id)
        part, revision = F.lit(0), [f"{ORDERED}.{REVISION}"] if REVISION in self.columns else []
        if self.route.multiplies or self.several:  # an event's rows stand together, in their order
            rows = rows.withColumn(PART, F.monotonically_increasing_id())
            places = [ORDERED, PART] if self.order else [PART]
            part = F.row_number().over(Window.partitionBy(SOURCE, *revision).orderBy(*places)) - 1
        key = F.expr(f"CAST({self.guard.text.format(safe(self.route.to.key or 'NULL'))} AS STRING)").alias("key")
        named = {SOURCE_HEADER: F.col(SOURCE), PART_HEADER: part}
        if revision:
            named[REVISION_HEADER] = F.col(revision[0])
        selected = rows.select(
            SOURCE, key, value.alias("value"), headers(named).alias("headers"), *([ORDERED] if self.order else [])
        )
        if self.route.to.format == AVRO:
            selected = registered.in_avro(selected, told, schema, id)
        unordered = self.order and not self.in_order
        return selected.repartition("key").sortWithinPartitions(ORDERED) if unordered else selected

    def _computable(self, events: DataFrame) -> DataFrame:
        """The events for which the route's expressions can be computed; the others go to the quarantine. (Where an event may become
        several rows, only ``where`` is tried.)"""
        shown = "TRUE" if self.route.multiplies else f"struct({', '.join(_select_list(self.route, self.everything))})"
        row = f"CASE WHEN {safe(self.route.where or 'TRUE')} THEN {shown} END"
        throws = f"{'TRUE' if self.route.store else REPORTED} AND {TRY.format(f'struct({row})')} IS NULL"  # a struct is null for no other reason
        bad = events.where(throws)
        if not bad.isEmpty():
            error = error_of(bad, row)
            reason = f"{THROWN}: {error}" if error else THROWN
            self._quarantine(bad, F.lit(f"route {self.name}: {reason}"))
        return events.where(f"NOT ({throws})")

    def _refuse(self, messages: DataFrame, events: DataFrame, largest: int) -> None:
        """Put the events of messages that the topic does not take into the quarantine."""
        reason = F.concat(
            F.lit(f"route {self.name}: found a message of "), F.max(size()), F.lit(f" bytes, expected {largest}")
        )
        reasons = messages.groupBy(SOURCE).agg(reason.alias("reason"))
        rows = events.withColumn(SOURCE, F.concat_ws(":", *map(F.expr, coordinates(self.stream)))).join(
            F.broadcast(reasons), SOURCE
        )
        self._quarantine(rows, F.col("reason"))

    def _quarantine(self, events: DataFrame, reason: Column) -> None:
        """Put events into the quarantine, where they can be seen; once."""
        path = table(self.config, "quarantine", self.stream.name)
        known = self.spark.read.format("delta").load(path).where(F.col("reason").startswith(f"route {self.name}: "))
        rows = events.withColumn("reason", reason)
        rows.selectExpr(
            "_topic AS topic", "_partition AS partition", "_offset AS offset", "_key AS key", "_payload AS payload", "reason",
            "current_timestamp() AS log_time", *([f"{TOPIC_PARTITION} AS topic_partition"] if self.stream.several else []),
        ).dropDuplicates(["partition", "offset"]).join(known, ["partition", "offset"], "anti").coalesce(1).write.format("delta").mode("append").save(path)  # fmt: skip
