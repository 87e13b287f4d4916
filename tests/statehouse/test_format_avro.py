"""Avro as columns: what a producer wrote, against the same object as JSON."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import struct

import fastavro
import pytest

from statehouse.decoder import Decoder
from statehouse.formats import avro
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import Format, Schema
from statehouse.payload import Field
from statehouse.types import parse_type
from tests.support.avro import Refused, as_json, column, draw_schema, draw_value, encoded
from tests.support.depth import sized
from tests.support.payloads import ddl, draw_type

SCHEMAS, PAYLOADS = sized((30, 1000), (50, 100))


def framed(id, payload):
    return struct.pack(">bI", 0, id) + payload


def schema(drawn, *references):
    return Schema("AVRO", json.dumps(drawn), tuple((name, json.dumps(text)) for name, text in references))


def columns(drawn):
    return tuple(Field(name, kind) for name, kind in avro.columns(schema(drawn)))


def decode(fields, payloads, *schemas):
    """Payloads by schemas whose ids are 1, 2 and so on: their rows, and the reasons."""
    format = Format("avro", framed=True, schemas=tuple((str(id), found) for id, found in enumerate(schemas, 1)))
    found, reasons = decoder_of(tuple(fields), format).decode(payloads, [None] * len(payloads))
    return list(zip(*(column.to_pylist() for column in found), strict=True)), reasons


def oracle(fields, drawn, value):
    """The row that the same object gives as JSON; None where it is refused."""
    try:
        text = as_json(drawn, value)
    except Refused:
        return None
    found, (reason,) = Decoder(fields).decode([text])
    return None if reason else tuple(column.to_pylist()[0] for column in found)


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_a_record_is_what_its_json_is(seed):
    dice = random.Random(seed)
    drawn = draw_schema(dice)
    fields = columns(drawn)
    assert [(f.name, f.kind) for f in fields] == [(f["name"], parse_type(column(f["type"]))) for f in drawn["fields"]]
    values = [draw_value(dice, drawn) for _ in range(PAYLOADS)]
    written = [framed(1, encoded(drawn, value)) for value in values]
    # Columns as they are derived, and columns of any other types.
    others = tuple(Field(f.name, parse_type(ddl(draw_type(dice)))) for f in fields if dice.random() < 0.8)
    for kinds in (fields, others):
        if not kinds:
            continue
        rows, reasons = decode(kinds, written, schema(drawn))
        for value, row, reason in zip(values, rows, reasons, strict=True):
            right = _only(kinds, drawn, value)
            assert (reason is None) == (right is not None), (value, reason, right)
            assert row == (right or (None,) * len(kinds)), (value, row, right)
            assert reason is None or reason.startswith("schema 1: "), reason


def _only(kinds, drawn, value):
    """What the oracle says of the columns alone: what no column is asked of is not looked at."""
    names = {f.name for f in kinds}
    kept = {**drawn, "fields": [f for f in drawn["fields"] if f["name"] in names]}
    return oracle(kinds, kept, value)


@pytest.mark.parametrize("seed", range(sized(10, 500)))
def test_rubbish_is_refused_or_a_row_and_nothing_else(seed):
    dice = random.Random(seed)
    drawn = draw_schema(dice)
    written = framed(1, encoded(drawn, draw_value(dice, drawn)))
    cut = [written[:end] for end in range(len(written))]
    odd = [bytearray(written) for _ in range(50)]
    for found in odd:
        found[dice.randrange(len(found))] = dice.randrange(256)
    noise = [dice.randbytes(dice.randrange(60)) for _ in range(50)] + [framed(1, dice.randbytes(20)) for _ in range(50)]
    fields = columns(drawn)
    _, reasons = decode(fields, cut, schema(drawn))
    assert None not in reasons, "a record that is cut off is none"
    _, reasons = decode(fields, [*map(bytes, odd), *noise, written + b"\0"], schema(drawn))
    assert (reasons[-1] and "1 bytes after the record" in reasons[-1]) or reasons[-1].startswith("schema 1: ")


def test_what_is_refused_says_what_was_found():
    drawn = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    other = Schema("PROTOBUF", 'syntax = "proto3";')
    payloads = [b"", b'{"n": 1}', framed(2, b""), framed(3, b""), framed(4, b""), framed(5, b"")]
    _, reasons = decode(columns(drawn), payloads, schema(drawn), None, other, Schema("AVRO", "{"))
    assert reasons == [
        "found nothing, expected the byte 0 and the id of a schema in four bytes",
        "found the bytes 7b 22 6e 22 3a …, expected the byte 0 and the id of a schema in four bytes",
        "schema 2: found an id that the registry does not have, expected one of a schema that is registered",
        "schema 3: found a schema of PROTOBUF, expected one of AVRO",
        reasons[4],
        "unknown schema: 5",
    ]
    assert reasons[4].startswith("schema 4: found a schema that cannot be read (JSONDecodeError")


def test_an_id_may_be_in_a_header_and_may_be_a_guid():
    drawn = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    guid = "00112233-4455-6677-8899-aabbccddeeff"
    found = schema(drawn)
    decoder = decoder_of(columns(drawn), Format("avro", framed=True, schemas=(("1", found), (guid, found))))
    raw, by_guid = encoded(drawn, {"n": 7}), b"\1" + bytes.fromhex(guid.replace("-", ""))
    made, reasons = decoder.decode([raw, raw, by_guid + raw, raw], [framed(1, b""), by_guid, None, b"\2"])
    assert made[0].to_pylist() == [7, 7, 7, None]
    assert reasons == [
        *[None] * 3,
        "header __value_schema_id: found the bytes 02, expected the byte 0 and the id of a schema in four bytes",
    ]


def test_each_record_is_read_by_the_schema_that_it_was_written_with():
    first = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    second = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "string"}, {"name": "a", "type": "long"}]}
    third = {"type": "record", "name": "R", "fields": [{"name": "c", "type": "string"}]}
    written = [
        framed(1, encoded(first, {"a": 1, "b": "x"})),
        framed(2, encoded(second, {"a": 2, "b": "y"})),
        framed(2, encoded(second, {"a": 2**40, "b": "y"})),
        framed(3, encoded(third, {"c": "z"})),
    ]
    rows, reasons = decode(columns(first), written, schema(first), schema(second), schema(third))
    assert rows == [(1, "x"), (2, "y"), (None, None), (None, None)]
    assert reasons == [None, None, "schema 2: a: found 1099511627776, expected INT", None]


def test_a_schema_may_refer_to_others():
    address = {"type": "record", "name": "com.x.Address", "fields": [{"name": "city", "type": "string"}]}
    drawn = {"type": "record", "name": "R", "fields": [{"name": "home", "type": ["null", "com.x.Address"]}]}
    whole = {"type": "record", "name": "R", "fields": [{"name": "home", "type": ["null", address]}]}
    fields = columns(whole)
    found = schema(drawn, ("com.x.Address", address))
    assert avro.columns(found) == avro.columns(schema(whole))
    rows, reasons = decode(fields, [framed(1, encoded(whole, {"home": {"city": "Ulm"}}))], found)
    assert (rows, reasons) == ([({"city": "Ulm"},)], [None])


def test_a_record_in_itself_is_json_and_may_not_be_endless():
    drawn = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "N"]}],
    }
    assert [kind.ddl for _, kind in avro.columns(schema(drawn))] == ["INT", "STRING"]

    def chain(count):
        return framed(1, b"\x02\x02" * (count - 1) + b"\x02\x00")

    payloads = [chain(1), chain(3), chain(avro.DEEPEST), chain(avro.DEEPEST + 1), chain(5000), chain(1_000_000)]
    rows, reasons = decode(columns(drawn), payloads, schema(drawn))
    assert rows[:2] == [(1, None), (1, '{"v":1,"next":{"v":1,"next":null}}')]
    assert reasons == [None, None, None, *["schema 1: nested more than 100 levels deep"] * 3]


def test_few_bytes_do_not_make_many_elements():
    drawn = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    _, reasons = decode([Field("a", parse_type("ARRAY<STRING>"))], [framed(1, b"\xff" * 8 + b"\x01\0")], schema(drawn))
    assert reasons == ["schema 1: found an array of what has no bytes, expected elements that have some"]


def test_a_topic_may_have_several_records():
    one = {"type": "record", "name": "One", "fields": [{"name": "id", "type": "long"}, {"name": "a", "type": "string"}]}
    other = {
        "type": "record",
        "name": "Other",
        "fields": [{"name": "b", "type": "int"}, {"name": "id", "type": "long"}],
    }
    drawn = [one, other]
    assert [(f.name, f.kind.ddl) for f in columns(drawn)] == [("id", "BIGINT"), ("a", "STRING"), ("b", "INT")]
    written = [
        framed(1, encoded(drawn, ("One", {"id": 1, "a": "x"}))),
        framed(1, encoded(drawn, ("Other", {"id": 2, "b": 3}))),
    ]
    rows, reasons = decode(columns(drawn), written, schema(drawn))
    assert (rows, reasons) == ([(1, "x", None), (2, None, 3)], [None, None])


def test_a_payload_need_not_be_a_record():
    for drawn, value, right in (("string", "x", "x"), (["null", "long"], 7, 7), (["null", "long"], None, None)):
        assert decode(columns(drawn), [framed(1, encoded(drawn, value))], schema(drawn)) == ([(right,)], [None])


def test_moments_in_nanoseconds_are_cut_off():
    drawn = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "t", "type": {"type": "long", "logicalType": "timestamp-nanos"}}],
    }
    out = io.BytesIO()
    plain = {"type": "record", "name": "R", "fields": [{"name": "t", "type": "long"}]}
    fastavro.schemaless_writer(out, plain, {"t": 1_700_000_000_123_456_789})
    ((moment,),), reasons = decode(columns(drawn), [framed(1, out.getvalue())], schema(drawn))
    assert reasons == [None]
    assert moment.replace(tzinfo=None) == dt.datetime(2023, 11, 14, 22, 13, 20, 123456)
