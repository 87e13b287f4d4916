"""What is due: sent in due order, and committed as sent. One topic or task that fails keeps no other."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.spark import kafka_sink
from jobs.spark.guard import TRY
from jobs.spark.steps import Steps
from jobs.spark.tables import next_offsets
from jobs.tasks.deliver import PATIENCE, Message, deliver
from jobs.tasks.messages import with_key
from jobs.tasks.table import Row, TaskTable
from statehouse import kafka, topics
from statehouse.errors import KafkaUnavailable, StatehouseError, TopicRefused, TopicUnavailable, first_line
from statehouse.fold import Rule
from statehouse.headers import OP_HEADER, STORE_HEADER, TASK_HEADER
from statehouse.numbering import Numbering, topic_names
from statehouse.tables import LOADED, metadata, offsets_at
from statehouse.tables import table as path_of
from statehouse.values import next_time, safe

AT_ONCE = 1000  # messages that are sent between two commits
FEW = 10_000  # messages of a daily rule that are sent one by one, each once; Spark sends more at once
MOST_REST = 120.0  # seconds until what could not be sent is tried again
AGAIN = 1.0  # seconds until Kafka is asked again how far it is


class Rest(NamedTuple):
    """What could not be sent is left alone ``until`` a time of the monotonic clock, after so many ``failures`` on end."""

    until: float
    failures: int


class Sending:
    """Sends what is due of the table. ``rules`` are those of all stores, ``messages`` by task as
    :func:`jobs.tasks.messages.message_of` has them."""

    def __init__(self, table: TaskTable, rules: Mapping[str, Rule], messages: Mapping[str, dict[str, str]]) -> None:
        self.table, self.rules, self.messages = table, rules, messages
        self.spark, self.config, self.tasks = table.spark, table.config, table.tasks
        self.rests: dict[tuple[str, str], Rest] = {}  # of ("topic", its name) and ("task", its id)
        self._largest_by_topic: dict[str, int] = {}  # of the topics that are known to be there, in bytes
        self._tried = float("-inf")

    def send_due(self) -> int:
        """Send what is due; how many messages."""
        now = self.table.now()
        at = dt.datetime.fromtimestamp(now, dt.timezone.utc)
        if self.table.next_due is None or self.table.next_due > at or time.monotonic() - self._tried < AGAIN:
            return 0
        self._tried = time.monotonic()
        due = self.table.due(now)
        until = {stream: self._known_until(stream) for stream in {row["stream"] for row in due}}
        ready = [row for row in due if row["due"].timestamp() < until[row["stream"]] and not self._rests(row)]
        self._tried = float("-inf") if len(ready) == len(due) else self._tried
        count: int = 0
        failed: list[StatehouseError] = []
        while ready:
            length = next((i for i, row in enumerate(ready) if self._is_daily(row)), len(ready))
            part, ready = ready[: max(1, min(length, AT_ONCE))], ready[max(1, min(length, AT_ONCE)) :]
            if length:
                sent, delays = self._send_rows(part, at)
            else:
                sent, delays = self._try_daily(part[0], at)
            count, failed = count + sent, [*failed, *delays]
            ready = [row for row in ready if not self._rests(row)] if delays else ready
        if failed:
            raise failed[0]
        return count

    def _rests(self, row: Row) -> bool:
        rests = (self.rests.get(place) for place in (("topic", row["topic"]), ("task", row["id"])))
        return any(rest is not None and time.monotonic() < rest.until for rest in rests)

    def _delay(self, kind: str, name: str) -> None:
        """Leave a topic or a task alone for a while, as it cannot be sent to, or sent: the others do not wait for it in each round."""
        failures = self.rests[kind, name].failures + 1 if (kind, name) in self.rests else 1
        self.rests[kind, name] = Rest(time.monotonic() + min(2.0**failures, MOST_REST), failures)
        if kind == "topic":
            self._largest_by_topic.pop(name, None)  # perhaps it is not there any more

    def _is_daily(self, row: Row) -> bool:
        return row["task"] is not None and row["key"] is None

    def _known_until(self, name: str) -> float:
        """The time, in seconds since 1970, up to which the states know what is in a stream's topic."""
        stream, positions = self.config.streams[name], [self.table.positions["streams"].get(name, 0)]
        for store in self.config.stores_of(name):
            if store.name in self.table.awaited_stores or any(t.store == store.name for t in self.tasks.values()):
                positions.append(self.table.positions["stores"].get(store.name, {}).get("position", 0))
        path = path_of(self.config, "changelog", name)
        offsets = offsets_at(path, min(positions))
        if offsets is None:  # the log no longer says
            offsets = next_offsets(path, f"> {LOADED}")
        numbering = Numbering.of(stream, metadata(path, "offsets") or {})
        times = (
            kafka.first_time(self.config.kafka, topic, numbering.of_topic(topic, offsets), PATIENCE)
            for topic in topic_names(self.config.kafka, stream)
        )
        return min(times, default=float("inf"))

    def _largest(self, topic: str) -> int:
        """The most bytes that a message of a topic may have; the topic is made where it is not there. Raises KafkaUnavailable, as one
        of its kinds where it is about this topic alone."""
        if topic not in self._largest_by_topic:
            if not kafka.partitions(self.config.kafka, topic):  # who may send to it need not be allowed to make it
                kafka.create_topic(self.config.kafka, topic)
            self._largest_by_topic[topic] = int(kafka.topic_settings(self.config.kafka, topic)["max.message.bytes"])
        return self._largest_by_topic[topic]

    def _refusal(self, row: Row) -> str | None:
        """Why the file no longer allows a task to be sent, which it did when it was asked for; None where it may be sent."""
        if row["topic"] is None:
            return "found no topic: the store that it sets is not in the file any more"
        if row["task"] is not None or row["set"] is not None:
            return None
        expected = topics.expected_instead(row["topic"], self.config.askable_topics)
        return expected and f"{row['topic']}: expected {expected}"

    def _send_rows(self, rows: Sequence[Row], at: dt.datetime) -> tuple[int, list[StatehouseError]]:
        """Send the messages of some tasks, and commit what became of each. Returns how many were sent, and an error for each topic that
        took none for now: its messages wait. Raises KafkaUnavailable."""
        refused = {row["id"]: reason for row in rows if (reason := self._refusal(row))}
        delays: dict[str, str] = {}  # by topic
        for topic in dict.fromkeys(row["topic"] for row in rows if row["id"] not in refused):
            try:
                self._largest(topic)
            except TopicRefused as error:
                refused |= {row["id"]: str(error) for row in rows if row["topic"] == topic}
            except TopicUnavailable as error:
                delays[topic] = str(error)
        sent = [row for row in rows if row["id"] not in refused and row["topic"] not in delays]
        if sent:
            largest = min(self._largest_by_topic[row["topic"]] for row in sent)
            outcomes = deliver(self.config.kafka, [self._message(row) for row in sent], largest)
            refused |= {row["id"]: o.refused for row, o in zip(sent, outcomes, strict=True) if o.refused}
            delays |= {row["topic"]: o.delayed for row, o in zip(sent, outcomes, strict=True) if o.delayed}
            sent = [row for row, o in zip(sent, outcomes, strict=True) if not o.delayed]
        taken = {row["id"] for row in sent}
        done = [row for row in rows if row["id"] in taken or row["id"] in refused]
        if done:
            self.table.commit([self._row_after(row, at, refused.get(row["id"])) for row in done])
        for row in done:
            if row["topic"] not in delays:
                self.rests.pop(("topic", row["topic"]), None)
        count = sum(row["id"] not in refused for row in done)
        for topic in delays:
            self._delay("topic", topic)
        return count, [TopicUnavailable(reason) for reason in delays.values()]

    def _message(self, row: Row) -> Message:
        number = f"#{row['sent']}" if row["sent"] else ""
        headers: dict[str, str | bytes | None] = {TASK_HEADER: f"{row['id']}{number}"}
        if row["set"]:
            headers |= {OP_HEADER: "set", STORE_HEADER: row["set"]}
        return Message(row["topic"], row["message_key"], row["message"], headers)

    def _row_after(self, row: Row, at: dt.datetime, refused: str | None = None) -> Row:
        """A row after it was sent: it is over, or waits for the next time."""
        task, due = self.tasks.get(row["task"] or ""), row["due"]
        following = None
        if task and task.every:
            step = dt.timedelta(milliseconds=task.every)
            following = due + step * (max(0, (at - due) // step) + 1)  # the first that is still to come
        elif task and task.at:
            following = next_time(task.at, max(at, due))
        goes_on = following is not None and (row["ended"] is None or following <= row["ended"])
        status = "waiting" if goes_on else "failed" if refused else "sent"
        sent = row["sent"] + (refused is None)
        return {"id": row["id"], "status": status, "due": following if goes_on else due, "sent": sent, "sent_at": at,
                "reason": refused}  # fmt: skip

    def _try_daily(self, row: Row, at: dt.datetime) -> tuple[int, list[StatehouseError]]:
        """Send a message for each key that is so now; how many, and why it could not be done for now."""
        try:
            count = self._send_daily(row, at)
        except TopicRefused as error:
            self.table.commit([self._row_after(row, at, str(error))])
            return 0, []
        except TopicUnavailable as error:
            self._delay("topic", row["topic"])
            return 0, [error]
        except KafkaUnavailable:
            raise
        except Exception as error:  # what Spark says of the rule's expressions
            self._delay("task", row["id"])
            return 0, [StatehouseError(f"{row['task']}: {first_line(error)}")]
        for place in (("topic", row["topic"]), ("task", row["id"])):
            self.rests.pop(place, None)
        return count, []

    def _send_daily(self, row: Row, at: dt.datetime) -> int:
        task = self.tasks[row["task"]]
        rule, version = self.rules[task.store], self.table.positions["stores"][task.store]["version"]
        state = with_key(Steps(self.spark, self.config, rule).state_at(version), rule).where(
            TRY.format(safe(task.when or "TRUE"))
        )
        due = f"timestamp_micros({int(row['due'].timestamp() * 1_000_000)})"
        named = {n: e for n, e in {"since": "changed_at", "due": due}.items() if n not in rule.state_columns}
        message, name = self.messages[task.name], f"{task.name}@{row['due'].isoformat()}/"
        heads = {TASK_HEADER: F.concat(F.lit(name), "_key")}
        if task.set_:
            heads |= {OP_HEADER: F.lit("set"), STORE_HEADER: F.expr(message["set"])}
        rows = state.selectExpr("*", *(f"{e} AS {n}" for n, e in named.items()))
        messages = rows.select(
            F.expr(message["message_key"]).alias("key"),
            F.expr(message["message"]).alias("value"),
            kafka_sink.headers(heads).alias("headers"),
        ).persist()
        try:
            largest = self._largest(row["topic"])
            count, long = messages.select(F.count("*"), F.count_if(kafka_sink.size() > largest)).collect()[0]
            short = messages.where(kafka_sink.size() <= largest)
            refused: list[str] = []
            try:
                if count - long > FEW:
                    kafka_sink.send(short, self.config, row["topic"], largest)
                elif count > long:
                    refused = self._deliver(short, row["topic"], largest)
            except TopicUnavailable:
                raise
            except Exception:  # of one message, or of all: one by one it is told which; some are sent again
                refused = self._deliver(short, row["topic"], largest)
        finally:
            messages.unpersist()
        reasons = [f"{long} messages are longer than the {largest} bytes that {row['topic']} takes"] if long else []
        reasons += [f"{len(refused)} messages were refused: {refused[0]}"] if refused else []
        self.table.commit([{**self._row_after(row, at), "reason": "; ".join(reasons) or None}])
        return int(count - long - len(refused))

    def _deliver(self, messages: DataFrame, topic: str, largest: int) -> list[str]:
        """Send rows of key, value and headers one by one; why some were refused. Raises TopicUnavailable."""
        refused: list[str] = []
        rows = messages.toLocalIterator()
        while part := list(itertools.islice(rows, AT_ONCE)):
            part_messages = [
                Message(topic, r["key"], r["value"], {h["key"]: bytes(h["value"]) for h in r["headers"]}) for r in part
            ]
            outcomes = deliver(self.config.kafka, part_messages, largest)
            if delayed := [o.delayed for o in outcomes if o.delayed]:
                raise TopicUnavailable(delayed[0])
            refused += [o.refused for o in outcomes if o.refused]
        return refused
