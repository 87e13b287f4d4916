"""What a topic of a real Kafka may hold: gaps, times of any kind, keys of any bytes, partitions that come later. Both halves see the same."""

from __future__ import annotations

import datetime as dt
import itertools
import threading

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from statehouse.kafka import FIRST_MS, FIRST_TIME, LAST_MS, LAST_TIME, end_offsets, partitions, usable_time
from statehouse.status import stream_status
from tests.support.api_lake import eventually
from tests.support.houses import House
from tests.support.records import control, payload, produce, rows, wait

ANY_TIME = {"message_timestamp_after_max_ms": 2**63 - 1, "message_timestamp_before_max_ms": 2**63 - 1}
USABLE = [FIRST_MS, -(10**12), -1000, -1, 1, LAST_MS]
# Before what Spark takes for our calendar, after what JSON has a year for, further than Spark's source can read.
READABLE = [FIRST_MS - 1, -14_000_000_000_000, LAST_MS + 1]  # Spark's source gives them, and others it cannot
UNUSABLE = [
    FIRST_MS - 1,
    -14_000_000_000_000,
    -(2**63),
    LAST_MS + 1,
    2**63 // 1000 + 1,
    1_700_000_000 * 10**9,
    2**63 - 1,
]


@pytest.fixture
def house(spark, broker, lake):
    houses = []

    def make(**settings):
        houses.append(House(spark, broker, lake, **settings))
        return houses[0]

    yield make
    houses[0].close()


def shapes(found):
    """Rows but for the wall-clock time of the change, of which each half has its own."""
    return {key: {name: value for name, value in row.items() if name != "changed_at"} for key, row in found.items()}


def alike(house, expected):
    """The rows of `last` with the expected values: the same ahead of the changelog, when that has them, and in the table."""
    eventually(lambda: values(house.rows("last", "live")) == expected)
    before = shapes(house.rows("last", "live"))
    house.ingest.run(once=True)
    house.merge()
    eventually(lambda: house.live()["pending"] == 0)
    eventually(lambda: shapes(house.rows("last", "changelog")) == before)
    assert house.merged("last") == expected
    eventually(lambda: house.behind() == (0, 0))
    return before


def values(found):
    return {key: row["value"] for key, row in found.items()}


def sent_at(house, records):
    """Send (key, payload, headers, milliseconds) in this order."""
    producer = Producer({"bootstrap.servers": house.bootstrap, "enable.idempotence": True, "log_level": 0})
    failed = []
    for key, value, headers, at in records:
        producer.produce(
            house.topic,
            payload(value),
            key,
            0,
            timestamp=at,
            headers=headers,
            on_delivery=lambda e, _: failed.append(e),
        )
        assert producer.flush(20) == 0
    assert not any(failed), failed


def milliseconds(text):
    """Since 1970, of a time in ISO 8601."""
    return (dt.datetime.fromisoformat(text.removesuffix("Z")) - dt.datetime(1970, 1, 1)) // dt.timedelta(milliseconds=1)


@pytest.mark.slow
@pytest.mark.parametrize("unusable", [READABLE, UNUSABLE], ids=["read by Spark", "not read by Spark"])
def test_a_records_own_time_of_any_year(house, unusable):
    house = house(**ANY_TIME)
    times = [time for pair in itertools.zip_longest(unusable, [*USABLE, 1]) for time in pair if time is not None]
    sent_at(house, [(f"k{i}", {"key": "a", "n": i}, {}, at) for i, at in enumerate(times)])
    sets = [(f"k{i}", {"value": 7}, control("set", "last"), at) for i, at in enumerate(times)]
    sent_at(house, sets)
    usable = {f"k{i}": at for i, at in enumerate(times) if at in USABLE}
    found = alike(house, dict.fromkeys(usable, 7))
    assert {key: milliseconds(row["event_time"]) for key, row in found.items()} == usable
    refused = rows(house.spark, house.ingest.quarantine)
    assert len(refused) == 2 * len(unusable) and all("in the years 1583 to 9999" in r["reason"] for r in refused)
    assert stream_status(house.config, "s")["events"] == 2 * len(usable)
    quarantine = house.client.get("/streams/s/quarantine").get_json()["rows"]
    assert len(quarantine) == len(refused)


@pytest.mark.parametrize(("at", "text"), [(FIRST_MS, FIRST_TIME), (LAST_MS, LAST_TIME)])
def test_both_halves_have_the_same_bounds(at, text):
    assert dt.datetime.fromisoformat(text) == dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=at)
    assert usable_time(at) == at
    assert [usable_time(FIRST_MS - 1), usable_time(LAST_MS + 1)] == [None, None]


def test_the_brokers_own_time(house):
    began = dt.datetime.now(dt.timezone.utc).replace(microsecond=0, tzinfo=None).isoformat()
    house = house(message_timestamp_type="LogAppendTime")
    sent_at(house, [("a", {"key": "a", "n": 1}, {}, 1000)])
    assert alike(house, {"a": 1})["a"]["event_time"] >= began


def test_keys_of_any_bytes_and_none(house):
    house = house()
    keys = [None, b"", b"k", b"\xff\x00", "\u00fc \u2603".encode(), b"\x00", b"a/b", b"\xed\xa0\x80"]
    produce(house.bootstrap, house.topic, [(key, {"key": "a", "n": i}, {}, 0) for i, key in enumerate(keys)])
    produce(house.bootstrap, house.topic, [(None, None, {}, 0), (b"\xff", None, {}, 0)])  # purges of nothing
    alike(house, {"": 1, "k": 2, "\u00fc \u2603": 4, "\x00": 5, "a/b": 6})
    assert house.merged() == {"a": sum(range(len(keys)))}
    assert [r["reason"] for r in rows(house.spark, house.ingest.quarantine)] == ["a purge without a key in UTF-8"] * 2


def offsets_of(house):
    """The offsets of the records that the topic has."""
    low, high = end_offsets(house.config.kafka, house.topic)[0]
    consumer = Consumer({"bootstrap.servers": house.bootstrap, "group.id": "tests", "enable.partition.eof": True})
    consumer.assign([TopicPartition(house.topic, 0, low)])
    found = []
    while (message := consumer.poll(20)).error() is None:
        found.append(message.offset())
    consumer.close()
    assert message.offset() == high
    return found


@pytest.mark.slow
def test_a_compacted_topic_has_gaps(house):
    house = house(
        cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.001, max_compaction_lag_ms=100,
        delete_retention_ms=0,
    )  # fmt: skip
    house.close()
    sent, numbers = {}, itertools.count()

    def compacted():
        for _ in range(4):
            number = next(numbers)
            sent[f"k{number % 3}"] = number
            house.send((f"k{number % 3}", number, 0))
        found = offsets_of(house)
        return len(found) < found[-1] - 5  # there are gaps

    wait(compacted, 120, step=1, what="the cleaner")
    house.open()  # another one, which begins with what is left
    alike(house, sent)
    status = stream_status(house.config, "s")
    assert status["events"] < status["offsets"]["0"], "offsets are no count"


@pytest.mark.slow
def test_partitions_that_are_added_while_both_run(house, broker):
    house = house()
    thread = threading.Thread(target=house.ingest.run)
    thread.start()
    try:
        house.send(("a", 1, 0))
        wait(lambda: house.ingest.events == 1, what="the first event")
        admin = AdminClient({"bootstrap.servers": house.bootstrap})
        admin.create_partitions([NewPartitions(house.topic, 3)])[house.topic].result(20)
        wait(lambda: len(partitions(house.config.kafka, house.topic)) == 3, what="the partitions")
        house.send(("a", 10, 2), ("a", 100, 1))
        wait(lambda: house.ingest.events == 3, 120, what="the others")
    finally:
        house.ingest.stopping.set()
        thread.join(60)
    house.merge()
    assert house.merged() == {"a": 111}
    eventually(lambda: house.shown("live") == {"a": 111})
    eventually(lambda: house.behind() == (0, 0))
