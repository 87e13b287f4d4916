"""Everything at once for a while: `python -m bench.soak [MINUTES] [RATE]` (20 minutes, 500 requests a second).

An embedded Kafka, `statehouse run`, and `statehouse serve` with one worker, each a process; 1,000 events a second over 100,000
keys; and a client process that asks for a bit of everything. A line every quarter of the time or five minutes, and a table at the end:
answers by request and status, their times, the worker's memory, and every 4xx and 5xx with its body.
"""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from demo.broker import Broker
from statehouse.kafka import create_topic

KEYS, EVENTS = 100_000, 1_000  # keys; events a second
THREADS, STREAMS = 64, 2
CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, agent STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: key, value: n, reduce: latest}}
  status: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority}}
"""


def key(dice: random.Random) -> str:
    """One of the keys."""
    return f"key-{dice.randrange(KEYS):05}"


class Source(threading.Thread):
    """One event for each key, then so many a second until stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20})
        self.dice, self.sent, self.stopping = random.Random(1), 0, threading.Event()
        for number in range(KEYS):
            self.send(f"key-{number:05}")
        self.producer.flush(60)

    def send(self, name: str) -> None:
        event = {"key": name, "agent": self.dice.choice("pqr"), "n": self.dice.randrange(1000)}
        self.producer.produce("t", key=name, value=json.dumps(event))
        self.sent += 1
        if self.sent % 1000 == 0:
            self.producer.poll(0)

    def run(self) -> None:
        began, first = time.monotonic(), self.sent
        while not self.stopping.wait(0.02):
            while self.sent - first < (time.monotonic() - began) * EVENTS:
                self.send(key(self.dice))
            self.producer.poll(0)
        self.producer.flush(30)


class Asking:
    """The client's threads, and what they found. Each request has its moment; the threads take them in turn."""

    def __init__(self, port: int, seconds: float, rate: float) -> None:
        self.port, self.rate, self.began = port, rate, time.monotonic()
        self.until = self.began + seconds
        self.turns = itertools.count()
        self.times: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self.events: Counter[str] = Counter()
        self.late = 0

    def run(self) -> dict[str, Any]:
        threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(THREADS)]
        threads += [threading.Thread(target=self._follow) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times = [(name, status, sorted(found)) for (name, status), found in self.times.items()]
        rows = [(n, s, len(f), f[len(f) // 2], f[len(f) * 99 // 100], f[-1]) for n, s, f in times]
        return {"rows": rows, "wrong": self.wrong, "events": dict(self.events), "late": self.late}

    def _ask(self, number: int) -> None:
        dice, connection = random.Random(number), self._connect()
        kinds, weights = zip(*MIX.items(), strict=True)
        while (at := self.began + next(self.turns) / self.rate) < self.until:
            if (pause := at - time.monotonic()) > 0:
                time.sleep(pause)
            elif time.monotonic() > self.until:  # what could not be asked in time is left
                break
            self.late += pause < -1
            kind = dice.choices(kinds, weights)[0]
            try:
                kind(self, connection, dice)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{kind.__name__}: {type(error).__name__}: {error}")
                connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)

    def one(
        self, name: str, connection: http.client.HTTPConnection, path: str, method: str = "GET", body: Any = None
    ) -> tuple[int, Any]:
        """Ask, note the time, give the status and the document."""
        began = time.perf_counter()
        sent, headers = (None, {}) if body is None else (json.dumps(body), {"Content-Type": "application/json"})
        connection.request(method, path, sent, headers)
        response = connection.getresponse()
        text = response.read()
        self.times[name, response.status].append(time.perf_counter() - began)
        if response.status >= 400:
            self.wrong.append(f"{method} {path}: {response.status} {text.decode()[:500]}")
        return response.status, json.loads(text)

    def point(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        status, found = self.one("point", connection, f"/stores/{dice.choice(STORES)}/keys/{key(dice)}")
        if status != 200:
            self.wrong.append(f"point: {status} {found}")

    def lookup(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        asked = list({key(dice) for _ in range(20)})
        _, found = self.one("lookup of 20", connection, "/stores/total/lookup", "POST", {"keys": asked})
        if [row["key"] for row in found["rows"]] != asked:
            self.wrong.append(f"lookup: {found}")

    def scan(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        path = f"/stores/{dice.choice(STORES)}/keys?limit=1000"
        _, first = self.one("scan of 1,000", connection, f"{path}&from={key(dice)}")
        if first["cursor"]:
            _, second = self.one("scan of 1,000", connection, f"{path}&cursor={first['cursor']}")
            if second["rows"] and second["rows"][0]["key"] <= first["rows"][-1]["key"]:
                self.wrong.append("scan: a page that does not come after the one before")

    def prefix(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        begins = key(dice)[:-2]
        _, found = self.one("prefix, 100 keys", connection, f"/stores/last/keys?prefix={begins}")
        if [row["key"] for row in found["rows"]] != [f"{begins}{n:02}" for n in range(100)]:
            self.wrong.append(f"prefix {begins}: {[row['key'] for row in found['rows']]}")

    def reports(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        self.one("reports", connection, f"/stores/status/keys/{key(dice)}/reports")

    def past(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        kind = dice.choice(["history", "at", "version"])
        path = f"/stores/total/keys/{key(dice)}"
        if kind == "version":
            _, store = self.one("store", connection, "/stores/total")
            if store["version"]:  # 0 has no keys: the replica has them from the changelog
                self.one(kind, connection, f"{path}?version={store['version']}")
        else:
            self.one(kind, connection, f"{path}/history" if kind == "history" else f"{path}?at=2100-01-01")

    def write(self, connection: http.client.HTTPConnection, dice: random.Random) -> None:
        path, value = f"/stores/last/keys/mine-{threading.get_ident()}", dice.randrange(10**9)
        status, found = self.one("write", connection, path, "PUT", {"value": value})
        if status == 202:
            status, found = self.one("read of a write", connection, f"{path}?after={found['token']}&timeout=60")
            if status == 200 and found["value"] != value:
                self.wrong.append(f"write: {value} was written, {found} read")

    def _follow(self) -> None:
        place = None
        while time.monotonic() < self.until:
            connection = self._connect()
            try:
                connection.request("GET", "/stores/total/changes", headers={"Last-Event-ID": place} if place else {})
                response = connection.getresponse()
                self.times["changes", response.status].append(0.0)
                while time.monotonic() < self.until and (line := response.readline()):
                    if line.startswith(b"event: "):
                        self.events[line[7:-1].decode()] += 1
                    elif line.startswith(b"id: "):
                        place = line[4:-1].decode()
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"changes: {type(error).__name__}: {error}")
            finally:
                connection.close()


STORES = ("total", "last", "status")
MIX: dict[Callable[[Asking, http.client.HTTPConnection, random.Random], None], float] = {
    Asking.point: 80,
    Asking.lookup: 10,
    Asking.prefix: 5,
    Asking.scan: 1.5,
    Asking.reports: 2.3,
    Asking.past: 0.1,  # a scan of a table each, one at a time
    Asking.write: 1,
}


def client(port: int, seconds: float, rate: float, answers: Any) -> None:
    """The client's process."""
    answers.put(Asking(port, seconds, rate).run())


def memory(pid: int) -> float:
    """A process's resident memory, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Stage:
    """Kafka, the jobs and one worker of the API, each a process; every store has every key, and ``source`` sends events."""

    def __init__(self, folder: Path, broker: Broker, source: type[Source]) -> None:
        self.folder, self.bootstrap = folder, broker.bootstrap
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
        create_topic({"bootstrap.servers": broker.bootstrap}, "t")
        self.source = source(broker.bootstrap)
        self.log = open(folder / "log", "wb")  # noqa: SIM115 (it lives as long as the processes)
        self.run_jobs()
        self.server = self._command("serve", "--port", "0", stdout=subprocess.PIPE)
        try:
            assert self.server.stdout
            self.port = int(self.server.stdout.readline().decode().rsplit(":", 1)[1])
            loaded(self.port, self.jobs, folder)
            self.worker = next(
                p for p in children(self.server.pid) if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()
            )
            self.source.start()
        except BaseException:
            self.close()
            raise

    def run_jobs(self) -> None:
        """Start the jobs."""
        self.jobs = self._command("run", stdout=self.log)

    def close(self) -> None:
        """End all of it."""
        self.source.stopping.set()
        for process in (self.server, self.jobs):
            process.terminate()
            process.wait(90)
        self.log.close()

    def _command(self, *words: str, stdout: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "statehouse.cli", *words]
        return subprocess.Popen(command, cwd=self.folder, stdout=stdout, stderr=self.log)


@contextmanager
def staged(source: type[Source] = Source, kind: type[Stage] = Stage) -> Iterator[Stage]:
    """A stage for a while, in a folder of its own."""
    with (
        tempfile.TemporaryDirectory() as name,
        Broker(Path(name) / "kafka") as broker,
        closing(kind(Path(name), broker, source)) as stage,
    ):
        yield stage


def main(minutes: float = 20, rate: float = 500) -> None:
    """Run it all, and print what was found."""
    with staged() as stage:
        measured(stage, minutes * 60, rate)


def status_of(port: int) -> list[dict[str, Any]]:
    """What ``GET /stores`` says."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/stores")
    return json.loads(connection.getresponse().read())["stores"]


def loaded(port: int, jobs: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until every store has every key, and the changelog, too: the past is asked of that."""
    while any(store["keys"] < KEYS or store["live"]["pending"] for store in status_of(port)):
        assert jobs.poll() is None, (folder / "log").read_text()[-3000:]
        time.sleep(0.5)


def measured(stage: Stage, seconds: float, rate: float) -> None:
    """Ask for so long, with a line every quarter or five minutes, then the table."""
    lines = max(4, round(seconds / 300))
    port, worker, source = stage.port, stage.worker, stage.source
    print(f"{KEYS:,} keys, {EVENTS:,} events/s, {rate:g} requests/s for {seconds / 60:g} minutes")
    print(f"load average {os.getloadavg()[0]:.1f}, worker {memory(worker):.0f} MiB at the start", flush=True)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    asking = context.Process(target=client, args=(port, seconds, rate, answers), daemon=True)
    asking.start()
    for line in range(1, lines + 1):
        begun, seen = time.monotonic(), []
        while (
            time.monotonic() < begun + seconds / lines
        ):  # it goes up and down with what has changed since the version that is on
            time.sleep(min(2.0, seconds / lines))
            seen.append(memory(worker))
        stores = {s["name"]: (s["position"], s["lag_ms"]) for s in status_of(port)}
        said = ", ".join(f"{n} at {p} ({lag} ms)" for n, (p, lag) in stores.items())
        at = seconds / 60 / lines * line
        rss = f"{memory(worker):.0f} MiB ({min(seen):.0f} to {max(seen):.0f} since the line before)"
        print(f"{at:5.1f} min: worker {rss}, load {os.getloadavg()[0]:.1f}; {said}", flush=True)
    found = answers.get(timeout=180)
    asking.join()
    print(f"\n{'request':18} {'status':>6} {'answers':>9} {'p50':>9} {'p99':>9} {'worst':>9}")
    for name, status, count, half, most, worst in sorted(found["rows"]):
        times = "" if name == "changes" else "".join(f"{t * 1000:7.1f}ms" + " " for t in (half, most, worst))
        print(f"{name:18} {status:>6} {count:>9,} {times}")
    total = sum(row[2] for row in found["rows"])
    print(
        f"{total / seconds:,.0f} answers/s; {found['late']:,} requests began more than a second late; {source.sent:,} events sent"
    )
    print(f"events of changes: {found['events']}")
    print(f"wrong: {len(found['wrong'])}", *found["wrong"][:20], sep="\n  ")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
