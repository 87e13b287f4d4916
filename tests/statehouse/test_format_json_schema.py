"""JSON Schema: the columns that a schema has, and records that a real producer wrote by one."""

from __future__ import annotations

import json
import struct

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given
from hypothesis import strategies as st

from statehouse.decoder import Decoder
from statehouse.formats import json_schema
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import Format, Schema
from statehouse.payload import Field, Refused
from statehouse.types import parse_type
from tests.support.registry import SchemaRegistry

NUMBER, TEXT = {"type": "number"}, {"type": "string"}
TYPES = [
    (TEXT, "STRING"),
    (NUMBER, "DOUBLE"),
    ({"type": "integer"}, "BIGINT"),
    ({"type": "integer", "connect.type": "int16"}, "SMALLINT"),
    ({"type": "number", "connect.type": "float32"}, "FLOAT"),
    ({"type": "boolean"}, "BOOLEAN"),
    ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
    ({"type": "string", "format": "date"}, "DATE"),
    ({"type": "string", "format": "uuid"}, "STRING"),
    ({"type": "string", "contentEncoding": "base64"}, "BINARY"),
    ({"enum": ["a", "b"]}, "STRING"),
    ({"type": ["null", "integer"]}, "BIGINT"),
    ({"type": ["integer", "number", "null"]}, "DOUBLE"),
    ({"type": ["string", "integer"]}, "STRING"),
    ({"oneOf": [{"type": "null"}, NUMBER]}, "DOUBLE"),
    ({"anyOf": [TEXT, NUMBER]}, "STRING"),
    ({"type": "array", "items": {"type": "integer"}}, "ARRAY<BIGINT>"),
    ({"type": "array"}, "ARRAY<STRING>"),
    ({"type": "object"}, "STRING"),
    ({"type": "object", "additionalProperties": NUMBER}, "MAP<STRING, DOUBLE>"),
    ({"type": "object", "properties": {"a": TEXT, "A": TEXT}}, "STRING"),
    ({"properties": {"a": TEXT}}, "STRUCT<`a`: STRING>"),
    ({"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": NUMBER}}]}, "STRUCT<`b`: DOUBLE, `a`: STRING>"),
    ({"$ref": "#/$defs/n"}, "DOUBLE"),
    ({"$ref": "other.json"}, "STRUCT<`x`: DOUBLE>"),
    ({"$ref": "other.json#/properties/x"}, "DOUBLE"),
    ({"$ref": "#"}, "STRING"),
    (True, "STRING"),
]


@pytest.mark.parametrize(("part", "kind"), TYPES, ids=str)
def test_a_property_has_a_type(part, kind):
    text = json.dumps({"type": "object", "properties": {"p": part}, "$defs": {"n": NUMBER}})
    other = json.dumps({"type": "object", "properties": {"x": NUMBER}})
    ((name, found),) = json_schema.columns(Schema("JSON", text, (("other.json", other),)))
    assert name == "p" and found.ddl == kind
    assert found == parse_type(kind)


def test_alternatives_have_the_properties_of_all():
    text = json.dumps(
        {"oneOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": TEXT}}], "$defs": {"a": {"properties": {"x": NUMBER}}}}
    )
    assert {name: kind.ddl for name, kind in json_schema.columns(Schema("JSON", text))} == {
        "x": "DOUBLE",
        "y": "STRING",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "found a schema that cannot be read (JSONDecodeError"),
        ("true", "found a schema without properties, expected one of an object"),
        ('{"properties": {"a": {"$ref": "#/none"}}}', "found a schema that cannot be read (KeyError"),
        ('{"properties": {"a": {"$ref": "none.json"}}}', "found a reference to none.json, expected a schema"),
        ('{"properties": 5}', "found a schema that cannot be read"),
    ],
)
def test_what_is_none_says_so(text, message):
    with pytest.raises(Refused) as error:
        json_schema.columns(Schema("JSON", text))
    assert message in str(error.value)


ROWS = st.fixed_dictionaries(
    {"id": st.integers(-(2**63), 2**63 - 1)},
    optional={
        "level": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
        "seen": st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    },
)
SCHEMA = {
    "title": "Reading",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "level": NUMBER,
        "tags": {"type": "array", "items": TEXT},
        "seen": {"type": "string", "format": "date-time"},
    },
}


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_what_confluents_serializer_writes_is_its_json(rows):
    with SchemaRegistry() as registry:
        write = JSONSerializer(json.dumps(SCHEMA), SchemaRegistryClient({"url": registry.url}))
        context = SerializationContext("t", MessageField.VALUE)
        payloads = [write(row, context) for row in rows]
        fields = tuple(Field(*column) for column in json_schema.columns(Schema("JSON", json.dumps(SCHEMA))))
        format = Format("json_schema", framed=True, schemas=(("1", Schema("JSON", json.dumps(SCHEMA))),))
    found, reasons = decoder_of(fields, format).decode(payloads, [None] * len(rows))
    right, why = Decoder(fields).decode([json.dumps(row) for row in rows])
    assert [column.to_pylist() for column in found] == [column.to_pylist() for column in right]
    assert reasons == why


def test_what_is_refused_says_the_schemas_id():
    fields = (Field("a", parse_type("INT")),)
    format = Format(
        "json_schema", framed=True, schemas=(("1", Schema("JSON", "{}")), ("2", None), ("3", Schema("AVRO", "{}")))
    )
    head = struct.pack(">bI", 0, 1)
    payloads = [head + b'{"a": 1}', head + b'{"a": "x"}', head + b"{", head + b"\xff", b"{}", b'{"a": 1}', None]
    payloads += [struct.pack(">bI", 0, id) + b"{}" for id in (2, 3, 4)]
    columns, reasons = decoder_of(fields, format).decode(payloads, [*[None] * 5, head, *[None] * 4])
    assert columns[0].to_pylist() == [1, None, None, None, None, 1, *[None] * 4]
    assert reasons == [
        None,
        'schema 1: a: found "x", expected INT',
        "schema 1: not JSON: Input data was truncated",
        "schema 1: not UTF-8",
        "found the bytes 7b 7d, expected the byte 0 and the id of a schema in four bytes",
        None,
        None,
        "schema 2: found an id that the registry does not have, expected one of a schema that is registered",
        "schema 3: found a schema of AVRO, expected one of JSON",
        "unknown schema: 4",
    ]
