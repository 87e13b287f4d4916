"""What the modules of the formats have in common: nodes of a schema, and their values as JSON has them.

A value that a library has read becomes a column's in one of two ways, which give the same: directly, where the column has the type that
the schema means, and else by way of JSON (:func:`statehouse.payload.convert`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from statehouse.payload import Field, Refused, convert
from statehouse.types import Type, check_name

Change = Callable[[Any], Any]
TEXT = Type("STRING", "STRING")


class Node(NamedTuple):
    """A part of a schema. ``kind`` is the type of its column. ``direct`` turns a value that the library has read into the one that
    :func:`statehouse.payload.convert` gives for that type, ``json`` into the one that :func:`statehouse.payload.read` gives for its
    JSON; None where the value stays as it is. Neither is called for null."""

    kind: Type
    direct: Change | None = None
    json: Change | None = None


def scalar(name: str) -> Type:
    """A type without parts."""
    return Type(name, name)


def array(part: Type) -> Type:
    """An ARRAY of a type."""
    return Type("ARRAY", f"ARRAY<{part.ddl}>", parts=(part,))


def mapping(part: Type) -> Type:
    """A MAP from text to a type."""
    return Type("MAP", f"MAP<STRING, {part.ddl}>", parts=(TEXT, part))


def struct(fields: Sequence[tuple[str, Type]]) -> Type | None:
    """A STRUCT; None where Spark has none of these fields."""
    names = [name.lower() for name, _ in fields]
    try:
        for name, _ in fields:
            check_name(name)
    except ValueError:
        return None
    if not fields or len({*names}) < len(names) or any("`" in name for name in names):
        return None
    inner = ", ".join(f"`{name}`: {kind.ddl}" for name, kind in fields)
    return Type("STRUCT", f"STRUCT<{inner}>", fields=tuple(fields))


def finite(value: float) -> float:
    """A number; Refused for one that JSON does not have."""
    if not math.isfinite(value):
        raise Refused(f"found {value}, expected a number")
    return value


def float_as_json(value: float) -> Any:
    """A number as the text that JSON has for it. Raises Refused for infinity and NaN."""
    return msgspec.Raw(repr(finite(value)).encode())


def within(bits: int) -> Change:
    """A whole number; Refused for one of more bits."""
    limit = 1 << (bits - 1)

    def check(value: int) -> int:
        if not -limit <= value < limit:
            raise Refused(f"found {value}, expected a whole number of {bits} bits")
        return value

    return check


def text_of(json: Change | None) -> Change:
    """A value as text: itself where it is text, else its JSON."""

    def change(value: Any) -> Any:
        return convert(value if json is None else json(value), TEXT)

    return change


def as_text(json: Change | None) -> Node:
    """A part of a schema that no type fits: its JSON."""
    return Node(TEXT, text_of(json), json)


def each(change: Change | None) -> Change | None:
    """A change applied to each element of a list that is not null."""
    if change is None:
        return None

    def change_each(values: Iterable[Any]) -> list[Any]:
        changed_values: list[Any] = []
        try:
            for value in values:
                changed_values.append(None if value is None else change(value))
        except Refused as reason:
            raise reason.at(f"[{len(changed_values)}]") from None
        return changed_values

    return change_each


def each_item(change: Change | None) -> Change:
    """A change applied to each value of a dict that is not null; the result is a list of pairs."""

    def change_each(values: dict[str, Any]) -> list[tuple[str, Any]]:
        if change is None:
            return list(values.items())
        return list(each_value(change)(values).items())

    return change_each


def each_value(change: Change | None) -> Change:
    """A change applied to each value of a dict that is not null; the result is a dict."""

    def change_each(values: dict[str, Any]) -> dict[str, Any]:
        if change is None:
            return dict(values)
        by_name, name = {}, ""
        try:
            for name, value in values.items():
                by_name[name] = None if value is None else change(value)
        except Refused as reason:
            raise reason.at(f".{name}") from None
        return by_name

    return change_each


def each_field(changes: Sequence[tuple[str, Change | None]]) -> Change:
    """Changes applied to the fields of a dict, in place, where the value is not null."""
    needed = [(name, change) for name, change in changes if change is not None]

    def change_fields(values: dict[str, Any]) -> dict[str, Any]:
        name = ""
        try:
            for name, change in needed:
                if (value := values[name]) is not None:
                    values[name] = change(value)
        except Refused as reason:
            raise reason.at(f".{name}") from None
        return values

    return change_fields


def column(field: Field, node: Node | None) -> Change | None:
    """The change that turns a value read by a node into the field's value; None where the value stays as it is."""
    if node is None:  # the schema has no such part
        return lambda _: None
    if node.kind.arrow == field.kind.arrow:
        return node.direct
    json, kind = node.json, field.kind
    return lambda value: convert(value if json is None else json(value), kind)


def row(changes: Sequence[tuple[str, Change | None]], values: dict[str, Any]) -> list[Any]:
    """A row: for each change the value of that name, changed. Raises Refused with the reasons of all values that do not fit."""
    cells, wrong = [], []
    for name, change in changes:
        value = values.get(name)
        if value is not None and change is not None:
            try:
                value = change(value)
            except Refused as reason:
                wrong.append(str(reason.at(name)))
        cells.append(value)
    if wrong:
        raise Refused("; ".join(wrong))
    return cells
