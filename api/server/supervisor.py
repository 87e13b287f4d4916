"""``statehouse serve``: the app under uvicorn, in one or more processes that share nothing but the lake.

This process only looks after them: each has a listening socket of its own, and the machine gives it its share of the connections.
"""

from __future__ import annotations

import http.client
import ipaddress
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from contextlib import closing
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from api.engine import duck
from api.engine.memory import ALLOCATORS
from api.http import tokens
from api.server.worker import STOP_SECONDS, bound, work
from statehouse.config.models import Config
from statehouse.errors import ConfigError, StatehouseError

AGAIN_SECONDS = 1.0  # between two beginnings of a worker
LOOK_SECONDS = (
    1.0  # a signal that another thread was given, or that comes in the instant before a wait, does not end it
)
SIGNALS = signal.SIGTERM, signal.SIGINT


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
    stops, stop = os.pipe()
    before = {number: signal.signal(number, lambda *_: os.write(stop, b"s")) for number in SIGNALS}
    try:
        # Nobody connects to what does not listen; and nobody else takes the port while no worker is there.
        with closing(bound(host, port)), tempfile.TemporaryDirectory(prefix="statehouse-metrics-") as folder:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers when they are started
            for name, value in ALLOCATORS.items():
                os.environ.setdefault(name, value)
            threading.Thread(target=_announce, args=(host, port), daemon=True).start()
            _look_after([Worker(config, host, port) for _ in range(workers)], stops)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(stops)
        os.close(stop)
    return 0


class Worker:
    """A process that serves, and the ones that took its place."""

    def __init__(self, config: Config, host: str, port: int) -> None:
        # Not forked: DuckDB's, Kafka's and deltalake's threads would not be there in the copy.
        process = multiprocessing.get_context("spawn").Process
        self._make = partial(process, target=work, args=(config, host, port), daemon=True)
        self.due = 0.0  # when it may begin, on the monotonic clock
        self.process: BaseProcess | None = None

    def alive(self) -> bool:
        """Whether it has begun and has not ended."""
        return self.process is not None and self.process.is_alive()

    def begin(self) -> None:
        """Start it, for the first time or in place of one that has ended."""
        self.process, self.due = self._make(), time.monotonic() + AGAIN_SECONDS
        # Ctrl-C reaches all processes: it is this one that says when to stop. It is blocked and not ignored, or one that comes now would
        # be lost; and the tracker, which would unblock it, is started before.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _look_after(workers: list[Worker], stops: int) -> None:
    """Start the workers, and each that ends again, until something is to be read of ``stops``; then stop them."""
    try:
        while True:
            now = time.monotonic()
            for worker in workers:
                if not worker.alive() and worker.due <= now:
                    worker.begin()
            ends = [worker.process.sentinel for worker in workers if worker.process and worker.alive()]
            later = [max(0.0, worker.due - now) for worker in workers if not worker.alive()]
            if stops in wait([stops, *ends], min([*later, LOOK_SECONDS])):
                return
    finally:
        processes = [worker.process for worker in workers if worker.process]
        for process in processes:
            process.terminate()
        until = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()
            process.join()


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
    # The workers share a port with whoever else is willing to, so this has to be asked for before.
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
