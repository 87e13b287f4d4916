"""Ten minutes of everything that goes wrong, at once: `python -m tests.support.chaos [SECONDS] [SEED]`, or `make chaos`.

A broker, the jobs and the API with two workers run as processes. Events come at 1,000/s, one in fifty of them poisonous. Callers read
nothing, send a byte a second, ask for what takes for ever. Tasks are asked for that their topic refuses. A store's rule is changed, so
that it cannot be merged. Jobs, broker and workers are killed with -9. In the end each event that Kafka acknowledged is in the
changelog or the quarantine, once; each poisonous one is in the quarantine with a reason; each healthy store is what the oracle says, in
its table and in the API. AssertionError else.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil
import requests
from confluent_kafka import Producer
from deltalake import DeltaTable

from statehouse.config.file import load
from statehouse.failures import failing
from statehouse.tables import select
from tests.support.oracle import fold
from tests.support.processes import kill_all
from tests.support.records import create, free_port, wait

RATE, POISON, KEYS = 1000, 50, 500
TAGS = ["a", "b"]
HUGE = 2**63 - 1
CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "127.0.0.1:{kafka}"}}
merge_every: 2 seconds
streams:
  s:
    topic: chaos
    schema: key STRING, agent STRING, value STRING, n BIGINT, d DOUBLE, amount DECIMAL(10,2), ms BIGINT, i INT, tags ARRAY<STRING>, at TIMESTAMP
    time: timestamp_millis(ms)
stores:
  status: {{stream: s, key: key, agent: agent, value: value, reduce: majority}}
  total: {{stream: s, key: key, value: n, reduce: sum}}
  tag: {{stream: s, key: key, value: "element_at(tags, i)", reduce: latest}}
  broken: {{stream: s, key: key, value: {broken}, reduce: sum}}
routes:
  kept: {{from: s, where: n > 0, select: [key, n], to: {{table: kept}}}}
tasks: {{topics: [compacted, alerts]}}
api: {{max_time: 5 seconds, max_lag: 1 minute}}
"""
HEALTHY = {"status": ("majority", "value"), "total": ("sum", "n"), "tag": ("latest", "tag")}
Event = dict[str, Any]


def poison(dice: random.Random, good: Event) -> tuple[bytes, dict[str, bytes]]:
    """A record that has to be refused: its payload and its headers."""
    text = json.dumps(good)
    payload, headers = dice.choice(
        [
            ("not json", {}),
            (text[:-1], {}),
            (text[:-1] + ",}", {}),
            (text + " tail", {}),
            (json.dumps({**good, "ms": HUGE}), {}),
            (text[:-1] + ', "d": NaN}', {}),
            (text[:-1] + ', "d": 1e400}', {}),
            (text[:-1] + ', "amount": 1e1000000}', {}),
            (text[:-1] + ', "amount": ' + "9" * 100_000 + "}", {}),
            (text[:-1] + ', "at": "12:00"}', {}),
            (text[:-1] + ', "agent": "lone\\ud83d"}', {}),
            (text[:-1] + ', "x": ' + "[" * 5000 + "]" * 5000 + "}", {}),
            (text, {"statehouse-op": b"\xff\xfe"}),
            (text, {"statehouse-op": b"set", "statehouse-store": b"nosuch"}),
            (json.dumps({"due": "2024-01-01T00:00:00Z", "send": {"topic": ".."}}), {"statehouse-op": b"task"}),
        ]
    )
    return payload.encode(), headers


class Source(threading.Thread):
    """Sends events until it is stopped; keeps what Kafka has acknowledged, in :attr:`acknowledged`."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(daemon=True)
        settings = {"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True}
        self.producer = Producer({**settings, "message.timeout.ms": 300_000, "linger.ms": 5})
        self.dice, self.stopping, self.rate = random.Random(seed), threading.Event(), RATE
        self.acknowledged: list[Event] = []

    def run(self) -> None:
        """Send, also while the broker is away: then the producer keeps them."""
        due, sent = time.monotonic(), 0
        while not self.stopping.is_set():
            for _ in range(self.rate // 50):
                self._send(sent)
                sent += 1
            self.producer.poll(0)
            due = max(due + 0.02, time.monotonic() - 1)
            self.stopping.wait(max(0.0, due - time.monotonic()))
        assert self.producer.flush(300) == 0

    def _send(self, number: int) -> None:
        dice = self.dice
        n, i = dice.randrange(-9, 10), dice.choice((0, 1, 1, 2, 2, 2))
        ms = int(time.time() * 1000) - dice.choice((0, 0, 0, 30_000))
        key = f"k{dice.randrange(KEYS)}"
        event = {"key": key, "agent": dice.choice("pqr"), "value": dice.choice("abc"), "n": n, "ms": ms, "i": i}
        headers: dict[str, bytes] = {}
        told = {**event, "op": "report", "tag": TAGS[i - 1] if i else None}
        payload = json.dumps({**event, "tags": TAGS}).encode()
        if number % POISON == 7:
            payload, headers = poison(dice, {**event, "tags": TAGS})
            told = {"op": "poison"}
        elif number % POISON == 17:
            payload, headers = (
                json.dumps({"value": n}).encode(),
                {"statehouse-op": b"set", "statehouse-store": b"total"},
            )
            told = {"op": "set", "key": key, "agent": "x", "n": n}

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            time_us = told["ms"] * 1000 if "ms" in told else message.timestamp()[1] * 1000
            self.acknowledged.append({**told, "order": (time_us, message.partition(), message.offset())})

        while True:
            try:
                self.producer.produce("chaos", key=key, value=payload, headers=headers, on_delivery=delivered)
                return
            except BufferError:
                self.producer.poll(0.1)


class Process:
    """A command of ours, in a session of its own, which can be killed and begun again; all of them are :attr:`begun`."""

    begun: ClassVar[list[Process]] = []

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.words, self.kills = folder, words, 0
        self.log = folder / f"{words[0]}.log"
        self.begun.append(self)
        self.begin()

    def begin(self) -> None:
        """Start it."""
        command = [sys.executable, "-m", "statehouse.cli", *self.words]
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill it with -9, and start it again."""
        self.kills += 1
        self.running.kill()
        self.running.wait()
        self.begin()

    def stop(self) -> int:
        """Stop it with SIGTERM; its exit status."""
        self.running.terminate()
        try:
            return self.running.wait(180)
        except subprocess.TimeoutExpired:
            self.running.kill()
            return self.running.wait()


class Caller(threading.Thread):
    """Calls the API again and again, in one way, until ``stopping``."""

    def __init__(self, port: int, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.stopping, self.dice = port, stopping, random.Random()

    def run(self) -> None:
        """Go on through whatever happens: the API is killed now and then."""
        while not self.stopping.wait(0.05):
            with suppress(OSError, requests.RequestException):
                self.call()

    def call(self) -> None:
        """One request."""
        raise NotImplementedError

    def connected(self, head: str) -> socket.socket:
        """A connection on which a request's head was sent."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        made.sendall(f"{head}\r\nHost: localhost:{self.port}\r\n".encode())
        return made


class Deaf(Caller):
    """Asks for a scan, and reads nothing."""

    def call(self) -> None:
        """One request."""
        with self.connected("GET /stores/status/keys HTTP/1.1") as made:
            made.sendall(b"Accept: application/x-ndjson\r\n\r\n")
            self.stopping.wait(20)


class Dripping(Caller):
    """Sends its body a byte a second."""

    def call(self) -> None:
        """One request."""
        with self.connected("PUT /stores/total/keys/k1 HTTP/1.1") as made:
            made.sendall(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(60):
                made.sendall(b" ")
                if self.stopping.wait(1):
                    return


class Endless(Caller):
    """Asks for a pattern that takes for ever, and leaves."""

    def call(self) -> None:
        """One request."""
        pattern = "%a_" * 8 + "b"
        with suppress(requests.Timeout):
            url = f"http://127.0.0.1:{self.port}/stores/status/keys"
            requests.get(url, params={"where": f"key LIKE '{pattern}'"}, timeout=1)


class Asking(Caller):
    """Asks for tasks that their topic refuses (it is compacted, they have no key), and for some that it does not."""

    taken = 0

    def call(self) -> None:
        """Two requests."""
        for topic in ("compacted", "alerts"):
            body = {"after": "1 second", "send": {"topic": topic, "value": "look"}}
            answer = requests.post(f"http://127.0.0.1:{self.port}/tasks", json=body, timeout=10)
            Asking.taken += answer.status_code == 202
        self.stopping.wait(1)


class Reader(Caller):
    """A caller like any other: how long its requests took, in seconds."""

    def __init__(self, port: int, stopping: threading.Event) -> None:
        super().__init__(port, stopping)
        self.took: list[float] = []

    def call(self) -> None:
        """A point read and a look at the health."""
        for path in (f"/stores/status/keys/k{self.dice.randrange(KEYS)}", "/healthz"):
            began = time.monotonic()
            requests.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)
            self.took.append(time.monotonic() - began)


def write(folder: Path, kafka: int, broken: str) -> None:
    """The configuration; at once, as it is read at any moment."""
    (folder / "new.yaml").write_text(CONFIG.format(kafka=kafka, broken=broken))
    (folder / "new.yaml").rename(folder / "statehouse.yaml")


def commits(folder: Path) -> int:
    """How many commits the tables of the lake have."""
    return sum(1 for _ in folder.glob("lake/**/_delta_log/*.json"))


def memory(process: Process) -> float:
    """MiB of a process and all that it has started."""
    with suppress(psutil.Error):
        tree = psutil.Process(process.running.pid)
        return sum(p.memory_info().rss for p in [tree, *tree.children(recursive=True)]) / 2**20
    return 0.0


def main(seconds: int = 600, seed: int = 1) -> None:
    """Run it; print what was done, and how long a caller waited."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        try:
            _run(Path(name), seconds, random.Random(seed), seed)
        finally:
            for process in Process.begun:
                kill_all(process.running)


def _run(folder: Path, seconds: int, dice: random.Random, seed: int) -> None:
    kafka, http = free_port(), free_port()
    bootstrap = f"127.0.0.1:{kafka}"
    write(folder, kafka, "n")
    broker = Process(folder, "broker", "--dir", str(folder / "kafka"), "--port", str(kafka))
    wait(lambda: _answers(kafka), what="the broker")
    create(bootstrap, "chaos", 2)
    create(bootstrap, "compacted", cleanup_policy="compact")
    jobs, api = Process(folder, "run"), Process(folder, "serve", "--port", str(http), "--workers", "2")
    source, stopping = Source(bootstrap, seed), threading.Event()
    source.start()
    wait(lambda: (folder / "lake/state/broken/_delta_log").is_dir(), what="the first merge")
    write(folder, kafka, "n + 1")  # from the next start of the jobs on it cannot be merged
    reader = Reader(http, stopping)
    callers = [kind(http, stopping) for kind in (Deaf, Dripping, Endless) for _ in range(10)]
    for caller in (*callers, Asking(http, stopping), reader):
        caller.start()
    until, most = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        goal, latest = commits(folder) + dice.randrange(12), time.monotonic() + 45
        while commits(folder) < goal and time.monotonic() < latest:
            time.sleep(0.1)
            most = max(most, memory(api))
        time.sleep(dice.random())
        victim = dice.choice((jobs, jobs, jobs, broker, api))
        if victim is api:
            with suppress(psutil.Error, IndexError):
                workers = [
                    p for p in psutil.Process(api.running.pid).children() if "spawn_main" in " ".join(p.cmdline())
                ]
                dice.choice(workers).kill()
                api.kills += 1
        else:
            victim.kill()
            if victim is broker:
                wait(lambda: _answers(kafka), what="the broker")
        wait(lambda g=goal: commits(folder) > g or time.monotonic() > until, 300, what="commits after a kill")
    stopping.set()
    source.stopping.set()
    source.join(400)
    assert not source.is_alive()
    print(f"{len(source.acknowledged)} events; kills: jobs {jobs.kills}, broker {broker.kills}, workers {api.kills}")
    print(f"{len(reader.took)} requests, median {statistics.median(reader.took) * 1000:.1f} ms, "
          f"p99 {statistics.quantiles(reader.took, n=100)[98] * 1000:.0f} ms; the API at most {most:.0f} MiB")  # fmt: skip
    assert jobs.stop() == 0, jobs.log.read_text()[-2000:]
    done = subprocess.run([sys.executable, "-m", "statehouse.cli", "run", "--once"], cwd=folder, capture_output=True)
    said = done.stderr.decode()
    assert done.returncode == 1 and "failed: merge broken;" in said, said[-3000:]
    config = load(folder / "statehouse.yaml", {})
    assert list(failing(config, "merge")) == ["broken"]
    _check(config, source.acknowledged)
    _check_tasks(config)
    _check_api(http, source.acknowledged)
    for process in (api, broker):
        assert process.stop() == 0, process.log.read_text()[-2000:]
    print("all is as it should be")


def _answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def right(events: list[Event], store: str) -> dict[str, Any]:
    """The oracle's state of a store."""
    reducer, column = HEALTHY[store]
    by_key: dict[str, list[Event]] = {}
    for event in events:
        if event["op"] == "report" or (event["op"] == "set" and store == "total"):
            told = {"op": event["op"], "agent": event["agent"], "value": event[column], "order": event["order"]}
            by_key.setdefault(event["key"], []).append(told)
    return {key: result[0] for key, of in by_key.items() if (result := fold(reducer, of)) is not None}


def _rows(path: str) -> list[Event]:
    return select(DeltaTable(path), "SELECT * FROM found")


def _check(config: Any, events: list[Event]) -> None:
    """The tables are what the oracle says."""
    log, bad = _rows(f"{config.root}/changelog/s"), _rows(f"{config.root}/quarantine/s")
    tasks = sum(1 for row in log if row["_op"] == "task")  # asked for over HTTP
    places = Counter((r["_partition"], r["_offset"]) for r in log if r["_op"] != "task")
    places.update((r["partition"], r["offset"]) for r in bad)
    assert max(places.values()) == 1, "an event is there twice"
    assert set(places) == {e["order"][1:] for e in events}, "an event is lost, or was never sent"
    poisonous = {e["order"][1:] for e in events if e["op"] == "poison"}
    assert {(r["partition"], r["offset"]) for r in bad} == poisonous and all(r["reason"] for r in bad)
    for store in HEALTHY:
        assert {r["key"]: r["value"] for r in _rows(f"{config.root}/state/{store}")} == right(events, store), store
    kept = Counter((r["key"], r["n"]) for r in _rows(f"{config.root}/routes/kept"))
    assert kept == Counter((e["key"], e["n"]) for e in events if e["op"] == "report" and e["n"] > 0)
    print(f"{len(log)} in the changelog ({tasks} tasks), {len(bad)} in the quarantine, for "
          f"{len({r['reason'][:25] for r in bad})} reasons")  # fmt: skip


def _check_tasks(config: Any) -> None:
    """Tasks whose topic refuses them have failed, with the reason; the others were sent."""
    by_topic: dict[str, Counter[str]] = {"compacted": Counter(), "alerts": Counter()}
    for row in _rows(f"{config.root}/tasks"):
        by_topic[row["topic"]][row["status"]] += 1
        assert row["status"] != "failed" or row["reason"]
    print(f"tasks: {dict(by_topic)}; {Asking.taken} were taken")
    assert set(by_topic["alerts"]) <= {"sent"} and set(by_topic["compacted"]) <= {"failed"}
    assert Asking.taken <= sum(sum(found.values()) for found in by_topic.values())


def _check_api(port: int, events: list[Event]) -> None:
    """The API shows what the oracle says, and which store is broken."""
    url = f"http://127.0.0.1:{port}/stores"
    wait(lambda: not _differing(url, events), what="the API to show all")
    errors = {s["name"]: s["error"] for s in requests.get(url, timeout=30).json()["stores"]}
    assert errors.pop("broken") and not any(errors.values()), errors


def _differing(url: str, events: list[Event]) -> list[str]:
    found = []
    for store in HEALTHY:
        answer = requests.get(f"{url}/{store}/keys", headers={"Accept": "application/x-ndjson"}, timeout=60)
        rows = [json.loads(line) for line in answer.text.splitlines()]
        if {r["key"]: r["value"] for r in rows} != right(events, store):
            found.append(store)
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
