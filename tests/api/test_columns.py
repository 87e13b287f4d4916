"""Rows as text, a column at a time, are what they are one by one."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from api.engine.columns import lines, listed, ndjson, texts
from api.engine.exact_json import dumps
from api.replica.snapshot import Snapshot
from api.replica.storage import of_table
from tests.support.api_lake import configured, rule

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
TIMES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
PLAIN: list[tuple[pa.DataType, st.SearchStrategy]] = [
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.one_of(TIMES, TIMES.map(lambda t: t.replace(microsecond=0)))),
    *((pa.decimal128(38, s), st.decimals(-(10**9), 10**9, places=s)) for s in (0, 2, 6, 7, 20)),
]


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy]:
    """A type, and its values."""
    kind = draw(st.sampled_from(["plain"] * 3 + ["list", "map", "struct"] * (depth > 0)))
    if kind == "plain":
        made, values = draw(st.sampled_from(PLAIN))
    elif kind == "list":
        inner, values = draw(columns(depth - 1))
        made, values = pa.list_(inner), st.lists(values, max_size=3)
    elif kind == "map":
        key, keys = draw(st.sampled_from(PLAIN[:5]))
        inner, values = draw(columns(depth - 1))
        made, values = pa.map_(key, inner), st.dictionaries(keys, values, max_size=3).map(lambda d: list(d.items()))
    else:
        fields = {name: draw(columns(depth - 1)) for name in draw(st.lists(TEXT, unique=True, max_size=3))}
        made = pa.struct([(name, inner) for name, (inner, _) in fields.items()])
        values = st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})
    return made, st.one_of(st.none(), values)


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """Some values of a type, out of more of them."""
    kind, values = draw(columns())
    array = pa.array(draw(st.lists(values, max_size=8)), kind)
    first, last = sorted((draw(st.integers(0, 8)), draw(st.integers(0, 8))))
    return array[first:last]


@given(arrays())
@example(pa.array([b"", None], pa.binary()))
@example(pa.array([Decimal("0E-7"), Decimal("1E-7")], pa.decimal128(38, 7)))
def test_texts_are_those_of_each_value(array: pa.Array) -> None:
    right = [dumps(value) for value in array.to_pylist(maps_as_pydicts="strict")]
    assert texts(array).to_pylist() == right
    rows = [dumps({"a": value, 'b"': value}) for value in array.to_pylist(maps_as_pydicts="strict")]
    assert lines({"a": array, 'b"': array}) == rows
    assert ndjson({"a": array, 'b"': array}).decode() == "".join(f"{row}\n" for row in rows)
    assert listed({"a": array, 'b"': array}).decode() == ",".join(rows)


REPORT = pa.struct([("value", pa.int64()), ("event_time", pa.timestamp("us")), ("_order", pa.int64())])
KINDS = {
    "key": pa.string(),
    "value": pa.float32(),
    "reports": pa.map_(pa.string(), REPORT),
    "reset": pa.decimal128(38, 0),
    "_best": pa.float32(),
}
TYPES = {"key": "VARCHAR", "value": "FLOAT", "reports": "MAP", "reset": "DECIMAL(38,0)", "_best": "FLOAT"}
reports = st.fixed_dictionaries(
    {"value": st.one_of(st.none(), st.integers(0, 9)), "event_time": TIMES, "_order": st.just(1)}
)
rows = st.fixed_dictionaries(
    {
        "key": TEXT,
        "value": st.one_of(st.none(), st.floats(width=32)),
        "reports": st.one_of(st.none(), st.dictionaries(TEXT, reports, max_size=3).map(lambda d: list(d.items()))),
        "reset": st.one_of(st.none(), st.integers(-(10**17), 10**17).map(lambda us: Decimal(us * 10**20 + 7))),
        "_best": st.just(0.5),
    }
)


@pytest.fixture(scope="module")
def status(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return rule(configured(tmp_path_factory.mktemp("columns")), "status")


@given(st.lists(rows, max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_what_callers_see_of_many_is_what_they_see_of_one(status: Any, found: list[dict], begin: int, end: int) -> None:
    table = pa.Table.from_pylist(found, pa.schema(KINDS)).combine_chunks()
    snapshot: Snapshot = of_table(table, status, TYPES)
    part = {name: column[begin:end] for name, column in snapshot.columns.items()}
    shown = snapshot.public(part)
    right = [snapshot.shown_row(row) for row in snapshot.rows(part)]
    assert lines(shown) == [dumps(row) for row in right]
    assert list(shown) == snapshot.schema().names == ["key", "value", "reports", "reset"]
