"""Payloads that are written by a schema: which one, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from statehouse.decoder import columns_of, refuse_missing
from statehouse.formats.format import IN_FILE, KINDS, UNKNOWN, Format, Schema
from statehouse.formats.wire import Frame, frame_of
from statehouse.payload import Field, Refused

Reader = Callable[[bytes, Frame], list[Any]]  # a payload's values; raises Refused


class FramedDecoder:
    """Of payloads that each have a schema; see :class:`statehouse.formats.decoders.PayloadDecoder`."""

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

    def frame(self, payload: bytes, id: bytes | None) -> Frame:
        """Where a payload's schema is named; raises Refused where it is not."""
        return frame_of(payload, id) if self._format.framed else Frame(IN_FILE, payload, 0)

    def schema(self, id: str) -> Schema:
        """The schema with an id; raises Refused where it is not known, or is none of the format."""
        if id not in self._schemas:
            raise Refused(f"{UNKNOWN}{id}")
        schema, kind = self._schemas[id], KINDS[self._format.name]
        if schema is None:
            raise Refused("found an id that the registry does not have, expected one of a schema that is registered")
        if schema.kind != kind:
            raise Refused(f"found a schema of {schema.kind}, expected one of {kind}")
        return schema

    @staticmethod
    def name_schema(reason: Refused, id: str) -> Refused:
        """The same reason, which says the schema's id."""
        return reason if not id or str(reason).startswith(UNKNOWN) else Refused(f"schema {id}: {reason}")

    def _row(self, payload: bytes, id: bytes | None) -> list[Any]:
        frame = self.frame(payload, id)
        try:
            reader = self._readers.get(frame.id)
            if reader is None:
                reader = self._reader(frame.id)
            if isinstance(reader, Refused):
                raise Refused(*reader.args)
            return reader(payload, frame)
        except Refused as reason:
            raise self.name_schema(reason, frame.id) from None

    def _reader(self, id: str) -> Reader | Refused:
        """The reader of one schema, or why there is none, which is kept; of one that is not known nothing is."""
        schema = self.schema(id)
        try:
            self._readers[id] = _module(self._format.name).reader(schema, self.fields)
        except Refused as reason:
            self._readers[id] = reason
        return self._readers[id]


def _module(format: str) -> Any:
    # Each has packages of its own.
    return import_module(f"statehouse.formats.{format}")
