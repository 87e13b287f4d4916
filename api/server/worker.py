"""A worker: the app and its server, in a process of its own that ends with the one that looks after it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from api.engine.memory import begun
from statehouse import logs
from statehouse.config.models import Api, Config

if TYPE_CHECKING:
    import uvicorn

# More than may wait for Kafka, for the first of repeats, for a write with `after`, for the lake and to scan, hold streams of changes,
# and make pieces of others, all together: what cannot be answered in the event loop always finds one.
THREADS = 448
STOP_SECONDS = 3  # until a worker that has not ended is killed
FINISH_SECONDS = 2  # for which a worker's requests may go on


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

    from api.console import pages
    from api.http.app import create_app
    from api.http.point_reads import Fast
    from api.server.protocol import HEAD, Limits, settings

    # With it DuckDB reads a table of Arrow's through a scanner, to leave out columns: twice the time of a few rows. Who needs it has it by now.
    sys.modules["pyarrow.dataset"] = None  # type: ignore[assignment]  # it is not to be had

    app = create_app(config, pages.install)
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
    return Server(settings(app, app.wsgi_app, limits, THREADS, FINISH_SECONDS)), bound(host, port)


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


def bound(host: str, port: int) -> socket.socket:
    """A socket that shares the address with the others of this server."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    return listener
