"""Kafka's records as Spark's source gives them, for the few that it cannot give.

Spark's source fails over a record whose time is further than 292,000 years away, such as one of a producer that takes nanoseconds for
milliseconds, and with it every batch that the record would be in. These are read here, by one consumer and on the driver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from statehouse import kafka
from statehouse.errors import KafkaUnavailable
from statehouse.numbering import Place

COLUMNS = (
    "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestampType INT"
)
SECONDS = 30.0  # to wait for a record, or for the end
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def is_unreadable(error: BaseException) -> bool:
    """Whether a query ended over a record that Spark's source cannot read."""
    return "long overflow" in str(error)


def read_records(
    spark: SparkSession, properties: Mapping[str, Any], starts: Mapping[Place, int], most: int
) -> tuple[DataFrame, dict[Place, int]]:
    """Some records from each partition's offset on, ``most`` or all that there are; and where they end in each partition. Raises
    KafkaUnavailable."""
    settings = {**kafka.librdkafka(dict(properties)), "group.id": "statehouse-ingest", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    rows: list[tuple[Any, ...]] = []
    ends: dict[Place, int] = {}
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        ended: set[Place] = set()
        while len(ended) < len(starts) and len(rows) < most:
            message = consumer.poll(SECONDS)
            if message is None:
                raise kafka.unavailable(properties, f"no records of {', '.join({topic for topic, _ in starts})}")
            error, place, offset = (
                message.error(),
                (message.topic() or "", message.partition() or 0),
                message.offset() or 0,
            )
            if error is None:
                time = kafka.usable_time(message.timestamp()[1])
                at = None if time is None else EPOCH + dt.timedelta(milliseconds=time)
                rows.append(
                    (*place, offset, at, message.key(), message.value(), message.headers(), message.timestamp()[0] - 1)
                )
                ends[place] = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(place)
                ends[place] = offset
            elif not error.retriable():
                raise KafkaUnavailable(f"Kafka at {properties.get('bootstrap.servers')}: {error.str()}")
        return spark.createDataFrame(rows, COLUMNS), ends
    finally:
        consumer.close()
