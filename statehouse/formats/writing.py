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
    document = _record(_avro_name(name), "", columns) if format == AVRO else _object(columns)
    return Schema(KINDS[format], json.dumps(document))


def frame(id: int) -> bytes:
    """What stands in front of a payload with a schema of this id: see :mod:`statehouse.formats.wire`."""
    return struct.pack(">bI", 0, id)


def avro_payloads(schema: Schema, columns: Columns, id: int, rows: pa.Array) -> pa.Array:
    """Rows, a struct of the columns each, as payloads in Avro. ``schema`` is that of :func:`schema_of`."""
    import fastavro  # JSON with a schema does without

    plain, front, whole = _plain_schema(schema.text), frame(id), Type("STRUCT", "", fields=tuple(columns))
    try:
        values = rows.cast(_stored(whole, pa.string())).to_pylist(maps_as_pydicts="strict")
    except UnicodeDecodeError:  # text that was cast from bytes can be any
        values = [_readable(row, whole) for row in rows.cast(_stored(whole, pa.binary())).to_pylist()]
    payloads = []
    for row in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, plain, row)
        payloads.append(front + out.getvalue())
    return pa.array(payloads, pa.binary())


@functools.lru_cache(maxsize=64)
def _plain_schema(text: str) -> Any:
    """A schema without days and moments: Python's own end at the year 9999."""
    import fastavro

    return fastavro.parse_schema(
        json.loads(text, object_hook=lambda part: part["type"] if part.get("logicalType") in _TIMES else part)
    )


def _stored(kind: Type, text: pa.DataType) -> pa.DataType:
    """Arrow's type of values as Avro has them: days and moments are numbers; text is of the type ``text``."""
    if kind.name in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return pa.int64()
    if kind.name == "DATE":
        return pa.int32()
    if kind.name == "STRING":
        return text
    if kind.name == "ARRAY":
        return pa.list_(_stored(kind.parts[0], text))
    if kind.name == "MAP":
        return pa.map_(text, _stored(kind.parts[1], text))
    if kind.name == "STRUCT":
        return pa.struct([(name, _stored(part, text)) for name, part in kind.fields])
    return kind.arrow


def _readable(value: Any, kind: Type) -> Any:
    """A value whose text is in bytes. What is not UTF-8 in it is shown as such, as in JSON."""
    if value is None:
        return None
    if kind.name == "STRING":
        return value.decode(errors="replace")
    if kind.name == "ARRAY":
        return [_readable(part, kind.parts[0]) for part in value]
    if kind.name == "MAP":
        return {key.decode(errors="replace"): _readable(part, kind.parts[1]) for key, part in value}
    if kind.name == "STRUCT":
        return {name: _readable(value[name], part) for name, part in kind.fields}
    return value


def _avro_name(text: str) -> str:
    name = re.sub("[^A-Za-z0-9]+", "_", text).strip("_")
    return name if NAME.fullmatch(name) else f"_{name}"


def _record(name: str, inside: str, columns: Columns) -> dict[str, Any]:
    """A record. Its namespace is the names of those that it is inside of, so that no two have the same."""
    for column, _ in columns:
        if not NAME.fullmatch(column):
            raise ValueError(f"found the column {column!r}, expected a name of Avro's: letters, digits and _")
    place = f"{inside}.{name}" if inside else name
    fields = [{"name": c, "type": ["null", _avro(c, place, kind)], "default": None} for c, kind in columns]
    return {"type": "record", "name": name, **({"namespace": inside} if inside else {}), "fields": fields}


def _avro(name: str, inside: str, kind: Type) -> Any:
    """A type; a record has the name of its column."""
    if kind.name == "STRUCT":
        return _record(name, inside, kind.fields)
    if kind.name == "ARRAY":
        return {"type": "array", "items": ["null", _avro("item", f"{inside}.{name}", kind.parts[0])]}
    if kind.name == "MAP":
        return {"type": "map", "values": ["null", _avro("entry", f"{inside}.{name}", kind.parts[1])]}
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
