"""The decoder of a format's payloads."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from statehouse.formats.format import BYTES, CSV, JSON_SCHEMA, STRING, Format
from statehouse.payload import Field


class PayloadDecoder(Protocol):
    """Of payloads with some columns."""

    def decode(
        self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None]
    ) -> tuple[list[pa.Array], list[str | None]]:
        """The columns of payloads, and of each payload the reason why it is refused, or None. One that is None is no payload: it has no
        values and no reason. ``ids`` is what the records' headers say of their schemas."""


@functools.lru_cache(maxsize=64)
def decoder_of(fields: tuple[Field, ...], format: Format) -> PayloadDecoder:
    """The decoder of a format that is not JSON, made once in a process."""
    # A module and its packages are loaded where its format is used: streams of JSON need none of them.
    if format.name in (STRING, CSV, BYTES):
        from statehouse.formats.plain import PlainDecoder

        return PlainDecoder(fields, format)
    if format.name == JSON_SCHEMA:
        from statehouse.formats.json_schema import JsonSchemaDecoder

        return JsonSchemaDecoder(fields, format)
    from statehouse.formats.framed import FramedDecoder

    return FramedDecoder(fields, format)
