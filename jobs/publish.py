"""``state/<store>`` → a compacted topic: each key's state as it changes, and a message without a payload where it is gone.

A round, over the state's versions (v, head], v being what was published last; what a crash after each step leaves behind:

1. Send a message for each key whose value has changed, or that came or went: its state at ``head``. *They are sent again, or
   newer ones: what counts in such a topic is a key's last message.*
2. Commit the version, to the table ``positions/publish.<store>``. *Done.*

Where there is no version to go on from (the first round, a state that was recovered, a lost feed, a changed ``where``), the whole
state is compared with the topic itself, key by key, and what differs is sent: also the end of a key that the state no longer has.
"""

from __future__ import annotations

import logging
import time

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark import change_feed, databricks
from jobs.spark.expressions import key_text, rule_of
from jobs.spark.guard import Guard
from jobs.spark.kafka_sink import Sent, headers, json, send, size
from jobs.spark.position import Position
from jobs.spark.session import new_session
from statehouse import kafka
from statehouse.config.models import Config, Store
from statehouse.headers import POSITION_HEADER
from statehouse.spark_sql import quoted
from statehouse.tables import folded, opened, publish_position, table
from statehouse.values import safe

log = logging.getLogger("statehouse")
CAME, WENT = "('insert', 'update_postimage')", "('delete', 'update_preimage')"


class Publisher:
    """One store that is published: holds nothing but what the file says; its position is in a table."""

    kind = "publish"

    def __init__(self, spark: SparkSession, config: Config, store: Store) -> None:
        assert store.publish
        self.spark, self.config, self.store, self.name = new_session(spark), config, store, store.name
        self.topic, self.where = store.publish.topic, safe(store.publish.where or "TRUE")
        self.rule = rule_of(spark, config, store)
        self.state = table(config, "state", store.name)
        self.guard = Guard(f"store {store.name}, published")
        self.warned = False  # that the topic is not compacted

    def round(self) -> Sent | None:
        """Send what is new; None where nothing is. Raises KafkaUnavailable."""
        return self.guard.run(self.spark, self._round)

    def _round(self) -> Sent | None:
        delta = opened(self.state)
        if delta is None or folded(delta) is None:
            return None
        position = Position(*publish_position(self.config, self.store, delta))
        start, head, began = position.get(), delta.version(), time.monotonic()
        if start == head:
            return None
        kafka.create_topic(self.config.kafka, self.topic, {"cleanup.policy": "compact"})
        settings = kafka.topic_settings(self.config.kafka, self.topic)
        if "compact" not in settings["cleanup.policy"] and not self.warned:
            self.warned = True
            log.warning(
                "store %s: the topic %s is not compacted: it will not keep the last message of each key",
                self.name,
                self.topic,
            )
        try:
            messages = self._differing_messages(delta) if start is None else self._changed_messages(start, delta)
            count = self._send(messages, folded(delta), settings)
        except Exception as error:
            if start is None or not change_feed.is_gone(error):
                raise
            count = self._send(self._differing_messages(delta), folded(delta), settings)
        position.move(head, {})
        return Sent(self.kind, self.name, start, head, count, time.monotonic() - began)

    def _send(self, rows: DataFrame, position: int | None, settings: dict[str, str]) -> int:
        """Send rows of ``key`` and ``value``; how many there are."""
        named = headers({POSITION_HEADER: F.lit(position)}).alias("headers")
        messages = rows.select("key", "value", named).persist()
        try:
            largest = int(settings["max.message.bytes"])
            count, long, which = messages.select(
                F.count("*"), F.count_if(size() > largest), F.max(F.when(size() > largest, F.col("key")))
            ).collect()[0]
            if long:
                log.error(
                    "store %s: %d messages are longer than the %d bytes that %s takes, and are not published: %.100r is one",
                    *(self.name, long, largest, self.topic, which),
                )
            if count > long:
                send(messages.where(size() <= largest), self.config, self.topic, largest)
            return int(count - long)
        finally:
            messages.unpersist()

    def _messages(self, rows: DataFrame, position: int | None) -> DataFrame:
        """Rows of the state with the ``_key`` and ``_value`` of their messages; null where they are not published."""
        columns = [*map(quoted, self.rule.keys), "value", "event_time", "changed_at"]
        positioned = rows.withColumn("_position", F.lit(position).cast("bigint"))
        text = json([*columns, F.col("_position").alias("position")])
        return positioned.withColumns(
            {"_key": F.expr(key_text(self.rule)), "_value": F.when(F.expr(self.guard.text.format(self.where)), text)}
        )

    def _changed_messages(self, start: int, delta: DeltaTable) -> DataFrame:
        """By the state's feed: the last message of each key that some version since has changed.

        Not what differs between the two ends: a crash may have published something in between.
        """
        rows = self._messages(change_feed.changes(self.spark, self.state, start, delta.version()), folded(delta))
        value = json(["value"])
        by_version = rows.groupBy("_key", "_commit_version").agg(
            F.max(F.when(F.expr(f"_change_type IN {WENT} AND _value IS NOT NULL"), value)).alias("_was"),
            F.max(F.when(F.expr(f"_change_type IN {CAME} AND _value IS NOT NULL"), value)).alias("_is"),
            F.max(F.when(F.expr(f"_change_type IN {CAME}"), F.col("_value"))).alias("_value"),
        )
        last = by_version.groupBy("_key").agg(
            F.max_by("_value", "_commit_version").alias("_value"),
            F.expr("bool_or(NOT (_was <=> _is))").alias("_changed"),
        )
        return last.where("_changed").selectExpr("_key AS key", "_value AS value")

    def _differing_messages(self, delta: DeltaTable) -> DataFrame:
        """By the topic: what its last messages are not by the state, or not any more."""
        state = self.spark.read.format("delta").option("versionAsOf", delta.version()).load(self.state)
        now = (
            self._messages(state, folded(delta))
            .where("_value IS NOT NULL")
            .selectExpr("_key AS key", "_value AS value")
        )
        properties = {f"kafka.{name}": value for name, value in databricks.client(self.config.kafka).items()}
        topic = self.spark.read.format("kafka").options(**properties).option("subscribe", self.topic).load()
        texts = topic.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS _said", "timestamp", "offset")
        latest = (
            texts.where("key IS NOT NULL")
            .groupBy("key")
            .agg(F.expr("max_by(_said, struct(timestamp, offset))").alias("_said"))
        )
        both = now.join(latest.where("_said IS NOT NULL"), "key", "full")
        # By the value, as above; the times and the position of another message are no news.
        values = " <=> ".join(f"get_json_object({column}, '$.value')" for column in ("value", "_said"))
        return both.where(f"value IS NULL OR _said IS NULL OR NOT ({values})").select("key", "value")
