"""The connections to the other instances of a fleet, by whom they lead to: so that one who hangs can be hung up on.

A thread that waits for an answer can be told in no other way that it will not come: what it waits for is the operating system.
"""

from __future__ import annotations

import socket
import threading
import weakref
from contextlib import suppress
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

_lock = threading.Lock()
_open: dict[tuple[str, int], weakref.WeakSet[socket.socket]] = {}


class Line(HTTPConnection):
    """A connection that is known here."""

    def connect(self) -> None:
        super().connect()
        _know(self)


class SafeLine(HTTPSConnection):
    """The same with TLS."""

    def connect(self) -> None:
        super().connect()
        _know(self)


class Lines(urllib3.HTTPConnectionPool):
    """Connections to one instance."""

    ConnectionCls = Line


class SafeLines(urllib3.HTTPSConnectionPool):
    """The same with TLS."""

    ConnectionCls = SafeLine


def manager(count: int) -> urllib3.PoolManager:
    """What asks other instances, with so many connections to each that are kept."""
    pool = urllib3.PoolManager(64, maxsize=count)
    pool.pool_classes_by_scheme = {"http": Lines, "https": SafeLines}
    return pool


def hang_up(address: str) -> None:
    """Who waits for an answer of this instance gets an error now."""
    url = urlsplit(address)
    with _lock:
        sockets = list(_open.get((url.hostname or "", url.port or 0), ()))
    for line in sockets:
        with suppress(OSError):  # it has ended by itself
            line.shutdown(socket.SHUT_RDWR)


def _know(line: HTTPConnection) -> None:
    place = line.host.strip("[]"), line.port or 0
    with _lock:
        _open.setdefault(place, weakref.WeakSet()).add(line.sock)
