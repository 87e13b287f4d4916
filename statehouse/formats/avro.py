"""Avro: the columns that a schema has, and its records. fastavro reads the bytes.

A record is read by the schema that it was written with, and its fields become columns by their names. Before that the schema is taken apart,
into two: one for fastavro, without logical types, whose values have no bounds of Python's, and in which the branches of a union can be told
apart; and a tree of :class:`~statehouse.formats.values.Node`, which says what they are.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import uuid
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import fastavro
import fastavro._read_py
import msgspec

from statehouse.formats import values
from statehouse.formats.format import Schema
from statehouse.formats.framed import Reader
from statehouse.formats.values import Node, scalar
from statehouse.formats.wire import Frame
from statehouse.payload import GREATEST_TIME, LEAST_TIME, SECOND, Field, Refused
from statehouse.types import Type

DEEPEST = 100  # levels of a record whose schema has itself in it
DAY = 86400 * SECOND
_EXACT = Context(prec=100)
_EPOCH = dt.datetime(1970, 1, 1)
# By logical type: the type that it is of, and in how many of its units a microsecond is, or how many microseconds its unit has.
_MOMENTS = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}


class AvroSchema:
    """A schema taken apart: ``columns`` are those of its records, ``plain`` is the schema that fastavro reads by. Raises Refused where
    the text is no Avro schema."""

    def __init__(self, schema: Schema) -> None:
        named: dict[str, Any] = {}
        try:
            for _, text in schema.references:
                fastavro.parse_schema(_load_schema(text), named_schemas=named)
            parsed = fastavro.parse_schema(_load_schema(schema.text), named_schemas=named)
        except RecursionError:
            raise Refused("found a schema that is nested too deeply, expected an Avro schema") from None
        except Exception as error:  # fastavro raises whatever it trips over
            detail = f"{type(error).__name__}: {error}"[:200]
            raise Refused(f"found a schema that cannot be read ({detail}), expected an Avro schema") from None
        self._named = named
        self._nodes: dict[str, Node] = {}
        self._open_records: set[str] = set()  # records that are being taken apart
        self._records: dict[str, list[tuple[str, Node]]] = {}
        self._wrapper_count = 0
        self.recursive = False
        plain, self._branches = self._top(parsed)
        self.plain = fastavro.parse_schema(plain)  # or it would be for each record
        # fastavro's own reader in C ends the process where it is too deep in a record; the one in Python raises.
        self.read = fastavro._read_py.schemaless_reader if self.recursive else fastavro.schemaless_reader
        self.columns: dict[str, Node] = {}
        for fields in self._branches.values():
            for name, node in fields:
                self.columns.setdefault(name, node)

    def reader(self, fields: Sequence[Field]) -> Reader:
        """The reader of payloads with some columns."""
        changes = {
            branch: [(field.name, values.column(field, dict(nodes).get(field.name))) for field in fields]
            for branch, nodes in self._branches.items()
        }
        plain, only = self.plain, changes.get("")
        read = self.read

        def row(payload: bytes, frame: Frame) -> list[Any]:
            data = io.BytesIO(payload)
            if frame.data is payload:
                data.seek(frame.end)
            record: Any
            try:
                record = read(data, plain, None)
            except RecursionError:
                raise Refused(f"nested more than {DEEPEST} levels deep") from None
            except EOFError:
                raise Refused("found the end of the payload, expected more of the record") from None
            except Exception as error:  # it reads as far as the bytes make sense
                raise Refused(
                    f"found bytes that are no record of it ({type(error).__name__}: {str(error)[:100]})"
                ) from None
            if more := len(payload) - data.tell():
                raise Refused(f"found {more} bytes after the record, expected none")
            if self.recursive:
                _check_depth(record)
            if record is None:
                return [None] * len(fields)
            if only is not None:
                return values.row(only, record)
            ((branch, record),) = record.items()
            return values.row(changes[branch], record)

        return row

    def _top(self, parsed: Any) -> tuple[Any, dict[str, list[tuple[str, Node]]]]:
        """What fastavro reads a payload by, and the fields of each of its branches: of one that is no union, of the branch ''."""
        branches = [part for part in parsed if part != "null"] if isinstance(parsed, list) else [parsed]
        records = [self._resolve(part) for part in branches]
        if all(isinstance(part, dict) and part["type"] in ("record", "error") for part in records):
            if len(records) == 1:
                plain, _ = self._part(parsed)
                return plain, {"": self._records[records[0]["name"]]}
            plain, _ = self._part(parsed)
            places = [number for number, part in enumerate(parsed) if part != "null"]
            named = zip(places, records, strict=True)
            return plain, {f"b{number}": self._records[record["name"]] for number, record in named}
        plain, node = self._part(parsed)
        return self._wrap(plain, "value"), {"": [("value", node)]}

    def _resolve(self, part: Any) -> Any:
        return self._named.get(part, part) if isinstance(part, str) else part

    def _wrap(self, plain: Any, name: str) -> dict[str, Any]:
        """A record of one field, whose bytes are those of the field."""
        self._wrapper_count += 1
        return {
            "type": "record",
            "name": f"statehouse.w{self._wrapper_count}",
            "fields": [{"name": name, "type": plain}],
        }

    def _part(self, part: Any) -> tuple[Any, Node]:
        """A part of the schema as fastavro is given it, and its node."""
        if isinstance(part, list):
            return self._union(part)
        part = self._resolve(part)
        if isinstance(part, str):
            return part, _primitive(part, {})
        kind = part["type"]
        if isinstance(kind, (dict, list)):
            return self._part(kind)
        if kind == "array":
            plain, node = self._part(part["items"])
            if not self._has_bytes(part["items"]):
                raise Refused("found an array of what has no bytes, expected elements that have some")
            array = Node(values.array(node.kind), values.each(node.direct), values.each(node.json))
            return {"type": "array", "items": plain}, array
        if kind == "map":
            plain, node = self._part(part["values"])
            mapping = Node(values.mapping(node.kind), values.each_item(node.direct), values.each_value(node.json))
            return {"type": "map", "values": plain}, mapping
        if kind in ("record", "error"):
            return self._record(part)
        if kind in ("fixed", "enum"):
            return self._named_type(part)
        return kind, _primitive(kind, part)

    def _record(self, part: dict[str, Any]) -> tuple[Any, Node]:
        name = part["name"]
        if name in self._open_records:  # it has itself in it: as a column it is JSON
            self.recursive = True
            return name, values.as_text(lambda value: (self._nodes[name].json or (lambda v: v))(value))
        if name in self._nodes:
            return name, self._nodes[name]
        self._open_records.add(name)
        plain, nodes = [], []
        for field in part["fields"]:
            inner, node = self._part(field["type"])
            plain.append({"name": field["name"], "type": inner})
            nodes.append((field["name"], node))
        self._open_records.discard(name)
        kind = values.struct([(field, node.kind) for field, node in nodes])
        as_json = values.each_field([(field, node.json) for field, node in nodes])
        direct = values.each_field([(field, node.direct) for field, node in nodes])
        self._nodes[name] = Node(kind, direct, as_json) if kind else values.as_text(as_json)
        self._records[name] = nodes
        return {"type": "record", "name": name, "fields": plain}, self._nodes[name]

    def _named_type(self, part: dict[str, Any]) -> tuple[Any, Node]:
        name = part["name"]
        if name in self._nodes:
            return name, self._nodes[name]
        if part["type"] == "enum":
            self._nodes[name] = Node(values.TEXT)
            return {"type": "enum", "name": name, "symbols": part["symbols"]}, self._nodes[name]
        self._nodes[name] = _primitive("fixed", part)
        return {"type": "fixed", "name": name, "size": part["size"]}, self._nodes[name]

    def _union(self, parts: list[Any]) -> tuple[Any, Node]:
        branches = [part for part in parts if part != "null"]
        if not branches:
            return "null", Node(values.TEXT)
        if len(branches) == 1:
            plain, node = self._part(branches[0])
            return [plain if part is branches[0] else "null" for part in parts], node
        for kinds, kind in ((("int", "long"), "long"), (("float", "double"), "double")):
            if all(part in kinds for part in branches):
                return parts, _primitive(kind, {})
        # Each branch in a record of its own tells which one a value is of.
        plain, nodes = [], {}
        for number, part in enumerate(parts):
            inner, node = self._part(part)
            plain.append("null" if part == "null" else self._wrap(inner, f"b{number}"))
            nodes[f"b{number}"] = node.json

        def as_json(value: dict[str, Any]) -> Any:
            ((branch, inner),) = value.items()
            change = nodes[branch]
            return inner if change is None else change(inner)

        return plain, values.as_text(as_json)

    def _has_bytes(self, part: Any) -> bool:
        """Whether each value takes at least one byte. Otherwise a payload of a few bytes could hold any number of elements."""
        part = self._resolve(part)
        if isinstance(part, dict) and isinstance(part["type"], (dict, list)):
            return self._has_bytes(part["type"])
        kind = part["type"] if isinstance(part, dict) else part
        if kind in ("record", "error"):  # a recursive one has a union or an array in between, which takes a byte
            return any(self._has_bytes(field["type"]) for field in part["fields"])
        return kind != "null" and not (kind == "fixed" and not part["size"])


def reader(schema: Schema, fields: Sequence[Field]) -> Reader:
    """The reader of a schema's records; raises Refused for one that cannot be read."""
    return AvroSchema(schema).reader(fields)


def columns(schema: Schema) -> list[tuple[str, Type]]:
    """The columns that a schema's records have; raises Refused for one that cannot be read."""
    return [(name, node.kind) for name, node in AvroSchema(schema).columns.items()]


def _load_schema(text: str) -> Any:
    """A schema's text, which is JSON; or the name of a primitive type without quotes."""
    try:
        return json.loads(text)
    except ValueError:
        if text.strip().isalpha():
            return text.strip()
        raise


def _primitive(kind: str, part: dict[str, Any]) -> Node:
    """A part that has no others; what Avro calls an invalid logical type is none."""
    logical = part.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed") and (decimal := _decimal(part)):
        return decimal
    if logical == "uuid" and kind == "fixed" and part["size"] == 16:
        return Node(values.TEXT, _uuid, _uuid)
    if logical == "date" and kind == "int":
        return Node(scalar("DATE"), _day, lambda value: (_EPOCH + dt.timedelta(days=_day(value))).date().isoformat())
    if logical in ("time-millis", "time-micros") and kind == ("int" if logical == "time-millis" else "long"):
        clock = _clock("milliseconds" if logical == "time-millis" else "microseconds")
        return Node(values.TEXT, clock, clock)
    if kind == "long" and isinstance(logical, str):
        local, _, unit = logical.rpartition("timestamp-")
        if local in ("", "local-") and unit in _MOMENTS:
            moment = _moment(*_MOMENTS[unit])
            zone = "" if local else "Z"
            text = lambda value: f"{(_EPOCH + dt.timedelta(microseconds=moment(value))).isoformat()}{zone}"  # noqa: E731
            return Node(scalar("TIMESTAMP_NTZ" if local else "TIMESTAMP"), moment, text)
    if kind == "int":
        return Node(scalar("INT"), values.within(32), values.within(32))
    if kind == "long":
        return Node(scalar("BIGINT"), values.within(64), values.within(64))
    if kind in ("float", "double"):
        return Node(scalar(kind.upper()), values.finite, values.float_as_json)
    if kind in ("bytes", "fixed"):
        return Node(scalar("BINARY"), None, lambda value: base64.b64encode(value).decode())
    return Node(scalar("BOOLEAN") if kind == "boolean" else values.TEXT)


def _decimal(part: dict[str, Any]) -> Node | None:
    precision, scale = part.get("precision"), part.get("scale", 0)
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return None

    def number(value: bytes) -> Decimal:
        digits = int.from_bytes(value, "big", signed=True)
        if abs(digits) >= 10**precision:
            raise Refused(f"found a number of more than {precision} digits, expected DECIMAL({precision}, {scale})")
        return Decimal(digits).scaleb(-scale, _EXACT if precision <= 38 else Context(prec=max(precision, 100)))

    def text(value: bytes) -> str:
        return format(number(value), "f")

    if precision > 38:
        return Node(values.TEXT, text, lambda value: msgspec.Raw(text(value).encode()))
    kind = Type("DECIMAL", f"DECIMAL({precision}, {scale})", (precision, scale))
    return Node(kind, number, lambda value: msgspec.Raw(text(value).encode()))


def _uuid(value: bytes) -> str:
    return str(uuid.UUID(bytes=value))


def _day(value: int) -> int:
    if not LEAST_TIME // DAY <= value <= GREATEST_TIME // DAY:
        raise Refused("found a day outside the years 1 to 9999")
    return value


def _clock(unit: str) -> Callable[[int], str]:
    """A time of the day as text, with as many digits as its unit has."""
    micros = 1000 if unit == "milliseconds" else 1

    def text(value: int) -> str:
        if not 0 <= value * micros < DAY:
            raise Refused(f"found {value}, expected the {unit} of a day")
        return (_EPOCH + dt.timedelta(microseconds=value * micros)).time().isoformat(unit)

    return text


def _moment(multiple: int, part: int) -> Callable[[int], int]:
    """Microseconds since 1970, of a moment in another unit; what is less than one is cut off."""

    def micros(value: int) -> int:
        micros_since_1970 = value * multiple // part
        if not LEAST_TIME <= micros_since_1970 <= GREATEST_TIME:
            raise Refused("found a time outside the years 1 to 9999")
        return micros_since_1970

    return micros


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        inner = [
            part for container in level for part in (container.values() if isinstance(container, dict) else container)
        ]
        level = [part for part in inner if isinstance(part, (dict, list))]
        if not level:
            return
    raise Refused(f"nested more than {DEEPEST} levels deep")
