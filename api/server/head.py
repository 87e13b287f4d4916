"""A request's head: what it says, what is wrong with it, and the answer to one that is wrong."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from api.engine.shards import listed

HEADERS = 100  # that a request may have
Headers = Sequence[tuple[bytes, bytes]]
VERSIONS = ("1.0", "1.1")
HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
# Headers that only Flask, or uvicorn, has something to do about.
THEIRS = set(b"content-length expect http2-settings if-none-match origin te trailer transfer-encoding upgrade".split())
SHARDS = b"statehouse-shards"  # see api.fleet.client
WRONG = {  # found and expected, by the status
    400: ("what is no HTTP/1.1", "a request as of RFC 9112"),
    408: ("no end of the request's body", "all of it within 'api: max_time', and sooner where much is on its way"),
    417: ("another header Expect", "Expect: 100-continue, or none"),
    421: ("a request for another host", "localhost, an address of this machine alone, or one of 'api: hosts'"),
    431: ("a request's head that is larger", f"at most {{most}} bytes and {HEADERS} headers"),
    501: ("another Transfer-Encoding", "chunked, or none"),
    505: ("another version of HTTP", "HTTP/1.1"),
}


class ReadHeaders(NamedTuple):
    """What the headers of a plain GET say."""

    authorization: str
    packed: bool  # fewer bytes can be read


def unfit(version: str, target: bytes, headers: Headers, hosts: frozenset[str] | None) -> int | None:
    """The status for a head that RFC 9112 (or 9110) refuses, or that is for another host than ``hosts`` and this machine's."""
    if version not in VERSIONS:
        return 505
    named = [value for name, value in headers if name == b"host"]
    if len(named) > 1 or (not named and version != "1.0"):
        return 400
    if b"://" in target and not target.startswith(b"/"):  # it counts more than the header
        named = [*named, target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]]
    for host in named:
        if not (found := HOST.fullmatch(host)):
            return 400
        if hosts is not None and not known(found[1].decode("ascii").lower(), hosts):
            return 421
    if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
        return 501
    if version != "1.0" and any(name == b"expect" and value.lower() != b"100-continue" for name, value in headers):
        return 417
    return None


def known(host: str, hosts: frozenset[str]) -> bool:
    """Whether a host is one of these, or this machine by a name that no name server can give to another one."""
    if host == "localhost" or host in hosts:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def parse_head(head: bytes, hosts: frozenset[str] | None = None) -> ReadHeaders | None:
    """What the headers of a request say, if it is one whole GET without a body that needs no more than an answer; else None."""
    seen = HeadParser()
    try:
        HttpRequestParser(seen).feed_data(head)
    except (HttpParserError, HttpParserUpgrade):
        return None
    named = dict(seen.headers)
    if seen.begun != 1 or not seen.whole or len(named) < len(seen.headers) or not THEIRS.isdisjoint(named):
        return None
    if named.get(b"connection", b"keep-alive").lower() != b"keep-alive" or len(named) > HEADERS:
        return None
    if b"text/html" in named.get(b"accept", b""):  # a screen is Flask's
        return None
    if unfit("1.1", b"/", seen.headers, hosts) or listed(named.get(SHARDS, b"0").decode("latin-1")) is None:
        return None
    return ReadHeaders(named.get(b"authorization", b"").decode("latin-1"), b"accept-encoding" in named)


class HeadParser:
    """What httptools finds in a head."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun, self.whole = 0, False

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
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
    found, expected = WRONG[status]
    phrase = HTTPStatus(status).phrase
    detail = f"found {found}, expected {expected}".format(most=most)
    body = json.dumps({"type": "about:blank", "title": phrase, "status": status, "detail": detail}).encode() + b"\n"
    head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode() + date + head.encode() + body
