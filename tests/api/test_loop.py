"""The event loop and its threads, over real sockets: HTTP as callers send it, whole and broken, to apps that are made for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn

from api.http.context import GONE
from api.server import protocol
from api.server.head import ReadHeaders, in_ascii, parse_head, parts
from api.server.protocol import ROOM, Connection, Limits, settings
from api.server.room import Room
from tests.support.api_lake import eventually

LIMITS = Limits(head=10_000, body=2_000_000, seconds=20)
HOST = b"Host: localhost\r\n"
PATH = b"/stores/s/keys/k"


class Known:
    """What the loop asks for point reads: knows one key, and how it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None, bool]] = []
        self.counted = 0

    def answer(self, path: str, authorization: str, address: str | None, packed: bool) -> tuple[bytes, str] | None:
        self.asked.append((path, authorization, address, packed))
        return (b'{"key":"k"}\n', "tag") if path == PATH.decode() else None

    def count(self) -> None:
        self.counted += 1


class Serving:
    """A server in a thread of this process, and what its app was given."""

    def __init__(self) -> None:
        self.known = Known()
        self.given: list[dict[str, Any]] = []
        self.app: Callable[..., Iterable[bytes]] = self.echo
        config = settings(self.handle, self.known, LIMITS, 8, 1)  # type: ignore[arg-type]
        self.server = uvicorn.Server(config)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([self.door],))

    def limited(self, room: int = ROOM, **changes: Any) -> None:
        """From the next connection on other limits, and another room for slow callers."""
        limits = LIMITS._replace(**changes)
        made = partial(Connection, self.known, limits, Room(room), Room(room))  # type: ignore[arg-type]
        self.server.config.http_protocol_class = made  # type: ignore[assignment]
        self.server.config.loaded_app._most = limits.body

    def handle(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.given.append(environ)
        return self.app(environ, start)

    def echo(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        found = b"%s %s %s" % (environ["REQUEST_METHOD"].encode(), environ["PATH_INFO"].encode("latin-1"), body)
        start("200 OK", [("Content-Length", str(len(found)))])
        return [found] if environ["REQUEST_METHOD"] != "HEAD" else []

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            yield connection

    def asked(self, *pieces: bytes) -> bytes:
        """Everything that is said to this before the connection is closed."""
        with self.connected() as connection:
            for number, piece in enumerate(pieces):
                time.sleep(0.05 * bool(number))
                connection.sendall(piece)
            return rest(connection)


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving()
    made.thread.start()
    eventually(lambda: made.server.started)
    yield made
    made.server.should_exit = True
    made.thread.join(10)
    assert not made.thread.is_alive()


def rest(connection: socket.socket) -> bytes:
    """What comes, up to the end. That is a reset where the server closes before it has read all that was sent."""
    found = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            found += piece
    return found


def some(connection: socket.socket, end: bytes) -> bytes:
    """What comes, up to its end."""
    found = b""
    while not found.endswith(end):
        piece = connection.recv(65_536)
        assert piece, found
        found += piece
    return found


def request(target: bytes, *headers: bytes, method: bytes = b"GET", close: bool = False, body: bytes = b"") -> bytes:
    named = [*headers, b"Connection: close"] if close else list(headers)
    return method + b" " + target + b" HTTP/1.1\r\n" + HOST + b"".join(h + b"\r\n" for h in named) + b"\r\n" + body


def bodies(text: bytes) -> list[bytes]:
    """The bodies of some answers that say how long they are."""
    found = []
    while text:
        head, _, text = text.partition(b"\r\n\r\n")
        (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        found.append(text[:length])
        text = text[length:]
    return found


def test_what_was_answered_is_counted_each_second(serving: Serving) -> None:
    eventually(lambda: serving.known.counted > 1)


def test_a_point_read_is_answered_in_the_loop(serving: Serving) -> None:
    with serving.connected() as connection:
        for _ in range(3):
            connection.sendall(request(PATH, b"Authorization: Bearer x"))
            answer = some(connection, b"}\n")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\ndate: ") and b'\r\netag: W/"tag"\r\n' in answer
        connection.sendall(request(PATH, b"Accept-Encoding: gzip"))
        some(connection, b"}\n")
        connection.sendall(request(b"/else"))
        assert some(connection, b"GET /else ")
        connection.sendall(request(PATH))
        assert bodies(some(connection, b"}\n")) == [b'{"key":"k"}\n'], "after one of Flask's on the same connection"
    here, there = (PATH.decode(), "Bearer x", "127.0.0.1", False), (PATH.decode(), "", "127.0.0.1", True)
    assert serving.known.asked == [here, here, here, there, (*there[:3], False)]
    assert [given["PATH_INFO"] for given in serving.given] == ["/else"]


@pytest.mark.parametrize(
    "sent",
    [
        request(PATH, b"If-None-Match: *", close=True),
        request(PATH, b"Origin: http://x", close=True),
        request(PATH + b"?x=1", close=True),
        request(PATH + b"#x", close=True),
        request(b"http://localhost" + PATH, close=True),
        request(PATH, method=b"HEAD", close=True),
        request(PATH, b"Content-Length: 1", close=True, body=b"x"),
        request(PATH, b"X: 1", b"x: 2", close=True),
        request(PATH, close=True),
        request(b"/stores/s/keys", close=True),
        PATH.join([b"GET ", b" HTTP/1.0\r\n\r\n"]),
    ],
    ids=lambda sent: sent.replace(HOST, b"").decode()[:60],
)
def test_what_else_a_request_says_is_for_flask(serving: Serving, sent: bytes) -> None:
    assert serving.asked(sent).startswith(b"HTTP/1.1 200 OK\r\n")
    assert not serving.known.asked and len(serving.given) == 1


def test_what_the_headers_say() -> None:
    assert parse_head(request(PATH, b"Authorization: Bearer \xe9", b"Connection: Keep-Alive")) == ReadHeaders(
        "Bearer \xe9", False
    )
    assert parse_head(request(PATH, b"accept-encoding:")) == ReadHeaders("", True)
    whole = request(PATH)
    for wrong in (whole[:-2], whole + b"x", whole * 2, whole.replace(b"\r\n", b"\n"), request(PATH, b"X: 1", b" y")):
        assert parse_head(wrong) is None
    for theirs in (b"Expect: 100-continue", b"Upgrade: h2c", b"Transfer-Encoding: chunked", b"Content-Length: 0"):
        assert parse_head(request(PATH, theirs)) is None
    assert parse_head(request(PATH, b"X: 1\n\nGET / HTTP/1.1")) is None, "no second one in disguise"


def test_the_target() -> None:
    assert parts(b"/a%2Fb?x=1&y#z") == (b"/a%2Fb", b"x=1&y")
    assert parts(b"http://host/a?b") == (b"/a", b"b")
    assert parts(b"http://host") == (b"/", b"")
    assert parts(b"*") == (b"*", b"")
    assert parts(b"/a?b=http://c/d") == (b"/a", b"b=http://c/d")
    assert in_ascii(b"GET /\xc3\xa9 HTTP/1.1\r\nX: \xe9") == b"GET /%C3%A9 HTTP/1.1\r\nX: \xe9"


def test_what_flask_is_given(serving: Serving) -> None:
    headers = (b"X-A: 1", b"X-A: 2", b"Cookie: a=b", b"Cookie: c=d", b"X_A: 3", b"Content-Type: text/plain")
    serving.asked(request(b"/a%2Fb/\xc3\xa9%FF?q=%2F", *headers, method=b"PUT", close=True))
    (given,) = serving.given
    assert given["PATH_INFO"].encode("latin-1") == b"/a/b/\xc3\xa9\xff"
    assert given["REQUEST_URI"] == "/a%2Fb/%C3%A9%FF?q=%2F"
    assert (given["QUERY_STRING"], given["CONTENT_TYPE"], given["REMOTE_ADDR"]) == ("q=%2F", "text/plain", "127.0.0.1")
    assert (given["HTTP_X_A"], given["HTTP_COOKIE"], given["SERVER_PORT"]) == ("1,2", "a=b; c=d", str(serving.port))


def test_pipelined_requests_are_answered_in_order(serving: Serving) -> None:
    sent = [request(PATH), request(b"/1"), request(PATH), request(PATH), request(b"/2", close=True)]
    found = bodies(serving.asked(b"".join(sent)))
    assert found == [
        b"GET /stores/s/keys/k ",
        b"GET /1 ",
        b"GET /stores/s/keys/k ",
        b"GET /stores/s/keys/k ",
        b"GET /2 ",
    ]
    slow, app = threading.Event(), serving.app
    serving.app = lambda environ, start: (slow.wait(10), app(environ, start))[1]
    with serving.connected() as connection:
        connection.sendall(request(b"/1"))
        eventually(lambda: len(serving.given) == 6)
        connection.sendall(request(PATH))
        time.sleep(0.1)
        slow.set()
        connection.sendall(request(b"/2", close=True))
        assert bodies(rest(connection)) == [b"GET /1 ", b"GET /stores/s/keys/k ", b"GET /2 "]


def test_a_head_in_pieces(serving: Serving) -> None:
    sent = request(PATH, close=True)
    assert bodies(serving.asked(*(sent[n : n + 9] for n in range(0, len(sent), 9)))) == [b"GET /stores/s/keys/k "]
    with serving.connected() as connection:
        connection.sendall(request(PATH)[:-2])
        time.sleep(0.05)
        connection.sendall(b"\r\n" + request(PATH))  # the end of one, and a whole one
        connection.sendall(request(b"/2", close=True))
        assert bodies(rest(connection)) == [b"GET /stores/s/keys/k "] * 2 + [b"GET /2 "]


def test_bodies(serving: Serving) -> None:
    large = bytes(range(256)) * 4000
    length = b"Content-Length: %d" % len(large)
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (large[:5], large[5:500_000], large[500_000:]))
    chunked = b"Transfer-Encoding: chunked"
    for sent in (
        request(b"/p", length, method=b"PUT", close=True, body=large),
        request(b"/p", chunked, method=b"PUT", close=True, body=chunks + b"0\r\n\r\n"),
        request(b"/p", chunked, method=b"PUT", close=True, body=chunks + b"0\r\nAuthorization: x\r\n\r\n"),
    ):
        assert bodies(serving.asked(sent)) == [b"PUT /p " + large]
        assert bodies(serving.asked(sent[:1000], sent[1000:])) == [b"PUT /p " + large]
        assert "HTTP_AUTHORIZATION" not in serving.given[-1]


def test_who_asks_before_it_sends_a_body(serving: Serving) -> None:
    with serving.connected() as connection:
        connection.sendall(request(b"/p", b"Expect: 100-continue", b"Content-Length: 3", method=b"PUT", close=True))
        assert some(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert bodies(rest(connection)) == [b"PUT /p abc"]

    sent = request(b"/p", b"Expect: 100-continue", b"Content-Length: 2000001", method=b"PUT", close=True)
    assert serving.asked(sent).startswith(b"HTTP/1.1 200 "), (
        "what the app says to one that is too long, and nothing before"
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_body_that_breaks_off_is_none(serving: Serving, chunked: bool, pieces: int) -> None:
    header = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
    sent = request(b"/p", header, method=b"PUT", body=b"4\r\nabcd\r\n" if chunked else b"abcd")
    with serving.connected() as connection:
        connection.sendall(sent if pieces == 1 else sent[:-2])
        if pieces == 2:
            time.sleep(0.05)
            connection.sendall(sent[-2:])
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).startswith(b"HTTP/1.1 400 ")
    assert not serving.given, "nobody is asked"


def test_a_body_that_is_too_long_is_not_read_to_its_end(serving: Serving) -> None:
    serving.limited(body=1000)
    chunks = b"Transfer-Encoding: chunked"
    with serving.connected() as connection:
        connection.sendall(request(b"/p", chunks, method=b"PUT", close=True, body=b"800\r\n" + b"x" * 0x800 + b"\r\n"))
        assert len(bodies(rest(connection))[0]) > 1000, "enough to see it"


def test_a_body_that_goes_on_wrong(serving: Serving) -> None:
    sent = request(b"/p", b"Transfer-Encoding: chunked", method=b"PUT")
    answer = serving.asked(sent, b"4\r\nabcd\r\nx\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


def test_bodies_have_a_time_to_come_and_no_thread_meanwhile(serving: Serving) -> None:
    serving.limited(seconds=1)
    with ExitStack() as stack:
        slow = [stack.enter_context(serving.connected()) for _ in range(20)]  # more than there are threads
        for number, connection in enumerate(slow):
            header = b"Expect: 100-continue" if number % 2 else b"X: 1"
            connection.sendall(request(b"/p", header, b"Content-Length: 50", method=b"PUT", body=b"a"))
        for _ in range(3):
            assert bodies(serving.asked(request(b"/2", close=True))) == [b"GET /2 "]
            for connection in slow:
                connection.sendall(b"a")
        for number, connection in enumerate(slow):
            answer = rest(connection).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n" * (number % 2))
            assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer
    assert len(serving.given) == 3


def test_slow_bodies_have_only_so_much_room(serving: Serving) -> None:
    serving.limited(room=1_000_000)
    with ExitStack() as stack:
        slow = [stack.enter_context(serving.connected()) for _ in range(4)]
        for number, connection in enumerate(slow):
            connection.sendall(
                request(b"/p", b"Content-Length: 400001", method=b"PUT", close=True, body=b"a" * 400_000)
            )
            if number == 2:
                assert rest(slow[0]).startswith(b"HTTP/1.1 408 "), "the oldest, for the third one"
        assert rest(slow[1]).startswith(b"HTTP/1.1 408 ")
        for connection in slow[2:]:
            connection.sendall(b"a")
            assert len(bodies(rest(connection))[0]) == len(b"PUT /p ") + 400_001


def test_a_slow_reader_holds_up_who_makes_the_answer(serving: Serving) -> None:
    made = []

    def counted(environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
        start("200 OK", [])
        try:
            while True:
                made.append(1)
                yield b"x" * 100_000
        finally:
            made.append(0)

    serving.app = counted
    with serving.connected() as connection:
        connection.sendall(request(b"/"))
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
        time.sleep(0.5)
        before = len(made)
        assert before < 200, "what the machine keeps of the connection, and little more"
        time.sleep(0.3)
        assert len(made) == before
        size = sum(len(connection.recv(1 << 20)) for _ in range(100))
        eventually(lambda: len(made) > before)
        assert size > 100_000
    eventually(lambda: made[-1] == 0)


def endless(environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
    """A stream without an end."""
    start("200 OK", [])
    while True:
        yield b"x" * 100_000


def test_who_does_not_read_is_cut_off_and_has_no_thread(serving: Serving) -> None:
    serving.limited(seconds=1)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/whole":
            start("200 OK", [("Content-Length", "20000000")])
            return [b"x" * 20_000_000]
        return endless(environ, start) if environ["PATH_INFO"] == "/endless" else serving.echo(environ, start)

    serving.app = app
    with ExitStack() as stack:
        slow = [stack.enter_context(serving.connected()) for _ in range(20)]  # more than there are threads
        begun = time.monotonic()
        for number, connection in enumerate(slow):
            connection.sendall(request((b"/endless", b"/whole")[number % 2], close=number % 4 == 1))
        for _ in range(3):
            assert bodies(serving.asked(request(b"/2", close=True))) == [b"GET /2 "]
        for connection in slow:
            with suppress(ConnectionError):
                assert len(connection.recv(1)) == 1
        eventually(lambda: not serving.server.server_state.connections)
        assert time.monotonic() - begun >= 1
        for connection in slow:
            with suppress(ConnectionError):
                rest(connection)


def test_answers_that_nobody_reads_have_only_so_much_room(serving: Serving) -> None:
    serving.limited(room=30_000_000)  # some of each the machine takes
    body = b"x" * 20_000_000

    def large(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    serving.app = large
    with ExitStack() as stack:
        slow = [stack.enter_context(serving.connected()) for _ in range(4)]
        for connection in slow:
            connection.sendall(request(b"/", close=True))
            assert connection.recv(1)
        whole = []
        for connection in slow:
            try:
                whole.append(rest(connection).endswith(body))
            except ConnectionError:
                whole.append(False)
    assert not whole[0] and whole[3], "who has waited for the longest is cut off"


def test_a_stream_ends_when_its_reader_leaves(serving: Serving) -> None:
    closed, events = threading.Event(), threading.Semaphore(0)

    class Stream:
        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            events.acquire(timeout=10)
            return b": \n\n"

        def close(self) -> None:
            closed.set()

    def follow(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/event-stream")])
        return Stream()

    serving.app = follow
    for behind in (b"", request(b"/2")):  # also where another request waits for its turn
        closed.clear()
        with serving.connected() as connection:
            connection.sendall(request(b"/1"))
            events.release()
            some(connection, b": \n\n\r\n")
            connection.sendall(behind)
            time.sleep(0.1)
        time.sleep(0.1)
        assert not closed.is_set()
        for _ in range(3):  # heartbeats: of the first one it may only be known by then that nobody takes it
            events.release()
            time.sleep(0.05)
        assert closed.wait(120)


def test_who_sends_no_more_is_answered(serving: Serving) -> None:
    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(0.2)
        if environ["PATH_INFO"] != "/pieces":
            return serving.echo(environ, start)
        start("200 OK", [])
        return (piece for piece in (b"a", b"b"))

    serving.app = app
    for sent in (
        request(PATH),
        request(b"/1"),
        request(b"/1").replace(b"1.1", b"1.0"),
        request(b"/1") * 3,
        request(PATH) + request(b"/1"),
        request(b"/p", b"Content-Length: 3", method=b"PUT", body=b"abc"),
        request(b"/1") * 300,
    ):
        serving.app = serving.echo if sent.count(HOST) > 3 else app
        with serving.connected() as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert len(bodies(rest(connection))) == sent.count(HOST)
    serving.app = app
    with serving.connected() as connection:
        connection.sendall(request(b"/pieces"))
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection).endswith(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    with serving.connected() as connection:
        connection.shutdown(socket.SHUT_WR)
        assert rest(connection) == b""


@pytest.mark.parametrize("count", [1, 15, 16, 17, 20, 45, 300])
def test_all_that_came_before_what_breaks_off_is_answered(
    serving: Serving, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where so many wait that reading pauses: each time that it goes on, uvloop may tell of the end anew."""
    complete = protocol.Connection.on_response_complete

    def and_the_end(self: protocol.Connection) -> None:
        complete(self)
        if self._ended:
            self.eof_received()

    monkeypatch.setattr(protocol.Connection, "on_response_complete", and_the_end)
    for broken in (b"GET /x", request(b"/p", b"Content-Length: 100", method=b"PUT", body=b"{")):
        with serving.connected() as connection:
            connection.sendall(request(b"/1") * count + broken)
            connection.shutdown(socket.SHUT_WR)
            *answers, last = bodies(rest(connection))
        assert answers == [b"GET /1 "] * count
        assert b"400" in last


def test_who_works_is_told_that_the_caller_has_left(serving: Serving) -> None:
    seen = threading.Event()

    def works(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        until = time.monotonic() + 60
        while time.monotonic() < until and not environ[GONE]():
            time.sleep(0.02)
        if time.monotonic() < until:
            seen.set()
        return serving.echo(environ, start)

    serving.app = works
    with serving.connected() as connection:
        connection.sendall(request(b"/"))
        eventually(lambda: serving.given)
    assert seen.wait(60)


def test_who_sends_no_more_is_asked_whether_it_is_there(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is no answer yet: half of a connection closed looks like all of it."""
    monkeypatch.setattr(protocol, "ASK_SECONDS", 0.05)
    done = threading.Event()
    serving.app = lambda environ, start: (done.wait(60), serving.echo(environ, start))[1]
    with serving.connected() as connection:
        connection.sendall(request(b"/1"))
        connection.shutdown(socket.SHUT_WR)
        assert some(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        done.set()
        answer = rest(connection)
    assert bodies(answer[answer.index(b"HTTP/1.1 200 OK") :]) == [b"GET /1 "]


def test_errors_before_and_amid_an_answer(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
        if environ["PATH_INFO"] == "/before":
            raise ValueError("no")
        start("200 OK", [("Content-Length", "9")] if environ["PATH_INFO"] == "/length" else [])
        yield b"abc"
        if environ["PATH_INFO"] == "/amid":
            raise ValueError("no")

    serving.app = wrong
    assert serving.asked(request(b"/before")).startswith(b"HTTP/1.1 500 ")
    broken = serving.asked(request(b"/amid"))
    assert broken.startswith(b"HTTP/1.1 200 ") and broken.endswith(b"abc\r\n"), "no last chunk"
    assert serving.asked(request(b"/length")).endswith(b"\r\n\r\nabc"), "of nine"
    assert serving.asked(request(b"/", close=True)).endswith(b"3\r\nabc\r\n0\r\n\r\n")
    assert caplog.text.count("nobody foresaw") == 2


def test_an_app_without_an_answer(serving: Serving) -> None:
    serving.app = lambda environ, start: []
    assert serving.asked(request(b"/")).startswith(b"HTTP/1.1 500 ")


def test_head(serving: Serving) -> None:
    answer = serving.asked(request(b"/", method=b"HEAD"), request(b"/", method=b"HEAD", close=True))
    assert answer.count(b"content-length: 7\r\n") == 2 and answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        request(b"/", b"X Y: 1"),
        request(b"/", b"X: 1\x00"),
        request(b"/", b"Content-Length: 1", b"Content-Length: 2"),
        request(b"/", b"Content-Length: 1", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        request(PATH, b"X: 1\x01"),
    ],
)
def test_what_is_no_http(serving: Serving, sent: bytes) -> None:
    answer = serving.asked(sent)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n") and b'"status": 400' in answer
    assert not serving.given and not serving.known.asked


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET %b HTTP/1.1\r\n\r\n" % PATH, 400),
        (request(b"/", HOST[:-2]), 400),
        (request(PATH, HOST[:-2]), 400),
        (request(b"/", HOST[:-2]).replace(b"1.1", b"1.0"), 400),
        (request(b"/").replace(b"localhost", b"a@b"), 400),
        (request(PATH).replace(b"localhost", b"a/b"), 400),
        (request(b"http://a@b/"), 400),
        (request(b"/").replace(b"1.1", b"0.9"), 505),
        (request(PATH).replace(b"1.1", b"2.0"), 505),
        (b"GET /\r\n\r\n", 505),
        (request(b"/").replace(b"1.1", b"1.2"), 505),
        (request(PATH).replace(b"1.1", b"3.0"), 505),
        (request(b"/").replace(b"1.1", b"1.x"), 400),
        (request(b"/", b"Transfer-Encoding: gzip, chunked", method=b"PUT", body=b"0\r\n\r\n"), 501),
        (request(b"/", b"Transfer-Encoding: identity", method=b"PUT"), 501),
        (request(b"/", b"Expect: 999-x"), 417),
        (request(PATH, b"Expect: 999-x"), 417),
        (request(PATH, *(b"X%d: k" % n for n in range(101))), 431),
    ],
    ids=lambda sent: sent[:60].decode() if isinstance(sent, bytes) else str(sent),
)
def test_what_is_no_http_1_1(serving: Serving, sent: bytes, status: int) -> None:
    answer = serving.asked(sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status) and b'"status": %d' % status in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert not serving.given and not serving.known.asked


def test_what_is_http_1_1(serving: Serving) -> None:
    for sent in (
        b"GET / HTTP/1.0\r\n\r\n",
        request(b"/", b"Expect: 100-Continue", close=True),
        request(b"/", close=True).replace(b"localhost", b"[::1]:8080"),
        request(b"/", close=True).replace(b"localhost", b""),
        request(b"/", b"Expect: 999-x").replace(b"1.1", b"1.0"),
    ):
        assert serving.asked(sent).startswith(b"HTTP/1.1 200 "), sent


def test_this_machine_alone_has_names_that_no_name_server_gives_away(serving: Serving) -> None:
    """A page whose own name leads to 127.0.0.1 by now is no page of this machine."""
    serving.limited(hosts=frozenset(["state.example.org"]))
    for host, right in {
        b"localhost": True,
        b"LocalHost:8080": True,
        b"127.0.0.1": True,
        b"127.9.8.7:1": True,
        b"[::1]:8080": True,
        b"State.example.org:443": True,
        b"example.org": False,
        b"localhost.example.org": False,
        b"127.0.0.1.example.org": False,
        b"10.0.0.1": False,
        b"[::2]": False,
        b"0.0.0.0": False,
        b"": False,
    }.items():
        for target in (PATH, b"/"):
            answer = serving.asked(request(target).replace(b"localhost", host), request(b"/", close=True) * right)
            assert answer.startswith(b"HTTP/1.1 200 " if right else b"HTTP/1.1 421 "), (host, answer)
    assert serving.asked(request(b"http://example.org/")).startswith(b"HTTP/1.1 421 ")
    assert serving.asked(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("rubbish", [b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"PUT /", b"PUT /p", b"PUT /q"])
def test_what_is_wrong_is_not_said_before_its_turn(serving: Serving, rubbish: bytes) -> None:
    """Nor in the place of an answer."""
    done = threading.Event()
    serving.app = lambda environ, start: (done.wait(60), serving.echo(environ, start))[1]
    if rubbish.startswith(b"PUT /p"):
        rubbish = request(b"/p", b"Transfer-Encoding: chunked", method=b"PUT", body=b"x\r\n")
    if rubbish.startswith(b"PUT /q"):
        rubbish = request(b"/2") + request(b"/q", b"Content-Length: 50", method=b"PUT", body=b"x")
    with serving.connected() as connection:
        connection.sendall(request(b"/1"))
        eventually(lambda: serving.given)
        connection.sendall(rubbish)
        connection.sendall(b"more")
        connection.shutdown(socket.SHUT_WR)
        time.sleep(0.1)
        done.set()
        found = rest(connection)
    *answers, last = bodies(found)
    assert answers == [b"GET /1 ", b"GET /2 "][: len(answers)] and answers
    assert b'"status": 400' in last and found.count(b"HTTP/1.1 400 ") == 1


def test_only_so_many_requests_wait_for_the_answers_before_theirs(serving: Serving) -> None:
    done = threading.Event()
    serving.app = lambda environ, start: (done.wait(60), serving.echo(environ, start))[1]
    sent = b"".join(request(b"/%d" % n) for n in range(2000))
    with serving.connected() as connection:
        writer = threading.Thread(target=connection.sendall, args=(sent + request(b"/end", close=True),))
        writer.start()
        eventually(lambda: serving.given)
        time.sleep(0.2)
        (protocol,) = serving.server.server_state.connections
        assert len(protocol.pipeline) < 100
        done.set()
        assert bodies(rest(connection)) == [*(b"GET /%d " % n for n in range(2000)), b"GET /end "]
        writer.join()


def test_heads_that_are_too_large(serving: Serving) -> None:
    for sent in (
        request(b"/" + b"k" * 10_000),
        request(b"/", b"X: " + b"k" * 10_000),
        request(b"/", *(b"X%d: k" % n for n in range(100))),
        request(b"/")[:-2] + b"X: " + b"k" * 12_000,  # and has no end
        request(b"/p", b"Transfer-Encoding: chunked", method=b"PUT", body=b"1;"),
        request(b"/p", b"Transfer-Encoding: chunked", method=b"PUT", body=b"1\r\nx\r\n0\r\nX: "),
    ):
        answer = serving.asked(sent, *[b"x" * 12_000] * sent.startswith(b"PUT"))
        assert answer.startswith(b"HTTP/1.1 431 ") and b"at most 10000 bytes and 100 headers" in answer, sent[:50]
    for sent in (request(b"/" + b"k" * 9900, close=True), request(b"/", *[b"X: k"] * 98, close=True)):
        assert serving.asked(sent).startswith(b"HTTP/1.1 200 ")


def test_a_long_target(serving: Serving) -> None:
    serving.limited(head=200_000)
    assert bodies(serving.asked(request(b"/" + b"%6B" * 60_000, close=True))) == [b"GET /" + b"k" * 60_000 + b" "]


def test_who_says_nothing(serving: Serving) -> None:
    serving.server.config.timeout_keep_alive = 1
    begun = time.monotonic()
    for sent in ((), (request(PATH),), (request(b"/"),), (b"GET /",), (request(PATH), request(PATH)[:20])):
        with serving.connected() as connection:
            for piece in sent:
                connection.sendall(piece)
                time.sleep(0.05)
            rest(connection)
    assert time.monotonic() - begun > 4.5
    with serving.connected() as connection:  # one that is used is not closed
        for _ in range(4):
            time.sleep(0.5)
            connection.sendall(request(PATH))
            some(connection, b"}\n")
        slow = serving.app
        serving.app = lambda environ, start: (time.sleep(1.5), slow(environ, start))[1]
        connection.sendall(request(b"/slow"))
        some(connection, b"GET /slow ")


def test_an_upgrade_is_not_taken(serving: Serving) -> None:
    """Java's client asks for HTTP/2 with its first request, and sends the next ones on the same connection."""
    sent = request(PATH, b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEA")
    assert bodies(serving.asked(sent + request(b"/2", close=True))) == [b"GET /stores/s/keys/k ", b"GET /2 "]
    assert bodies(serving.asked(sent, request(b"/2", close=True))) == [b"GET /stores/s/keys/k ", b"GET /2 "]


def test_what_goes_on_when_it_stops(serving: Serving) -> None:
    begun, done = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        begun.set()
        done.wait(10)
        start("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    serving.app = slow
    with serving.connected() as idle, serving.connected() as read, serving.connected() as busy:
        read.sendall(request(PATH))
        some(read, b"}\n")
        busy.sendall(request(b"/"))
        assert begun.wait(120)
        serving.server.should_exit = True
        assert rest(idle) == rest(read) == b""
        done.set()
        assert rest(busy).endswith(b"connection: close\r\n\r\nok")
