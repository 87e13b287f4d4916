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

import pyarrow as pa
from flask import Request, Response

from api.cells import TEXTS
from api.columns import Columns, lines, texts
from api.problems import Problem

JSON, NDJSON, CSV, ARROW = "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"
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


def streamed(pages: Iterator[Columns], kind: str, schema: pa.Schema) -> Response:
    """Rows as they come; ``schema`` is of the store's columns. The first page is made at once: what is wrong with that is raised."""
    make = {NDJSON: _ndjson, CSV: _csv, ARROW: _arrow}[kind]
    first = list(itertools.islice(pages, 1))
    made = _ended(make(itertools.chain(first, pages), schema), CUTS[kind])
    return Response(made, content_type=f"{kind}; charset=utf-8" if kind == CSV else kind)


def _ended(made: Iterator[bytes], cut: bytes) -> Iterator[bytes]:
    try:
        yield from made
    except Problem as problem:  # it took too long, or its caller has left
        log.warning("a scan was cut off: %s", problem.detail)
        yield cut
    except Exception:
        log.exception("a scan was cut off")
        yield cut


def _ndjson(pages: Iterator[Columns], _schema: pa.Schema) -> Iterator[bytes]:
    for rows in pages:
        yield ("\n".join(lines(rows)) + "\n").encode()


def _csv(pages: Iterator[Columns], schema: pa.Schema) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(schema.names)
    for rows in pages:
        writer.writerows(zip(*(_cells(rows[name]) for name in schema.names), strict=True))
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()


def _cells(column: pa.Array) -> list[str]:
    """As in JSON, a text without its quotes; null is empty."""
    if column.type in TEXTS:
        return [text or "" for text in column.to_pylist()]
    null = column.is_null().to_pylist()
    return ["" if n or t == "null" else t.strip('"') for n, t in zip(null, texts(column).to_pylist(), strict=True)]


def _arrow(pages: Iterator[Columns], schema: pa.Schema) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for rows in pages:
            writer.write_batch(pa.record_batch([rows[name] for name in schema.names], schema=schema))
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()
