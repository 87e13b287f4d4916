"""A connection in a worker's event loop. Plain point reads are answered here, at once; all else goes on to Flask in a thread
(:mod:`api.server.wsgi`), by uvicorn's own ways.

A thread of its own costs a read more than the read: the loop and the threads have to take turns with the interpreter. So what
need not wait is not handed over.

What a slow caller may take is bounded here: how long a head, a body and the reading of an answer may last, and how many bytes are
kept for all of them together (:mod:`api.server.room`).
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, NamedTuple

import uvicorn
from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.http.context import GONE
from api.http.point_reads import Fast, Wsgi
from api.server.head import HEADERS, ReadHeaders, in_ascii, parse_head, parts, problem, unfit
from api.server.room import Room
from api.server.wsgi import Bridge

# Longer than proxies keep a connection that they do not use (nginx: 60), or a request may cross its end.
IDLE_SECONDS = 65
HEAD = 65_536  # bytes of a request's head beside its key
SMALL = 8192  # bytes of a head that is looked at here
SLICE = 2048  # bytes that are parsed at once
AHEAD = 16  # requests that may wait for the answers before theirs, until no more bytes are parsed
ROOM = 32 << 20  # bytes that are kept for slow callers, as of `Room`: of bodies, and as many of answers
ASK_SECONDS = 1.0  # between two questions whether a caller who sends no more is still there
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
POINT = re.compile(rb"GET (/stores/[\w.~-]+/keys/[\w.~!$&'()*+,;=:@/%-]*) HTTP/1\.1", re.ASCII)
ANSWER = (
    b"HTTP/1.1 200 OK\r\n%bcontent-type: application/json\r\ncontent-length: %d\r\n"
    b'etag: W/"%b"\r\nvary: Accept-Encoding\r\n\r\n%b'
)


class Limits(NamedTuple):
    """What a caller may take: the bytes of a head and of a body, and the seconds that a body may take to come and an answer to
    be read; and which hosts callers may call this one, beside those of this machine (None: any)."""

    head: int
    body: int
    seconds: float
    hosts: frozenset[str] | None = None


def settings(app: Wsgi, fast: Fast, limits: Limits, threads: int, seconds: int) -> uvicorn.Config:
    """How uvicorn serves a WSGI app: in so many threads, and so many seconds for what goes on when it is to stop."""

    async def count() -> None:
        fast.count()

    return uvicorn.Config(
        Bridge(app, threads, limits.body),
        http=partial(Connection, fast, limits, Room(ROOM), Room(ROOM)),  # type: ignore[arg-type]  # it is only called
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


class Connection(HttpToolsProtocol):
    """HTTP/1.1 with one caller. A head may take ``IDLE_SECONDS`` to come, from the connection's begin or the last answer on.

    Methods that say nothing are those of :class:`asyncio.Protocol`, httptools' parser and uvicorn's connection."""

    def __init__(self, fast: Fast, limits: Limits, bodies: Room, answers: Room, **words: Any) -> None:
        super().__init__(**words)
        self._fast, self._limits, self._bodies, self._answers = fast, limits, bodies, answers
        self._within = self._headed = False  # a request, whose end has not come; its body, or what comes after that
        self._head = 0  # bytes of its head so far
        self._body = 0  # bytes of its body so far
        self._unread = 0  # bytes that came since the parser had something to say of them
        self._wrong = 400  # the status for what the parser stops at
        self._block = b""  # the last headers as they came
        self._headers_read: ReadHeaders | None = None  # what they say
        self._rests = 0.0  # since when nothing is to be done, on the loop's clock
        self._running: RequestResponseCycle | None = None  # the request that is being answered
        self._later = b""  # what came of requests that wait until others are answered
        self._refusal: int | None = None  # the status of the last answer, when those before are there
        self._ended = False  # the caller sends no more
        self._late: asyncio.TimerHandle | None = None  # cuts off a body that does not come
        self._stuck: asyncio.TimerHandle | None = None  # cuts off a caller who does not read
        self._piece = 0  # bytes of what it is to read next: they are kept until it has read the last of them

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._rests = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._whole()
        self.resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close, if there was nothing to be done for so long: an answer given here does not set the clock anew each time."""
        left = self._rests + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # to close it would be to wait until all is read
        else:
            super().timeout_keep_alive_handler()

    def pause_writing(self) -> None:
        """The caller does not read as fast as there are answers: as of :class:`asyncio.Protocol`."""
        super().pause_writing()
        self._stuck = self.loop.call_later(self._limits.seconds, self.transport.abort)
        self._answers.keep(self, max(self._piece, self.transport.get_write_buffer_size()), self.transport.abort)

    def resume_writing(self) -> None:
        """It has read most of them."""
        super().resume_writing()
        self._answers.free(self)
        if self._stuck:
            self._stuck.cancel()
            self._stuck = None

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._later:
            self._later += data
            self.flow.pause_reading()
            return
        if not self._within and len(data) <= SMALL and self._answered(data):
            return
        if not self._within:  # or it would not be taken for a target
            data = in_ascii(data)
        self._feed(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's always closes
        """The caller sends no more, and may read or not: as of :class:`asyncio.Protocol`. uvloop says so each time that reading goes on."""
        if self._ended:
            return self._waits()
        self._ended = True
        if self._within and not self._later:
            self._refuse(400)  # it breaks off
        waits = self._waits()
        if waits:
            self.loop.call_later(ASK_SECONDS, self._ask)
        return waits

    def _waits(self) -> bool:
        """Whether there is something to be answered yet."""
        return not self.transport.is_closing() and bool(
            self._later or self._refusal or (self.cycle is not None and not self.cycle.response_complete)
        )

    def _ask(self) -> None:
        """Find out whether a caller who sends no more is there: the machine of one who has left refuses what is sent to it. So
        this is no question, but what may be sent at any time before an answer."""
        if self._waits():
            if self._running and not self._running.response_started and self._running.scope["http_version"] == "1.1":
                self.transport.write(CONTINUE)
            self.loop.call_later(ASK_SECONDS, self._ask)

    def _answered(self, data: bytes) -> bool:
        """Answer a point read, where nothing comes before it and nobody has to be waited for."""
        line, _, block = data.partition(b"\r\n")
        target = POINT.fullmatch(line)
        if not target or (self.cycle is not None and not self.cycle.response_complete):
            return False
        if block != self._block:  # a caller sends the same ones again and again
            self._block, self._headers_read = block, parse_head(data, self._limits.hosts)
        if self._headers_read is None or self.flow.write_paused or self.transport.is_closing():
            return False
        authorization, packed = self._headers_read
        address = self.client[0] if self.client else ""
        answer = self._fast.answer(target[1].decode("ascii"), authorization, address, packed)
        if answer is None:
            return False
        body, tag = answer
        self.transport.write(ANSWER % (self._date(), len(body), tag.encode(), body))
        self._rests = self.loop.time()
        return True

    def _feed(self, data: bytes) -> None:
        """Parse what came, but for what is of requests beyond those that may wait: that is kept as it is, and no more is read."""
        for first in range(0, len(data), SLICE):
            if len(self.pipeline) >= AHEAD:
                self._later = data[first:]
                self.flow.pause_reading()
                return
            if not self._parse(data[first : first + SLICE]):
                return
        if self._within and self._headed:  # a body that does not come all at once
            if self._late is None:
                self._late = self.loop.call_later(self._limits.seconds, self._refuse, 408)
            self._bodies.keep(self, self._body, partial(self._refuse, 408))

    def _parse(self, data: bytes) -> bool:
        self._unread += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as other:  # to what is not spoken here: it is a request like any other
                data = data[other.args[0] :]
            except HttpParserError as error:
                self._refuse(505 if "HTTP version" in str(error) else self._wrong)
                return False
        if self._unread > self._limits.head:
            self._refuse(431)
            return False
        return True

    def _go_on(self) -> None:
        """Parse what was kept."""
        data, self._later = self._later, b""
        if not data or self.transport.is_closing():
            return
        self._feed(data)
        if not self._later and not self.pipeline:
            self.flow.resume_reading()
        if not self._later and self._ended:
            if self._within:
                self._refuse(400)
            if not self._waits():
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._within, self._headed, self._head = True, False, 0

    def on_url(self, url: bytes) -> None:
        self._grow(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Not those that come after a body: nobody has asked for them."""
        if not self._headed:
            self._grow(len(name) + len(value))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The request goes to Flask from here, with a way to see whether the caller is still there."""
        if status := unfit(self.parser.get_http_version(), self.url, self.headers, self._limits.hosts):
            self._stop(status)
        self._unread, self._headed = 0, True
        self._unset_keepalive_if_required()
        target, self.url = self.url, b"/"  # uvicorn can take one of 65,535 bytes apart, and that twice
        super().on_headers_complete()
        self.url = target
        self.scope["raw_path"], self.scope["query_string"] = parts(target)
        caller: dict[object, object] = {"now": self.transport.is_closing, "ready": self.flow.drain, "next": self._next}
        self.scope["extensions"] = {GONE: caller}

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)
        self._body += len(body)

    def on_message_complete(self) -> None:
        self._unread, self._within = 0, False
        self._whole()
        super().on_message_complete()

    def _next(self, size: int) -> None:
        self._piece = size

    def _whole(self) -> None:
        """No more comes of a body."""
        self._body = 0
        self._bodies.free(self)
        if self._late:
            self._late.cancel()
            self._late = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._rests = self.loop.time()
        last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():
                self.loop.call_later(self._limits.seconds, self.transport.abort)
        elif self._later:
            self.flow.pause_reading()
            if len(self.pipeline) < AHEAD:
                self.loop.call_soon(self._go_on)
        elif last and self._refusal:
            self._say(self._refusal)
        elif last and self._ended:
            self.transport.close()

    def _grow(self, size: int) -> None:
        self._head += size
        if self._head > self._limits.head or len(self.headers) >= HEADERS:
            self._stop(431)

    def _stop(self, status: int) -> None:
        self._wrong = status
        raise ValueError(status)  # the parser passes it on as its own error

    def _date(self) -> bytes:
        return b"".join([b"%b: %b\r\n" % header for header in self.server_state.default_headers])

    def _refuse(self, status: int) -> None:
        """Say what is wrong with the last request, when those before it are answered, and close. Where its own answer is under way
        only that: it would be taken for a part of it."""
        self._whole()
        if self._refusal:
            return
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return self.transport.close() if self._within and self._headed else self._say(status)
        if self._within and self._headed:  # its body is wrong: it is under way, or waits
            cycle.disconnected = True  # nothing more is sent, and who reads the body is told
            cycle.message_event.set()
            if not self.pipeline:
                return self.transport.close() if cycle.response_started else self._say(status)
            self.pipeline.popleft()
        self._refusal = status

    def _say(self, status: int) -> None:
        self.transport.write(problem(status, self._date(), self._limits.head))
        self.transport.close()
