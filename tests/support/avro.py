"""Drawn Avro schemas and values, and what they mean: told by an oracle that shares nothing with the code under test.

The meaning of a value is the JSON that a producer would write of it, and the type of a column is a line of ``docs/formats.md``.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import io
import json
import random
import uuid
from decimal import Decimal

import fastavro

from tests.support.payloads import draw_text

EPOCH = dt.datetime(1970, 1, 1)
NAMES = ("a", "B", "ab", "Ab_1", "key2", "select")
COLUMNS = ("k", "Value", "n", "ts", "at", "w")
PLAIN = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
}
LOGICAL = {
    "date": ("int", "DATE"),
    "time-millis": ("int", "STRING"),
    "time-micros": ("long", "STRING"),
    "timestamp-millis": ("long", "TIMESTAMP"),
    "timestamp-micros": ("long", "TIMESTAMP"),
    "local-timestamp-millis": ("long", "TIMESTAMP_NTZ"),
    "local-timestamp-micros": ("long", "TIMESTAMP_NTZ"),
    "uuid": ("string", "STRING"),
}


class Refused(Exception):
    """A value that no column has."""


class Names:
    """Names for types, each once."""

    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return f"T{self.count}"


def draw_schema(dice: random.Random, names: Names | None = None, columns: int = 4):
    """A record's schema."""
    names = names or Names()
    fields = [{"name": name, "type": draw_type(dice, names)} for name in dice.sample(COLUMNS, dice.randint(1, columns))]
    return {"type": "record", "name": f"com.example.{names.next()}", "fields": fields}


def draw_type(dice: random.Random, names: Names, depth: int = 2):
    shape = dice.random()
    if shape < 0.25:
        inner = draw_type(dice, names, depth)
        return inner if isinstance(inner, list) else dice.choice((["null", inner], [inner, "null"]))
    if depth and shape < 0.5:
        kind = dice.choice(("array", "map", "record", "union"))
        if kind == "array":
            return {"type": "array", "items": draw_type(dice, names, depth - 1)}
        if kind == "map":
            return {"type": "map", "values": draw_type(dice, names, depth - 1)}
        if kind == "union":
            return ["null", "string", {"type": "long", "logicalType": "timestamp-micros"}, "boolean", "bytes"]
        inner = [
            {"name": name, "type": draw_type(dice, names, depth - 1)} for name in dice.sample(NAMES, dice.randint(1, 3))
        ]
        return {"type": "record", "name": names.next(), "fields": inner}
    if shape < 0.6:
        precision = dice.choice((1, 5, 10, 18, 19, 38))
        scale = dice.choice((0, min(2, precision), precision))
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return dice.choice(
            ({"type": "bytes", **decimal}, {"type": "fixed", "name": names.next(), "size": 17, **decimal})
        )
    if shape < 0.65:
        return {"type": "enum", "name": names.next(), "symbols": ["OK", "DOWN", "X_1"]}
    if shape < 0.7:
        return {"type": "fixed", "name": names.next(), "size": dice.choice((1, 4))}
    if shape < 0.85:
        logical = dice.choice((*LOGICAL,))
        return {"type": LOGICAL[logical][0], "logicalType": logical}
    return dice.choice((*PLAIN,))


def draw_value(dice: random.Random, kind):
    """A value as a producer has it, of which an int may stand for a moment or a day."""
    if isinstance(kind, list):
        return draw_value(dice, dice.choice(kind))
    if isinstance(kind, str):
        return _plain_value(dice, kind)
    if kind["type"] == "record":
        return {field["name"]: draw_value(dice, field["type"]) for field in kind["fields"]}
    if kind["type"] == "array":
        return [draw_value(dice, kind["items"]) for _ in range(dice.randrange(4))]
    if kind["type"] == "map":
        return {draw_text(dice): draw_value(dice, kind["values"]) for _ in range(dice.randrange(4))}
    if kind["type"] == "enum":
        return dice.choice(kind["symbols"])
    logical = kind.get("logicalType")
    if logical == "decimal":
        limit = 10 ** kind["precision"] - 1
        return Decimal(dice.choice((0, limit, -limit, dice.randint(-limit, limit)))).scaleb(-kind["scale"])
    if kind["type"] == "fixed":
        return dice.randbytes(kind["size"])
    if logical == "date":
        if dice.random() < 0.05:  # outside the years
            return dice.choice((3_000_000, -800_000))
        return dice.choice((dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)))
    if logical.startswith("time-"):
        return dice.choice((dt.time(0), dt.time(23, 59, 59, 999_000), dt.time(12, 30, 1, 5000)))
    if logical == "uuid":
        return str(uuid.UUID(bytes=dice.randbytes(16)))
    if dice.random() < 0.05:  # outside the years
        return dice.choice((10**15, -(10**15))) * (1000 if logical.endswith("micros") else 1)
    moment = EPOCH + dt.timedelta(seconds=dice.randrange(-62_135_596_800, 253_402_300_800))
    moment = moment.replace(microsecond=dice.choice((0, 1000, 999_000)))
    return moment if logical.startswith("local") else moment.replace(tzinfo=dt.timezone.utc)


def _plain_value(dice: random.Random, kind):
    if kind == "null":
        return None
    if kind == "boolean":
        return dice.random() < 0.5
    if kind in ("int", "long"):
        limit = 2 ** (31 if kind == "int" else 63)
        return dice.choice((0, 1, -limit, limit - 1, dice.randrange(-limit, limit), dice.randint(-200, 200)))
    if kind == "float":
        return dice.choice((0.0, -0.0, 1.5, -2.25e10, 3.4028234663852886e38, float("nan"), 0.5))
    if kind == "double":
        return dice.choice((0.0, -0.0, 1.5, 1e308, 5e-324, dice.uniform(-1, 1), float("inf"), 0.1))
    return dice.randbytes(dice.randrange(5)) if kind == "bytes" else draw_text(dice)


def encoded(schema, value) -> bytes:
    """A value in Avro, as fastavro writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _parsed(json.dumps(schema)), value)
    return out.getvalue()


@functools.lru_cache(maxsize=10)
def _parsed(schema: str):
    return fastavro.parse_schema(json.loads(schema))


def column(kind) -> str:
    """The type of a column of a schema, in Spark's DDL."""
    if isinstance(kind, list):
        parts = [part for part in kind if part != "null"]
        return column(parts[0]) if len(parts) == 1 else "STRING"
    if isinstance(kind, str):
        return PLAIN.get(kind, "STRING")
    if kind["type"] == "record":
        parts = [f"`{field['name']}`: {column(field['type'])}" for field in kind["fields"]]
        return f"STRUCT<{', '.join(parts)}>"
    if kind["type"] == "array":
        return f"ARRAY<{column(kind['items'])}>"
    if kind["type"] == "map":
        return f"MAP<STRING, {column(kind['values'])}>"
    logical = kind.get("logicalType")
    if logical == "decimal":
        return f"DECIMAL({kind['precision']}, {kind['scale']})"
    return LOGICAL[logical][1] if logical else {"enum": "STRING", "fixed": "BINARY"}[kind["type"]]


def as_json(kind, value) -> str:
    """The JSON that a producer would write of a value. Raises Refused where there is none."""
    if value is None:
        return "null"
    if isinstance(kind, list):
        return as_json(_branch(kind, value), value)
    if isinstance(kind, dict) and kind["type"] == "record":
        pairs = [(field["name"], field["type"]) for field in kind["fields"]]
        return "{" + ",".join(f"{json.dumps(n)}:{as_json(k, value[n])}" for n, k in pairs) + "}"
    if isinstance(kind, dict) and kind["type"] == "array":
        return "[" + ",".join(as_json(kind["items"], v) for v in value) + "]"
    if isinstance(kind, dict) and kind["type"] == "map":
        inner = kind["values"]
        return "{" + ",".join(f"{json.dumps(n)}:{as_json(inner, v)}" for n, v in value.items()) + "}"
    logical = kind.get("logicalType") if isinstance(kind, dict) else None
    if logical == "decimal":
        return format(value, "f")
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, dt.time):
        return json.dumps(value.isoformat("milliseconds" if logical == "time-millis" else "microseconds"))
    if isinstance(value, dt.datetime):
        return json.dumps(value.isoformat().replace("+00:00", "Z"))
    if isinstance(value, dt.date):
        return json.dumps(value.isoformat())
    if logical and isinstance(value, int):  # a moment or a day that no datetime has
        raise Refused
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        raise Refused
    return json.dumps(value)


def _branch(kinds, value):
    parts = [kind for kind in kinds if kind != "null"]
    if len(parts) == 1:
        return parts[0]
    if isinstance(value, (dt.datetime, int)) and not isinstance(value, bool):
        return next(part for part in parts if isinstance(part, dict))
    return {bool: "boolean", bytes: "bytes", str: "string"}[type(value)]
