"""What a topic of a real Kafka holds."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition


def messages(bootstrap, topic):
    """All of a topic."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "log_level": 0})
    found = client.list_topics(topic, timeout=10).topics[topic]
    places, ends = [], 0
    for partition in found.partitions:
        low, high = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        places, ends = [*places, TopicPartition(topic, partition, low)], ends + high - low
    client.assign(places)
    made = []
    while len(made) < ends:
        made += client.consume(ends - len(made), 10)
    client.close()
    return made


def topic_of(bootstrap, topic):
    """A topic's messages by the headers that tell a repeat, and how many were repeats. Repeats are equal."""
    made = {}
    all_of_them = messages(bootstrap, topic)
    for message in all_of_them:
        named = {name: value.decode() for name, value in message.headers()}
        place = named["statehouse-source"], named["statehouse-part"]
        found = (message.key() and message.key().decode(), json.loads(message.value()))
        assert made.setdefault(place, found) == found
    return made, len(all_of_them) - len(made)


def everything(bootstrap: str, topic: str) -> dict[tuple[int, int], tuple[bytes, Any, dict]]:
    """What a topic holds, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False})
    found = {}
    for partition in consumer.list_topics(topic, timeout=10).topics[topic].partitions:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (partition, end - 1) not in found and end:
            message = consumer.poll(10)
            assert message is not None and message.error() is None
            value = message.value()
            said = (message.key(), value and json.loads(value), dict(message.headers() or []))
            found[partition, message.offset()] = said
    consumer.close()
    return found
