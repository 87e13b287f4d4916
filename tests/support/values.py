"""Values of every type of Spark's, drawn, and in the forms that each side has of them."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st
from sqlglot import exp

from api.engine.exact_json import dumps
from api.engine.types import conforming
from tests.support.oracle import YEAR_ONE
from tests.support.records import EPOCH

LAST = 253_402_300_799_999_999  # 9999-12-31T23:59:59.999999
MOMENTS = st.one_of(
    st.sampled_from([YEAR_ONE, YEAR_ONE + 1, LAST, LAST - 1, -1, 0, 1, 2**31, -(2**31)]),
    st.sampled_from(
        [-12_219_292_800_000_000, -9_223_372_036_854_775, 9_223_372_036_854_776, -62_135_596_799_999_999]
    ),  # 1582, 1677 and 2262
    st.integers(YEAR_ONE, LAST),
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
SCALARS = [
    *("STRING", "BOOLEAN", "DATE", "TIMESTAMP", "BINARY", "FLOAT", "DOUBLE", *BITS),
    *("TIMESTAMP_NTZ", "DECIMAL(38, 0)", "DECIMAL(38, 10)", "DECIMAL(38, 36)", "DECIMAL(5, 2)"),
]
NUMBERS = ("DECIMAL", "FLOAT", "DOUBLE", *BITS)
NESTED = [
    "ARRAY<INT>",
    "ARRAY<STRUCT<At: TIMESTAMP, `a b`: DECIMAL(38, 10)>>",
    "STRUCT<Name: STRING, order: BIGINT, inner: STRUCT<deepField: DATE>>",
    "STRUCT<x: ARRAY<TIMESTAMP>, Y: BOOLEAN>",
    "MAP<STRING, TIMESTAMP>",
    "STRUCT<m: MAP<STRING, STRUCT<v: DOUBLE>>>",
    "STRUCT<b: BINARY, L: ARRAY<BINARY>, m: MAP<STRING, STRUCT<b: BINARY>>>",
]
KINDS = [*SCALARS, *NESTED]


def tree(kind):
    """A type as sqlglot has it."""
    return exp.DataType.build(kind, dialect="spark")


def inner(kind):
    """The types in a nested type, with the names of a struct's fields."""
    return {
        (part.name if isinstance(part, exp.ColumnDef) else str(place)): (
            part.args["kind"] if isinstance(part, exp.ColumnDef) else part
        ).sql("spark")
        for place, part in enumerate(tree(kind).expressions)
    }


def digits(kind):
    """A decimal's precision and scale."""
    return tuple(map(int, re.findall(r"\d+", kind)))


def arrow(kind):
    """Arrow's type."""
    if kind.startswith("DECIMAL"):
        return pa.decimal128(*digits(kind))
    if kind.startswith("ARRAY"):
        return pa.list_(arrow(inner(kind)["0"]))
    if kind.startswith("MAP"):
        return pa.map_(pa.string(), arrow(inner(kind)["1"]))
    if kind.startswith("STRUCT"):
        return pa.struct([(name, arrow(of)) for name, of in inner(kind).items()])
    return {
        **{"STRING": pa.string(), "BOOLEAN": pa.bool_(), "DATE": pa.date32(), "BINARY": pa.binary()},
        **{"FLOAT": pa.float32(), "DOUBLE": pa.float64(), "TIMESTAMP": pa.timestamp("us", "UTC")},
        **{"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()},
        **{"TIMESTAMP_NTZ": pa.timestamp("us")},
    }[kind]


def moment(micros):
    """A naive UTC datetime."""
    return EPOCH + dt.timedelta(microseconds=micros)


def drawn(kind, narrow=False):
    """Values of a type, also of its edges, as :func:`comparable` has them; ``narrow``: that can be added up."""
    if kind in BITS:
        limit = 2 ** (BITS[kind] - 1)
        return st.sampled_from([-limit, limit - 1, 0, 1]) | st.integers(-limit, limit - 1)
    if kind.startswith("DECIMAL"):
        precision, scale = digits(kind)
        most = 10 ** (precision - (4 if narrow and precision > 30 else 0)) - 1
        return (st.sampled_from([most, -most, 0, 1]) | st.integers(-most, most)).map(lambda n: unscaled(n, scale))
    if kind.startswith("ARRAY"):
        return st.lists(st.none() | part(inner(kind)["0"]), max_size=3).map(tuple)
    if kind.startswith("MAP"):
        return st.dictionaries(TEXT, st.none() | part(inner(kind)["1"]), max_size=3).map(lambda d: frozenset(d.items()))
    if kind.startswith("STRUCT"):
        return st.tuples(*(st.none() | part(of) for of in inner(kind).values()))
    eighths = st.integers(-800, 800).map(lambda n: n / 8) | st.just(-0.0)
    return {
        **{"STRING": TEXT, "BOOLEAN": st.booleans(), "BINARY": st.binary(max_size=4)},
        **{"DATE": MOMENTS.map(lambda m: moment(m).date()), "TIMESTAMP": MOMENTS, "TIMESTAMP_NTZ": MOMENTS},
        **{"FLOAT": eighths, "DOUBLE": eighths if narrow else eighths | st.sampled_from([1e300, -1e300, 5e-324])},
    }[kind]


def part(kind):
    """A value within another, as a changelog has it: its zeros have no sign."""
    return drawn(kind).map(lambda value: value + 0.0 if isinstance(value, float) else value)


def unscaled(number, scale):
    """A decimal of its digits; Decimal's own methods round to 28."""
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def comparable(value, kind):
    """A value as Python or Arrow gives it, in the form that :func:`drawn` has: it can be compared, and counted."""
    if value is None:
        return None
    if kind.startswith("TIMESTAMP"):
        return (value.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)
    if kind.startswith("ARRAY"):
        return tuple(comparable(part, inner(kind)["0"]) for part in value)
    if kind.startswith("MAP"):
        return frozenset((key, comparable(part, inner(kind)["1"])) for key, part in dict(value).items())
    if kind.startswith("STRUCT"):
        assert [*value] == [*inner(kind)], "fields have the names that they were declared with"
        return tuple(comparable(value[name], of) for name, of in inner(kind).items())
    if kind in ("FLOAT", "DOUBLE"):
        assert value or math.copysign(1, value) == 1, "-0.0 is 0.0"
    return bytes(value) if kind == "BINARY" else value


def in_python(value, kind):
    """The opposite, as Arrow takes it."""
    if value is None:
        return None
    if kind.startswith("TIMESTAMP"):
        return moment(value)
    if kind.startswith("ARRAY"):
        return [in_python(part, inner(kind)["0"]) for part in value]
    if kind.startswith("MAP"):
        return [(key, in_python(part, inner(kind)["1"])) for key, part in value]
    if kind.startswith("STRUCT"):
        return {name: in_python(part, of) for (name, of), part in zip(inner(kind).items(), value, strict=True)}
    return value


def as_set(value, kind):
    """What a set of the value has in the changelog: the text that the API sends."""
    if value is None:
        return None
    sent = conforming(_in_json(value, kind), kind)
    return sent if isinstance(sent, str) else dumps(sent)


def _in_json(value, kind):
    """A value as the API's reader of JSON has it."""
    if value is None or isinstance(value, bool | int):
        return None if value is None else moment(value).isoformat() + "Z" if kind.startswith("TIMESTAMP") else value
    if kind.startswith("ARRAY"):
        return [_in_json(part, inner(kind)["0"]) for part in value]
    if kind.startswith("MAP"):
        return {key: _in_json(part, inner(kind)["1"]) for key, part in value}
    if kind.startswith("STRUCT"):
        return {name: _in_json(part, of) for (name, of), part in zip(inner(kind).items(), value, strict=True)}
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, bytes):
        return dumps(value).strip('"')
    return value.isoformat() if isinstance(value, dt.date) else value
