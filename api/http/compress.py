"""Answers in fewer bytes, where the caller says that it can read them: zstd or gzip by ``Accept-Encoding``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import zstandard
from flask import Flask, Response, request

from api.engine.media_types import EVENTS

LEAST = 1024  # bytes; less is not worth it
GZIP = 16 + zlib.MAX_WBITS
CODERS: dict[str, Callable[[], Any]] = {  # the better one first
    "zstd": lambda: zstandard.ZstdCompressor().compressobj(),
    "gzip": lambda: zlib.compressobj(wbits=GZIP),
}


def install(app: Flask) -> None:
    """Compress every answer from here on that is worth it. One that is streamed goes on being streamed."""

    @app.after_request
    def compress(response: Response) -> Response:
        if "Vary" in response.headers:
            response.vary.add("Accept-Encoding")
        else:  # the same, in a tenth of the time
            response.headers["Vary"] = "Accept-Encoding"
        streamed = response.is_streamed
        if not streamed and (response.content_length or 0) <= LEAST:
            return response
        name = _chosen()
        if name is None or response.content_encoding or response.direct_passthrough:
            return response
        if not streamed:
            response.set_data(b"".join(_packed([response.get_data()], CODERS[name]())))
        elif response.mimetype == EVENTS:  # each event has to leave at once
            return response
        else:
            response.response = _packed(response.iter_encoded(), CODERS[name]())
            response.headers.pop("Content-Length", None)
        response.content_encoding = name
        tag, weak = response.get_etag()
        if tag and not weak:  # the bytes are other ones now
            response.set_etag(tag, weak=True)
        return response


def _chosen() -> str | None:
    accepted = request.accept_encodings
    best = max(CODERS, key=accepted.quality)  # the first of equals
    plain = accepted.quality("identity") if "identity" in accepted.values() else 0
    return best if accepted.quality(best) > 0 and accepted.quality(best) >= plain else None


def _packed(chunks: Iterable[bytes], coder: Any) -> Iterator[bytes]:
    yield from filter(None, map(coder.compress, chunks))  # a loop would keep each chunk until the next is wanted
    yield coder.flush()
