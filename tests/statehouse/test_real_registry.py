"""A registry that is not ours, and Confluent's own serializers: schemas are found by their ids and subjects, with what they refer to."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import Schema as Written
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from statehouse.formats.columns import grown
from statehouse.formats.decoders import decoder_of
from statehouse.formats.registry import Registry
from statehouse.formats.wire import frame_of
from statehouse.records import decoder_for, fields_of
from tests.support import apicurio

LINE = {
    "type": "record",
    "name": "shop.Line",
    "fields": [{"name": "item", "type": "string"}, {"name": "n", "type": "int"}],
}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "line", "type": "shop.Line"}],
}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
LINE_PROTO = 'syntax = "proto3"; package shop; message Line { string item = 1; int32 n = 2; }'
ORDER_PROTO = 'syntax = "proto3"; package shop; import "line.proto"; message Order { int64 id = 1; Line line = 2; }'
ORDER_JSON = {"type": "object", "properties": {"id": {"type": "integer"}, "line": {"$ref": "line.json"}}}
LINE_JSON = {"type": "object", "properties": {"item": {"type": "string"}, "n": {"type": "integer"}}}
COLUMNS = [("id", "BIGINT"), ("line", "STRUCT<`item`: STRING, `n`: INT>")]


@pytest.fixture(scope="module")
def url(java, tmp_path_factory):
    try:
        apicurio.application()
    except OSError as error:  # 142 MB that nothing else needs
        pytest.skip(f"Apicurio cannot be fetched: {error}")
    with apicurio.running(tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture
def configured(lake, url):
    """A function that loads a file with one stream, and with the registry."""
    return lambda stream: lake(f"registry: {{url: '{url}'}}\nstreams:\n  s: {{{stream}}}\n").streams["s"]


@pytest.mark.slow
def test_avro_with_a_reference_and_a_new_version(configured, url):
    client = SchemaRegistryClient({"url": url})
    client.register_schema("lines-value", Written(json.dumps(LINE), "AVRO"))
    reference = [SchemaReference("shop.Line", "lines-value", 1)]
    client.register_schema("orders-value", Written(json.dumps(ORDER), "AVRO", reference))
    stream = configured("topic: orders, format: avro")
    assert [(c.name, c.type) for c in stream.columns] == COLUMNS

    newer = Written(json.dumps(NEWER), "AVRO", reference)
    write = AvroSerializer(client, newer, conf={"auto.register.schemas": True, "normalize.schemas": False})
    value = {"id": 7, "line": {"item": "tea", "n": 2}, "note": "hot"}
    payload = write(value, SerializationContext("orders", MessageField.VALUE))
    id = frame_of(payload, None).id
    _, reasons = decoder_of(fields_of(stream), stream.payload_format).decode([payload], [None])
    assert reasons == [f"unknown schema: {id}"]
    stream = grown(stream, Registry({"url": url}).find([id]))
    assert [c.name for c in stream.columns] == ["id", "line", "note"]
    decoded = decoder_for(stream, [], []).decode([None], [None], [None], [payload])
    assert {n: decoded[n][0].as_py() for n in ("id", "line", "note", "_reason")} == {**value, "_reason": None}


@pytest.mark.slow
def test_protobuf_and_json_schema_with_references(configured, url):
    client = SchemaRegistryClient({"url": url})
    client.register_schema("line.proto", Written(LINE_PROTO, "PROTOBUF"))
    client.register_schema(
        "p-value", Written(ORDER_PROTO, "PROTOBUF", [SchemaReference("line.proto", "line.proto", 1)])
    )
    assert [(c.name, c.type) for c in configured("topic: p, format: protobuf").columns] == COLUMNS
    client.register_schema("line.json", Written(json.dumps(LINE_JSON), "JSON"))
    reference = [SchemaReference("line.json", "line.json", 1)]
    client.register_schema("j-value", Written(json.dumps(ORDER_JSON), "JSON", reference))
    columns = [(c.name, c.type) for c in configured("topic: j, format: json_schema").columns]
    assert columns == [("id", "BIGINT"), ("line", "STRUCT<`item`: STRING, `n`: BIGINT>")]


@pytest.mark.slow
def test_what_it_does_not_have_is_absent_and_no_fault(url):
    registry = Registry({"url": url})
    assert registry.find(["999999"]) == {"999999": None}
    assert registry.latest("nothing-value") is None
