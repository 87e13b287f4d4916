"""The event loop and its threads, over real sockets: HTTP as callers send it, whole and broken, to apps that are made for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from api import bridge
from api.loop import Said, in_ascii, parts, said, settings
from tests.test_api_lake import eventually

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
        config = settings(self.handle, self.known, 10_000, 8, 1)  # type: ignore[arg-type]
        self.server = uvicorn.Server(config)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, args=([self.door],))

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
    found = b""
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
    assert said(request(PATH, b"Authorization: Bearer \xe9", b"Connection: Keep-Alive")) == Said("Bearer \xe9", False)
    assert said(request(PATH, b"accept-encoding:")) == Said("", True)
    whole = request(PATH)
    for wrong in (whole[:-2], whole + b"x", whole * 2, whole.replace(b"\r\n", b"\n"), request(PATH, b"X: 1", b" y")):
        assert said(wrong) is None
    for theirs in (b"Expect: 100-continue", b"Upgrade: h2c", b"Transfer-Encoding: chunked", b"Content-Length: 0"):
        assert said(request(PATH, theirs)) is None
    assert said(request(PATH, b"X: 1\n\nGET / HTTP/1.1")) is None, "no second one in disguise"


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

    def refuses(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("413 Content Too Large", [("Content-Length", "0")])
        return []

    serving.app = refuses
    sent = request(b"/p", b"Expect: 100-continue", b"Content-Length: 3", method=b"PUT", close=True)
    assert serving.asked(sent).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_breaks_off_is_none(serving: Serving, chunked: bool) -> None:
    broken: list[BaseException] = []

    def reads(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return serving.echo(environ, start)
        except BaseException as error:
            broken.append(error)
            raise

    serving.app = reads
    header = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 5"
    with serving.connected() as connection:
        connection.sendall(request(b"/p", header, method=b"PUT", body=b"4\r\nabcd\r\n" if chunked else b"abcd"))
        eventually(lambda: len(serving.given) == 1)
        assert not broken
    eventually(lambda: len(broken) == 1)
    assert isinstance(broken[0], OSError)


def test_a_body_that_goes_on_wrong(serving: Serving) -> None:
    sent = request(b"/p", b"Transfer-Encoding: chunked", method=b"PUT")
    answer = serving.asked(sent, b"4\r\nabcd\r\nx\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


def test_a_body_that_does_not_go_on(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "SILENT_SECONDS", 0.2)
    sent = request(b"/p", b"Content-Length: 5", method=b"PUT", close=True, body=b"a")
    assert serving.asked(sent).startswith(b"HTTP/1.1 500 "), "what an app makes of it; Flask 400"


def test_a_slow_reader_holds_up_who_makes_the_answer(serving: Serving) -> None:
    made = []

    def endless(environ: dict[str, Any], start: Callable[..., Any]) -> Iterator[bytes]:
        start("200 OK", [])
        try:
            while True:
                made.append(1)
                yield b"x" * 100_000
        finally:
            made.append(0)

    serving.app = endless
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


def test_a_long_target(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    made = serving.server.config.http_protocol_class
    monkeypatch.setattr(
        serving.server.config, "http_protocol_class", lambda **w: made.func(serving.known, 200_000, **w)
    )
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
