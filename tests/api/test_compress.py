"""Answers in fewer bytes: which, how, and that they say the same."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator

import pytest
import zstandard
from flask import Flask, Response
from flask.testing import FlaskClient

from api import create_app
from api.http import compress
from tests.support.api_lake import State, configured

PATH = "/stores/last/keys"
CODERS: dict[str | None, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data),
    None: bytes,
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    config = configured(tmp_path_factory.mktemp("compressed"))
    State(config, "last").write(3, *({"key": f"k{n}", "value": float(n)} for n in range(100)))
    State(config, "tagged").write(3, {"key": "long", "value": [str(n) for n in range(1000)]})
    app = create_app(config)

    @app.get("/streamed/<path:mimetype>")
    def streamed(mimetype: str) -> Response:
        return Response((b"%d\n" % n for n in range(10_000)), mimetype=mimetype)

    @app.get("/sized/<int:size>")
    def sized(size: int) -> Response:
        response = Response(b"x" * size)
        response.set_etag("strong")
        return response

    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (None, None),
        ("", None),
        ("identity", None),
        ("br", None),
        ("gzip", "gzip"),
        ("GZIP", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1, zstd;q=0.5", "gzip"),
        ("gzip;q=0.5, zstd;q=0", "gzip"),
        ("gzip;q=0", None),
        ("identity, gzip;q=0.5", None),
        ("gzip, identity;q=0.5", "gzip"),
        ("*", "zstd"),
        ("*;q=0", None),
    ],
)
def test_what_is_chosen(client: FlaskClient, accepted: str | None, chosen: str | None) -> None:
    plain = client.get(PATH)
    response = client.get(PATH, headers={} if accepted is None else {"Accept-Encoding": accepted})
    assert response.headers.get("Content-Encoding") == chosen
    assert CODERS[chosen](response.data) == plain.data
    assert len(response.data) == int(response.headers["Content-Length"])
    assert chosen is None or len(response.data) < len(plain.data) / 4
    assert response.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_only_what_is_worth_it(client: FlaskClient, name: str) -> None:
    for size in (0, compress.LEAST, compress.LEAST + 1):
        response = client.get(f"/sized/{size}", headers={"Accept-Encoding": name})
        packed = size > compress.LEAST
        assert response.headers.get("Content-Encoding") == (name if packed else None)
        assert response.headers["ETag"] == ('W/"strong"' if packed else '"strong"')
    head = client.head("/sized/5000", headers={"Accept-Encoding": name})
    assert head.data == b"" and int(head.headers["Content-Length"]) < 100


def test_the_etag_is_the_same_and_still_valid(client: FlaskClient) -> None:
    path, packed = "/stores/tagged/keys/long", {"Accept-Encoding": "gzip"}
    tag = client.get(path, headers=packed).headers["ETag"]
    assert tag == client.get(path).headers["ETag"] and tag.startswith('W/"')
    again = client.get(path, headers={**packed, "If-None-Match": tag})
    assert (again.status_code, again.data, again.headers.get("Content-Encoding")) == (304, b"", None)
    assert again.headers["Vary"] == "Accept-Encoding"


def test_a_stream_stays_a_stream(client: FlaskClient) -> None:
    whole = b"".join(b"%d\n" % n for n in range(10_000))
    for name in ("gzip", "zstd"):
        response = client.get("/streamed/application/x-ndjson", headers={"Accept-Encoding": name})
        assert response.headers["Content-Encoding"] == name and "Content-Length" not in response.headers
        assert CODERS[name](response.data) == whole
        events = client.get("/streamed/text/event-stream", headers={"Accept-Encoding": name})
        assert "Content-Encoding" not in events.headers and events.data == whole
