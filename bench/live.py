"""The whole system on one machine: `python -m bench.live [KEYS] [SECONDS]`; needs `wrk`.

A lake of that many keys, the embedded Kafka, `nice statehouse run` and `statehouse serve`, all real and all here. Measured for so
many seconds each: point reads idle, and while 5,000 events/s flow but no job runs; freshness, from a probe's produce to the first GET
that shows it (asked every 5 ms), while 1,000 events/s flow and are merged, and writes that are read back; point reads and freshness
while 5,000 and 10,000 events/s flow.
Then `lookup` of 1,000 keys and full scans; and the point reads of Kafka Streams, which keeps the newest value of each key of the same topic
and writes no lake, idle and at the same rates.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from confluent_kafka import Producer
from deltalake import DeltaTable

from bench import peer
from bench.reads import LUA, PEERS, fill, wrk
from demo.broker import Broker

CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, agent STRING, n BIGINT, ts TIMESTAMP", time: ts}}
stores:
  last: {{stream: s, key: key, value: n, reduce: latest}}
"""
PROBES = 4  # side by side


class Flow:
    """Random events at a rate, from a thread; and probes."""

    def __init__(self, bootstrap: str, keys: int) -> None:
        self._client = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._keys, self._stop, self.rate, self.sent = keys, threading.Event(), 0, 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, key: str, n: int) -> None:
        """One event, of now."""
        now = time.time_ns() // 1000  # once: of two looks at the clock the second may come with another second
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**6)) + f".{now % 10**6:06}Z"
        self._client.produce("t", key=key, value=json.dumps({"key": key, "agent": "a", "n": n, "ts": moment}))

    def stop(self) -> None:
        """End, and wait until all has been acknowledged."""
        self._stop.set()
        self._thread.join()
        self._client.flush()

    def _run(self) -> None:
        dice, due = random.Random(1), time.monotonic()
        while not self._stop.wait(0.01):
            now = time.monotonic()
            for _ in range(int((now - due) * self.rate)):
                self.send(f"key-{dice.randrange(self._keys)}", dice.randrange(1000))
                self.sent += 1
                due += 1 / self.rate
            if not self.rate:
                due = now
            self._client.poll(0)


def probe(flow: Flow, port: int, number: int, until: float, found: list[float]) -> None:
    """Send an event of a key of its own and ask until it is there; again and again."""
    connection, key, n = http.client.HTTPConnection("127.0.0.1", port), f"probe-{number}", 1000
    while time.monotonic() < until:
        n += 1
        flow.send(key, n)
        began = time.monotonic()
        while time.monotonic() < began + 60:
            connection.request("GET", f"/stores/last/keys/{key}")
            body = json.loads(connection.getresponse().read())
            if body.get("value") == n:
                break
            time.sleep(0.005)
        found.append(time.monotonic() - began)
        time.sleep(random.random() / 4)  # at any moment of the replica's round


def freshness(flow: Flow, port: int, seconds: float) -> str:
    """Seconds from produce to GET."""
    found: list[float] = []
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=probe, args=(flow, port, i, until, found)) for i in range(PROBES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return f"{len(found)} probes: {spread(found)}"


def spread(found: list[float]) -> str:
    """The median, the worst hundredth and the worst of some times."""
    cuts = statistics.quantiles(found, n=100)
    return f"p50 {cuts[49]:.3f} s, p99 {cuts[98]:.3f} s, most {max(found):.3f} s"


def written(port: int, count: int) -> str:
    """Seconds of a PUT and the GET with its token, one after the other; and how often the GET had another value."""
    connection, found, wrong = http.client.HTTPConnection("127.0.0.1", port), [], 0
    for n in range(count):
        began, path = time.monotonic(), f"/stores/last/keys/mine-{n % 10}"
        connection.request("PUT", path, json.dumps({"value": n}), {"Content-Type": "application/json"})
        token = json.loads(connection.getresponse().read())["token"]
        connection.request("GET", f"{path}?after={token}&timeout=60")
        wrong += json.loads(connection.getresponse().read()).get("value") != n
        found.append(time.monotonic() - began)
    return f"{count} writes: {spread(found)}, {wrong} wrong"


@contextmanager
def started(folder: Path, *words: str, before: tuple[str, ...] = ()) -> Iterator[subprocess.Popen[str]]:
    """A subcommand in a process of its own; ``before`` it a command that starts it."""
    with (folder / f"{words[0]}.log").open("w") as log:
        command = [*before, sys.executable, "-m", "statehouse.cli", *words]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def asked(port: int, path: str, accept: str = "*/*", body: object = None) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Accept": accept, "Content-Type": "application/json"}
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()[:500]
    size = 0
    while chunk := response.read(1 << 20):
        size += len(chunk)
    return time.monotonic() - began, size


def status(port: int) -> dict:
    """What the API says of the store."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/stores/last")
    return json.loads(connection.getresponse().read())


def merges(folder: Path) -> int:
    """How often the state was merged."""
    return DeltaTable(folder / "lake/state/last").version()


def say(what: str, figure: str) -> None:
    """A line, with the machine's load."""
    print(f"{what:45} {figure}   (load {os.getloadavg()[0]:.1f})", flush=True)


def loaded(folder: Path, keys: int) -> None:
    """A lake of so many keys, merged."""
    duckdb.sql(f"""
        COPY (SELECT 'key-' || i AS key, 'a' AS agent, CAST(hash(i) % 1000 AS BIGINT) AS n,
            TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_seconds(i) AS ts FROM range({keys}) AS t(i))
        TO '{folder}/old.parquet'""")
    for words in (["load", "s", "old.parquet"], ["merge", "--once"]):
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "statehouse.cli", *words]
            subprocess.run(command, cwd=folder, check=True, stdout=log, stderr=log)


def main(keys: int = 1_000_000, seconds: int = 60, workers: int = 1) -> None:
    """Print a line for each figure."""
    sys.setswitchinterval(0.0005)  # what the probes and the flow wait for each other is not what is measured
    with tempfile.TemporaryDirectory() as name, Broker(Path(name, "kafka")) as broker:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
        (folder / "keys.lua").write_text(LUA % ("/stores/last/keys/", keys - 1))
        (folder / "peer.lua").write_text(LUA % (PEERS, keys - 1))
        loaded(folder, keys)
        flow = Flow(broker.bootstrap, keys)
        say(f"{keys:,} keys, {workers} workers, {seconds} s each", "")
        with started(folder, "serve", "--port", "0", "--workers", str(workers)) as api:
            assert api.stdout
            url = api.stdout.readline().split()[-1]
            port = int(url.rpartition(":")[2])
            say("point reads, jobs stopped", wrk(url, folder / "keys.lua", seconds))
            flow.rate = 5000
            time.sleep(5)
            say("point reads at 5,000 events/s, jobs stopped", wrk(url, folder / "keys.lua", seconds))
            with started(folder, "run", before=("nice",)):
                flow.rate = 1000
                before = merges(folder)
                while merges(folder) < before + 5:  # warm: some rounds are merged
                    time.sleep(0.5)
                before = merges(folder)
                say("freshness at 1,000 events/s", freshness(flow, port, 2 * seconds))
                say("", f"{merges(folder) - before} merges meanwhile")
                say("a write and the read of it, meanwhile", written(port, 1000))
                for rate in (5000, 10_000):
                    flow.rate, sent, began = rate, flow.sent, time.monotonic()
                    time.sleep(10)
                    say(f"point reads at {rate:,} events/s", wrk(url, folder / "keys.lua", seconds))
                    say(f"freshness at {rate:,} events/s", freshness(flow, port, seconds))
                    flowed, store = (flow.sent - sent) / (time.monotonic() - began), status(port)
                    say("", f"{flowed:,.0f} events/s were sent, lag {store['lag_ms']} ms, {store['live']}")
                flow.stop()
            dice = random.Random(2)
            sample = [[f"key-{dice.randrange(keys)}" for _ in range(1000)] for _ in range(20)]
            took = statistics.median(asked(port, "/stores/last/lookup", body={"keys": some})[0] for some in sample)
            say("lookup of 1,000 keys", f"{1000 / took:,.0f} keys/s")
            for kind in ("application/x-ndjson", "application/vnd.apache.arrow.stream"):
                took, size = asked(port, "/stores/last/keys", kind)
                say(f"all as {kind}", f"{keys / took:,.0f} rows/s, {took:.1f} s, {size / 2**20:.0f} MiB")
        fill(broker.bootstrap, keys)
        with peer.serving(folder, broker.bootstrap, keys) as (url, _):
            say("Kafka Streams: point reads", wrk(url, folder / "peer.lua", seconds))
            flow = Flow(broker.bootstrap, keys)
            for rate in (5000, 10_000):
                flow.rate = rate
                time.sleep(10)
                say(f"Kafka Streams: at {rate:,} events/s", wrk(url, folder / "peer.lua", seconds))
            flow.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
