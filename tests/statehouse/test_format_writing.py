"""What is written with a schema is what is read by it: every type, at its edges."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.formats.columns import columns_of
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import AVRO, IN_FILE, JSON_SCHEMA, Format
from statehouse.formats.writing import avro_payloads, frame, schema_of
from statehouse.payload import Field
from statehouse.types import parse_type

UTC = dt.timezone.utc
SCALARS = {
    "STRING": st.text(),
    "BOOLEAN": st.booleans(),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "FLOAT": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "DOUBLE": st.floats(allow_nan=False, allow_infinity=False),
    "BINARY": st.binary(),
    "DATE": st.dates(),
    "TIMESTAMP": st.datetimes(timezones=st.just(UTC)),
    "TIMESTAMP_NTZ": st.datetimes(),
    "DECIMAL(38, 10)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10")),
    "DECIMAL(1, 0)": st.integers(-9, 9).map(Decimal),
}
NAMES = ("a", "b", "a_b", "item", "a_item", "entry", "value", "_x", "null", "string", "record")


def scalars():
    return st.sampled_from(sorted(SCALARS)).map(lambda name: (name, st.none() | SCALARS[name]))


def nested(kinds):
    """Types of some parts, each with its values."""
    arrays = kinds.map(lambda k: (f"ARRAY<{k[0]}>", st.none() | st.lists(k[1], max_size=3)))
    maps = kinds.map(
        lambda k: (f"MAP<STRING, {k[0]}>", st.none() | st.dictionaries(st.text(max_size=3), k[1], max_size=3))
    )
    fields = st.dictionaries(st.sampled_from(NAMES), kinds, min_size=1, max_size=3)
    structs = fields.map(
        lambda parts: (
            f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, (kind, _) in parts.items())}>",
            st.none() | st.fixed_dictionaries({name: values for name, (_, values) in parts.items()}),
        )
    )
    return arrays | maps | structs


COLUMNS = st.dictionaries(st.sampled_from(NAMES), st.recursive(scalars(), nested, max_leaves=4), min_size=1, max_size=4)


@given(st.data(), COLUMNS)
def test_a_row_in_avro(data, columns):
    kinds = [(name, parse_type(kind)) for name, (kind, _) in columns.items()]
    row = {name: data.draw(values) for name, (_, values) in columns.items()}
    schema = schema_of(AVRO, "my-topic", kinds)
    assert [(name, kind.ddl) for name, kind in columns_of(AVRO, schema)] == [(name, kind.ddl) for name, kind in kinds]
    fields = tuple(Field(name, kind) for name, kind in kinds)
    decoder = decoder_of(fields, Format(AVRO, schemas=((IN_FILE, schema),)))
    rows = pa.array([row], pa.struct([(name, kind.arrow) for name, kind in kinds]))
    (payload,) = avro_payloads(schema, kinds, 7, rows).to_pylist()
    assert payload.startswith(frame(7))
    found, reasons = decoder.decode([payload[5:]], [None])
    assert reasons == [None]
    assert {n: column.to_pylist(maps_as_pydicts="strict")[0] for n, column in zip(row, found, strict=True)} == row


def test_records_inside_of_others_have_names_of_their_own():
    inner = "STRUCT<x: INT>"
    for kinds in (
        {"a": f"STRUCT<b: {inner}>", "a_b": inner},
        {"a": f"ARRAY<{inner}>", "a_item": inner, "item": inner},
        {"m": f"MAP<STRING, {inner}>", "m_entry": inner, "entry": f"ARRAY<{inner}>"},
    ):
        columns = [(name, parse_type(kind)) for name, kind in kinds.items()]
        fastavro.parse_schema(json.loads(schema_of(AVRO, "t", columns).text))


def test_text_that_is_not_utf_8_is_shown_as_such():
    kind = parse_type("STRUCT<a: ARRAY<STRING>, m: MAP<STRING, STRING>, b: BINARY, n: INT>")
    bad = pa.array([b"\xff", b"ok"], pa.binary())
    texts = pa.ListArray.from_arrays([0, 2], pa.StringArray.from_buffers(2, bad.buffers()[1], bad.buffers()[2]))
    maps = pa.array([[("k", "v")]], pa.map_(pa.string(), pa.string()))
    rows = pa.StructArray.from_arrays(
        [texts, maps, pa.array([b"\xff"]), pa.array([7], pa.int32())], ["a", "m", "b", "n"]
    )
    columns = [("whole", kind)]
    schema = schema_of(AVRO, "t", columns)
    (payload,) = avro_payloads(schema, columns, 1, pa.StructArray.from_arrays([rows], ["whole"])).to_pylist()
    found = fastavro.schemaless_reader(io.BytesIO(payload[5:]), fastavro.parse_schema(json.loads(schema.text)), None)
    assert found == {"whole": {"a": ["\ufffd", "ok"], "m": {"k": "v"}, "b": b"\xff", "n": 7}}


@given(COLUMNS)
def test_the_columns_of_json_schema(columns):
    kinds = [(name, parse_type(kind)) for name, (kind, _) in columns.items()]
    read = dict(columns_of(JSON_SCHEMA, schema_of(JSON_SCHEMA, "t", kinds)))
    for name, kind in kinds:  # it has neither decimals nor times without a zone
        if not {"DECIMAL", "TIMESTAMP_NTZ"} & {leaf.name for leaf in kind.leaves}:
            assert read[name].ddl == kind.ddl


def test_names():
    assert json.loads(schema_of(AVRO, "9-a.b", [("x", parse_type("INT"))]).text)["name"] == "_9_a_b"
    with pytest.raises(ValueError, match="found the column 'é', expected a name of Avro's"):
        schema_of(AVRO, "t", [("é", parse_type("INT"))])
    with pytest.raises(ValueError, match="found the column 'a-b'"):
        schema_of(AVRO, "t", [("x", parse_type("STRUCT<`a-b`: INT>"))])
    assert frame(258) == b"\0\0\0\x01\x02"
