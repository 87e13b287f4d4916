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
import sys
import tempfile
import threading
import time
from contextlib import closing
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from api.engine import duck
from api.engine.memory import ALLOCATORS, begun
from api.http import tokens
from statehouse import logs
from statehouse.config import Api, Config
from statehouse.errors import ConfigError, StatehouseError

if TYPE_CHECKING:
    import uvicorn

# More than may wait for Kafka, for the first of repeats, for a write with `after`, for the lake and to scan, hold streams of changes,
# and make pieces of others, all together: what cannot be answered in the event loop always finds one.
THREADS = 448
STOP_SECONDS = 3  # until a worker that has not ended is killed
FINISH_SECONDS = 2  # for which a worker's requests may go on
AGAIN_SECONDS = 1.0  # between two beginnings of a worker
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
        with closing(_bound(host, port)), tempfile.TemporaryDirectory(prefix="statehouse-metrics-") as folder:
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
        self._make = partial(
            multiprocessing.get_context("spawn").Process, target=work, args=(config, host, port), daemon=True
        )
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
            if stops in wait([stops, *ends], min(later, default=None)):
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


def work(config: Config, host: str, port: int) -> None:
    """A worker: does not return."""
    try:
        server, door = _server(config, host, port)
        server.run([door])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    sys.stderr.flush()
    # It ends without tidying up: threads are at work, and hold DuckDB's cursors, which the interpreter's own end now and then
    # turned into an abort ("terminate called without ...").
    os._exit(0)


def _server(config: Config, host: str, port: int) -> tuple[uvicorn.Server, socket.socket]:
    """A worker's own app and its server, with the socket to listen on."""
    threading.Thread(target=_orphaned, daemon=True).start()
    logs.to_stderr()  # a worker is a process of its own
    # A thread that waits for its turn with the interpreter asks for it every so often: the default of 5 ms is shorter than many
    # a request, which it would only interrupt.
    sys.setswitchinterval(0.02)
    # Only a worker has to have all of it.
    import uvicorn

    from api import create_app
    from api.http.point_reads import Fast
    from api.server.protocol import HEAD, Limits, settings

    # With it DuckDB reads a table of Arrow's through a scanner, to leave out columns: twice the time of a few rows. Who needs it has it by now.
    sys.modules["pyarrow.dataset"] = None  # type: ignore[assignment]  # it is not to be had

    app = create_app(config)
    begun()
    stop = app.extensions["statehouse"].stop

    class Server(uvicorn.Server):
        """Stops at the first signal, and does not send it to itself again."""

        def handle_exit(self, sig: int, frame: object) -> None:
            self.should_exit = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            stop()  # or streams of changes would go on
            await super().shutdown(sockets)

    assert isinstance(app.wsgi_app, Fast)
    head = HEAD + 3 * config.api.max_key  # percent-encoded
    limits = Limits(head, config.api.max_body, config.api.max_time / 1000, _hosts(config.api))
    return Server(settings(app, app.wsgi_app, limits, THREADS, FINISH_SECONDS)), _bound(host, port)


def _hosts(api: Api) -> frozenset[str] | None:
    """What callers may call this host, beside the names of this machine; None: anything, as they have to show a token. Without
    tokens a page in a browser of this machine could else have its own name lead here, and would be let read all (DNS rebinding)."""
    if api.tokens:
        return None
    own = urlsplit(api.address or "").hostname
    return frozenset([*api.hosts, *([own] if own else [])])


def _orphaned() -> None:
    """End when the process is gone that looks after this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that shares the address with the others of this server."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind((host, port))
    return made


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
