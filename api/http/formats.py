"""A scan's rows as a stream of NDJSON, CSV or Arrow, a page at a time: memory does not grow with the store.

One that cannot be finished must not look like one that is. The server ends a body whose making failed as any other, so what ends
it is nothing that a reader of its format can take for a row, or for the end.
"""

from __future__ import annotations

import csv
import io
import itertools
import logging
from collections.abc import Iterator
from typing import IO, AnyStr

import pyarrow as pa
from flask import Request, Response

from api.engine.cells import TEXTS
from api.engine.columns import Columns, ndjson, texts
from api.engine.media_types import ARROW, CSV, JSON, NDJSON
from api.errors import Problem

CUT = "cut off by an error, there is more"
CUTS = {
    NDJSON: f"{CUT}\n".encode(),
    CSV: f'{CUT}"\n"'.encode(),  # the last quote is never closed
    ARROW: b"\xff\xff\xff\xff\x08\0\0\0",  # a message of eight bytes, without them
}
log = logging.getLogger("statehouse.api")


def wanted(request: Request) -> str | None:
    """The kind of stream that a request accepts; None: JSON, in pages."""
    if "Accept" not in request.headers:
        return None
    best = request.accept_mimetypes.best_match([JSON, NDJSON, CSV, ARROW], JSON)
    return None if best == JSON else best


class Streamed(Response):
    """An answer in pieces, none of which it keeps until the next is wanted: its caller may take long to read it."""

    def iter_encoded(self) -> Iterator[bytes]:
        return iter(self.response)  # type: ignore[arg-type]  # no text is among them


def streamed(pages: Iterator[Columns], kind: str, schema: pa.Schema) -> Response:
    """Rows as they come; ``schema`` is of the store's columns. The first page is made at once: what is wrong with that is raised."""
    pieces = _pieces(pages, kind, schema)
    body = _ended(list(itertools.islice(pieces, 1)), pieces, CUTS[kind])
    return Streamed(body, content_type=_content_type(kind))


def whole(pages: Iterator[Columns], kind: str, schema: pa.Schema) -> Response:
    """The same at once, of rows that are few."""
    return Response(b"".join(_pieces(pages, kind, schema)), content_type=_content_type(kind))


def _pieces(pages: Iterator[Columns], kind: str, schema: pa.Schema) -> Iterator[bytes]:
    return {NDJSON: _ndjson, CSV: _csv, ARROW: _arrow}[kind](pages, schema)


def _content_type(kind: str) -> str:
    return f"{kind}; charset=utf-8" if kind == CSV else kind


def _ended(first: list[bytes], others: Iterator[bytes], cut: bytes) -> Iterator[bytes]:
    try:
        while first:
            yield first.pop()
        yield from others
    except Problem as problem:  # it took too long, or its caller has left
        log.warning("a scan was cut off: %s", problem.detail)
        yield cut
    except Exception:
        log.exception("a scan was cut off")
        yield cut


def _ndjson(pages: Iterator[Columns], _schema: pa.Schema) -> Iterator[bytes]:
    yield from map(ndjson, pages)  # a loop would keep a page's rows beside its text


def _csv(pages: Iterator[Columns], schema: pa.Schema) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(schema.names)

    def piece(rows: Columns) -> bytes:
        writer.writerows(zip(*(_cells(rows[name]) for name in schema.names), strict=True))
        return _taken(text).encode()

    yield from map(piece, pages)
    yield _taken(text).encode()


def _arrow(pages: Iterator[Columns], schema: pa.Schema) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:

        def piece(rows: Columns) -> bytes:
            writer.write_batch(pa.record_batch([rows[name] for name in schema.names], schema=schema))
            return _taken(sink)

        yield from map(piece, pages)
    yield _taken(sink)


def _taken(file: IO[AnyStr]) -> AnyStr:
    """What was written into a file in memory, and no more of it there."""
    file.seek(0)
    written = file.read()
    file.seek(0)
    file.truncate()
    return written


def _cells(column: pa.Array) -> list[str]:
    """As in JSON, a text without its quotes; null is empty."""
    if column.type in TEXTS:
        return [text or "" for text in column.to_pylist()]
    null = column.is_null().to_pylist()
    return ["" if n or t == "null" else t.strip('"') for n, t in zip(null, texts(column).to_pylist(), strict=True)]
