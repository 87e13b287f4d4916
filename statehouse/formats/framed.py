"""Payloads that are written by a schema: which one, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from statehouse.formats.format import AVRO, IN_FILE, KINDS, UNKNOWN, Format, Schema
from statehouse.formats.wire import Frame, frame_of
from statehouse.payload import Field, Refused, columns_of, refuse_missing

Reader = Callable[[bytes, Frame], list[Any]]  # a payload's values; raises Refused


class FramedDecoder:
    """Of payloads that each have a schema; see :class:`statehouse.formats.format.PayloadDecoder`."""

    def __init__(self, fields: Sequence[Field], format: Format) -> None:
        self.fields, self._format, self._schemas = tuple(fields), format, dict(format.schemas)
        self._readers: dict[str, Reader | Refused] = {}
        self._blank = [None] * len(self.fields)

    def decode(
        self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None]
    ) -> tuple[list[pa.Array], list[str | None]]:
        reasons: list[str | None] = [None] * len(payloads)
        rows = []
        for index, (payload, id) in enumerate(zip(payloads, ids, strict=True)):
            row = self._blank
            if payload is not None:
                try:
                    row = self._row(payload, id)
                except Refused as reason:
                    reasons[index] = str(reason)
            rows.append(row)
        if not rows:
            return [pa.nulls(0, field.kind.arrow) for field in self.fields], reasons
        columns = columns_of(self.fields, rows)
        refuse_missing(self.fields, columns, payloads, reasons)
        return columns, reasons

    def _row(self, payload: bytes, id: bytes | None) -> list[Any]:
        frame = frame_of(payload, id) if self._format.framed else Frame(IN_FILE, payload, 0)
        reader = self._readers.get(frame.id)
        if reader is None:
            reader = self._readers[frame.id] = self._reader(frame.id)
        try:
            if isinstance(reader, Refused):
                raise Refused(*reader.args)
            return reader(payload, frame)
        except Refused as reason:
            if not frame.id or str(reason).startswith(UNKNOWN):
                raise
            raise Refused(f"schema {frame.id}: {reason}") from None

    def _reader(self, id: str) -> Reader | Refused:
        """The reader of one schema, or why there is none."""
        if id not in self._schemas:
            return Refused(f"{UNKNOWN}{id}")
        schema, kind = self._schemas[id], KINDS[self._format.name]
        if schema is None:
            return Refused("found an id that the registry does not have, expected one of a schema that is registered")
        if schema.kind != kind:
            return Refused(f"found a schema of {schema.kind}, expected one of {kind}")
        try:
            return _reader_of(self._format.name)(schema, self.fields)
        except Refused as reason:
            return reason


def _reader_of(format: str) -> Callable[[Schema, Sequence[Field]], Reader]:
    # Each has packages of its own.
    from statehouse.formats import avro

    return {AVRO: avro.reader}[format]
