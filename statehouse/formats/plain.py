"""Payloads that are text or bytes: one value, or a line of CSV. What a cell of text means is said here for both."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from statehouse.decoder import columns_of, refuse_missing
from statehouse.formats.format import BYTES, CSV, Format
from statehouse.payload import Field, Refused, convert, read
from statehouse.types import FLOATS, INTEGERS, Type

csv.field_size_limit(sys.maxsize)  # Python's own is 128 KiB: how long a record may be, Kafka says
_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_LONGEST = 40  # digits of a whole number that may be of a type


class PlainDecoder:
    """Of payloads without a schema; see :class:`statehouse.formats.decoders.PayloadDecoder`."""

    def __init__(self, fields: Sequence[Field], format: Format) -> None:
        self.fields, self._format = tuple(fields), format

    def decode(
        self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None]
    ) -> tuple[list[pa.Array], list[str | None]]:
        reasons: list[str | None] = [None] * len(payloads)
        rows: list[list[Any]] = []
        for index, payload in enumerate(payloads):
            row: list[Any] = [None] * len(self.fields)
            if payload is not None:
                try:
                    row = [payload] if self._format.name == BYTES else self._row(payload)
                except Refused as reason:
                    reasons[index] = str(reason)
            rows.append(row)
        if not rows:
            return [pa.nulls(0, field.kind.arrow) for field in self.fields], reasons
        columns = columns_of(self.fields, rows)
        refuse_missing(self.fields, columns, payloads, reasons)
        return columns, reasons

    def _row(self, payload: bytes) -> list[Any]:
        try:
            text = payload.decode()
        except UnicodeDecodeError:
            raise Refused("not UTF-8") from None
        if self._format.name == CSV:
            return self._cells(self._line(text))
        (field,) = self.fields
        return [text] if field.kind.name == "STRING" else self._cells([text])

    def _line(self, text: str) -> list[str]:
        try:
            lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=self._format.delimiter, strict=True))
        except csv.Error as error:
            raise Refused(f"not CSV: {error}") from None
        if len(lines) != 1:
            raise Refused(f"found {len(lines)} lines, expected one")
        if len(lines[0]) != len(self.fields):
            names = self._format.delimiter.join(field.name for field in self.fields)
            raise Refused(f"found {len(lines[0])} cells, expected {len(self.fields)}: {names}")
        return lines[0]

    def _cells(self, cells: Sequence[str]) -> list[Any]:
        row, wrong = [], []
        for field, text in zip(self.fields, cells, strict=True):
            try:
                row.append(convert(as_json(text, field.kind), field.kind))
            except Refused as reason:
                wrong.append(str(reason.at(field.name)))
        if wrong:
            raise Refused("; ".join(wrong))
        return row


def as_json(text: str, kind: Type) -> Any:
    """A cell as :func:`statehouse.payload.read` gives the JSON that a producer would have written of it; None where it is empty."""
    if not text:
        return None
    bare = text.strip()
    if kind.name in INTEGERS and _WHOLE.fullmatch(bare) and len(bare) < _LONGEST:
        return int(bare)
    if kind.name in (*FLOATS, "DECIMAL") and _NUMBER.fullmatch(bare):
        return msgspec.Raw(bare.encode())
    if kind.name == "BOOLEAN" and bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if kind.name in ("ARRAY", "MAP", "STRUCT") and bare[:1] in ("[", "{"):
        return read(bare)
    return text
