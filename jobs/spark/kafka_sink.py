"""Rows to a topic, by Spark's Kafka sink: each at least once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jobs.spark import databricks
from statehouse.config.models import Config

MESSAGE = ("key", "value", "headers")
OVERHEAD = 1000  # bytes of a message besides its key, value and headers, at the most
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
# A producer that has lost its broker says so while someone still waits for it.
PATIENCE = {"delivery.timeout.ms": "30000", "request.timeout.ms": "10000", "max.block.ms": "15000", "linger.ms": "20"}
BATCH = 262144  # bytes: what a round sends is there at once


@dataclass(frozen=True)
class Sent:
    """What a round did: of how many events or keys, out of a table's versions (start, head]; None: from the beginning."""

    kind: str
    name: str
    start: int | None
    head: int
    count: int
    seconds: float


class Sender(Protocol):
    """What has rounds: a route, or a store that is published."""

    kind: str
    name: str

    def round(self) -> Sent | None:
        """Send what is new; None where nothing is."""


def json(columns: Sequence[str | Column]) -> Column:
    """Columns as the text of one JSON object; times are ISO 8601 in UTC."""
    return F.to_json(F.struct(*columns), JSON_OPTIONS)


def headers(named: Mapping[str, Column]) -> Column:
    """Kafka's headers, of texts."""
    pairs = (
        F.struct(F.lit(n).alias("key"), F.encode(c.cast("string"), "UTF-8").alias("value")) for n, c in named.items()
    )
    return F.array(*pairs)


def size() -> Column:
    """The bytes of a message of :data:`MESSAGE`, at the most."""
    lengths = F.expr(
        "aggregate(headers, 0, (sum, h) -> sum + octet_length(h.key) + coalesce(octet_length(h.value), 0))"
    )
    text = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    return text + lengths + OVERHEAD


def send(messages: DataFrame, config: Config, topic: str, largest: int) -> None:
    """Send rows of :data:`MESSAGE`; all are acknowledged when it returns. ``largest`` is what the topic takes, in bytes."""
    # A batch that the topic does not take would be tried again as it is (KAFKA-8350).
    sizes = {"max.request.size": str(largest), "batch.size": str(min(BATCH, largest))}
    properties = {**PATIENCE, **sizes, **databricks.client(config.kafka)}
    writer = messages.select(*MESSAGE).write.format("kafka").option("topic", topic)
    writer.options(**{f"kafka.{name}": value for name, value in properties.items()}).save()
