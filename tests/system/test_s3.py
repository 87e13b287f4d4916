"""A lake on S3: versitygw, a gateway over a folder, on loopback; the jobs by s3a, the API by httpfs and deltalake.

Spark's connector is a download of 560 MB, so this is not part of `make test`; `make s3` fetches what it needs and runs it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from deltalake import DeltaTable

from statehouse import kafka
from statehouse.config.file import load
from statehouse.tables import covered
from tests.support import bookings, million, processes
from tests.support.fleet import answers, get
from tests.support.records import free_port, wait

GATEWAY = os.environ.get("STATEHOUSE_S3_GATEWAY")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not GATEWAY, reason="`make s3` runs it")]


class Gateway:
    """The server, with a bucket."""

    def __init__(self, folder: Path) -> None:
        self.port, self.folder = free_port(), folder
        (folder / "s3/lakes").mkdir(parents=True)
        (folder / "meta").mkdir()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "statehouse",
            "AWS_SECRET_ACCESS_KEY": "only-on-loopback",
            "AWS_REGION": "us-east-1",
        }
        self.start()

    def start(self) -> None:
        own = {**os.environ, "ROOT_ACCESS_KEY": "statehouse", "ROOT_SECRET_KEY": "only-on-loopback"}
        with open(self.folder / "gateway.log", "ab") as log:
            command = [
                GATEWAY,
                "--port",
                f"127.0.0.1:{self.port}",
                "posix",
                "--sidecar",
                str(self.folder / "meta"),
                str(self.folder / "s3"),
            ]
            self.process = subprocess.Popen(command, env=own, stdout=log, stderr=log)
        wait(self.answers, 30, 0.1, "the gateway")

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "gateway.log").read_text()[-2000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(120)


def test_the_bookings_and_random_events_with_the_server_restarted(broker, tmp_path, monkeypatch):
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    dice, events = random.Random(seed), list(million.drawn(seed))
    gateway = Gateway(tmp_path)
    for name, value in gateway.environment.items():
        monkeypatch.setenv(name, value)
    text = million.CONFIG.format(bootstrap=broker.bootstrap, topic=f"s3-{os.getpid()}")
    text = bookings.beside(text, broker.bootstrap)
    (tmp_path / "statehouse.yaml").write_text(text.replace("root: ./lake", "root: s3a://lakes/lake"))
    config = load(tmp_path / "statehouse.yaml", {})
    for stream in config.streams.values():
        kafka.create_topic(config.kafka, stream.topic)
    booked = bookings.sent_to(broker.bootstrap, config.streams["bookings"].topic)
    producer = million.producer_of(broker.bootstrap)

    def send(some):
        million.send_all(producer, config.streams["s"].topic, some, dice)

    def ingested():
        assert jobs.poll() is None, (tmp_path / "run.log").read_text()[-3000:]
        path = tmp_path / "s3/lakes/lake/changelog/s"  # the bucket is a folder
        found = covered(DeltaTable(str(path))) if (path / "_delta_log/00000000000000000001.json").exists() else None
        return sum(found["offsets"].values()) if found else 0

    shuffled = dice.sample(events, len(events))
    send(shuffled[: len(events) // 2])
    command = [sys.executable, "-m", "statehouse.cli"]
    with open(tmp_path / "run.log", "ab") as log:
        jobs = subprocess.Popen([*command, "run"], cwd=tmp_path, stdout=log, stderr=log)
        serve = None
        try:
            wait(ingested, 600, 0.5, "a batch in the changelog")
            port = free_port()
            serve = subprocess.Popen([*command, "serve", "--port", str(port)], cwd=tmp_path, stdout=log, stderr=log)
            wait(lambda: serve.poll() is None and answers(port), 60, 0.2, "the API")
            gateway.stop()
            send(shuffled[len(events) // 2 :])
            time.sleep(5)
            assert get(port, "/healthz")[0] == 200, "reads go on"
            gateway.start()
            wait(lambda: ingested() == len(events), 300, 0.5, "all in the changelog")
            jobs.terminate()
            assert jobs.wait(120) == 0
            processes.statehouse(tmp_path, "run", "--once")
            processes.statehouse(tmp_path, "maintain", "--once")
            for store in million.REDUCE:
                right = million.right(events, store)
                wait(lambda s=store, r=right: served(port, s) == r, 60, 1, f"the oracle's {store}")
            wanted = bookings.expected()
            assert {k: v for k, v in served(port, "bookings_made").items()} == {c: w[1] for c, w in wanted.items()}
            assert {k: v for k, v in served(port, "usual_clerk").items()} == {c: w[2] for c, w in wanted.items()}
            customer = next(iter(wanted))
            found = get(port, f"/stores/bookings_made/keys/{customer}/history")[1]
            assert len(found["events"]) == wanted[customer][1]
            status = json.loads(processes.statehouse(tmp_path, "status", "--json"))
            assert {s["name"]: s["events"] for s in status["streams"]} == {"s": len(events), "bookings": len(booked)}
        finally:
            for process in (jobs, serve):
                if process and process.poll() is None:
                    process.terminate()
                    process.wait(120)
            gateway.stop()


def served(port, store):
    """The values by key, or by key and the start of the window."""
    rows, cursor = [], ""
    while cursor is not None:
        page = get(port, f"/stores/{store}/keys?limit=5000&cursor={cursor}")[1]
        rows, cursor = rows + page["rows"], page["cursor"]
    if rows and "window_start" in rows[0]:
        epoch = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
        micros = dt.timedelta(microseconds=1)
        return {(r["key"], (dt.datetime.fromisoformat(r["window_start"]) - epoch) // micros): r["value"] for r in rows}
    return {r["key"]: r["value"] for r in rows}
