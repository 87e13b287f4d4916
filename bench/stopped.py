"""The jobs are killed under load, and come back: `python -m bench.stopped [MINUTES]` (10 minutes without jobs).

The processes, keys and events of :mod:`bench.soak`. Meanwhile four clients each send events of a key of their own and read it: what
they read has to be something that was sent, and never older than what they have read before. A line every tenth of the time:
the worker's memory, and what `/metrics` says of the topic. In the end, when the jobs have caught up, every key's total and last value is
compared with what was sent.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer

from bench.soak import KEYS, Source, memory, staged, status_of

CLIENTS = 4


class Truth(Source):
    """What was sent, by key: the total and the last value."""

    def __init__(self, bootstrap: str) -> None:
        self.total: dict[str, int] = {}
        self.last: dict[str, int] = {}
        super().__init__(bootstrap)

    def send(self, name: str) -> None:
        n = self.dice.randrange(1000)
        self.producer.produce("t", key=name, value=json.dumps({"key": name, "agent": "a", "n": n}))
        self.total[name], self.last[name] = self.total.get(name, 0) + n, n
        self.sent += 1
        if self.sent % 1000 == 0:
            self.producer.poll(0)


class Client(threading.Thread):
    """Sends 1, 2, 3, … of its key and reads it twenty times a second."""

    def __init__(self, bootstrap: str, port: int, number: int) -> None:
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 1})
        self.key, self.port, self.stopping = f"own-{number}", port, threading.Event()
        self.sent = self.reads = self.read = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        while not self.stopping.wait(0.05):
            self.sent += 1
            body = {"key": self.key, "agent": "a", "n": self.sent}
            self.producer.produce("t", key=self.key, value=json.dumps(body))
            self.producer.poll(0)
            connection.request("GET", f"/stores/last/keys/{self.key}")
            response = connection.getresponse()
            found = json.loads(response.read())
            value = found["value"] if response.status == 200 else 0
            if response.status not in (200, 404) or not self.read <= value <= self.sent:
                self.wrong.append(f"{response.status} {found}, after {self.read} of {self.sent}")
            self.read, self.reads = value, self.reads + 1
        self.producer.flush(30)


def metrics(port: int) -> str:
    """What `/metrics` says of how one store follows the topic."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    found = [x for x in lines if x.startswith("statehouse_live") and 'store="last"' in x and not x.endswith(" 0.0")]
    return ", ".join(line.removeprefix("statehouse_") for line in found)


def rows(port: int, store: str) -> dict[str, Any]:
    """Each key's value."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/stores/{store}/keys", headers={"Accept": "application/x-ndjson"})
    found = map(json.loads, connection.getresponse().read().splitlines())
    return {row["key"]: row["value"] for row in found}


def main(minutes: float = 10) -> None:
    """Run it all, and print what was found."""
    with staged(Truth) as stage:
        source, port = stage.source, stage.port
        assert isinstance(source, Truth)
        clients = [Client(stage.bootstrap, port, number) for number in range(CLIENTS)]
        for client in clients:
            client.start()

        def say(what: str) -> None:
            print(f"{what}: worker {memory(stage.worker):.0f} MiB; {metrics(port)}", flush=True)

        time.sleep(30)
        say("with the jobs")
        stage.jobs.kill()
        stage.jobs.wait()
        for tenth in range(1, 11):
            time.sleep(minutes * 6)
            say(f"{tenth * minutes / 10:.1f} min without")
        stage.run_jobs()
        began = time.monotonic()
        while status_of(port)[0]["live"]["state"] != "following" or status_of(port)[0]["lag_ms"] > 10_000:
            time.sleep(0.5)
        say(f"{time.monotonic() - began:.0f} s with the jobs again")
        time.sleep(30)
        for thread in (source, *clients):
            thread.stopping.set()
            thread.join()
        while status_of(port)[0]["live"]["behind"] or any(s["position"] != s["head"] for s in status_of(port)):
            time.sleep(0.5)
        time.sleep(5)
        say("at the end")
        for client in clients:
            source.last[client.key], source.total[client.key] = client.sent, client.sent * (client.sent + 1) // 2
        for store, right in (("last", source.last), ("total", source.total)):
            found = rows(port, store)
            differing = [k for k in {*found, *right} if found.get(k) != right.get(k)]
            print(f"{store}: {len(found):,} keys, {len(differing)} other than what was sent {differing[:5]}")
        wrong = [line for client in clients for line in client.wrong]
        reads = sum(client.reads for client in clients)
        print(f"{source.sent:,} events, {reads:,} reads, {len(wrong)} of them wrong {wrong[:5]}; {KEYS:,} keys")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
