"""Kafka's records as Spark's source gives them, read by one consumer on the driver: some are few, and some Spark's source cannot read.

It takes seconds to start, and it fails over a record whose time is further than 292,000 years away, such as one of a producer that takes
nanoseconds for milliseconds, and with it every batch that the record would be in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from statehouse import kafka
from statehouse.errors import KafkaUnavailable
from statehouse.numbering import Place

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
COLUMNS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": HEADERS,
        "timestampType": pa.int32(),
    }
)
RECORDS, BYTES = 100_000, 64 << 20  # at a time, in the memory of the driver
SECONDS = 30.0  # to wait for a record, or for the end


def is_unreadable(error: BaseException) -> bool:
    """Whether a query ended over a record that Spark's source cannot read."""
    return "long overflow" in str(error)


def read_records(
    spark: SparkSession, properties: Mapping[str, Any], starts: Mapping[Place, int]
) -> tuple[DataFrame, dict[Place, int]]:
    """Records from each partition's offset on, :data:`RECORDS` or :data:`BYTES` or all that there are; and where they end in each partition.
    Raises KafkaUnavailable."""
    settings = {**kafka.librdkafka(dict(properties)), "group.id": "statehouse-ingest", "enable.auto.commit": False}
    at_once = {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10}
    consumer = Consumer({**settings, **at_once})
    rows: list[dict[str, Any]] = []
    ends: dict[Place, int] = {}
    size = 0
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        ended: set[Place] = set()
        while len(ended) < len(starts) and len(rows) < RECORDS and size < BYTES:
            message = consumer.poll(SECONDS)
            if message is None:
                raise kafka.unavailable(properties, f"no records of {', '.join({topic for topic, _ in starts})}")
            error, place, offset = (
                message.error(),
                (message.topic() or "", message.partition() or 0),
                message.offset() or 0,
            )
            if error is None:
                rows.append(_row(message))
                ends[place] = offset + 1
                size += len(message) + len(message.key() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
                ends[place] = offset
            elif not error.retriable():
                raise KafkaUnavailable(f"Kafka at {properties.get('bootstrap.servers')}: {error.str()}")
        return spark.createDataFrame(pa.Table.from_pylist(rows, COLUMNS)), ends
    finally:
        consumer.close()


def _row(message: Message) -> dict[str, Any]:
    kind, milliseconds = message.timestamp()
    time = kafka.usable_time(milliseconds)
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": None if time is None else time * 1000,
        "key": message.key(),
        "value": message.value(),
        "headers": message.headers(),
        "timestampType": kind - 1,
    }
