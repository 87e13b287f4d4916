"""Protobuf: the columns that a message has, and its records. Google's runtime reads the bytes.

A record names the file by the schema's id, and the message in it by its place. Its fields become columns by the names that they have in the file.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from statehouse.formats import values
from statehouse.formats.format import Schema
from statehouse.formats.framed import Reader
from statehouse.formats.protobuf_files import read_descriptors
from statehouse.formats.values import Change, Node, scalar
from statehouse.formats.wire import Frame
from statehouse.payload import GREATEST_TIME, LEAST_TIME, SECOND, Field, Refused
from statehouse.types import Type

DEEPEST = 100  # levels of messages: Google's readers take no more
_EPOCH = dt.datetime(1970, 1, 1)
UNSIGNED_64 = Type("DECIMAL", "DECIMAL(20, 0)", (20, 0))
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
}
Get = Callable[[Message], Any]  # a field's value, None where it has none


def reader(schema: Schema, fields: Sequence[Field]) -> Reader:
    """The reader of a schema's records; raises Refused for one that cannot be read."""
    file = _file(schema)
    readers: dict[tuple[int, ...], Callable[[bytes], list[Any]]] = {}

    def row(payload: bytes, frame: Frame) -> list[Any]:
        place, end = place_of(frame.data, frame.end)
        read = readers.get(place)
        if read is None:
            read = readers[place] = _message_reader(_at(file, place), fields)
        return read(payload[end:] if frame.data is payload else payload)

    return row


def columns(schema: Schema) -> list[tuple[str, Type]]:
    """The columns that the first message of a schema has; raises Refused for one that cannot be read."""
    return [(name, node.kind) for name, _, node in _parts(_at(_file(schema), (0,)), ())]


def place_of(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """A message's index path in its file (one number for each level of nesting), which follows the schema's id; and the offset in
    ``data`` behind it. Raises Refused where ``data`` has no such path."""
    count, end = _number(data, start)
    if count == 0:  # short for the first one
        return (0,), end
    if not 0 < count <= DEEPEST:
        raise Refused(f"found a message on level {count}, expected a message's place in its file")
    place = []
    for _ in range(count):
        number, end = _number(data, end)
        place.append(number)
    return tuple(place), end


def _number(data: bytes, start: int) -> tuple[int, int]:
    """A number of variable length, zigzag-coded, and where it ends."""
    value = 0
    for shift, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), start + shift + 1
    raise Refused("found the end of the payload, expected a message's place in its file")


def _file(schema: Schema) -> FileDescriptor:
    pool = descriptor_pool.DescriptorPool()
    descriptors = read_descriptors(schema.text)
    try:
        for file in descriptors.file:
            pool.Add(file)
        return pool.FindFileByName(descriptors.file[-1].name)
    except (TypeError, KeyError) as error:
        raise Refused(f"found a schema that cannot be read ({str(error)[:200]}), expected a Protobuf file") from None


def _at(file: FileDescriptor, place: Sequence[int]) -> Descriptor:
    messages: Sequence[Descriptor] = list(file.message_types_by_name.values())
    message = None
    for number in place:
        if not 0 <= number < len(messages):
            raise Refused(f"found message {'.'.join(map(str, place))}, expected one of its file's")
        message = messages[number]
        messages = message.nested_types
    assert message is not None
    return message


def _message_reader(message: Descriptor, fields: Sequence[Field]) -> Callable[[bytes], list[Any]]:
    message_class = message_factory.GetMessageClass(message)
    parts = {name: (get, node) for name, get, node in _parts(message, ())}
    gets = [(field.name, parts[field.name][0]) for field in fields if field.name in parts]
    changes = [
        (field.name, values.column(field, parts[field.name][1] if field.name in parts else None)) for field in fields
    ]

    def read(payload: bytes) -> list[Any]:
        parsed = message_class()
        try:
            parsed.ParseFromString(payload)
            if not parsed.IsInitialized():
                raise Refused(f"found no {', '.join(parsed.FindInitializationErrors())}, expected it: it is required")
            return values.row(changes, {name: get(parsed) for name, get in gets})
        except (DecodeError, UnicodeDecodeError) as error:
            raise Refused(f"found bytes that are no {message.full_name} ({str(error)[:100]})") from None

    return read


def _parts(message: Descriptor, within: tuple[str, ...]) -> list[tuple[str, Get, Node]]:
    """The fields of a message: name, how it is got, and what it is."""
    inside = (*within, message.full_name)
    return [(field.name, _get(field), _node(field, inside)) for field in message.fields]


def _get(field: FieldDescriptor) -> Get:
    name = field.name
    if field.is_repeated or not field.has_presence or field.has_default_value:
        return lambda message: getattr(message, name)
    return lambda message: getattr(message, name) if message.HasField(name) else None


def _node(field: FieldDescriptor, within: tuple[str, ...]) -> Node:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        node = _single(value, within)
        with_text_keys = _with_text_keys(key)
        direct, as_json = values.each_item(node.direct), values.each_value(node.json)
        return Node(
            values.mapping(node.kind),
            lambda entries: direct(with_text_keys(entries)),
            lambda entries: as_json(with_text_keys(entries)),
        )
    node = _single(field, within)
    if not field.is_repeated:
        return node
    each = values.each(node.direct) or list
    return Node(values.array(node.kind), each, values.each(node.json) or list)


def _with_text_keys(key: FieldDescriptor) -> Change:
    """A map whose keys are text, in their order: the runtime has another in each process."""
    if key.type == key.TYPE_STRING:
        return lambda entries: {name: entries[name] for name in sorted(entries)}
    if key.type == key.TYPE_BOOL:
        return lambda entries: {str(name).lower(): entries[name] for name in sorted(entries)}
    return lambda entries: {str(name): entries[name] for name in sorted(entries)}


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> Node:
    if field.message_type is not None:
        return _message(field.message_type, within)
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}  # of two the first counts

        def name(number: int) -> str:
            return names.get(number, str(number))

        return Node(values.TEXT, name, name)
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Node(UNSIGNED_64, Decimal)
    if field.type in (field.TYPE_UINT32, field.TYPE_FIXED32):
        return Node(scalar("BIGINT"))
    if field.type == field.TYPE_BYTES:
        return Node(scalar("BINARY"), None, lambda value: base64.b64encode(value).decode())
    return {
        field.CPPTYPE_INT32: Node(scalar("INT")),
        field.CPPTYPE_INT64: Node(scalar("BIGINT")),
        field.CPPTYPE_FLOAT: Node(scalar("FLOAT"), values.finite, values.float_as_json),
        field.CPPTYPE_DOUBLE: Node(scalar("DOUBLE"), values.finite, values.float_as_json),
        field.CPPTYPE_BOOL: Node(scalar("BOOLEAN")),
        field.CPPTYPE_STRING: Node(values.TEXT),
    }[field.cpp_type]


def _message(message: Descriptor, within: tuple[str, ...]) -> Node:
    name = message.full_name
    if name in WELL_KNOWN:
        return WELL_KNOWN[name]
    if name in WRAPPERS:
        node = _single(message.fields_by_name["value"], within)
        direct, as_json = node.direct or _same, node.json or _same
        return Node(node.kind, lambda wrapper: direct(wrapper.value), lambda wrapper: as_json(wrapper.value))
    if name in within:  # it has itself in it: as a column it is JSON
        return values.as_text(lambda inner: _message_json(inner))
    parts = _parts(message, within)
    kind = values.struct([(part, node.kind) for part, _, node in parts])
    as_json = _object([(part, get, node.json) for part, get, node in parts])
    if kind is None:
        return values.as_text(as_json)
    return Node(kind, _object([(part, get, node.direct) for part, get, node in parts]), as_json)


def _message_json(message: Message) -> dict[str, Any]:
    """A message that has itself in it, as JSON."""
    parts = _parts(message.DESCRIPTOR, ())
    return _object([(part, get, node.json) for part, get, node in parts])(message)


def _object(parts: Sequence[tuple[str, Get, Change | None]]) -> Change:
    """What makes a dict of a message."""
    gets = [(name, get) for name, get, _ in parts]
    change = values.each_field([(name, change) for name, _, change in parts])
    return lambda message: change({name: get(message) for name, get in gets})


def _same(value: Any) -> Any:
    return value


def _micros(moment: Any) -> int:
    micros = moment.seconds * SECOND + moment.nanos // 1000
    if not (LEAST_TIME <= micros <= GREATEST_TIME and 0 <= moment.nanos < 10**9):
        raise Refused("found a time outside the years 1 to 9999")
    return micros


def _moment(moment: Any) -> str:
    return f"{(_EPOCH + dt.timedelta(microseconds=_micros(moment))).isoformat()}Z"


def _duration(duration: Any) -> str:
    """As Protobuf's JSON has it: ``1.500s``."""
    seconds, nanos = duration.seconds, duration.nanos
    if abs(nanos) >= 10**9 or seconds * nanos < 0:
        raise Refused(f"found a duration of {seconds} seconds and {nanos} nanoseconds, expected both of one sign")
    sign = "-" if seconds < 0 or nanos < 0 else ""
    fraction = f".{abs(nanos):09d}" if nanos else ""
    for _ in range(2):
        fraction = fraction.removesuffix("000")
    return f"{sign}{abs(seconds)}{fraction}s"


def _any_json(value: Any) -> Any:
    """A google.protobuf.Value as JSON."""
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _struct_json(value.struct_value)
    if kind == "list_value":
        return _list_json(value.list_value)
    if kind == "number_value":
        number = value.number_value
        whole = number.is_integer() and abs(number) < 2**53
        return int(number) if whole else values.float_as_json(number)
    return None if kind in (None, "null_value") else getattr(value, kind)


def _struct_json(struct: Any) -> dict[str, Any]:
    return {name: _any_json(struct.fields[name]) for name in sorted(struct.fields)}


def _list_json(items: Any) -> list[Any]:
    return [_any_json(value) for value in items.values]


def _paths(mask: Any) -> str:
    return ",".join(mask.paths)


WELL_KNOWN = {
    "google.protobuf.Timestamp": Node(scalar("TIMESTAMP"), _micros, _moment),
    "google.protobuf.Duration": Node(values.TEXT, _duration, _duration),
    "google.protobuf.Struct": values.as_text(_struct_json),
    "google.protobuf.Value": values.as_text(_any_json),
    "google.protobuf.ListValue": values.as_text(_list_json),
    "google.protobuf.FieldMask": Node(values.TEXT, _paths, _paths),
}
