"""Ahead of the changelog, records whose schema is not known wait for the registry, and nothing else does."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from api.engine import duck
from api.replica import arrivals
from statehouse.errors import RegistryUnavailable
from tests.support.avro import encoded
from tests.support.registry import SchemaRegistry

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
NEWER = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "more", "type": "string"}]}


def sent(offset, payload):
    return (*arrivals.record("t", 0, offset, 1_700_000_000_000, None, payload, None), 0)


def framed(id, schema, value):
    return struct.pack(">bI", 0, id) + encoded(schema, value)


def test_a_record_waits_for_its_schema(lake):
    with SchemaRegistry() as registry:
        registry.register("t-value", json.dumps(SCHEMA))
        config = lake(
            f"registry: {{url: '{registry.url}', max.retries: 0}}\nstreams:\n  s: {{topic: t, format: avro}}\n"
        )
        parser = arrivals.Parser(duck.connect(), config.streams["s"], [], [])
        known, new = sent(0, framed(1, SCHEMA, {"id": 1})), sent(1, framed(2, NEWER, {"id": 2, "more": "x"}))
        registry.away, registry.asked = True, []
        assert parser.parse(arrivals.table([known]))["id"].to_pylist() == [1]
        assert registry.asked == [], "of a schema that is known nothing is asked"
        with pytest.raises(RegistryUnavailable):
            parser.parse(arrivals.table([known, new]))
        registry.away = False
        registry.register("t-value", json.dumps(NEWER))
        absent = sent(2, framed(99, SCHEMA, {"id": 3}))
        assert parser.parse(arrivals.table([known, new, absent]))["id"].to_pylist() == [1, 2]
        registry.asked = []
        assert parser.parse(arrivals.table([new]))["id"].to_pylist() == [2]
        assert registry.asked == []


def test_who_decodes_needs_no_more_than_the_formats_own_package():
    script = """
import sys
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import Format, Schema
from statehouse.payload import Field
from statehouse.types import Type
import statehouse.records
decoder = lambda name, kind, text: decoder_of(
    (Field("id", Type("BIGINT", "BIGINT")),), Format(name, framed=True, schemas=(("1", Schema(kind, text)),))
).decode([bytes(5)], [None])
assert not {"fastavro", "google.protobuf"} & set(sys.modules), "a stream of JSON needs neither"
decoder("avro", "AVRO", '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}')
decoder("json_schema", "JSON", "{}")
assert "google.protobuf" not in sys.modules
decoder("protobuf", "PROTOBUF", "CgA=")
print({"pydantic", "sqlglot", "confluent_kafka", "grpc_tools", "deltalake"} & set(sys.modules))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("set()\n", 0), ran.stderr
