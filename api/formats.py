"""A scan's rows as a stream of NDJSON, CSV or Arrow, a page at a time: memory does not grow with the store."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from flask import Request, Response

from api.exact import dumps
from api.snapshot import Row

JSON, NDJSON, CSV, ARROW = "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"


def wanted(request: Request) -> str | None:
    """The kind of stream that a request accepts; None: JSON, in pages."""
    if "Accept" not in request.headers:
        return None
    best = request.accept_mimetypes.best_match([JSON, NDJSON, CSV, ARROW], JSON)
    return None if best == JSON else best


def streamed(pages: Iterator[list[Row]], kind: str, schema: pa.Schema) -> Response:
    """Rows as they come; ``schema`` is of the store's columns."""
    make = {NDJSON: _ndjson, CSV: _csv, ARROW: _arrow}[kind]
    return Response(make(pages, schema), content_type=f"{kind}; charset=utf-8" if kind == CSV else kind)


def _ndjson(pages: Iterator[list[Row]], _schema: pa.Schema) -> Iterator[bytes]:
    for rows in pages:
        yield "".join(dumps(row) + "\n" for row in rows).encode()


def _csv(pages: Iterator[list[Row]], schema: pa.Schema) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(schema.names)
    for rows in pages:
        writer.writerows([_cell(row[name]) for name in schema.names] for row in rows)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()


def _cell(value: Any) -> str:
    """As in JSON, a text without its quotes; null is empty."""
    text = value if isinstance(value, str) else dumps(value).strip('"')
    return "" if value is not text and text == "null" else text


def _arrow(pages: Iterator[list[Row]], schema: pa.Schema) -> Iterator[bytes]:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for rows in pages:
            columns = [pa.array([_plain(row[f.name], f.type) for row in rows], f.type) for f in schema]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            yield sink.getvalue()
            sink.seek(0)
            sink.truncate()
    yield sink.getvalue()


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value as Arrow takes it: a map as its pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(k, _plain(v, kind.item_type)) for k, v in value.items()]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    return value
