"""Keys of every kind over plain sockets: what is written has exactly the key that was asked for, what is read too, and all
else is a problem document with the right status, also what is refused before the API sees it (docs/serving.md).
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote_to_bytes

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.services import MAX_KEY, ODD, TOKENS, TOPIC, Service

SENT = 65_536  # bytes of a request's head that the server takes in any case
PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=:@/?%")
Answer = tuple[int, dict[str, str], bytes]


def ask(service: Service, method: str, target: bytes, body: bytes = b"", **headers: str) -> Answer:
    """Send a request as these very bytes; a connection that ends without an answer is an error."""
    named = {"Host": "localhost", "Authorization": f"Bearer {TOKENS['all']}", "Connection": "close", **headers}
    if body:
        named = {"Content-Type": "application/json", "Content-Length": str(len(body)), **named}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items()).encode()
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(method.encode() + b" " + target + b" HTTP/1.1\r\n" + head + b"\r\n" + body)
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return response.status, {n.lower(): v for n, v in response.getheaders()}, response.read()


def checked(method: str, answer: Answer, statuses: set[int]) -> Any:
    """The document of an answer that has one of these statuses, and is a problem document where it is none of success."""
    status, headers, body = answer
    assert status in statuses, (status, body[:300])
    if method == "HEAD" or status == 304:
        assert body == b""
        return {}
    document = json.loads(body)
    if status >= 400:
        assert headers["content-type"] == "application/problem+json" and document["status"] == status
        assert document["type"] and document["title"] and document["detail"]
    else:
        assert headers["content-type"] == "application/json"
    return document


def unread(method: str, answer: Answer) -> bool:
    """Whether the server has refused a request before the API saw it."""
    if answer[0] not in (400, 431):
        return False
    # A HEAD's answer has no body; but what the server could not read it does not know to be one.
    document = json.loads(answer[2]) if answer[2] else {"type": "about:blank"}
    return document["type"] == "about:blank" and "vary" not in answer[1]


@pytest.fixture(scope="module")
def written(tried: Service) -> Iterator[dict[str, tuple[bytes, str, bytes | None]]]:
    """What was acknowledged, by token: key, operation and payload. In the end it is all in Kafka, just so."""
    expected: dict[str, tuple[bytes, str, bytes | None]] = {}
    # Another fuzzer may have been here before, and have put some keys there and deleted others.
    listed = ask(tried, "GET", b"/stores/texts/keys", Accept="application/x-ndjson")[2].split(b"\n")
    others = [key for key in (json.loads(line)["key"] for line in listed if line) if key not in ODD]
    for first in range(0, len(others), 100):
        lines = "\n".join(json.dumps({"key": key, "delete": True}) for key in others[first : first + 100]).encode()
        deleted = ask(tried, "POST", b"/stores/texts/keys", lines, **{"Content-Type": "application/x-ndjson"})
        for token in checked("POST", deleted, {202})["tokens"]:
            assert ask(tried, "GET", f"/stores/texts/keys/a?after={token}".encode())[0] in (200, 404)
    for key in ODD:
        target = f"/stores/texts/keys/{quote(key, safe='')}".encode()
        token = json.loads(ask(tried, "PUT", target, b'{"value":"fuzz"}')[2])["token"]
        assert ask(tried, "GET", target + f"?after={token}".encode())[0] == 200
    yield expected
    assert expected
    consumer = Consumer({"bootstrap.servers": tried.bootstrap, "group.id": "fuzz", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(2)])
    while expected:
        message = consumer.poll(20)
        assert message is not None, f"{len(expected)} events are not in Kafka"
        found = expected.pop(f"{TOPIC}:{message.partition()}:{message.offset()}", None)
        if found:
            headers = dict(message.headers())
            assert (message.key(), headers["statehouse-op"].decode(), message.value()) == found
            assert headers["statehouse-store"] == b"texts"
    consumer.close()


def anything() -> st.SearchStrategy[bytes]:
    """The part of a path that is the key, as bytes on the wire."""
    text = st.text(st.characters(codec="utf-8"), max_size=8)
    piece = st.one_of(
        text.map(lambda t: quote(t, safe="").encode()),
        text.map(lambda t: quote(t, safe="/").encode()),
        st.binary(max_size=6).map(lambda b: b"".join(b"%%%02X" % byte for byte in b)),
        st.sampled_from(PIECES),
        text.map(str.encode).filter(lambda b: not set(b) & set(b" \r\n")),
    )
    long = st.integers(0, 70_000).flatmap(
        lambda n: st.sampled_from([b"k" * n, b"%2F" * (n // 3), b"%C3%A9" * (n // 6)])
    )
    return st.one_of(st.lists(piece, max_size=5).map(b"".join), long, st.sampled_from([quote(k).encode() for k in ODD]))


PIECES = [
    b"/",
    b"//",
    b"%2F",
    b"%2f",
    b"..",
    b".",
    b"/../",
    b"%2E%2E",
    b"%00",
    b"%",
    b"%zz",
    b"%25",
    b"+",
    b"%2B",
    b"%20",
]
PIECES += [
    b"?",
    b"?x=1",
    b"%3F",
    b"#",
    b"#f",
    b"%23",
    b"&",
    b";",
    b"=",
    b"%ED%A0%80",
    b"%C0%AF",
    b"%FF",
    b"%F4%90%80%80",
]
PIECES += [b"\xff", b"\xc3\xa9", b"\x7f", b"\x01", b"<", b"\\", b"^", b"history", b"%EF%BB%BF", b"%0D%0A", b"%0A"]


@given(anything(), st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]))
@example(b"", "PUT")
@example(b"%00", "PUT")
@example(b"a%2Fhistory", "PUT")
@example(b"a%2Fhistory", "GET")
@example(b"a/reports", "DELETE")
@example(b"k" * 65_536, "PUT")
@example(b"%6B" * 65_536, "GET")
@example(b"k" * MAX_KEY, "PUT")
@example(b"k" * (MAX_KEY + 1), "PUT")
@example(b"%ED%A0%80", "PUT")
@example(b"a?", "DELETE")
@example(b"a#b", "PUT")
def test_a_key_in_a_path(tried: Service, written: dict, raw: bytes, method: str) -> None:
    body = b'{"value":"fuzz"}' if method == "PUT" else b""
    target = b"/stores/texts/keys/" + raw
    answer = ask(tried, method, target, body)
    if unread(method, answer):  # a target that is too long, or that is none
        assert len(target) > SENT if answer[0] > 400 else set(target) - PLAIN, answer
        return
    path, _, query = raw.partition(b"#")[0].partition(b"?")  # a fragment is not for the server
    key, below = unquote_to_bytes(path), path.endswith((b"/history", b"/reports"))
    if len(key) > MAX_KEY:
        checked(method, answer, {414})
    elif method in ("PUT", "DELETE") and below:
        checked(method, answer, {405})
    elif not utf8(key) or query.strip(b"&"):
        checked(method, answer, {400})
    elif method in ("PUT", "DELETE"):
        token = checked(method, answer, {202})["token"]
        assert token not in written
        written[token] = (key, "set", body) if method == "PUT" else (key, "purge", None)
    elif below:
        checked(method, answer, {200, 404})
    else:
        there = 200 if key.decode() in ODD else 404
        changed = any(key == wrote for wrote, _, _ in written.values())  # here, and it is shown, or not yet
        document = checked(method, answer, {200, 404} if changed else {there})
        assert method == "HEAD" or document.get("key", key.decode()) == key.decode()


def utf8(key: bytes) -> bool:
    try:
        return bool(key.decode()) or not key
    except UnicodeDecodeError:
        return False


@given(
    st.lists(anything(), max_size=3).map(b"/".join),
    st.sampled_from(["money", "names", "tills", "times", "hours", "nope"]),
)
def test_keys_of_other_types(tried: Service, raw: bytes, store: str) -> None:
    """Any path is answered, and none as another key than it says."""
    answer = ask(tried, "GET", b"/stores/" + store.encode() + b"/keys/" + raw)
    if unread("GET", answer):
        return
    document = checked("GET", answer, {200, 400, 404, 414})
    path = raw.partition(b"#")[0].partition(b"?")[0]
    if answer[0] == 200 and "key" in document and store in ("money", "names", "hours"):
        assert unquote_to_bytes(path).startswith(document["key"].encode())


@pytest.mark.parametrize("key", ODD)
def test_odd_keys_are_found_in_every_way(tried: Service, key: str) -> None:
    headers = {"Content-Type": "application/json"}
    path = f"/stores/texts/keys/{quote(key, safe='')}?freshness=changelog".encode()  # nobody has written that
    assert checked("GET", ask(tried, "GET", path), {200})["value"] == key
    raw = json.dumps({"keys": [key]}).encode()
    lookup = b"/stores/texts/lookup?freshness=changelog"
    assert checked("POST", ask(tried, "POST", lookup, raw, **headers), {200})["rows"][0]["key"] == key
    scan = f"/stores/texts/keys?limit=1&freshness=changelog&from={quote(key, safe='')}".encode()
    page = checked("GET", ask(tried, "GET", scan), {200})
    assert page["rows"][0]["key"] == key
    cursor = page["cursor"]
    if cursor:
        assert quote(cursor, safe="") == cursor, "it can be copied as it is"
        following = checked("GET", ask(tried, "GET", f"/stores/texts/keys?limit=1&cursor={cursor}".encode()), {200})
        assert following["rows"][0]["key"] > key


@pytest.mark.parametrize("method", ["TRACE", "PATCH", "POST", "PROPFIND"])
def test_methods_that_a_key_does_not_have(tried: Service, method: str) -> None:
    answer = ask(tried, method, b"/stores/texts/keys/a")
    checked(method, answer, {405})
    assert answer[1]["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"


def test_a_method_that_nobody_has(tried: Service) -> None:
    assert checked("FOO", ask(tried, "FOO", b"/stores/texts/keys/a"), {400})["type"] == "about:blank"
