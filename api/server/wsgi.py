"""From the event loop to Flask and back: a WSGI app (PEP 3333) as an ASGI one, its work in the threads of a pool.

No caller has a thread for being slow. A body is read to its end before the app is called. A small answer goes back to the loop in
one piece; one without a length goes in pieces, and a thread has it only while it makes one: the next is made when the caller has
taken this. When the caller is gone, what makes the answer is closed.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from api.http.context import GONE
from api.http.point_reads import OF_SHARDS, Wsgi

PIECES = 8  # that are made at once, of answers to callers; and as many of those to other instances
EVENTS = b"text/event-stream"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Any], Awaitable[None]]
log = logging.getLogger("statehouse.api")


class Bridge:
    """A WSGI app for an ASGI server, in so many threads; of a body that is longer than ``most`` bytes it is given no more than it
    takes to see that."""

    def __init__(self, app: Wsgi, threads: int, most: int) -> None:
        self._app, self._threads, self._most = app, ThreadPoolExecutor(threads, "http"), most
        # An instance makes its own part without waiting for another one, so that none waits for itself.
        self._callers, self._instances = asyncio.Semaphore(PIECES), asyncio.Semaphore(PIECES)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        given, caller = environ(scope), scope["extensions"][GONE]
        gone, ready = caller["now"], caller["ready"]

        async def tell(messages: Iterable[Message]) -> None:
            """Send them. Nobody keeps them then: what a caller does not read is in the connection alone, which counts it."""
            for message in messages:
                caller["next"](len(message.get("body", b"")))
                await send(message)

        body: bytes | None = b""
        if given.get("CONTENT_LENGTH", "0") != "0" or "HTTP_TRANSFER_ENCODING" in given:
            body = await self._read(receive, int(given.get("CONTENT_LENGTH", "0")))
        if body is None:
            return
        answer = Answer(self._app, given | {"wsgi.input": io.BytesIO(body), GONE: gone}, gone)
        await ready()  # or a caller who does not read one answer would have the next one in hand beside it
        try:
            await tell(await loop.run_in_executor(self._threads, answer.begin))
            # Who waits for events holds a thread, and a place of its own for that.
            turns: AbstractAsyncContextManager[Any] = self._instances if OF_SHARDS in given else self._callers
            turns = nullcontext() if answer.events else turns
            while answer.more:
                await ready()
                if gone():
                    break
                async with turns:
                    await tell(await loop.run_in_executor(self._threads, answer.go_on))
        finally:
            if answer.more:
                await loop.run_in_executor(self._threads, answer.close)

    async def _read(self, receive: Receive, length: int) -> bytes | None:
        """A body of that length, or of any (0); None where the caller is gone before its end, or was sent away."""
        if length > self._most:  # the app says so; who expects to be told to go on is not
            return b""
        pieces: list[bytes] = []
        size, more = 0, True
        while more and size <= self._most:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            pieces.append(message.get("body", b""))
            size, more = size + len(pieces[-1]), message.get("more_body", False)
        return b"".join(pieces)


class Answer:
    """What a WSGI app says to one request. Its methods are called one after the other, each in any thread."""

    def __init__(self, app: Wsgi, given: dict[str, Any], gone: Callable[[], bool]) -> None:
        self._app, self._given, self._gone = app, given, gone
        self._head: list[Message] = []  # until it is sent
        self._written: list[bytes] = []
        self._begun = False
        self._chunks: Iterable[bytes] = ()
        self._left: Iterator[bytes] = iter(())
        self.more = False  # there is something to go on with, and to be closed
        self.events = False  # what comes is waited for

    def begin(self) -> list[Message]:
        """All of the answer, or the first piece of it."""
        with self._told():
            self._chunks, self.more = self._app(self._given, self._start), True
            if self._head and b"content-length" in dict(self._head[0]["headers"]):
                whole = [*self._sent(), _piece(b"".join(self._chunks), more=False)]
                self.close()
                return whole
            self._left = iter(self._chunks)
            return self._next()

    def go_on(self) -> list[Message]:
        with self._told():
            return self._next()

    def close(self) -> None:
        """Nothing more is wanted."""
        self.more = False
        if close := getattr(self._chunks, "close", None):
            with suppress(ValueError):  # a generator that is still at work, as the server stops
                close()

    def _next(self) -> list[Message]:
        for chunk in self._left:
            if chunk or self._gone():
                return [*self._sent(), _piece(chunk, more=True)]
        self.close()
        return [*self._sent(), _piece(b"", more=False)]

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._gone():
                log.exception("an error that nobody foresaw")
            if self.more:
                self.close()
            raise  # the server says 500, or breaks the answer off

    def _start(self, status: str, headers: list[tuple[str, str]], error: Any = None) -> Callable[[bytes], None]:
        if error and self._begun:
            raise error[1]
        named = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self.events = any(n == b"content-type" and v.startswith(EVENTS) for n, v in named)
        self._head = [{"type": "http.response.start", "status": int(status[:3]), "headers": named}]
        return self._written.append

    def _sent(self) -> list[Message]:
        """The head and what was written of the body, if these have not been sent yet."""
        messages = [*self._head, *(_piece(chunk, more=True) for chunk in self._written)]
        self._begun = self._begun or bool(self._head)
        self._head, self._written = [], []
        return messages


def environ(scope: Any) -> dict[str, Any]:
    """A request as WSGI has it, without the body. ``REQUEST_URI`` is the path as it was sent, for :mod:`api.http.paths`."""
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
