"""One value of a column is Arrow's own, however the column came about."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from api.engine.cells import cell
from api.engine.columns import texts
from api.engine.exact_json import dumps

MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
KINDS = {
    pa.string(): st.text(st.characters(codec="utf-8")),
    pa.large_string(): st.text(st.characters(codec="utf-8")),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("ms"): MOMENTS.map(lambda moment: moment.replace(microsecond=0)),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.decimal128(38, 6): st.decimals(-(10**9), 10**9, places=6),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text("ab"), st.integers(0, 9)).map(lambda d: list(d.items())),
}


@given(st.data(), st.sampled_from(list(KINDS)), st.sampled_from(("whole", "sliced", "taken", "joined", "file")))
def test_a_value_is_arrows(data, kind, way):
    values = data.draw(st.lists(st.none() | KINDS[kind], max_size=20))
    column = pa.array(values, kind)
    if way == "sliced":
        column = column[data.draw(st.integers(0, 3)) :]
    elif way == "taken":
        column = column.take(pa.array(range(0, len(values), 2), pa.int64()))
    elif way == "joined":
        column = pa.concat_arrays([column, column[1:]])
    elif way == "file":
        sink = pa.BufferOutputStream()
        batch = pa.record_batch({"c": column})
        with pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
        column = pa.ipc.open_file(sink.getvalue()).get_batch(0)["c"]
    at = cell(column)
    assert [at(place) for place in range(len(column))] == column.to_pylist(maps_as_pydicts="strict")


FAR = [-62_135_596_800_000_001, 253_402_300_800_000_000, -(2**62), 2**62, 253_402_300_800_000_001, 0, None]
DAYS = [-719_163, 2_932_897, 0, None]  # the last before the year 1, the first of the year 10000
MICROS = pa.timestamp("us")


def test_a_time_that_python_has_no_value_for_takes_nothing_else_with_it():
    moments, days = pa.array(FAR, pa.int64()).view(MICROS), pa.array(DAYS, pa.int32()).view(pa.date32())
    some = pa.StructArray.from_arrays([moments, pa.array(range(len(FAR)), pa.int64())], ["at", "n"])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 7], pa.int32()), moments)
    maps = pa.MapArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(list("abcdefg")), some)
    for column in (moments, moments[1:], days, some, lists, maps):
        assert [dumps(cell(column)(place)) for place in range(len(column))] == texts(column).to_pylist()
    assert cell(moments)(1) == "10000-01-01T00:00:00Z" and cell(moments)(5) == dt.datetime(1970, 1, 1)
    assert cell(days)(0) == "0000-12-31"
