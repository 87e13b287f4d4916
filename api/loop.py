"""A connection in a worker's event loop. Plain point reads are answered here, at once; all else goes on to Flask in a thread
(:mod:`api.bridge`), by uvicorn's own ways.

A thread of its own costs a read more than the read: the loop and the threads have to take turns with the interpreter. So what
need not wait is not handed over.
"""

from __future__ import annotations

import json
import re
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.bridge import GONE, Bridge, Wsgi
from api.fast import Fast

# Longer than proxies keep a connection that they do not use (nginx: 60), or a request may cross its end.
IDLE_SECONDS = 65
HEAD, HEADERS = 65_536, 100  # bytes of a request's head beside its key, and how many headers it may have
SMALL = 8192  # bytes of a head that is looked at here
POINT = re.compile(rb"GET (/stores/[\w.~-]+/keys/[\w.~!$&'()*+,;=:@/%-]*) HTTP/1\.1", re.ASCII)
# Headers that only Flask, or uvicorn, has something to do about.
THEIRS = {
    b"content-length",
    b"expect",
    b"http2-settings",
    b"if-none-match",
    b"origin",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
ANSWER = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
    b'etag: W/"%b"\r\nvary: Accept-Encoding\r\n\r\n%b'
)


def settings(app: Wsgi, fast: Fast, most: int, threads: int, seconds: int) -> uvicorn.Config:
    """How uvicorn serves a WSGI app: with heads of at most so many bytes, in so many threads, and so many seconds for what
    goes on when it is to stop."""

    async def count() -> None:
        fast.count()

    return uvicorn.Config(
        Bridge(app, threads),
        http=partial(Connection, fast, most),  # type: ignore[arg-type]  # it is only called
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",  # what is worth a line says so itself
        access_log=False,
        proxy_headers=False,  # whoever sends them could be anybody
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=seconds,
        callback_notify=count,
        timeout_notify=0,  # every second
    )


class Said(NamedTuple):
    """What the headers of a plain GET say."""

    authorization: str
    packed: bool  # fewer bytes can be read


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with one caller. A head may take ``IDLE_SECONDS`` to come, from the connection's begin or the last answer on."""

    def __init__(self, fast: Fast, most: int, **words: Any) -> None:
        super().__init__(**words)
        self._fast, self._most = fast, most  # bytes of a head
        self._within = self._headed = False  # a request, whose end has not come; its body, or what comes after that
        self._head = 0  # bytes of its head so far
        self._unread = 0  # bytes that came since the parser had something to say of them
        self._large = False
        self._block = b""  # the last headers as they came
        self._said: Said | None = None  # what they say
        self._rests = 0.0  # since when nothing is to be done, on the loop's clock

    def connection_made(self, transport: Any) -> None:
        """As of :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self._rests = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close, if there was nothing to be done for so long: an answer given here does not set the clock anew each time."""
        left = self._rests + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        """As of :class:`asyncio.Protocol`."""
        if not self._within and len(data) <= SMALL and self._answered(data):
            return
        if not self._within:  # or it would not be taken for a target
            data = in_ascii(data)
        self._unread += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as other:  # to what is not spoken here: it is a request like any other
                data = data[other.args[0] :]
            except HttpParserError:
                return self._refuse(431 if self._large else 400)
        if self._unread > self._most:
            self._refuse(431)

    def _answered(self, data: bytes) -> bool:
        """Answer a point read, where nothing comes before it and nobody has to be waited for."""
        line, _, block = data.partition(b"\r\n")
        found = POINT.fullmatch(line)
        if not found or (self.cycle is not None and not self.cycle.response_complete):
            return False
        if block != self._block:  # a caller sends the same ones again and again
            self._block, self._said = block, said(data)
        if self._said is None or self.flow.write_paused or self.transport.is_closing():
            return False
        authorization, packed = self._said
        address = self.client[0] if self.client else ""
        answer = self._fast.answer(found[1].decode("ascii"), authorization, address, packed)
        if answer is None:
            return False
        body, tag = answer
        self.transport.write(ANSWER % (self._date(), len(body), tag.encode(), body))
        self._rests = self.loop.time()
        return True

    def on_message_begin(self) -> None:
        """As of httptools, like the next ones."""
        super().on_message_begin()
        self._within, self._headed, self._head = True, False, 0

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Not those that come after a body: nobody has asked for them."""
        if not self._headed:
            self._grow(len(name) + len(value))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request goes to Flask from here, with a way to see whether the caller is still there."""
        self._unread, self._headed = 0, True
        self._unset_keepalive_if_required()
        target, self.url = self.url, b"/"  # uvicorn can take one of 65,535 bytes apart, and that twice
        super().on_headers_complete()
        self.url = target
        self.scope["raw_path"], self.scope["query_string"] = parts(target)
        self.scope["extensions"] = {GONE: {"now": self.transport.is_closing}}

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        self._unread, self._within = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As of uvicorn."""
        self._rests = self.loop.time()
        super().on_response_complete()

    def _grow(self, size: int) -> None:
        self._head += size
        if self._head > self._most or len(self.headers) >= HEADERS:
            self._large = True
            raise ValueError("too large")  # the parser passes it on as its own error

    def _date(self) -> bytes:
        return b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])

    def _refuse(self, status: int) -> None:
        """Say what is wrong, and close. While an answer is under way only that: it would be taken for a part of it."""
        cycle = self.cycle
        going = cycle is not None and not cycle.response_complete
        if not going or not (self.pipeline or cycle.response_started):
            self.transport.write(problem(status, self._date(), self._most))
        if going:
            cycle.disconnected = True  # nothing more is sent, and who reads the body is told
            cycle.message_event.set()
        self.transport.close()


def said(head: bytes) -> Said | None:
    """What the headers of a request say, if it is one whole GET without a body that needs no more than an answer; else None."""
    seen = Seen()
    try:
        HttpRequestParser(seen).feed_data(head)
    except (HttpParserError, HttpParserUpgrade):
        return None
    named = dict(seen.headers)
    if seen.begun != 1 or not seen.whole or len(named) < len(seen.headers) or not THEIRS.isdisjoint(named):
        return None
    if named.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    return Said(named.get(b"authorization", b"").decode("latin-1"), b"accept-encoding" in named)


class Seen:
    """What httptools finds in a head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun, self.whole = 0, False

    def on_message_begin(self) -> None:
        """A request begins."""
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is here."""
        self.headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        """A request ends."""
        self.whole = True


def in_ascii(data: bytes) -> bytes:
    """Data that begins with a request's line, in which what is not ASCII is percent-encoded, as curl does not do."""
    line, end, rest = data.partition(b"\r\n")
    return data if line.isascii() else re.sub(rb"[\x80-\xff]", lambda byte: b"%%%02X" % byte[0][0], line) + end + rest


def parts(target: bytes) -> tuple[bytes, bytes]:
    """The path and the query of a request's target, which may begin with ``http://host``; neither has a fragment."""
    path, _, query = target.partition(b"#")[0].partition(b"?")
    whole = path.startswith(b"/") or b"://" not in path
    return path if whole else b"/" + path.partition(b"://")[2].partition(b"/")[2], query


def problem(status: int, date: bytes, most: int) -> bytes:
    """An answer to what is no request."""
    found = "a request's head that is larger" if status == 431 else "what is no HTTP/1.1"
    expected = f"at most {most} bytes and {HEADERS} headers" if status == 431 else "a request as of RFC 9112"
    phrase = HTTPStatus(status).phrase
    detail = f"found {found}, expected {expected}"
    body = json.dumps({"type": "about:blank", "title": phrase, "status": status, "detail": detail}).encode() + b"\n"
    head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode() + date + head.encode() + body
