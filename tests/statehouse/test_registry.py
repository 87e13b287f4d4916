"""Streams whose schemas are in a registry: what the file says, what is asked, and what is told where the registry is away."""

from __future__ import annotations

import json
import pickle

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from statehouse.config.file import load
from statehouse.errors import ConfigError, RegistryRefused, RegistryUnavailable
from statehouse.formats import registry as registries
from statehouse.formats.columns import grown
from statehouse.formats.format import Schema
from statehouse.formats.registry import Registry, wanted_by
from statehouse.records import decoder_for
from tests.support.registry import SchemaRegistry

ORDER = {
    "type": "record",
    "name": "com.example.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
TEXT = json.dumps(ORDER)


@pytest.fixture
def registry():
    with SchemaRegistry() as running:
        yield running


@pytest.fixture
def configured(lake, registry):
    """A function that loads a file with streams, and with the registry."""
    return lambda streams, more="": lake(f"registry: {{url: '{registry.url}'{more}}}\nstreams:\n{streams}\n")


def test_columns_are_those_of_the_newest_version(configured, registry):
    registry.register("orders-value", TEXT)
    newer = {**ORDER, "fields": [*ORDER["fields"], {"name": "_note", "type": "string"}, {"name": "ID", "type": "int"}]}
    id = registry.register("orders-value", json.dumps(newer))
    stream = configured("  s: {topic: orders, format: avro}").streams["s"]
    assert [(c.name, c.type) for c in stream.columns] == [
        ("id", "BIGINT"),
        ("customer", "STRING"),
        ("total", "DECIMAL(9, 2)"),
    ], "names that the system has, and names twice, are left out"
    assert stream.derived and dict(stream.schemas) == {str(id): Schema("AVRO", json.dumps(newer))}
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.schemas == stream.schemas and copy.registry == {"url": registry.url}


def test_a_schema_that_is_written_needs_no_registry(configured, registry):
    registry.away = True
    stream = configured("  s: {topic: orders, format: avro, schema: id STRING, subject: other}").streams["s"]
    assert not stream.derived and stream.types == {"id": "STRING"} and registry.asked == []


def test_a_subject_may_have_another_name(configured, registry):
    registry.register("com.example.Order", TEXT)
    stream = configured("  s: {topic: orders, format: avro, subject: com.example.Order}").streams["s"]
    assert list(stream.types) == ["id", "customer", "total"]


def test_a_schema_may_be_in_a_file(lake, tmp_path):
    (tmp_path / "order.avsc").write_text(TEXT)
    stream = lake("streams:\n  s: {topic: t, format: avro, schema_file: order.avsc}\n").streams["s"]
    assert list(stream.types) == ["id", "customer", "total"] and not stream.payload_format.framed


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ("{topic: t}", "5: streams.s.schema: found no 'schema', expected one"),
        ("{topic: t, format: csv}", "5: streams.s.schema: found no 'schema', expected one"),
        ("{topic: t, format: xml}", "5: streams.s.format: found 'xml': Input should be 'json', 'avro'"),
        ("{topic: t, format: avro, delimiter: ';'}", "found delimiter with format: avro, expected it with csv"),
        ("{topic: t, format: avro, keep_payload: true}", "found keep_payload with format: avro, expected it with json"),
        ("{topic: t, schema: a INT, subject: x}", "found subject with format: json, expected it with avro or protobuf or"),
        ("{topic: t, format: string, schema: 'a INT, b INT'}", "schema: found 2 columns, expected one: a payload is one value"),
        ("{topic: t, format: avro, schema_file: x, subject: y}", "found schema_file and subject, expected one"),
        ("{topic: t, format: avro, schema_file: none.avsc}", "none.avsc'"),
        ("{topic: t, format: avro}", "5: streams.s.format: found avro without a registry, expected registry: {url: ...} or schema_file"),
        ("{topic: t, format: protobuf}", "found protobuf without a registry, expected registry: {url: ...}"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_so(lake, streams, message):
    with pytest.raises(ConfigError) as error:
        lake(f"streams:\n  s: {streams}\n")
    assert message in str(error.value)


def test_a_registry_without_an_address_says_so(lake):
    with pytest.raises(ConfigError, match="4: registry: found 'no url', expected url: and an address"):
        lake("registry: {}\nstreams:\n  s: {topic: t, format: avro}\n")
    with pytest.raises(ConfigError, match="streams.s: registry: found nonsense, url .Unrecognized properties"):
        lake("registry: {url: 'http://127.0.0.1:1', nonsense: 1}\nstreams:\n  s: {topic: t, format: avro}\n")


def test_a_subject_that_is_not_there_says_so(configured, registry):
    message = "found no schema of orders-value in the registry, expected one: register it, or write schema: or subject:"
    with pytest.raises(ConfigError, match=message):
        configured("  s: {topic: orders, format: avro}")
    registry.register("orders-value", '{"type": "record"')
    with pytest.raises(ConfigError, match="found a schema that cannot be read"):
        configured("  s: {topic: orders, format: avro}")


def test_a_registry_that_is_away_is_no_mistake_in_the_file(configured, registry):
    registry.away = True
    with pytest.raises(RegistryUnavailable, match="registry: found no answer at .*, expected the newest schema of"):
        configured("  s: {topic: orders, format: avro}")
    registry.away, registry.sign_in = False, "Basic dTpw"
    with pytest.raises(RegistryRefused, match="found the answer 401"):
        configured("  s: {topic: orders, format: avro}")


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ("basic.auth.user.info: 'u:p'", "Basic dTpw"),
        ("bearer.auth.token: secret", "Bearer secret"),
    ],
)
def test_it_signs_in(configured, registry, settings, header):
    registry.register("orders-value", TEXT)
    registry.sign_in = header
    assert configured("  s: {topic: orders, format: avro}", f", {settings}").streams["s"].derived


def test_ids_are_asked_for_once_and_what_is_missing_again_later(registry, monkeypatch):
    id = registry.register("orders-value", TEXT)
    asked = Registry({"url": registry.url})
    for _ in range(2):
        assert asked.find([str(id), "77", registry.guid(id)]) == {
            str(id): Schema("AVRO", TEXT),
            "77": None,
            registry.guid(id): Schema("AVRO", TEXT),
        }
    assert len(registry.asked) == 2, "the client knows the GUID of what it has"
    monkeypatch.setattr(registries.time, "monotonic", lambda: 1e12)
    asked.find(["77"])
    assert len(registry.asked) == 3
    registry.away = True
    assert asked.find([str(id)])[str(id)], "what is known is not asked for"
    with pytest.raises(RegistryUnavailable):
        asked.find(["78"])


def test_references_come_with_a_schema(registry):
    registry.register("city", '{"type": "record", "name": "City", "fields": [{"name": "name", "type": "string"}]}')
    address = '{"type": "record", "name": "Address", "fields": [{"name": "city", "type": "City"}]}'
    registry.register("address", address, references=(("City", "city", 1),))
    text = '{"type": "record", "name": "R", "fields": [{"name": "home", "type": "Address"}]}'
    id = registry.register("r-value", text, references=(("Address", "address", 1),))
    found = Registry({"url": registry.url}).find([str(id)])[str(id)]
    assert [name for name, _ in found.references] == ["City", "Address"]


def test_an_answer_of_something_else_is_no_missing_schema(registry):
    asked = Registry({"url": f"{registry.url}/nothing/here"})
    with pytest.raises(RegistryUnavailable, match="found the answer 404"):
        asked.find(["1"])


def test_a_new_version_adds_its_columns(configured, registry):
    registry.register("orders-value", TEXT)
    streams = "  s: {topic: orders, format: avro}\n  i: {topic: orders, format: avro, on_new_field: ignore}\n"
    streams += "  w: {topic: orders, format: avro, schema: id INT}"
    config = configured(streams)
    changed = {**ORDER["fields"][1], "type": "int"}
    newer = {**ORDER, "fields": [changed, {"name": "more", "type": "double"}, {"name": "CUSTOMER", "type": "int"}]}
    more = {"9": Schema("AVRO", json.dumps(newer)), "8": Schema("AVRO", "{")}
    made = {name: grown(stream, more) for name, stream in config.streams.items()}
    assert {name: list(stream.types) for name, stream in made.items()} == {
        "s": ["id", "customer", "total", "more"],
        "i": ["id", "customer", "total"],
        "w": ["id"],
    }
    assert made["s"].types["customer"] == "STRING", "none gets another type"
    assert all({"8", "9"} <= dict(stream.schemas).keys() for stream in made.values())


@pytest.mark.parametrize("strategy", ["topic", "record"])
def test_what_confluents_serializer_writes_is_read(configured, registry, strategy):
    settings = {"subject.name.strategy": record_subject_name_strategy} if strategy == "record" else {}
    write = AvroSerializer(SchemaRegistryClient({"url": registry.url}), TEXT, conf=settings)
    from decimal import Decimal

    context = SerializationContext("orders", MessageField.VALUE)
    payload = write({"id": 7, "customer": None, "total": Decimal("1.50")}, context)
    subject = ", subject: com.example.Order" if strategy == "record" else ""
    stream = configured(f"  s: {{topic: orders, format: avro{subject}}}").streams["s"]
    made = decoder_for(stream, [], []).decode([None], [None], [None], [payload])
    assert made.to_pylist()[0] | {"id": 7, "customer": None, "total": Decimal("1.50")} == made.to_pylist()[0]


def test_what_waits_for_a_schema_is_told_from_what_is_refused(configured, registry):
    registry.register("orders-value", TEXT)
    decoder = decoder_for(configured("  s: {topic: orders, format: avro}").streams["s"], [], [])
    found = decoder.decode([None] * 3, [None] * 3, [None] * 3, [b"\0\0\0\0\x09", b"x", b"\0\0\0\0\x09"])
    assert wanted_by(found["_reason"].to_pylist()) == ["9"]
    found = decoder.knowing({"9": None}).decode([None], [None], [None], [b"\0\0\0\0\x09"])
    assert wanted_by(found["_reason"].to_pylist()) == []


def test_a_password_in_the_environment_is_text(tmp_path):
    (tmp_path / "statehouse.yaml").write_text(
        "kafka: {bootstrap.servers: h}\nregistry: {url: http://h, timeout: 3}\nstreams: {s: {topic: t, schema: a INT}}\n"
    )
    said = {"STATEHOUSE_REGISTRY__BEARER_AUTH_TOKEN": "0123", "STATEHOUSE_REGISTRY__TIMEOUT": "5"}
    registry = load(tmp_path / "statehouse.yaml", said).registry
    assert registry == {"url": "http://h", "timeout": 5, "bearer.auth.token": "0123"}
