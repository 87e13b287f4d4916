"""Who follows the changes of a store."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any


class Follower(threading.Thread):
    """A client as the docs say it should be: scans, follows, goes on by the last id. ``breaks``: its connections break
    all the time, anywhere, and it goes on at any of the ports."""

    def __init__(self, ports: list[int], store: str, keys: list[str], breaks: random.Random | None = None) -> None:
        super().__init__(daemon=True)
        self.ports, self.store, self.keys, self.dice = ports, store, keys, breaks
        self.rows: dict[tuple, dict] = {}
        self.place: str | None = None
        self.stopping = threading.Event()
        self.connections = self.resets = self.events = 0
        self.connection: http.client.HTTPConnection | None = None
        self.wrong: list[Any] = []
        self.start()

    @property
    def position(self) -> int:
        return int((self.place or "0-").split("-")[0])

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self._connect(self.ports[self.connections % len(self.ports)])
        except BaseException as error:
            if not self.stopping.is_set():
                self.wrong.append(error)
                raise

    def _scan(self, port: int) -> str:
        rows, place = scanned(port, self.store, self.keys)
        self.rows = rows
        return place

    def _connect(self, port: int) -> None:
        if self.place is None:
            self.place = self._scan(port)
        self.connections += 1
        self.connection = connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", f"/stores/{self.store}/changes", headers={"Last-Event-ID": self.place})
            response = connection.getresponse()
            if response.status == 503:  # of those that broke off, not all are known to be gone
                self.stopping.wait(float(response.headers["Retry-After"]))
                return
            if response.status != 200:
                self.wrong.append((response.status, response.read()))
                return
            left = self.dice.choice([1, 50, 300, 2000, 10_000]) if self.dice else 10**9
            until = time.monotonic() + (0.3 if self.dice else 10**9)
            text = b""
            while left > 0 and time.monotonic() < until and not self.stopping.is_set():
                read = response.read1(min(left, 500))
                if not read:
                    return
                left -= len(read)
                text += read
                *blocks, text = text.split(b"\n\n")
                for block in blocks:
                    if self._apply(block.decode()) == "reset":
                        self.resets += 1
                        self.place = self._scan(port)
                        return
        finally:
            connection.close()

    def _apply(self, block: str) -> str | None:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        kind = fields.get("event")
        if kind in ("state", "purge"):
            self.events += 1
            data = json.loads(fields["data"])
            key = tuple(data[k] for k in self.keys if k in data)
            if kind == "state":
                self.rows[key] = plain(data)
            else:
                for gone in [k for k in self.rows if k[: len(key)] == key]:
                    del self.rows[gone]
        if "id" in fields and kind != "reset":
            self.place = fields["id"]
        return kind

    def stop(self) -> None:
        self.stopping.set()
        with suppress(AttributeError, OSError):  # else it waits for what comes next; there may be none by now
            self.connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        self.join(40)
        assert not self.is_alive()


def plain(row: dict) -> dict:
    """Without the wall clock's time, the one column that a replica and a MERGE do not have in common."""
    return {k: v for k, v in row.items() if k != "changed_at"}


def scanned(port: int, store: str, keys: list[str]) -> tuple[dict[tuple, dict], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/stores/{store}/keys?limit=10000")
    response = connection.getresponse()
    assert response.status == 200
    rows = json.loads(response.read())["rows"]
    return {tuple(r[k] for k in keys): plain(r) for r in rows}, str(response.headers["Statehouse-Position"])
