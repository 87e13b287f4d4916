"""The jobs under spark-submit on a standalone cluster, a master and two workers as processes of their own, one of which is killed.

At full depth only, with a million events: it takes minutes.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from statehouse import kafka
from statehouse.config.file import load
from statehouse.tables import covered, opened
from tests.support import bookings, million
from tests.support.depth import deep
from tests.support.records import children, free_port, wait

TOP = Path(__file__).parents[2]
HOME = Path(pyspark.__file__).parent
STORES = ("last", "votes", "total", "hours")


class Cluster:
    """A master and two workers of one core each, on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.web = folder, free_port(), free_port()
        self.running: dict[str, subprocess.Popen] = {}
        ports = ("--port", str(self.port), "--webui-port", str(self.web))
        self._start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *ports)
        for name in ("worker1", "worker2"):
            self.work(name)
        wait(lambda: self.workers() == 2, 60, 0.2, "two workers")

    def work(self, name: str) -> None:
        """Start a worker."""
        words = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1200m", "--webui-port", str(free_port()))
        place = ("--work-dir", str(self.folder / name))
        self._start(name, "org.apache.spark.deploy.worker.Worker", *words, *place, f"spark://127.0.0.1:{self.port}")

    def workers(self) -> int:
        """How many have told the master that they are there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/json/", timeout=5) as answer:
                return answer.read().decode().count('"ALIVE"') - 1  # the master's own
        except OSError:
            return 0

    def kill(self, name: str) -> None:
        """As kill -9 does, the executor that the worker has started with it."""
        process = self.running.pop(name)
        executors = children(process.pid)
        assert executors, "it has an executor"
        for pid in (process.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        """End all of it."""
        for process in self.running.values():
            process.terminate()
            process.wait(120)

    def _start(self, name: str, kind: str, *words: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [str(HOME / "bin/spark-class"), kind, *words]
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)


@contextmanager
def submitted(cluster: Cluster, folder: Path, *words: str) -> Iterator[subprocess.Popen]:
    """A command of ours on the cluster; as long as this lasts."""
    settings = {
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    options = [x for name, value in settings.items() for x in ("--conf", f"{name}={value}")]
    command = [str(HOME / "bin/spark-submit"), "--master", f"spark://127.0.0.1:{cluster.port}"]
    command += ["--properties-file", str(TOP / "spark-defaults.conf"), *options, str(TOP / "jobs/submit.py"), *words]
    environment = {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with open(folder / "submit.log", "ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.mark.slow
@pytest.mark.crash
@deep
def test_on_two_workers_one_of_which_is_killed_it_is_the_oracles(broker, spark, tmp_path):
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    dice, events = random.Random(seed), list(million.drawn(seed))
    (folder := tmp_path / "lake").mkdir()
    text = million.CONFIG.format(bootstrap=broker.bootstrap, topic=f"cluster-{os.getpid()}")
    (folder / "statehouse.yaml").write_text(bookings.beside(text, broker.bootstrap))
    config = load(folder / "statehouse.yaml", {})
    for stream in config.streams.values():
        kafka.create_topic(config.kafka, stream.topic)
    booked = bookings.sent_to(broker.bootstrap, config.streams["bookings"].topic)
    shuffled = dice.sample(events, len(events))
    producer = million.producer_of(broker.bootstrap)

    def send(some):
        million.send_all(producer, config.streams["s"].topic, some, dice)

    def merged():
        log = (folder / "submit.log").read_text()[-3000:]
        assert process.poll() is None, log
        found = covered(opened(f"{config.root}/changelog/s")) if opened(f"{config.root}/changelog/s") else None
        return found and sum(found["offsets"].values())

    send(shuffled[: len(events) // 2])
    cluster = Cluster(tmp_path)
    try:
        with submitted(cluster, folder, "run") as process:
            wait(merged, 300, 0.1, "a batch in the changelog")
            send(shuffled[len(events) // 2 :])
            cluster.kill("worker1")
            wait(lambda: merged() == len(events), 300, 0.5, "all in the changelog, by one worker")
            cluster.work("worker1")
            python = next(p for p in children(process.pid) if b"submit.py" in Path(f"/proc/{p}/cmdline").read_bytes())
            os.kill(python, signal.SIGTERM)  # Spark's own process, around it, would only be killed by it
            assert process.wait(120) == 0
        with submitted(cluster, folder, "run", "--once") as process:
            assert process.wait(300) == 0, (folder / "submit.log").read_text()[-3000:]
    finally:
        cluster.close()
    for store in STORES:
        start = "unix_micros(window_start)" if store == "hours" else "CAST(NULL AS BIGINT)"
        table = spark.read.format("delta").load(f"{config.root}/state/{store}").selectExpr("key", start, "value")
        found = {r[0] if r[1] is None else (r[0], r[1]): r[2] for r in table.collect()}
        assert found == million.right(events, store), store
    assert spark.read.format("delta").load(f"{config.root}/changelog/bookings").count() == len(booked)
    values = {
        name: {r["key"]: r["value"] for r in spark.read.format("delta").load(f"{config.root}/state/{name}").collect()}
        for name in ("latest_booking", "bookings_made", "usual_clerk")
    }
    for customer, (latest, count, clerk) in bookings.expected().items():
        assert values["latest_booking"][customer] == dt.datetime.fromisoformat(latest.rstrip("Z")), customer
        assert (values["bookings_made"][customer], values["usual_clerk"][customer]) == (count, clerk)
