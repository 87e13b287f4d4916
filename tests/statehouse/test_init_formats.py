"""``statehouse init`` on topics that are not JSON: what their payloads are written in, and a file that takes all of them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from statehouse.cli import main
from statehouse.config.file import load
from statehouse.formats.columns import PROPERTY, read_stored
from statehouse.formats.format import SOURCE
from statehouse.init.payloads import Encoding, Payload, detect
from tests.support.avro import encoded
from tests.support.proto import compile_module
from tests.support.records import create, produce
from tests.support.registry import SchemaRegistry

FIRST = 1_790_000_000_000
ROWS = [{"card": f"c-{n % 7}", "amount": n / 4, "at": FIRST + 1000 * n} for n in range(60)]
AVRO = {"type": "record", "name": "Sale", "namespace": "shop", "fields": [
    {"name": "card", "type": "string"}, {"name": "amount", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}  # fmt: skip
PROTO = 'syntax = "proto3"; package shop.init; message Sale { string card = 1; double amount = 2; int64 at = 3; }'
JSON_SCHEMA = {"type": "object", "properties": {
    "card": {"type": "string"}, "amount": {"type": "number"}, "at": {"type": "integer"}}}  # fmt: skip
MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
CONNECT = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": [
    {"type": "string", "field": "card"}, {"type": "double", "field": "amount"}, {**MILLIS, "field": "at"}]}]}  # fmt: skip
ROW = {"type": "record", "name": "Value", "fields": [
    *AVRO["fields"][:2],
    {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.Timestamp"}}]}  # fmt: skip
ENVELOPE = {"type": "record", "name": "Envelope", "fields": [
    {"name": "before", "type": ["null", ROW]}, {"name": "after", "type": ["null", "Value"]}, {"name": "op", "type": "string"},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
        {"name": "connector", "type": "string"}, {"name": "lsn", "type": "long"}, {"name": "ts_ms", "type": "long"}]}}]}  # fmt: skip


@dataclass
class Topic:
    """What is sent, and what the file has to say of it."""

    payloads: list[bytes]
    settings: dict = field(default_factory=dict)
    columns: tuple = ("STRING", "DOUBLE", "BIGINT")
    key: object = "card"
    time: str | None = "timestamp_millis(at)"
    rule: tuple = ("sum", "amount")
    words: tuple = ()
    keys: list = field(default_factory=list)


def framed(id, body):
    return struct.pack(">bI", 0, id) + body


def change(row, n):
    """An insert as Debezium sends it."""
    return {
        "op": "c",
        "before": None,
        "after": row,
        "source": {"connector": "postgresql", "lsn": n, "ts_ms": FIRST + n},
    }


def topic(name, registry, folder):
    """The topic of a case, whose name is the topic's too."""
    text = [json.dumps(row).encode() for row in ROWS]
    of_table = {"key": "card", "time": None, "rule": ("latest", "row")}
    with_key = {**of_table, "keys": [json.dumps({"card": row["card"]}) for row in ROWS]}
    changes = [change(row, n) for n, row in enumerate(ROWS)]
    value, asked = f"init-{name}-value", ("--registry", registry.url)
    if name == "avro":
        id = registry.register(value, json.dumps(AVRO))
        payloads = [framed(id, encoded(AVRO, row)) for row in ROWS]
        return Topic(payloads, {"format": "avro"}, ("STRING", "DOUBLE", "TIMESTAMP"), time="at", words=asked)
    if name == "by-record":
        id = registry.register("shop.Sale", json.dumps(AVRO))
        payloads = [framed(id, encoded(AVRO, row)) for row in ROWS]
        settings = {"format": "avro", "subject": "shop.Sale"}
        return Topic(payloads, settings, ("STRING", "DOUBLE", "TIMESTAMP"), time="at", words=asked)
    if name == "in-file":
        (folder / "sale.avsc").write_text(json.dumps(AVRO))
        words = ("--schema-file", str(folder / "sale.avsc"))
        settings = {"format": "avro", "schema_file": "sale.avsc"}
        payloads = [encoded(AVRO, row) for row in ROWS]
        return Topic(payloads, settings, ("STRING", "DOUBLE", "TIMESTAMP"), time="at", words=words)
    if name == "protobuf":
        id, sale = registry.register(value, PROTO, "PROTOBUF"), compile_module(PROTO, "init_sale").Sale
        payloads = [framed(id, b"\0" + sale(**row).SerializeToString()) for row in ROWS]
        return Topic(payloads, {"format": "protobuf"}, words=asked)
    if name == "json-schema":
        id = registry.register(value, json.dumps(JSON_SCHEMA), "JSON")
        return Topic([framed(id, body) for body in text], {"format": "json_schema"}, words=asked)
    if name == "csv":
        lines = [f"{row['card']};{row['amount']};{row['at']}".encode() for row in ROWS]
        names = {"key": "c1", "time": None, "rule": ("count", None), "words": ("--reduce", "count", "--key", "c1")}
        return Topic(lines, {"format": "csv", "delimiter": ";"}, ("STRING", "DECIMAL(12, 2)", "BIGINT"), **names)
    if name in ("string", "bytes"):
        payloads = [f"{n} degrees".encode() if name == "string" else bytes([255, n]) for n in range(60)]
        of_key = {"key": "_key", "time": None, "rule": ("count", None), "words": ("--reduce", "count", "--key", "_key")}
        kind = ("STRING",) if name == "string" else ("BINARY",)
        return Topic(payloads, {"format": name}, kind, keys=[f"k-{n % 5}" for n in range(60)], **of_key)
    if name == "debezium":
        payloads = [json.dumps(one).encode() for one in changes]
        return Topic(payloads, {"format": "debezium"}, ("STRING", "DECIMAL(12, 2)", "BIGINT"), **with_key)
    if name == "connect":
        payloads = [json.dumps({"schema": CONNECT, "payload": one}).encode() for one in changes]
        return Topic(payloads, {"format": "debezium"}, ("STRING", "DECIMAL(12, 2)", "TIMESTAMP"), **with_key)
    id = registry.register(value, json.dumps(ENVELOPE))
    payloads = [framed(id, encoded(ENVELOPE, one)) for one in changes]
    settings = {"format": "debezium", "encoding": "avro"}
    return Topic(
        payloads, settings, ("STRING", "DECIMAL(12, 2)", "TIMESTAMP"), **of_table, words=(*asked, "--key", "card")
    )


CASES = (
    "avro",
    "by-record",
    "in-file",
    "protobuf",
    "json-schema",
    "csv",
    "string",
    "bytes",
    "debezium",
    "connect",
    "debezium-avro",
)


@pytest.fixture(scope="module")
def registry():
    with SchemaRegistry() as running:
        yield running


@pytest.mark.parametrize("name", CASES)
def test_a_topic_is_what_its_payloads_are(broker, registry, tmp_path, name, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given, sent = topic(name, registry, tmp_path), f"init-{name}"
    create(broker.bootstrap, sent)
    keys = given.keys or [None] * len(given.payloads)
    produce(broker.bootstrap, sent, [(k, payload, None, 0) for k, payload in zip(keys, given.payloads, strict=True)])
    capsys.readouterr()
    words = ["init", "--bootstrap", broker.bootstrap, "--topic", sent, "--yes", "--json", *given.words]
    assert main(words) == 0, capsys.readouterr().err
    said = json.loads(capsys.readouterr().out)
    assert (said["records"], said["refused"]) == (60, 0)
    [stream] = load(tmp_path / "statehouse.yaml", {}).streams.values()  # its columns are known
    assert [c.type for c in stream.columns if c.name != SOURCE] == list(given.columns)
    file = yaml.safe_load((tmp_path / "statehouse.yaml").read_text())
    [written], [store] = file["streams"].values(), file["stores"].values()
    settings = ("format", "encoding", "delimiter", "subject", "schema_file")
    assert {name: written[name] for name in settings if name in written} == given.settings
    found = store["key"], written.get("time"), (store["reduce"], store.get("value"))
    assert found == (given.key, given.time, given.rule)


def test_payloads_that_name_a_schema_want_a_registry(broker, tmp_path, capsys):
    create(broker.bootstrap, "init-unregistered")
    payloads = [framed(7, encoded(AVRO, row)) for row in ROWS]
    produce(broker.bootstrap, "init-unregistered", [(None, payload, None, 0) for payload in payloads])
    words = ["init", "--bootstrap", broker.bootstrap, "--topic", "init-unregistered", "--out", str(tmp_path / "s.yaml")]
    assert main([*words, "--yes"]) == 2
    assert "--registry: found none, expected the registry that has the schemas" in capsys.readouterr().err
    with SchemaRegistry() as other:
        assert main([*words, "--yes", "--registry", other.url]) == 2
        assert "found none of the payloads' schemas" in capsys.readouterr().err
    assert main([*words, "--yes", "--registry", "http://127.0.0.1:1"]) != 0
    assert "registry: found no answer at http://127.0.0.1:1" in capsys.readouterr().err
    assert not (tmp_path / "s.yaml").exists()


def test_lines_of_csv_that_are_not_like_the_others_are_refused():
    lines = [b"b,2,3"] * 5 + [b"", b"a\nb"] + [b"a,1"] * 300
    found = Encoding(settings={"format": "csv"}).objects([Payload(line) for line in lines])
    assert [str(one) for one in found[:7]] == ["found 3 cells, expected 2"] * 5 + [
        "found no line, or several, expected one"
    ] * 2
    assert found[7:] == ['{"c1":"a","c2":1}'] * 300


def test_what_a_lake_here_keeps_is_not_the_topic_s(tmp_path, monkeypatch, registry):
    monkeypatch.chdir(tmp_path)
    registry.register("elsewhere-value", json.dumps(AVRO))
    write_deltalake("lake/changelog/s", pa.table({"a": [1]}))
    log = tmp_path / "lake/changelog/s/_delta_log/00000000000000000000.json"
    kept = json.dumps(json.dumps({"columns": "old STRING", "schemas": {}}))
    log.write_text(log.read_text().replace('"configuration":{}', f'"configuration":{{"{PROPERTY}":{kept}}}'))
    assert read_stored("lake/changelog/s").columns == "old STRING"
    stream = Encoding("elsewhere", {"format": "avro"}, {"url": registry.url}).stream
    assert [column.name for column in stream.columns] == ["card", "amount", "at"]


def test_a_file_is_json_or_none(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-16")
    assert main(["init", "--file", str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "s.yaml")]) == 1
    assert "not UTF-8" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(change(row, n)) for n, row in enumerate(ROWS)))
    assert main(["init", "--file", str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "s.yaml")]) == 0
    assert load(tmp_path / "s.yaml", {}).streams["x"].format == "debezium"


def test_a_registry_s_password_is_not_for_the_file(tmp_path, capsys):
    words = ["init", "--topic", "t", "--registry", "http://u:hidden@127.0.0.1:1", "--out", str(tmp_path / "s.yaml")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "expected it in $STATEHOUSE_REGISTRY__BASIC_AUTH_USER_INFO" in said and "hidden" not in said


@pytest.mark.parametrize(
    ("values", "format"),
    [
        ([], "json"),
        ([b'{"a": 1}', b"rubbish", b'{"a": 2}'], "json"),
        ([b"1", b"2"], "string"),
        ([b"a,b", b'c,"d, e"'], "csv"),
        ([b"a,b", b"c"], "string"),
        ([b"", b""], "string"),
        ([b"{}"] * 5, "json"),
        ([b""] * 5 + [b"hello"] * 3, "string"),
        ([b"\xff", b"\xfe\x00"], "bytes"),
        ([b'{"op": "c", "source": {}}'], "debezium"),
        ([b'{"op": "c"}', b'{"op": "sum", "source": {}}'], "json"),
        ([b'{"payload": {"op": "d", "source": {}}, "schema": null}'], "debezium"),
    ],
)
def test_formats_by_a_look(values, format):
    assert detect([Payload(value) for value in values], Encoding()).format == format
