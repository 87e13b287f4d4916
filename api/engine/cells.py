"""One value of an Arrow column, in a third of the time of ``column[place].as_py()``: what a point read is made of.

Its buffers are read as the Arrow format has them (https://arrow.apache.org/docs/format/Columnar.html, fixed-size primitive and
variable-size binary layouts). A test holds that the values are Arrow's own. What Python has no value for, a time outside the years 1
to 9999 as some state of long ago may have it, is Arrow's text of it, and takes nothing else with it.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

EPOCH = dt.datetime(1970, 1, 1)
TEXT = pa.large_string()
TEXTS = (pa.string(), TEXT)
INTEGERS = {pa.int64(): "q", pa.int32(): "i", pa.int16(): "h", pa.int8(): "b"}
MOMENT = pa.timestamp("us")
Cell = Callable[[int], Any]


def cell(column: pa.Array) -> Cell:
    """What gives the value at a place of a column, as Python has it; maps as dicts."""
    kind = column.type
    if not len(column) or column.offset:
        return _any(column)
    if kind in TEXTS:
        values_at = _text(column)
    elif kind in INTEGERS:
        values_at = _numbers(column.buffers()[1], INTEGERS[kind]).__getitem__
    elif kind == MOMENT:
        values_at = _moment(column)
    else:
        return _any(column)
    return _or_null(column, values_at) if column.null_count else values_at


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """All values of a column."""
    try:
        return column.to_pylist(maps_as_pydicts="strict")
    except (OverflowError, ValueError):
        return [value_of(scalar) for scalar in column]


def rows_of(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> list[dict[str, Any]]:
    """The rows of some columns."""
    lists = [values(column) for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py(maps_as_pydicts="strict")
    except (OverflowError, ValueError):
        if isinstance(scalar, pa.StructScalar):
            return {name: value_of(part) for name, part in scalar.items()}
        if isinstance(scalar, pa.MapScalar):
            return {value_of(entry["key"]): value_of(entry["value"]) for entry in scalar.values}
        if isinstance(scalar, pa.ListScalar | pa.LargeListScalar):
            return [value_of(part) for part in scalar.values]
        return _far(scalar)


def _far(scalar: pa.Scalar) -> str:
    """A time or a day outside Python's years as :mod:`api.engine.columns` writes it."""
    text = scalar.cast(pa.string()).as_py()
    return text if pa.types.is_date(scalar.type) else f"{text.replace(' ', 'T').removesuffix('.000000')}Z"


def _any(column: pa.Array) -> Cell:
    return lambda place: value_of(column[place])


def _text(column: pa.Array) -> Cell:
    _, offsets, data = column.buffers()
    ends = _numbers(offsets, "q" if column.type == TEXT else "i")
    letters = memoryview(data) if data is not None else memoryview(b"")  # all are empty
    return lambda place: str(letters[ends[place] : ends[place + 1]], "utf-8")


def _moment(column: pa.Array) -> Cell:
    micros = _numbers(column.buffers()[1], "q")

    def found(place: int) -> dt.datetime | str:
        try:
            return EPOCH + dt.timedelta(0, 0, micros[place])
        except OverflowError:
            return _far(column[place])

    return found


def _or_null(column: pa.Array, found: Cell) -> Cell:
    if column.null_count == len(column):
        return lambda place: None
    valid = memoryview(column.buffers()[0])
    return lambda place: found(place) if valid[place >> 3] >> (place & 7) & 1 else None


def _numbers(buffer: pa.Buffer, form: str) -> memoryview:
    data = memoryview(buffer).cast("B")
    return data[: len(data) - len(data) % struct.calcsize(form)].cast(form)  # type: ignore[call-overload]  # of INTEGERS
