"""Both halves answer alike, whatever a stream's payloads are written in: as :mod:`tests.system.test_alike` for JSON."""

from __future__ import annotations

import json
import random
import struct

import pytest

from statehouse.spark_sql import quoted
from statehouse.tables import opened, table
from tests.support.alike import KEYS, differ
from tests.support.avro import Names, draw_schema, draw_type, draw_value, encoded
from tests.support.depth import sized
from tests.support.payloads import ddl, draw_payload, draw_text, write
from tests.support.proto import HEAD, Message, compile_module, draw_message, fill, text_of
from tests.support.proto import draw_value as draw_value_of
from tests.support.registry import SchemaRegistry

PAYLOADS = sized(400, 10_000)


def configured(lake, setting, more=""):
    """A stream whose columns are derived; a store that has all of a row, and one for each column that can be a key."""
    stream = f"{more}streams:\n  s: {{topic: t, {setting}}}\n"
    columns = [c for c in lake(stream).streams["s"].columns if c.name != "id"]
    named = ", ".join(quoted(c.name) for c in columns)
    stores = [f'  rows: {{stream: s, key: id, value: "struct({named})", reduce: latest}}']
    for number, column in enumerate(columns):
        if column.type.startswith(KEYS):
            key = f'["{quoted(column.name)} AS k", "id % 7 AS m"]'
            stores.append(f"  k{number}: {{stream: s, key: {key}, value: id, reduce: max}}")
    return lake(stream + "stores:\n" + "\n".join(stores) + "\n")


def spoiled(dice, payload):
    """What may come of a payload on its way."""
    kind = dice.randrange(4)
    if kind == 0:
        return payload[: dice.randrange(len(payload))]
    if kind == 1:
        return dice.randbytes(dice.randrange(40))
    if kind == 2:
        return struct.pack(">bI", 0, dice.randint(50, 60)) + payload[5:]
    return payload + b"\0"


def mixed(dice, payloads):
    """Records with these payloads, and among them some that are spoiled, sets and purges."""
    found = []
    for payload in payloads:
        kind = dice.random()
        if kind < 0.05:
            headers = {"statehouse-op": b"purge", "statehouse-store": b"rows"}
            found.append((str(dice.randint(1, len(payloads))), b"", headers))
        elif kind < 0.15:
            found.append((None, spoiled(dice, payload), {}))
        elif kind < 0.2 and payload[:1] == b"\0":
            found.append((None, payload[5:], {"__value_schema_id": payload[:5]}))
        else:
            found.append((None, payload, {}))
    return found


def avro_versions(dice):
    """Three versions of a schema: the second has a field more, the third has lost one."""
    names = Names()
    first = draw_schema(dice, names)
    first["fields"].insert(0, {"name": "id", "type": "long"})
    added = {"name": "added", "type": ["null", draw_type(dice, names, 1)]}
    if isinstance(added["type"][1], list):
        added["type"] = added["type"][1]
    second = {**first, "fields": [*first["fields"], added]}
    fields = list(second["fields"])
    fields.pop(dice.randrange(1, len(fields)))
    return [first, second, {**first, "fields": fields}]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(sized(1, 20)))
def test_avro(spark, lake, seed):
    dice = random.Random(seed)
    versions = avro_versions(dice)
    with SchemaRegistry() as registry:
        ids = [registry.register("t-value", json.dumps(versions[0]))]
        config = configured(lake, "format: avro", f"registry: {{url: '{registry.url}'}}\n")
        ids += [registry.register("t-value", json.dumps(version)) for version in versions[1:]]

        def payload(number):
            version = dice.randrange(3)
            value = {**draw_value(dice, versions[version]), "id": number}
            return struct.pack(">bI", 0, ids[version]) + encoded(versions[version], value)

        first = struct.pack(">bI", 0, ids[0]) + encoded(versions[0], {**draw_value(dice, versions[0]), "id": 0})
        taken = differ(spark, config, mixed(dice, [payload(number) for number in range(1, PAYLOADS)]), first)
    assert taken > PAYLOADS / 3
    changelog = opened(table(config, "changelog", "s"))
    assert "added" in [field.name for field in changelog.schema().fields], "by itself"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(sized(1, 20)))
def test_protobuf(spark, lake, seed):
    dice = random.Random(seed)
    drawn = draw_message(dice)
    first = Message("R", [("id", "", "int64"), *drawn.fields])
    second = Message("R", [*(f for f in first.fields if f[1] != "oneof"), ("added", "", "string")])
    second.fields += [f for f in first.fields if f[1] == "oneof"]
    names = [f"com.alike.v{version}x{seed}" for version in range(2)]
    versions = list(zip((first, second), names, strict=True))
    texts = [HEAD.replace("com.example", name) + text_of(message) for message, name in versions]
    modules = [compile_module(text, f"alike_{number}_{seed}") for number, text in enumerate(texts)]
    with SchemaRegistry() as registry:
        ids = [registry.register("t-value", texts[0], "PROTOBUF")]
        config = configured(lake, "format: protobuf", f"registry: {{url: '{registry.url}'}}\n")
        ids.append(registry.register("t-value", texts[1], "PROTOBUF"))

        def payload(number, version):
            made = modules[version].R()
            message = versions[version][0]
            fill(made, message, {**draw_value_of(dice, message), "id": number})
            return struct.pack(">bI", 0, ids[version]) + b"\0" + made.SerializeToString()

        payloads = [payload(number, dice.randrange(2)) for number in range(1, PAYLOADS)]
        assert differ(spark, config, mixed(dice, payloads), payload(0, 0)) > PAYLOADS / 3
    assert "added" in [field.name for field in opened(table(config, "changelog", "s")).schema().fields]


@pytest.mark.slow
def test_avro_of_a_schema_file(spark, lake, tmp_path):
    dice = random.Random(7)
    schema = avro_versions(dice)[0]
    (tmp_path / "s.avsc").write_text(json.dumps(schema))
    config = configured(lake, "format: avro, schema_file: s.avsc")
    payloads = [encoded(schema, {**draw_value(dice, schema), "id": number}) for number in range(sized(100, 2000))]
    assert differ(spark, config, mixed(dice, payloads[1:]), payloads[0]) > len(payloads) / 3


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "json_schema"])
def test_csv_and_json_schema(spark, lake, format):
    dice = random.Random(11)
    schema = [
        ("k", "STRING"),
        ("n", "DOUBLE"),
        ("ts", "TIMESTAMP"),
        ("at", ("ARRAY", "BIGINT")),
        ("d", "DECIMAL(9, 2)"),
    ]
    columns = ", ".join(["id BIGINT", *(f"`{name}` {ddl(kind)}" for name, kind in schema)])

    def payload(number):
        row = {"id": number, **draw_payload(dice, schema)}
        if format == "json_schema":
            return struct.pack(">bI", 0, 1) + write(row).encode()
        cells = [write(row[name]) if name in row else "" for name in ("id", *(name for name, _ in schema))]
        return ",".join('"' + cell.strip('"').replace('"', '""') + '"' for cell in cells).encode()

    with SchemaRegistry() as registry:
        registry.register("t-value", "{}", "JSON")
        more = f"registry: {{url: '{registry.url}'}}\n"
        config = configured(lake, f"format: {format}, schema: '{columns}'", more)
        records = mixed(dice, [payload(number) for number in range(1, PAYLOADS)])
        assert differ(spark, config, records, payload(0)) > PAYLOADS / 10


@pytest.mark.slow
@pytest.mark.parametrize("format", ["string", "bytes"])
def test_text_and_bytes(spark, lake, format):
    dice = random.Random(12)
    text = f"streams:\n  s: {{topic: t, format: {format}}}\n"
    value = "value" if format == "string" else "hex(value)"
    config = lake(f"{text}stores:\n  v: {{stream: s, key: {value}, reduce: count}}\n")
    payloads = [dice.choice((draw_text(dice).encode(), dice.randbytes(4))) for _ in range(PAYLOADS)]
    assert differ(spark, config, [(None, payload, {}) for payload in payloads], b"x") > PAYLOADS / 3
