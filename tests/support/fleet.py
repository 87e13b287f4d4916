"""Instances that share the keys of a lake, each a process of its own."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from statehouse.config.file import load
from statehouse.config.models import Config
from tests.support.api_lake import MOMENT, YAML, Sales, State, eventually
from tests.support.calls import STRANGE
from tests.support.records import children, free_port

SHARDS = 12


class Instances:
    """Instances of one lake, each `statehouse serve` with a port of its own."""

    def __init__(self, folder: Path, count: int, **more: object) -> None:
        self.folder, self.running = folder, {}
        self.ports = [free_port() for _ in range(count)]
        peers = [f"http://127.0.0.1:{port}" for port in self.ports]
        text = yaml.safe_load(YAML.format(bootstrap="127.0.0.1:1"))
        text["api"] = {"shards": SHARDS, "copies": 2, "peers": peers, "cors": [], **more}
        (folder / "fleet.yaml").write_text(yaml.safe_dump(text))

    def start(self, *ports: int) -> None:
        """Start instances and wait until they answer."""
        for port in ports:
            command = [sys.executable, "-m", "statehouse.cli", "serve", "-c", "fleet.yaml", "--port", str(port)]
            log = open(self.folder / f"{port}.log", "ab")  # noqa: SIM115
            environment = {**os.environ, "STATEHOUSE_API__ADDRESS": f"http://127.0.0.1:{port}"}
            self.running[port] = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
            log.close()
        for port in ports:
            eventually(lambda p=port: answers(p, "/readyz"))

    def kill(self, port: int) -> None:
        """As kill -9 does, its worker with it."""
        process = self.running.pop(port)
        for pid in (process.pid, *children(process.pid)):
            os.kill(pid, 9)
        process.wait()

    def stop(self, port: int) -> None:
        """In order."""
        process = self.running.pop(port)
        process.terminate()
        assert process.wait(120) == 0

    def settled(self, seconds: float = 300.0) -> list[dict]:
        """Wait until all who run say the same, and every shard has its copies: what they say."""

        def same() -> list[dict] | None:
            found = [get(port, "/processors")[1] for port in self.running]
            maps = [sorted(map(sorted, f["map"])) for f in found]
            copies, there = min(2, len(self.running)), {f"http://127.0.0.1:{port}" for port in self.running}
            if any({a for has in f["map"] for a in has} != there for f in found):
                return None
            full = all(len(has) == copies for f in found for has in f["map"])
            return found if full and all(m == maps[0] for m in maps) else None

        return eventually(same, seconds)


def answers(port: int, path: str = "/healthz") -> bool:
    """Whether a path is there, and well."""
    try:
        return raw(port, path)[0] == 200
    except OSError:
        return False


def get(port: int, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, object]:
    status, _, data = raw(port, path, method, body, **headers)
    return status, json.loads(data)


def raw(port: int, path: str, method: str = "GET", body: object = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        sent = None if body is None else json.dumps(body).encode()
        headers |= {"Content-Type": "application/json"} if sent else {}
        connection.request(method, path, sent, headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


@contextmanager
def fleet(folder: Path, count: int, started: int | None = None, **more: object) -> Iterator[Instances]:
    made = Instances(folder, count, **more)
    try:
        made.start(*made.ports[:started])
        yield made
        for port in list(made.running):
            made.stop(port)
        logs = [(folder / f"{port}.log").read_text() for port in made.ports if (folder / f"{port}.log").exists()]
        assert not any("Traceback" in log for log in logs), "\n".join(logs)[-4000:]
    finally:
        for port in list(made.running):
            made.kill(port)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "statehouse.yaml"
    file.write_text(YAML.format(bootstrap="127.0.0.1:1"))
    return load(file, {})


def filled(config: Config, count: int) -> tuple[list[str], Sales]:
    """A changelog, and states of most stores at its beginning; the keys, and the changelog."""
    dice = random.Random(5)
    names = [*STRANGE, *(f"key-{i:05}" for i in range(count))]
    sales = Sales(config)
    sales.append({"customer": None})
    State(config, "last").write(1, *({"key": k, "value": float(i)} for i, k in enumerate(names)))
    pairs = [{"customer": k, "till": t, "value": Decimal(t)} for k in names for t in range(-1, dice.randrange(3))]
    State(config, "pairs").write(1, *pairs)
    State(config, "days").write(
        1, *({"key": dt.date(2020, 1, 1) + dt.timedelta(i), "value": Decimal(i)} for i in range(500))
    )
    windows = [
        {
            "key": k,
            "window_start": MOMENT.replace(minute=0, second=0, microsecond=0) + dt.timedelta(hours=h),
            "value": Decimal(h),
        }
        for k in names[:300]
        for h in range(dice.randrange(1, 4))
    ]
    State(config, "hours").write(1, *windows)
    report = {"value": "up", "event_time": MOMENT, "_order": Decimal(1)}
    State(config, "status").write(0, *({"key": k, "value": "up", "reports": {"a": report}} for k in names))
    return names, sales
