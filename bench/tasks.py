"""How late tasks are: `python -m bench.tasks [PENDING] [TOGETHER] [AFTER]`.

`statehouse run` beside a real broker, nothing else to do. TOGETHER keys go down at once, a while later the rest of PENDING; each
is told AFTER seconds after it went down. Of the first it is measured how long after their time their messages are in the topic, by
the broker's clock. When the rest falls due the process is killed with -9 as soon as the first of their messages is there, and started
again: none may be lost, and a message that comes again has the `task-id` of the first.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, Producer

from demo.broker import Broker
from statehouse import kafka

CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, value STRING, ts BIGINT", time: timestamp_millis(ts)}}
stores:
  status: {{stream: s, key: key, value: value, reduce: latest}}
tasks:
  down: {{store: status, when: value = 'down', after: {after} seconds, send: {{topic: alerts}}}}
"""


class Alerts:
    """What has come to the topic: by id how often, and when first, in seconds since 1970."""

    def __init__(self, bootstrap: str) -> None:
        self.times: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self.consumer = Consumer(settings)
        self.consumer.subscribe(["alerts"])

    def read(self, seconds: float) -> None:
        """What comes within some time."""
        for message in self.consumer.consume(10_000, seconds):
            if message.error() is None:
                name = dict(message.headers() or [])["task-id"].decode()  # type: ignore[union-attr]
                self.counts[name] += 1
                self.times.setdefault(name, message.timestamp()[1] / 1000)

    def wait(self, count: int, seconds: float) -> None:
        """Read until so many are there, or the time is over."""
        until = time.monotonic() + seconds
        while len(self.times) < count and time.monotonic() < until:
            self.read(0.2)


def down(bootstrap: str, keys: range) -> float:
    """Send that these keys are down; when that was."""
    producer, now = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True}), time.time()
    for number in keys:
        body = {"key": f"k{number}", "value": "down", "ts": int(now * 1000)}
        producer.produce("t", key=body["key"], value=json.dumps(body))
        producer.poll(0)
    producer.flush(60)
    return int(now * 1000) / 1000


def run(folder: Path) -> subprocess.Popen[bytes]:
    """The jobs, running."""
    log = folder / "log"
    begin = log.stat().st_size if log.exists() else 0
    with log.open("ab") as out:
        process = subprocess.Popen([sys.executable, "-m", "statehouse.cli", "run"], cwd=folder, stdout=out, stderr=out)
    while b"running: " not in log.read_bytes()[begin:]:
        if process.poll() is not None:
            raise SystemExit(log.read_text()[-2000:])
        time.sleep(0.1)
    return process


def main(pending: int, together: int, after: int) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka") as broker:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap, after=after))
        for topic in ("t", "alerts"):
            kafka.create_topic({"bootstrap.servers": broker.bootstrap}, topic)
        alerts, process = Alerts(broker.bootstrap), run(folder)
        try:
            first = down(broker.bootstrap, range(together))
            time.sleep(after * 0.6)
            rest = down(broker.bootstrap, range(together, pending))
            alerts.wait(together, first + after + 30 - time.time())
            late = sorted(at - first - after for at in alerts.times.values())
            print(
                f"{len(late)} of {together} due together: the first {late[0]:.2f} s, the last {late[-1]:.2f} s after their time"
            )
            alerts.wait(together + 1, rest + after + 30 - time.time())
            process.send_signal(signal.SIGKILL)
            process.wait()
            alerts.read(2.0)
            there = len(alerts.times) - together
            process = run(folder)
            alerts.wait(pending, 120)
            alerts.read(10.0)
            again = sum(alerts.counts.values()) - len(alerts.times)
            print(
                f"killed with {there} of {pending - together} told: then {len(alerts.times) - together} were, "
                f"{again} of them again with the same id"
            )
        finally:
            process.terminate()
            process.wait()
            alerts.consumer.close()


if __name__ == "__main__":
    given = [int(found) for found in sys.argv[1:]]
    main(*(given + [10_000, 1_000, 120][len(given) :]))  # type: ignore[arg-type]
