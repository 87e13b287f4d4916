"""Slow callers of every kind at once: others are answered as if they were not there."""

from __future__ import annotations

import http.client
import resource
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.api_lake import State, configured
from tests.support.depth import FULL, sized
from tests.support.records import children
from tests.support.serving import get, serving

CALLERS = sized(40, 300)  # of each kind
ROWS = sized(2000, 60_000)
READS = sized(40, 200)
MEDIAN = sized(2.0, 0.1)  # seconds; at full size the machine has nothing else to do
MEMORY = 200 << 20
pytestmark = pytest.mark.slow
Begin = Callable[[socket.socket], None]


def request(target: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def asking(*targets: str, headers: tuple[str, ...] = (), shut: bool = False) -> Begin:
    """Ask, and read nothing."""

    def begin(connection: socket.socket) -> None:
        connection.sendall(b"".join(request(target, *headers) for target in targets))
        if shut:
            connection.shutdown(socket.SHUT_WR)

    return begin


def dripping(head: bytes, body: bytes = b"", piece: bytes = b"a") -> Begin:
    """Begin something, and go on with it a byte at a time."""

    def begin(connection: socket.socket) -> None:
        connection.sendall(head + body)
        threading.Thread(target=drip, args=(connection,), daemon=True).start()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            while True:
                time.sleep(1)
                connection.sendall(piece)

    return begin


WHERE = quote(" OR ".join(f"key LIKE '%{n}_x%{n}_y%'" for n in range(50)))
PUT = "/stores/last/keys/k"
JSON = "Content-Type: application/json"
LARGE = b'{"value": "' + b"x" * 200_000
KINDS: dict[str, Begin] = {
    "scans as NDJSON that nobody reads": asking("/stores/last/keys", headers=("Accept: application/x-ndjson",)),
    "scans as Arrow": asking("/stores/last/keys", headers=("Accept: application/vnd.apache.arrow.stream",)),
    "pages that nobody reads": asking("/stores/last/keys?limit=10000"),
    "pages that many ask for at once": asking(*["/stores/last/keys?limit=10000"] * 50),
    "bodies that drip": dripping(request(PUT, JSON, "Content-Length: 900000", method="PUT"), LARGE),
    "bodies in chunks that drip": dripping(
        request(PUT, JSON, "Transfer-Encoding: chunked", method="PUT"),
        b"%x\r\n%b\r\n" % (len(LARGE), LARGE),
        b"1\r\na\r\n",
    ),
    "bodies that wait to be asked for": dripping(
        request(PUT, JSON, "Content-Length: 900000", "Expect: 100-continue", method="PUT")
    ),
    "heads that drip": dripping(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "),
    "conditions that take long": asking(f"/stores/last/keys?where={WHERE}"),
    "conditions of callers who send no more": asking(f"/stores/last/keys?where={WHERE}", shut=True),
    "waits": asking("/stores/last/keys/k?after=till-sales:0:0&timeout=5"),
    "histories": asking("/stores/last/keys/00000000/history"),
    "changes": asking("/stores/last/changes"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, http.client.HTTPConnection]]:
    """A worker's process, and a connection to it."""
    config = configured(tmp_path_factory.mktemp("slow"))
    with Path(config.root).parent.joinpath("statehouse.yaml").open("a") as file:
        file.write("api: {max_time: 5 seconds}\n")
    State(config, "last").write(3, *({"key": f"{n:08}" + "x" * 100, "value": float(n)} for n in range(ROWS)))
    with serving(config) as (process, connection):
        (worker,) = [p for p in children(process.pid) if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]
        for path in ("/stores/last/keys", f"/stores/last/keys?where={WHERE}&limit=1", "/healthz"):
            get(connection, path)  # what is loaded with the first one is no caller's
        yield worker, connection


def memory(process: int) -> int:
    """What a process has in memory, in bytes."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("kind", KINDS)
def test_others_are_answered(served: tuple[int, http.client.HTTPConnection], kind: str) -> None:
    worker, connection = served
    before, most, took = memory(worker), 0, []
    with ExitStack() as stack:
        for _ in range(CALLERS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", connection.port), timeout=60))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            KINDS[kind](slow)
        key = f"{7:08}" + "x" * 100
        for number in range(READS):
            path = ("/healthz", f"/stores/last/keys/{key}", f"/stores/last/keys/{key}?freshness=changelog")[number % 3]
            if number % 10 == 0:  # also who is not there yet
                connection.close()
            begun = time.monotonic()
            assert get(connection, path)[0] == 200
            took.append(time.monotonic() - begun)
            most = max(most, memory(worker))
            time.sleep(0.02)
    grown = (most - before) >> 20
    print(f"{kind}: median {statistics.median(took) * 1000:.1f} ms, at most {max(took):.2f} s, {grown} MiB more")
    assert statistics.median(took) < MEDIAN
    assert most - before < MEMORY
    if FULL:  # they are gone, and what they held
        time.sleep(6)
