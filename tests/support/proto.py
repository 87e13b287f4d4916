"""Drawn Protobuf messages and values, and what they mean: told by an oracle that shares nothing with the code under test.

The meaning of a value is the JSON that a producer would write of it, with every field that has a value.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

from tests.support.payloads import draw_text

NAMES = ("a", "b", "name_1", "key2", "select", "value")
COLUMNS = ("k", "v", "n", "ts", "at", "w")
SCALARS = {
    "double": "DOUBLE",
    "float": "FLOAT",
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "INT"),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), "BIGINT"),
    **dict.fromkeys(("uint64", "fixed64"), "DECIMAL(20, 0)"),
    "bool": "BOOLEAN",
    "string": "STRING",
    "bytes": "BINARY",
    "Color": "STRING",
    "google.protobuf.Timestamp": "TIMESTAMP",
    "google.protobuf.Duration": "STRING",
    "google.protobuf.Struct": "STRING",
    "google.protobuf.StringValue": "STRING",
    "google.protobuf.Int64Value": "BIGINT",
}
BITS = {
    "int32": (True, 32),
    "sint32": (True, 32),
    "sfixed32": (True, 32),
    "uint32": (False, 32),
    "fixed32": (False, 32),
}
BITS |= {
    "int64": (True, 64),
    "sint64": (True, 64),
    "sfixed64": (True, 64),
    "uint64": (False, 64),
    "fixed64": (False, 64),
}
HEAD = """syntax = "proto3";
package com.example;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
enum Color { NONE = 0; RED = 1; BLUE = 2; }
"""
EPOCH = dt.datetime(1970, 1, 1)


class Message:
    """``fields`` are (name, label, type), where a label is "", "optional", "repeated", "map" or "oneof"."""

    def __init__(self, name, fields):
        self.name, self.fields = name, fields


def draw_message(dice: random.Random, name="R", depth=2, columns=4):
    """A message, whose messages are inside of it."""
    fields = []
    for number, field in enumerate(dice.sample(COLUMNS if name == "R" else NAMES, dice.randint(1, columns))):
        label = dice.choice(("", "", "optional", "repeated", "map", "oneof"))
        kind = dice.choice((*SCALARS,))
        if depth and dice.random() < 0.25:
            kind = draw_message(dice, f"{name}{number}x", depth - 1, 3)
        fields.append((field, label, kind))
    return Message(name, sorted(fields, key=lambda field: field[1] == "oneof"))  # as they stand in the text


def text_of(message: Message, indent="") -> str:
    """A message as the text of a .proto file has it."""
    lines = [text_of(kind, indent + "  ") for _, _, kind in message.fields if isinstance(kind, Message)]
    single = []
    for number, (field, label, kind) in enumerate(message.fields, 1):
        name = kind.name if isinstance(kind, Message) else kind
        if label == "oneof":
            single.append(f"{indent}    {name} {field} = {number};")
        elif label == "map":
            lines.append(f"{indent}  map<string, {name}> {field} = {number};")
        else:
            lines.append(f"{indent}  {label} {name} {field} = {number};")
    if single:
        lines.append("\n".join([f"{indent}  oneof which {{", *single, f"{indent}  }}"]))
    return "\n".join([f"{indent}message {message.name} {{", *lines, f"{indent}}}"])


def column(label, kind) -> str:
    """The type of a column of a field, in Spark's DDL."""
    if isinstance(kind, Message):
        parts = [f"`{field}`: {column(inner, part)}" for field, inner, part in kind.fields]
        ddl = f"STRUCT<{', '.join(parts)}>"
    else:
        ddl = SCALARS[kind]
    return {"repeated": f"ARRAY<{ddl}>", "map": f"MAP<STRING, {ddl}>"}.get(label, ddl)


def draw_value(dice: random.Random, message: Message):
    """A message's fields that are set, by name: scalars as Python's, a moment as microseconds, a duration as (seconds, nanoseconds)."""
    found = {}
    ones = [field for field, label, _ in message.fields if label == "oneof"]
    one = dice.choice([*ones, None]) if ones else None
    for field, label, kind in message.fields:
        if label == "oneof" and field != one:
            continue
        if label in ("", "optional") and dice.random() < 0.25:
            continue
        if label == "repeated":
            found[field] = [_single(dice, kind) for _ in range(dice.randrange(4))]
        elif label == "map":
            found[field] = {draw_text(dice): _single(dice, kind) for _ in range(dice.randrange(4))}
        else:
            found[field] = _single(dice, kind)
    return found


def _single(dice, kind):
    if isinstance(kind, Message):
        return draw_value(dice, kind)
    if kind in BITS:
        signed, bits = BITS[kind]
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return dice.choice((0, 1, least, most, dice.randint(least, most)))
    if kind in ("double", "float"):
        return dice.choice((0.0, -0.0, 1.5, -2.25e10, 0.5, float("nan")))
    if kind == "bool":
        return dice.random() < 0.5
    if kind in ("string", "google.protobuf.StringValue"):
        return draw_text(dice)
    if kind == "bytes":
        return dice.randbytes(dice.randrange(4))
    if kind == "Color":
        return dice.choice((0, 1, 2, 7))
    if kind == "google.protobuf.Timestamp":
        return dice.randrange(-62_135_596_800, 253_402_300_800) * 1_000_000 + dice.choice((0, 1, 999_999))
    if kind == "google.protobuf.Duration":
        return dice.choice(((0, 0), (3, 500_000_000), (-3, -1000), (0, -1), (7, 0)))
    if kind == "google.protobuf.Struct":
        return dice.choice(({}, {"a": 1, "b": [True, None, "x"]}, {"c": {"d": 1.5}}))
    return dice.randint(-(2**63), 2**63 - 1)


def fill(made, message: Message, value):
    """Set the fields of Google's message."""
    for field, label, kind in message.fields:
        if field not in value:
            continue
        if label == "repeated":
            for part in value[field]:
                if isinstance(kind, Message) or kind.startswith("google."):
                    _fill_one(getattr(made, field).add(), kind, part)
                else:
                    getattr(made, field).append(part)
        elif label == "map":
            for name, part in value[field].items():
                if isinstance(kind, Message) or kind.startswith("google."):
                    _fill_one(getattr(made, field)[name], kind, part)
                else:
                    getattr(made, field)[name] = part
        elif isinstance(kind, Message) or kind.startswith("google."):
            getattr(made, field).SetInParent()
            _fill_one(getattr(made, field), kind, value[field])
        else:
            setattr(made, field, value[field])


def _fill_one(made, kind, value):
    if isinstance(kind, Message):
        fill(made, kind, value)
    elif kind == "google.protobuf.Timestamp":
        made.seconds, made.nanos = value // 1_000_000, value % 1_000_000 * 1000
    elif kind == "google.protobuf.Duration":
        made.seconds, made.nanos = value
    elif kind == "google.protobuf.Struct":
        made.update(value)
    else:
        made.value = value


class Refused(Exception):
    """A value that no column has."""


def as_json(message: Message, value) -> str:
    """The JSON that a producer would write of a message. Raises Refused where there is none."""
    parts = []
    for field, label, kind in message.fields:
        if label == "repeated":
            text = "[" + ",".join(_json(kind, part) for part in value.get(field, [])) + "]"
        elif label == "map":
            pairs = sorted(value.get(field, {}).items(), key=lambda pair: pair[0])
            text = "{" + ",".join(f"{json.dumps(n)}:{_json(kind, v)}" for n, v in pairs) + "}"
        elif field in value:
            text = _json(kind, value[field])
        elif label == "" and not isinstance(kind, Message) and not kind.startswith("google."):
            text = _json(kind, {"bool": False, "string": "", "bytes": b"", "double": 0.0, "float": 0.0}.get(kind, 0))
        else:
            text = "null"
        parts.append(f"{json.dumps(field)}:{text}")
    return "{" + ",".join(parts) + "}"


def _json(kind, value) -> str:
    if isinstance(kind, Message):
        return as_json(kind, value)
    if kind == "Color":
        return json.dumps({0: "NONE", 1: "RED", 2: "BLUE"}.get(value, str(value)))
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if kind == "google.protobuf.Timestamp":
        return json.dumps((EPOCH + dt.timedelta(microseconds=value)).isoformat() + "Z")
    if kind == "google.protobuf.Duration":
        return json.dumps(
            {
                (0, 0): "0s",
                (3, 500_000_000): "3.500s",
                (-3, -1000): "-3.000001s",
                (0, -1): "-0.000000001s",
                (7, 0): "7s",
            }[value]
        )
    if isinstance(value, float) and value != value:
        raise Refused
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def compile_module(text: str, name: str):
    """The Python module that protoc makes of a .proto file, as a producer has it."""
    folder = Path(tempfile.mkdtemp(prefix="proto-"))
    (folder / f"{name}.proto").write_text(text)
    own = Path(protoc.__file__).parent / "_proto"
    assert protoc.main(["protoc", f"-I{folder}", f"-I{own}", f"--python_out={folder}", f"{name}.proto"]) == 0
    sys.path.insert(0, str(folder))
    try:
        return __import__(f"{name}_pb2")
    finally:
        sys.path.remove(str(folder))
