"""The API among things that fail: Kafka, the jobs and a worker stopped, tables vacuumed. One lake for all, and nothing pretended."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from demo.broker import Broker
from statehouse.kafka import create_topic
from statehouse.tables import rows_and_bytes
from tests.support.depth import sized
from tests.support.records import produce, wait

WRITES = sized(32, 2000)  # that are read back
CONFIG = """root: ./lake
merge_every: 1 second
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, n BIGINT"}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: key, value: n, reduce: latest}}
  merged: {{stream: s, key: key, value: crc32(key), reduce: latest}}   # DuckDB has no crc32: it follows its table
"""
KEYS = {f"key-{n:03}": n for n in range(200)}  # with their values in total and last; nobody writes to these again
pytestmark = [pytest.mark.slow, pytest.mark.crash]


class Client:
    """A keep-alive connection, to whichever worker takes it."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        self.worker: int | None = None

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """Status, document (or text) and headers."""
        sent = None if body is None else json.dumps(body)
        if sent is not None:
            headers["Content-Type"] = "application/json"
        self.connection.request(method, path, sent, headers)
        response = self.connection.getresponse()
        text = response.read().decode()
        document = json.loads(text) if response.headers.get_content_type().endswith(("/json", "+json")) else text
        return response.status, document, response.headers

    def whose(self) -> int:
        """The process that is at the other end."""
        text = self.ask("/metrics")[1]
        self.worker = int(text.split('statehouse_worker{worker="')[1].split('"')[0])
        return self.worker


class Stage:
    """Kafka, the jobs and the API with two workers, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = Broker(folder / "kafka", partitions=2)
        self.broker.start()
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=self.broker.bootstrap))
        create_topic({"bootstrap.servers": self.broker.bootstrap}, "t")
        produce(self.broker.bootstrap, "t", [(k, {"key": k, "n": n}, None, n % 2) for k, n in KEYS.items()])
        self.log = open(folder / "log", "ab")  # noqa: SIM115 (it outlives each process)
        self.jobs: subprocess.Popen | None = self.command("run")
        self.server = self.command("serve", "--port", "0", "--workers", "2", stdout=subprocess.PIPE)
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline().decode().rsplit(":", 1)[1])
        wait(
            lambda: all(self.loaded() for _ in range(6)), 180, what="both workers to have all"
        )  # any of them may answer

    def command(self, *words: str, stdout: Any = None) -> subprocess.Popen:
        command = [sys.executable, "-m", "statehouse.cli", *words]
        return subprocess.Popen(command, cwd=self.folder, stdout=stdout or self.log, stderr=self.log)

    def loaded(self) -> bool:
        assert self.jobs is None or self.jobs.poll() is None, (self.folder / "log").read_text()[-3000:]
        return all(s["keys"] >= len(KEYS) for s in Client(self.port).ask("/stores")[1]["stores"])

    def status(self, store: str) -> dict[str, Any]:
        return Client(self.port).ask(f"/stores/{store}")[1]

    def running(self) -> None:
        """The jobs run; they are started where they do not."""
        if self.jobs is None or self.jobs.poll() is not None:
            self.jobs = self.command("run")

    def stopped(self) -> None:
        """No job runs; they get no time to tidy up."""
        if self.jobs and self.jobs.poll() is None:
            self.jobs.kill()
            self.jobs.wait()

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        return [int(p) for p in children if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]

    def client_of(self, worker: int) -> Client:
        """A connection that a worker has taken."""
        while (made := Client(self.port)).whose() != worker:
            pass
        return made

    def close(self) -> None:
        self.stopped()
        self.server.terminate()
        assert self.server.wait(120) == 0
        self.broker.stop()
        self.log.close()


@pytest.fixture(scope="module")
def stage(java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"))
    yield made
    made.close()


def known(client: Client, dice: random.Random) -> None:
    """One read of what nobody changes, of a random kind; AssertionError where the answer is not what it has to be."""
    key = dice.choice(list(KEYS))
    store, kind = dice.choice(["total", "last"]), dice.random()
    if kind < 0.5:
        status, found, _ = client.ask(f"/stores/{store}/keys/{key}")
        assert (status, found["value"]) == (200, KEYS[key]), (status, found)
    elif kind < 0.7:
        asked = dice.sample(list(KEYS), 20)
        status, found, _ = client.ask(f"/stores/{store}/lookup", "POST", {"keys": asked})
        assert status == 200 and {r["key"]: r["value"] for r in found["rows"]} == {k: KEYS[k] for k in asked}, found
    elif kind < 0.9:
        status, found, _ = client.ask(f"/stores/{store}/keys?prefix=key-&limit=1000")
        assert status == 200 and {r["key"]: r["value"] for r in found["rows"]} == KEYS, (status, found)
    else:
        status, text, _ = client.ask(f"/stores/{store}/keys?prefix=key-1", Accept="application/x-ndjson")
        rows = [json.loads(line) for line in text.splitlines()]
        assert status == 200 and {r["key"]: r["value"] for r in rows} == {
            k: n for k, n in KEYS.items() if n // 100 == 1
        }


def side_by_side(count: int, act: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(act, range(count)))


def test_who_writes_reads_it(stage: Stage) -> None:
    stage.running()
    numbers, times = itertools.count(1), []

    def write(thread: int) -> None:
        writer = Client(stage.port)
        before = None
        while (n := next(numbers)) <= WRITES:
            reader = Client(stage.port) if n % 2 else writer  # the same worker, or any
            began = time.monotonic()
            status, answer, _ = writer.ask(f"/stores/last/keys/own-{thread}", "PUT", {"value": n})
            assert status == 202, answer
            status, found, _ = reader.ask(f"/stores/last/keys/own-{thread}?after={answer['token']}&timeout=60")
            times.append(time.monotonic() - began)
            assert (status, found["value"]) == (200, n), (before, found)
            before = n

    side_by_side(16, write)
    times.sort()
    print(
        f"{len(times)} writes read back: p50 {times[len(times) // 2]:.2f} s, p99 {times[len(times) * 99 // 100]:.2f} s"
    )
    assert len(times) == WRITES


def test_kafka_goes_away_and_comes_back(stage: Stage) -> None:
    stage.running()
    stage.broker.kill()

    def write(thread: int) -> tuple[int, Any, Any, str]:
        key = f"away-{thread}"
        return (*Client(stage.port).ask(f"/stores/last/keys/{key}", "PUT", {"value": thread}), key)

    with ThreadPoolExecutor(8) as threads:
        writes = [threads.submit(write, n) for n in range(8)]
        reader, dice, reads = Client(stage.port), random.Random(1), 0
        while not all(w.done() for w in writes):
            known(reader, dice)
            reads += 1
    assert reads > 20
    for status, problem, headers, _ in (w.result() for w in writes):
        assert (status, problem["type"]) == (503, "urn:statehouse:kafka-unavailable")
        assert int(headers["Retry-After"]) > 0
    stage.broker = Broker(stage.folder / "kafka", partitions=2)
    stage.broker.start()

    def again() -> tuple[int, Any, Any, str] | None:
        found = write(99)
        return found if found[0] == 202 else None

    _, answer, _, key = wait(again, 60, what="writes")
    status, found, _ = Client(stage.port).ask(f"/stores/last/keys/{key}?after={answer['token']}&timeout=60")
    assert (status, found["value"]) == (200, 99)
    topic, partition, offset = answer["token"].rsplit(":", 2)
    consumer = Consumer({"bootstrap.servers": stage.broker.bootstrap, "group.id": "tests"})
    consumer.assign([TopicPartition(topic, int(partition), int(offset))])
    message = consumer.poll(20)
    consumer.close()
    assert (message.key(), json.loads(message.value())) == (key.encode(), {"value": 99}), "what the token names"


def test_the_jobs_are_gone(stage: Stage) -> None:
    """Reads go on, also of what was never merged; a store that only a merge could bring on says how far behind it is."""
    stage.running()

    def unmerged() -> bool:
        status, answer, _ = Client(stage.port).ask("/stores/last/keys/late", "PUT", {"value": 1})
        assert status == 202, answer
        logged = f"/stores/last/keys/late?after={answer['token']}&timeout=60&freshness=changelog"
        status, answer, _ = Client(stage.port).ask(logged)
        assert status == 200, answer
        stage.stopped()
        last = DeltaTable(str(stage.folder / "lake/state/merged")).version()

        def seen() -> (
            bool
        ):  # by both workers: one that has not seen the last merge yet would say that it is further behind
            return all(stage.status("merged")["version"] == last for _ in range(8))

        wait(seen, 60, what="the last merge")
        found = stage.status("merged")
        if found["lag_ms"] == 0:  # the merge was faster
            stage.running()
        return found["lag_ms"] > 0

    wait(unmerged, 120, what="a version that is not merged")
    first = stage.status("merged")
    assert first["freshness"] == "state" and first["position"] < first["head"]
    assert stage.status("last")["lag_ms"] == 0
    reader, dice = Client(stage.port), random.Random(2)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        known(reader, dice)
    assert stage.status("merged")["lag_ms"] >= first["lag_ms"] + 1000
    status, answer, _ = reader.ask("/stores/last/keys/late", "PUT", {"value": 2})
    assert status == 202, "Kafka takes it"
    written = f"/stores/last/keys/late?after={answer['token']}"
    status, found, _ = reader.ask(f"{written}&timeout=60")
    assert (status, found["value"], found["provisional"]) == (200, 2, True)
    status, answer, _ = reader.ask(f"{written}&timeout=0.2&freshness=changelog")
    assert (status, answer["type"]) == (504, "urn:statehouse:not-yet")


def test_tables_are_compacted_and_vacuumed_under_the_readers(stage: Stage) -> None:
    # A store that follows the changelog from its beginning has nothing to begin with when that is gone.
    stage.running()
    tables = {"state/total": "key", "state/last": "key", "state/merged": "key", "changelog/s": "_offset"}
    states = [str(stage.folder / "lake" / name) for name in tables if name.startswith("state/")]
    wait(lambda: all(rows_and_bytes(state)[0] >= len(KEYS) for state in states), what="merges")
    stage.stopped()  # they would be a second writer
    asked: Counter[tuple[str, int]] = Counter()
    done, wrong = threading.Event(), []

    def past(client: Client, dice: random.Random) -> None:
        key = dice.choice(list(KEYS))
        kind = dice.choice(["history", "at", "version", "newest"])
        if kind == "history":
            status, found, _ = client.ask(f"/stores/total/keys/{key}/history")
            good = status == 200 and [e["value"] for e in found["events"]] == [KEYS[key]]
        elif kind == "at":
            status, found, _ = client.ask(f"/stores/total/keys/{key}?at=2100-01-01T00:00:00Z")
            good = status == 200 and found["value"] == KEYS[key]
        else:
            newest = client.ask("/stores/total")[1]["version"]
            version = newest if kind == "newest" else dice.randint(0, newest)
            status, found, _ = client.ask(f"/stores/total/keys/{key}?version={version}")
            # The version may be gone, or from before the key; it has no other value.
            good = status == 404 or (status == 200 and found["value"] == KEYS[key])
        asked[kind, status] += 1
        assert good, (kind, status, found)

    def read(thread: int) -> None:
        client, dice = Client(stage.port), random.Random(thread)
        while not done.is_set():
            try:
                known(client, dice) if thread % 2 else past(client, dice)
                asked["known", 200] += thread % 2
            except Exception as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=read, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    removed, until = 0, time.monotonic() + 60
    for number in itertools.count():
        if (number >= 4 and min(asked["history", 200], asked["at", 200]) >= 5) or wrong or time.monotonic() > until:
            break
        for name, column in tables.items():
            table = DeltaTable(str(stage.folder / "lake" / name))
            table.optimize.z_order([column])  # all files anew
            removed += len(table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False))
            time.sleep(random.uniform(0, 0.3))  # at any moment of a read
    done.set()
    for thread in threads:
        thread.join(60)
    print(removed, "files removed;", dict(asked))
    assert not wrong, wrong[:2]
    assert removed > 10 and asked["history", 200] and asked["at", 200] and asked["known", 200] > 20
    for store in ("total", "last"):
        assert stage.status(store)["freshness"] == "live" and stage.status(store)["error"] is None


def test_a_worker_is_killed_under_load(stage: Stage) -> None:
    """No wrong answer; errors only on connections that were open to it; another one takes its place."""
    before = stage.workers()
    assert len(before) == 2
    victim, wrong, broken = before[0], [], []
    done, asked = threading.Event(), Counter()

    def read(thread: int) -> None:
        dice, client, since = random.Random(thread), None, 0.0
        while not done.is_set():
            try:
                if client is None:
                    since, client = time.monotonic(), Client(stage.port)
                    client.whose()
                known(client, dice)
                asked[client.worker] += 1
                if dice.random() < 0.01:
                    client = None
            except AssertionError as error:
                wrong.append(error)
                return
            except (OSError, http.client.HTTPException) as error:
                broken.append((client and client.worker, since, error))
                client = None

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait(lambda: wrong or min(asked[w] for w in before) > 20, what="answers of both workers")
        assert not broken
        held = stage.client_of(victim)
        os.kill(victim, signal.SIGKILL)
        wait(lambda: not Path(f"/proc/{victim}").exists(), step=0.01, what="its end")
        gone = time.monotonic()
        wait(lambda: wrong or (len(stage.workers()) == 2 and victim not in stage.workers()), what="another worker")
        new = next(w for w in stage.workers() if w not in before)
        wait(lambda: wrong or asked[new] > 20, what="answers of the new worker")
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    if wrong:
        print("the server's log:", (stage.folder / "log").read_text()[-5000:])
    print("answers by worker", dict(asked), "broken", broken, f"after {time.monotonic() - gone:.1f} s")
    assert not wrong, wrong[:2]
    # One that nobody had answered yet may have waited at that worker's door.
    others = [found for found in broken if found[0] != victim and (found[0] is not None or found[1] > gone)]
    assert not others
    with pytest.raises((OSError, http.client.HTTPException)):
        held.whose()
