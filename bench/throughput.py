"""How fast the jobs are: `python -m bench.throughput [EVENTS] [KEYS]`.

Random events are sent to an embedded Kafka; then `statehouse run --once`, from the start of its process until changelog and
state have all of them, its tree's memory looked at ten times a second (`/proc`, so Linux only); then the same sums by
Kafka Streams (:mod:`bench.peer`), with either of its guarantees.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from api.engine import duck
from bench import peer
from bench.recovery import measured
from demo.broker import Broker
from statehouse.config.file import load
from statehouse.status import store_status, stream_status

CONFIG = """root: ./lake
kafka:
  bootstrap.servers: {bootstrap}
streams:
  s: {{topic: t, schema: "key STRING, agent STRING, n BIGINT, ts TIMESTAMP", time: ts}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
"""
PAYLOAD = (
    '{"key":"device-%08d","agent":"agent-%03d","n":%d,"ts":"2024-05-%02dT%02d:%02d:%02d.%06dZ",'
    '"site":"hall-%02d","firmware":"4.11.%d-stable-2024-04"}'
)


def send(bootstrap: str, events: int, keys: int) -> int:
    """Send random events as fast as they go; the length of one in bytes."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    dice, payload = random.Random(1).random, ""
    for event in range(events):
        draw = dice()
        key, n = int(draw * keys), int(draw * 1e9) % 1000
        second = event % 86400
        payload = PAYLOAD % (
            *(key, n % 100, n, 1 + event // 86400 % 28, second // 3600, second // 60 % 60, second % 60),
            *(event % 1_000_000, n % 20, n % 30),
        )
        while True:
            try:
                producer.produce("t", key=b"device-%08d" % key, value=payload)
                break
            except BufferError:
                producer.poll(0.1)
        if not event % 10_000:
            producer.poll(0)
    if producer.flush(60):
        raise SystemExit("Kafka did not take all of the events")
    return len(payload)


def main(events: int = 5_000_000, keys: int = 1_000_000) -> None:
    """Print what was sent, what the run took, and what it said itself."""
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka", partitions=2) as broker:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
        began = time.monotonic()
        size = send(broker.bootstrap, events, keys)
        print(f"{events} events of {size} bytes over {keys} keys sent in {time.monotonic() - began:.0f} s", flush=True)
        print(f"load average {os.getloadavg()[0]:.1f}", flush=True)
        began = time.monotonic()
        print(measured(folder, "run", "--once"))
        took = time.monotonic() - began
        config = load(folder / "statehouse.yaml", {})
        stream, store = stream_status(config, "s"), store_status(config, "total")
        assert (stream["events"], stream["quarantined"], store["lag_ms"]) == (events, 0, 0), (stream, store)
        log, state = (f"delta_scan('{config.root}/{t}')" for t in ("changelog/s", "state/total"))
        with duck.connect() as db:
            whole = db.sql(f"SELECT sum(n), count(DISTINCT key) FROM {log}").fetchone()
            assert whole == db.sql(f"SELECT sum(value), count(*) FROM {state}").fetchone(), "the state is another"
        print(f"{events / took:,.0f} events/s, load average {os.getloadavg()[0]:.1f}")
        print((folder / "log").read_text())
        for guarantee in peer.GUARANTEES:
            seconds, processor = peer.measured(folder, broker.bootstrap, guarantee, events)
            print(
                f"Kafka Streams, {guarantee}: {events / seconds:,.0f} events/s, {seconds:.0f} s, processor {processor:.0f} s"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
