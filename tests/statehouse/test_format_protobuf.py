"""Protobuf as columns: what a real producer wrote, against the same object as JSON."""

from __future__ import annotations

import random
import struct

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from statehouse.decoder import Decoder
from statehouse.formats import protobuf
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import Format, Schema
from statehouse.formats.protobuf_files import compile_schema
from statehouse.formats.registry import Registry
from statehouse.payload import Field, Refused
from statehouse.types import parse_type
from tests.support.depth import sized
from tests.support.payloads import ddl, draw_type
from tests.support.proto import HEAD, as_json, column, compile_module, draw_message, draw_value, fill, text_of
from tests.support.proto import Refused as Wrong
from tests.support.registry import SchemaRegistry

SCHEMAS, PAYLOADS = sized((15, 500), (50, 100))
CONTEXT = SerializationContext("t", MessageField.VALUE)
FIRST = struct.pack(">bI", 0, 1) + b"\0"


def schema(text, **references):
    return Schema("PROTOBUF", compile_schema(text, references))


def decode(fields, payloads, *schemas):
    format = Format("protobuf", framed=True, schemas=tuple((str(id), found) for id, found in enumerate(schemas, 1)))
    found, reasons = decoder_of(tuple(fields), format).decode(payloads, [None] * len(payloads))
    return list(zip(*(column.to_pylist() for column in found), strict=True)), reasons


def oracle(fields, message, value):
    try:
        text = as_json(message, value)
    except Wrong:
        return None
    found, (reason,) = Decoder(fields).decode([text])
    return None if reason else tuple(column.to_pylist()[0] for column in found)


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_a_message_is_what_its_json_is(seed):
    dice = random.Random(seed)
    message = draw_message(dice)
    text = HEAD.replace("com.example", f"com.example.s{seed}") + text_of(message)  # Google's runtime has each name once
    made = compile_module(text, f"drawn_{seed}")
    values = [draw_value(dice, message) for _ in range(PAYLOADS)]
    with SchemaRegistry() as registry:
        write = ProtobufSerializer(
            made.R, SchemaRegistryClient({"url": registry.url}), {"use.deprecated.format": False}
        )
        written = []
        for value in values:
            one = made.R()
            fill(one, message, value)
            written.append(write(one, CONTEXT))
        id = int.from_bytes(written[0][1:5], "big")
        by_descriptor = Registry({"url": registry.url}).find([str(id)])[str(id)]  # as the producer registers it
    written = [struct.pack(">bI", 0, 1) + payload[5:] for payload in written]
    kept = protobuf.columns(by_descriptor)
    assert {name: kind for name, kind in kept} == {
        name: parse_type(column(label, kind)) for name, label, kind in message.fields
    }
    assert protobuf.columns(schema(text)) == kept, "as text"
    fields = tuple(Field(*found) for found in kept)
    others = tuple(Field(f.name, parse_type(ddl(draw_type(dice)))) for f in fields if dice.random() < 0.8)
    for kinds in (fields, others):
        if not kinds:
            continue
        rows, reasons = decode(kinds, written, by_descriptor)
        names = {f.name for f in kinds}
        for value, row, reason in zip(values, rows, reasons, strict=True):
            part = type(message)(message.name, [f for f in message.fields if f[0] in names])
            right = oracle(kinds, part, value)
            assert (reason is None) == (right is not None), (value, reason, right)
            assert row == (right or (None,) * len(kinds)), (value, row, right)
            assert reason is None or reason.startswith("schema 1: "), reason


TEXT = 'syntax = "proto3"; message A { int32 a = 1; message B { string b = 1; } } message C { int64 c = 1; }'


def test_a_record_says_which_message_it_is():
    fields = [Field(name, parse_type(kind)) for name, kind in (("a", "INT"), ("b", "STRING"), ("c", "BIGINT"))]
    head = struct.pack(">bI", 0, 1)
    payloads = [
        head + b"\0" + b"\x08\x07",
        head + b"\x02\0" + b"\x08\x07",  # the same, at full length
        head + b"\x04\0\0" + b"\x0a\x01x",
        head + b"\x02\x02" + b"\x08\x05",
        head + b"\x02\x04",
        head + b"\x02\x01",
        head + b"\x02",
        head,
        head + b"\x01",
        head + b"\0" + b"\x0a\x05x",
    ]
    rows, reasons = decode(fields, payloads, schema(TEXT))
    assert rows[:4] == [(7, None, None), (7, None, None), (None, "x", None), (None, None, 5)]
    assert reasons[:4] == [None] * 4
    assert reasons[4:9] == [
        "schema 1: found message 2, expected one of its file's",
        "schema 1: found message -1, expected one of its file's",
        *["schema 1: found the end of the payload, expected a message's place in its file"] * 2,
        "schema 1: found a message on level -1, expected a message's place in its file",
    ]
    assert reasons[9].startswith("schema 1: found bytes that are no A (")


def test_the_place_may_be_in_the_header():
    fields = (Field("c", parse_type("BIGINT")),)
    format = Format("protobuf", framed=True, schemas=(("1", schema(TEXT)),))
    header = struct.pack(">bI", 0, 1) + b"\x02\x02"
    found, reasons = decoder_of(fields, format).decode([b"\x08\x05", b""], [header, header])
    assert (found[0].to_pylist(), reasons) == ([5, 0], [None, None])


@pytest.mark.parametrize("seed", range(sized(10, 300)))
def test_rubbish_is_refused_or_a_row_and_nothing_else(seed):
    dice = random.Random(seed)
    fields = [Field(*found) for found in protobuf.columns(schema(HEAD + text_of(draw_message(dice))))]
    found = schema(HEAD + text_of(draw_message(random.Random(seed))))
    noise = [FIRST + dice.randbytes(dice.randrange(40)) for _ in range(200)] + [dice.randbytes(9) for _ in range(50)]
    rows, reasons = decode(fields, noise, found)
    assert len(rows) == len(reasons) == 250


def test_files_may_refer_to_others():
    other = 'syntax = "proto3"; package o; message Address { string city = 1; }'
    text = 'syntax = "proto3"; import "deep/address.proto"; message R { o.Address home = 1; }'
    with SchemaRegistry() as registry:
        registry.register("address", other, "PROTOBUF")
        id = registry.register("t-value", text, "PROTOBUF", (("deep/address.proto", "address", 1),))
        found = Registry({"url": registry.url}).find([str(id)])[str(id)]
    assert [(name, kind.ddl) for name, kind in protobuf.columns(found)] == [("home", "STRUCT<`city`: STRING>")]
    fields = [Field(*part) for part in protobuf.columns(found)]
    assert decode(fields, [FIRST + b"\x0a\x05\x0a\x03Ulm"], found) == ([({"city": "Ulm"},)], [None])


def test_a_message_in_itself_is_json_and_may_not_be_endless():
    found = schema('syntax = "proto3"; message N { int32 v = 1; N next = 2; repeated N all = 3; }')
    assert [kind.ddl for _, kind in protobuf.columns(found)] == ["INT", "STRING", "ARRAY<STRING>"]

    def chain(count):
        body = b""
        for _ in range(count):
            size, length = len(body), b""
            while size > 127:
                length += bytes([size & 127 | 128])
                size >>= 7
            body = b"\x12" + length + bytes([size]) + body
        return FIRST + body

    rows, reasons = decode(
        [Field(*part) for part in protobuf.columns(found)], [chain(1), chain(90), chain(5000)], found
    )
    assert rows[0] == (0, '{"v":0,"next":null,"all":[]}', [])
    assert reasons[:2] == [None, None] and reasons[2].startswith("schema 1: found bytes that are no N")


def test_the_older_language_has_its_defaults():
    found = schema(
        'syntax = "proto2"; enum E { X = 1; Y = 2; } message R { optional int32 a = 1; optional int32 b = 2 [default = 5];'
        " optional E e = 3 [default = Y]; required string s = 4; optional group G = 5 { optional bool g = 1; } }"
    )
    fields = [Field(*part) for part in protobuf.columns(found)]
    assert [(f.name, f.kind.ddl) for f in fields][-1] == ("g", "STRUCT<`g`: BOOLEAN>")
    rows, reasons = decode(fields, [FIRST + b"\x22\x01x", FIRST], found)
    assert rows == [(None, 5, "Y", "x", None), (None,) * 5]
    assert reasons == [None, "schema 1: found no s, expected it: it is required"]


@pytest.mark.parametrize("text", ["nonsense", 'syntax = "proto3"; import "none.proto"; message A {}', "AAAA"])
def test_what_is_none_says_so(text):
    with pytest.raises(Refused, match="found a schema that cannot be read|found an import of none"):
        protobuf.columns(schema(text))


def test_a_reference_is_no_way_out_of_its_folder():
    with pytest.raises(Refused, match="found a reference named ../x.proto, expected the path of a file"):
        compile_schema('syntax = "proto3"; message A {}', {"../x.proto": 'syntax = "proto3";'})
