"""Many payloads at once, as Arrow's columns: by one typed call each where their values are all plain (:mod:`statehouse.payload`)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statehouse.payload import (
    DEEPEST,
    GREATEST_FLOAT,
    GREATEST_TIME,
    LEAST_TIME,
    SECOND,
    Field,
    Refused,
    as_text,
    check_depth,
    convert,
    read,
    read_object,
)
from statehouse.spark_sql import TIMES
from statehouse.types import FLOATS, INTEGERS, Type


class Decoder:
    """Of payloads with some columns."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.schema = pa.schema([(field.name, field.kind.arrow) for field in fields])
        self._row = _row_type(self.fields)
        # Columns that msgspec does not finish: times, which are text to it, and JSON that is not read yet.
        self._unfinished = [f.kind.name in TIMES or _typed(f.kind) is msgspec.Raw for f in self.fields]
        self._decode = msgspec.json.Decoder(self._row).decode if self._row else None

    def decode(self, texts: Sequence[str | None]) -> tuple[list[pa.Array], list[str | None]]:
        """The columns of payloads, and of each payload the reason why it is refused, or None. A text that is None is no payload: it
        has no values and no reason."""
        reasons: list[str | None] = [None] * len(texts)
        columns, left = self._at_once(texts)
        if left:
            rows = []
            for index in left:
                try:
                    rows.append(self._one_by_one(texts[index] or ""))
                except Refused as reason:
                    reasons[index] = str(reason)
                    rows.append([None] * len(self.fields))
            others = columns_of(self.fields, rows)
            order = list(range(len(texts)))
            for number, index in enumerate(left):
                order[index] = len(texts) + number
            pairs = zip(columns, others, strict=True)
            columns = [pa.concat_arrays([column, other]).take(pa.array(order, pa.int64())) for column, other in pairs]
        refuse_missing(self.fields, columns, texts, reasons)
        return columns, reasons

    def _at_once(self, texts: Sequence[str | None]) -> tuple[list[pa.Array], list[int]]:
        """The columns, by one typed call a payload, and which payloads are left: their rows are null."""
        left: set[int] = set()
        if self._decode is None:
            return [pa.nulls(len(texts), f.kind.arrow) for f in self.fields], _present(texts)
        blank, rows, decode = self._row(), [], self._decode
        for index, text in enumerate(texts):
            row = blank
            if text is not None:
                try:
                    if len(text) > 2 * DEEPEST:
                        check_depth(text)
                    row = decode(text)
                except (msgspec.MsgspecError, RecursionError, Refused):
                    left.add(index)
            rows.append(row)
        columns = []
        for number, (field, unfinished) in enumerate(zip(self.fields, self._unfinished, strict=True)):
            values = list(map(attrgetter(f"c{number}"), rows))
            columns.append(_finish(values, field.kind, left) if unfinished else values)
        return [
            column if isinstance(column, pa.Array) else _array(column, field.kind)
            for field, column in zip(self.fields, columns, strict=True)
        ], sorted(left)

    def _one_by_one(self, text: str) -> list[Any]:
        values = read_object(text)
        row, wrong = [], []
        for field in self.fields:
            try:
                row.append(convert(values.get(field.name), field.kind, field.name))
            except Refused as reason:
                wrong.append(str(reason))
        if wrong:
            raise Refused("; ".join(wrong))
        return row


def columns_of(fields: Sequence[Field], rows: Sequence[Sequence[Any]]) -> list[pa.Array]:
    """The columns of rows, one row or more, whose values are as :func:`statehouse.payload.convert` gives them."""
    return [_array(values, field.kind) for field, values in zip(fields, zip(*rows, strict=True), strict=True)]


def refuse_missing(
    fields: Sequence[Field], columns: Sequence[pa.Array], payloads: Sequence[Any], reasons: list[str | None]
) -> None:
    """Put into ``reasons`` why a payload is refused that lacks a column which is required; one that is None is no payload."""
    for field, column in zip(fields, columns, strict=True):
        if field.required and column.null_count:
            missing = f"{field.name}: found nothing, expected {field.kind.ddl} NOT NULL"
            for index in pc.indices_nonzero(column.is_null()).to_pylist():
                if payloads[index] is not None and reasons[index] is None:
                    reasons[index] = missing


@functools.lru_cache(maxsize=64)
def decoder_of(fields: tuple[Field, ...]) -> Decoder:
    """The decoder of some columns, made once in a process."""
    return Decoder(fields)


def _present(texts: Iterable[str | None]) -> list[int]:
    return [index for index, text in enumerate(texts) if text is not None]


def _typed(kind: Type) -> Any:
    """What msgspec gives of a column: its values, its text, or JSON."""
    return str if kind.name in TIMES else _plain_type(kind) or msgspec.Raw


def _row_type(fields: Sequence[Field]) -> Any:
    """A type for msgspec with the fields ``c0``, ``c1`` and so on; None where it cannot have a column's name."""
    nothing = msgspec.Raw(b"null")
    kinds = [_typed(field.kind) for field in fields]
    columns = [
        (f"c{number}", kind, nothing) if kind is msgspec.Raw else (f"c{number}", kind | None, None)
        for number, kind in enumerate(kinds)
    ]
    try:
        renamed = {f"c{number}": field.name for number, field in enumerate(fields)}
        return msgspec.defstruct("Row", columns, rename=renamed, gc=False, frozen=True)
    except ValueError:  # a name with a quote in it
        return None


def _plain_type(kind: Type) -> Any:
    """The type whose values msgspec gives as Arrow takes them; None where there is none."""
    if kind.name in INTEGERS:
        limit = 1 << (INTEGERS[kind.name] - 1)
        # msgspec has 64 bits for a limit, and takes longer integers: so it is told of neither of the outermost.
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    if kind.name == "ARRAY":
        element = _plain_type(kind.parts[0])
        return None if element is None else list[element | None]  # type: ignore[valid-type]
    if kind.name == "STRUCT":
        parts = {name: _plain_type(part) for name, part in kind.fields}
        # msgspec 0.22 passes over a name that is not ASCII where the payload has it with escapes.
        if None in parts.values() or not all(map(str.isascii, parts)):
            return None
        return TypedDict("Struct", {n: part | None for n, part in parts.items()}, total=False)  # type: ignore[operator]
    if kind.name == "FLOAT":
        return Annotated[float, msgspec.Meta(ge=-GREATEST_FLOAT, le=GREATEST_FLOAT)]
    return {"STRING": str, "BOOLEAN": bool, "DOUBLE": float, "BINARY": bytes}.get(kind.name)


def _array(values: Sequence[Any], kind: Type) -> pa.Array:
    if kind.name.startswith("TIMESTAMP"):
        return pa.array(values, pa.int64()).view(kind.arrow)
    if kind.name == "DATE":
        return pa.array(values, pa.int32()).view(kind.arrow)
    column = pa.array(values, kind.arrow)
    return _without_minus_zero(column) if any(leaf.name in FLOATS for leaf in kind.leaves) else column


def _without_minus_zero(column: pa.Array) -> pa.Array:
    """A column in which -0.0 is 0.0: DuckDB makes that of it where it orders rows, Spark does not."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.add(column, pa.scalar(0, kind))
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            column.offsets, _without_minus_zero(column.values), type=kind, mask=column.is_null()
        )
    if pa.types.is_map(kind):
        items = _without_minus_zero(column.items)
        return pa.MapArray.from_arrays(column.offsets, column.keys, items, type=kind, mask=column.is_null())
    if pa.types.is_struct(kind):
        fields = [_without_minus_zero(column.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    return column


def _finish(values: list[Any], kind: Type, left: set[int]) -> list[Any] | pa.Array:
    """Text, or JSON, as values of a type; the payloads where it is none are ``left``."""
    if kind.name in ("DATE", "TIMESTAMP"):
        column = pa.array(values, pa.string())
        # Arrow reads a whole column of the common form, and also an hour without minutes.
        if kind.name == "DATE" or pc.all(pc.equal(pc.utf8_slice_codeunits(column, 13, 14), ":")).as_py():
            with suppress(pa.ArrowInvalid):
                return _within(column.cast(kind.arrow))
    for index, value in enumerate(values):
        try:
            if isinstance(value, msgspec.Raw):
                text = as_text(value)
                # A number is as it is; text in quotes may have escapes.
                bare = kind.name == "DECIMAL" and text[0] not in '"[{n'
                value = value if bare else read(value)
            values[index] = convert(value, kind)
        except Refused:
            left.add(index)
            values[index] = None
    return values


def _within(column: pa.Array) -> pa.Array:
    """A column of days or moments; ArrowInvalid where one is outside of the years 1 to 9999."""
    ends = pc.min_max(column.view(pa.int64() if column.type != pa.date32() else pa.int32())).as_py()
    least, greatest = LEAST_TIME, GREATEST_TIME
    if column.type == pa.date32():
        least, greatest = least // (86400 * SECOND), greatest // (86400 * SECOND)
    if ends["min"] is not None and not (least <= ends["min"] and ends["max"] <= greatest):
        raise pa.ArrowInvalid("outside the years 1 to 9999")
    return column


def in_payloads(fields: Sequence[Field], texts: Sequence[str | None]) -> pa.StructArray:
    """What payloads that were accepted without some columns have for them; null where the payload would be refused for it."""
    columns = [Decoder([field]).decode(texts)[0][0] for field in fields]
    return pa.StructArray.from_arrays(columns, names=[field.name for field in fields])
