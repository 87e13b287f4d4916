"""From the event loop to Flask and back: a WSGI app (PEP 3333) as an ASGI one, each request in a thread of a pool.

A small answer goes back to the loop in one piece. A body, and an answer without a length, go in pieces, and the one who is
faster waits for the other: a slow reader of a long scan fills no memory. When the caller is gone, what reads a body gets an
error and what makes an answer is closed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any
from urllib.parse import unquote_to_bytes

SILENT_SECONDS = 60  # for which nothing may come of a body
GONE = "statehouse.gone"  # an extension of ASGI: its "now" is a function that says, to any thread, whether the caller is gone
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Any], Awaitable[None]]
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
log = logging.getLogger("statehouse.api")


class Bridge:
    """A WSGI app for an ASGI server, in so many threads."""

    def __init__(self, app: Wsgi, threads: int) -> None:
        self._app, self._threads = app, ThreadPoolExecutor(threads, "http")

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        loop = asyncio.get_running_loop()
        given = environ(scope)
        body: io.BufferedIOBase | io.RawIOBase = io.BytesIO()
        if given.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in given:
            # The first piece is here mostly. Who expects to be told to go on is told so when the app reads.
            first = None if "HTTP_EXPECT" in given else await receive()
            body = Body(loop, receive, first)
        answer = Answer(loop, send, scope["extensions"][GONE]["now"])
        for message in await loop.run_in_executor(self._threads, answer.of, self._app, given | {"wsgi.input": body}):
            await send(message)


class Body(io.RawIOBase):
    """A request's body, fetched from the loop as it is read in a thread. OSError where it breaks off, or is silent too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, first: Message | None) -> None:
        self._loop, self._receive = loop, receive
        self._left, self._more, self._gone = b"", True, False
        if first is not None:
            self._take(first)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of :class:`io.RawIOBase`: 0 is the body's end."""
        while not self._left and self._more:
            if self._gone:
                raise ConnectionResetError("the caller is gone amid the body")
            coming = asyncio.run_coroutine_threadsafe(_awaited(self._receive), self._loop)
            try:
                self._take(coming.result(SILENT_SECONDS))
            except Late:
                coming.cancel()
                raise TimeoutError(f"nothing came of the body for {SILENT_SECONDS} s") from None
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    def _take(self, message: Message) -> None:
        self._gone = message["type"] == "http.disconnect"
        self._left, self._more = message.get("body", b""), self._gone or message.get("more_body", False)


class Answer:
    """What a WSGI app says to one request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Send, gone: Callable[[], bool]) -> None:
        self._loop, self._send, self._gone = loop, send, gone
        self._head: list[Message] = []  # until it is sent
        self._begun = False

    def of(self, app: Wsgi, given: dict[str, Any]) -> list[Message]:
        """Have it made, in this thread. Gives what is left to be sent; what comes in pieces is sent before."""
        try:
            chunks = app(given, self._start)
            try:
                if self._head and b"content-length" in dict(self._head[0]["headers"]):
                    return [*self._head, _piece(b"".join(chunks), more=False)]
                for chunk in chunks:
                    if self._gone():
                        return []  # it is not whole: the connection is closed, if it is not yet
                    if chunk:
                        self._push(chunk)
                return [*self._head, _piece(b"", more=False)]
            finally:
                if hasattr(chunks, "close"):
                    chunks.close()
        except Exception:
            if not self._gone():
                log.exception("an error that nobody foresaw")
            raise  # the server says 500, or breaks the answer off

    def _start(self, status: str, headers: list[tuple[str, str]], error: Any = None) -> Callable[[bytes], None]:
        if error and self._begun:
            raise error[1]
        named = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._head = [{"type": "http.response.start", "status": int(status[:3]), "headers": named}]
        return self._push

    def _push(self, chunk: bytes) -> None:
        """Send a piece; returns when there is room for another one."""
        messages, self._head, self._begun = [*self._head, _piece(chunk, more=True)], [], True
        asyncio.run_coroutine_threadsafe(self._all(messages), self._loop).result()

    async def _all(self, messages: list[Message]) -> None:
        for message in messages:
            await self._send(message)


def environ(scope: Any) -> dict[str, Any]:
    """A request as WSGI has it, without the body. ``REQUEST_URI`` is the path as it was sent, for :mod:`api.keys`."""
    raw, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
    host, port = scope["server"] or ("localhost", 80)
    made = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(raw).decode("latin-1"),
        "QUERY_STRING": query,
        "REQUEST_URI": f"{raw}?{query}" if query else raw,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": scope["client"][0] if scope["client"] else "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope["scheme"],
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,  # it ends where the body does, also one that is sent in chunks
    }
    for name, value in scope["headers"]:
        text, said = name.decode("latin-1"), value.decode("latin-1")
        if "_" in text:
            continue  # or it would be taken for the header with a '-', which a proxy may have looked at
        called = text.upper().replace("-", "_")
        called = called if called in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{called}"
        between = "; " if called == "HTTP_COOKIE" else ","
        made[called] = f"{made[called]}{between}{said}" if called in made else said
    return made


def _piece(chunk: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


async def _awaited(receive: Receive) -> Message:
    return await receive()
