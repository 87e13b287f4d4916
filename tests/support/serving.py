"""The API as a process of its own, with no more packages than it is installed with."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statehouse.config.models import Config
from tests.support.lean import lean

SCRIPT = (
    "import sys; from api.server.supervisor import serve; from statehouse.config import load;"
    "serve(load(sys.argv[1], {}), sys.argv[3], port=int(sys.argv[4]), workers=int(sys.argv[2]))"
)


@contextmanager
def serving(
    config: Config, workers: int = 1, host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[subprocess.Popen, http.client.HTTPConnection]]:
    """A server of its own process, and a connection to it; at a free port, or that one."""
    file = str(Path(config.root).parent / "statehouse.yaml")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, file, str(workers), host, str(port)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=lean("api"), **streams) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith(f"serving on http://{host}:"):  # a worker may say something
                lines.append(process.stdout.readline())
            assert lines[-1], "it has ended: " + "".join(lines)
            yield process, http.client.HTTPConnection("127.0.0.1", int(lines[-1].rsplit(":", 1)[1]), timeout=20)
        finally:
            if process.poll() is None:
                process.kill()


def get(connection: http.client.HTTPConnection, path: str, method: str = "GET") -> tuple[int, dict]:
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def stopped(process: subprocess.Popen, number: int) -> tuple[int, str, float]:
    """The exit code, the rest of what it said, and how long it took."""
    begun = time.monotonic()
    process.send_signal(number)
    assert process.stdout is not None
    rest = process.stdout.read()
    return process.wait(120), rest, time.monotonic() - begun
