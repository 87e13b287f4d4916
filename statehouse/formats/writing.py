"""Rows as payloads that name a schema of a registry: the schema that their columns have, and their bytes.

Both are what :mod:`statehouse.formats.avro` and :mod:`statehouse.formats.json_schema` read. Any column may be null.
"""

from __future__ import annotations

import functools
import io
import json
import re
import struct
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa

from statehouse.formats.format import AVRO, KINDS, Schema
from statehouse.types import INTEGERS, Type

Columns = Sequence[tuple[str, Type]]
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO: dict[str, Any] = {
    "STRING": "string",
    "BOOLEAN": "boolean",
    "TINYINT": "int",
    "SMALLINT": "int",
    "INT": "int",
    "BIGINT": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
    "BINARY": "bytes",
    "DATE": {"type": "int", "logicalType": "date"},
    "TIMESTAMP": {"type": "long", "logicalType": "timestamp-micros"},
    "TIMESTAMP_NTZ": {"type": "long", "logicalType": "local-timestamp-micros"},
}
_TIMES = ("date", "timestamp-micros", "local-timestamp-micros")
_JSON: dict[str, dict[str, str]] = {  # sizes are noted as Kafka Connect does
    **{name: {"type": "integer", "connect.type": f"int{bits}"} for name, bits in INTEGERS.items()},
    "DOUBLE": {"type": "number"},
    "DECIMAL": {"type": "number"},
    "FLOAT": {"type": "number", "connect.type": "float32"},
    "BOOLEAN": {"type": "boolean"},
    "STRING": {"type": "string"},
    "BINARY": {"type": "string", "contentEncoding": "base64"},
    "DATE": {"type": "string", "format": "date"},
    "TIMESTAMP": {"type": "string", "format": "date-time"},
    "TIMESTAMP_NTZ": {"type": "string"},
}


def schema_of(format: str, name: str, columns: Columns) -> Schema:
    """The schema of rows with some columns, under a name such as their topic's. Raises ValueError where a column's name is none that
    Avro has."""
    document = _record(_avro_name(name), columns) if format == AVRO else _object(columns)
    return Schema(KINDS[format], json.dumps(document))


def frame(id: int) -> bytes:
    """What stands in front of a payload with a schema of this id: see :mod:`statehouse.formats.wire`."""
    return struct.pack(">bI", 0, id)


def avro_payloads(schema: Schema, columns: Columns, id: int, rows: pa.Array) -> pa.Array:
    """Rows, a struct of the columns each, as payloads in Avro. ``schema`` is that of :func:`schema_of`."""
    plain, front = _plain_schema(schema.text), frame(id)
    numbers = pa.struct([(name, _as_number(kind)) for name, kind in columns])
    payloads = []
    for row in rows.cast(numbers).to_pylist(maps_as_pydicts="strict"):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain, row)
        payloads.append(front + out.getvalue())
    return pa.array(payloads, pa.binary())


@functools.lru_cache(maxsize=64)
def _plain_schema(text: str) -> Any:
    """A schema without days and moments: Python's own end at the year 9999."""
    return fastavro.parse_schema(
        json.loads(text, object_hook=lambda part: part["type"] if part.get("logicalType") in _TIMES else part)
    )


def _as_number(kind: Type) -> pa.DataType:
    """Arrow's type of a column, in which days and moments are the numbers that Avro has for them."""
    if kind.name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return pa.int64()
    if kind.name == "DATE":
        return pa.int32()
    if kind.name == "ARRAY":
        return pa.list_(_as_number(kind.parts[0]))
    if kind.name == "MAP":
        return pa.map_(pa.string(), _as_number(kind.parts[1]))
    if kind.name == "STRUCT":
        return pa.struct([(name, _as_number(part)) for name, part in kind.fields])
    return kind.arrow


def _avro_name(text: str) -> str:
    name = re.sub("[^A-Za-z0-9]+", "_", text).strip("_")
    return name if NAME.fullmatch(name) else f"_{name}"


def _record(name: str, columns: Columns) -> dict[str, Any]:
    for column, _ in columns:
        if not NAME.fullmatch(column):
            raise ValueError(f"found the column {column!r}, expected a name of Avro's: letters, digits and _")
    fields = [{"name": c, "type": ["null", _avro(f"{name}_{c}", kind)], "default": None} for c, kind in columns]
    return {"type": "record", "name": name, "fields": fields}


def _avro(name: str, kind: Type) -> Any:
    """A type; ``name`` is the one of a record that it may be."""
    if kind.name == "STRUCT":
        return _record(name, kind.fields)
    if kind.name == "ARRAY":
        return {"type": "array", "items": ["null", _avro(f"{name}_item", kind.parts[0])]}
    if kind.name == "MAP":
        return {"type": "map", "values": ["null", _avro(f"{name}_value", kind.parts[1])]}
    if kind.name == "DECIMAL":
        precision, scale = kind.sizes
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return _AVRO[kind.name]


def _object(columns: Columns) -> dict[str, Any]:
    return {"type": "object", "properties": {name: _nullable(_json(kind)) for name, kind in columns}}


def _json(kind: Type) -> dict[str, Any]:
    if kind.name == "STRUCT":
        return _object(kind.fields)
    if kind.name == "ARRAY":
        return {"type": "array", "items": _nullable(_json(kind.parts[0]))}
    if kind.name == "MAP":
        return {"type": "object", "additionalProperties": _nullable(_json(kind.parts[1]))}
    return _JSON[kind.name]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}
