"""``statehouse serve``: the app under granian, in one or more processes that share nothing but the lake."""

from __future__ import annotations

import atexit
import functools
import http.client
import ipaddress
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from granian import Granian
from granian.constants import Interfaces
from granian.log import LogLevels

from api import duck, tokens
from api.memory import ALLOCATORS, begun
from statehouse import logs
from statehouse.config import Config
from statehouse.errors import ConfigError, StatehouseError

if TYPE_CHECKING:
    from flask import Flask

# More than may wait for Kafka, for the first of repeats, for a write with `after` and for the lake, and hold streams of changes,
# all together: a point read always finds one.
THREADS = 256
STOP_SECONDS = 3


def serve(config: Config, host: str = "127.0.0.1", port: int = 8080, workers: int = 1) -> int:
    """Serve until SIGTERM or Ctrl-C; port 0 is a free one.

    Prints ``serving on http://HOST:PORT`` once it answers; gives the exit code. Raises ConfigError for an address that
    others can reach while there are no tokens.
    """
    host = _address(host, config)
    port = _free(host, port)
    # What is wrong is said here, once, and not by each worker.
    duck.connect().close()
    if config.api.tokens:
        tokens.read(config.api.tokens)
    # Not forked: DuckDB's, Kafka's and deltalake's threads would not be there in the copy.
    multiprocessing.set_start_method("spawn", force=True)
    server = Granian(
        "api.server:application",
        address=host,
        port=port,
        interface=Interfaces.WSGI,
        workers=workers,
        blocking_threads=THREADS,
        websockets=False,
        log_level=LogLevels.error,
        respawn_failed_workers=True,
        workers_kill_timeout=STOP_SECONDS,
    )
    threading.Thread(target=_announce, args=(host, port), daemon=True).start()
    loader = functools.partial(application, config)
    with tempfile.TemporaryDirectory(prefix="statehouse-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers when they are started
        for name, value in ALLOCATORS.items():
            os.environ.setdefault(name, value)
        server.serve(target_loader=loader, wrap_loader=False)
    return 0


def application(config: Config) -> Flask:
    """A worker's own app."""
    logs.to_stderr()  # a worker is a process of its own
    # It ends without tidying up: granian's threads end at the same time, and take their DuckDB cursors with them,
    # which the interpreter's own end now and then turned into an abort ("terminate called without ...").
    atexit.register(os._exit, 0)
    # A thread that waits for its turn with the interpreter asks for it every so often: the default of 5 ms is shorter than many
    # a request, which it would only interrupt.
    sys.setswitchinterval(0.02)
    # With it DuckDB reads a table of Arrow's through a scanner, to leave out columns: twice the time of a few rows.
    sys.modules["pyarrow.dataset"] = None  # type: ignore[assignment]  # it is not to be had
    from api.app import create_app  # only a worker has to have all of it

    app = create_app(config)
    begun()
    _on_signal(app.extensions["statehouse"].stop)  # or streams of changes would go on until the worker is killed
    return app


def _on_signal(act: Callable[[], None]) -> None:
    """Do something at the first signal that this process gets, whoever handles it: granian puts its own handlers in place."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)

    def wait() -> None:
        woken.recv(1)
        act()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _address(host: str, config: Config) -> str:
    address = "127.0.0.1" if host == "localhost" else host
    try:
        if ipaddress.ip_address(address).is_loopback or config.api.tokens:
            return address
    except ValueError:
        if config.api.tokens:
            raise ConfigError(f"found --host {host}, expected an IP address, such as 0.0.0.0 for all") from None
    raise ConfigError(
        f"found --host {host}, expected a loopback address such as 127.0.0.1: without 'api: tokens' "
        "anyone who can reach the API may read and write, so it is for this machine only"
    )


def _free(host: str, port: int) -> int:
    # Granian's workers share a port with whoever else is willing to, so this has to be asked for before.
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StatehouseError(f"port {port} of {host}: {reason}: choose another (--port)") from None
        return probe.getsockname()[1]


def _announce(host: str, port: int) -> None:
    while True:
        try:
            connection = http.client.HTTPConnection(host, port, timeout=5)
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                break
        except OSError:
            time.sleep(0.05)
        finally:
            connection.close()
    print(f"serving on http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
