"""Each event with the state that it made: `python -m bench.store_route [EVENTS] [KEYS] [HOT]`.

Random events are sent to an embedded Kafka, as by :mod:`bench.throughput`; then `statehouse run --once` reads them, folds a sum, and
sends each event with the sums before and after it to a topic; then Kafka Streams does the same by a processor with a store. At last HOT
events of one key are sent, and what the route says that it took for them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Producer

from bench import peer, throughput
from bench.recovery import measured
from bench.throughput import send
from demo.broker import Broker
from statehouse import kafka

CONFIG = (
    throughput.CONFIG
    + """routes:
  told:
    from: {{store: total}}
    select: [key, n, "coalesce(before.value, 0) AS had", "after.value AS has"]
    to: {{topic: told, key: key}}
"""
)


def count(bootstrap: str, topic: str) -> int:
    """How many offsets a topic has."""
    config = {"bootstrap.servers": bootstrap, "isolation.level": "read_uncommitted"}
    return sum(high - low for low, high in kafka.end_offsets(config, topic).values())


def main(events: int = 1_000_000, keys: int = 100_000, hot: int = 100_000) -> None:
    """Print what each took."""
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka", partitions=2) as broker:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
        for topic in ("peer-exactly_once_v2", "peer-at_least_once"):
            kafka.create_topic({"bootstrap.servers": broker.bootstrap}, topic)
        send(broker.bootstrap, events, keys)
        for turn in (1, 2):
            print(f"statehouse run --once, {turn}: {measured(folder, 'run', '--once')}", flush=True)
            print((folder / "log").read_text(), flush=True)
            if turn == 1:
                assert count(broker.bootstrap, "told") == events
                for guarantee in peer.GUARANTEES:
                    took, processor = peer.measured(folder, broker.bootstrap, guarantee, events, f"peer-{guarantee}")
                    assert count(broker.bootstrap, f"peer-{guarantee}") >= events
                    print(f"Kafka Streams, {guarantee}: {took:.0f} s, processor {processor:.0f} s", flush=True)
                producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
                for number in range(hot):
                    body = json.dumps({"key": "hot", "agent": "a", "n": number, "ts": "2024-05-01T00:00:00Z"})
                    producer.produce("t", key="hot", value=body)
                    producer.poll(0)
                producer.flush(60)
        assert count(broker.bootstrap, "told") == events + hot


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
