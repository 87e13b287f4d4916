"""A table's state by its changes is the table: in whatever order they come, sent again, late, with deletes and keys that change; in both halves."""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import struct
from decimal import Decimal

import pytest

from tests.support.alike import differ
from tests.support.avro import encoded
from tests.support.depth import first, sized
from tests.support.oracle import table
from tests.support.records import iso, rows, stamp
from tests.support.registry import SchemaRegistry

T0 = 1_700_000_000_000_000
FIRST_LSN = 26_000_000
STEPS = sized(250, 5000)
STREAM = """streams:
  s:
    topic: t
    format: debezium
    schema: id BIGINT NOT NULL, name STRING NOT NULL, amount DECIMAL(9, 2), at TIMESTAMP
stores:
  whole: {stream: s, key: id, value: row, reduce: latest}
  names: {stream: s, key: id, value: name, reduce: latest}
  states: {stream: s, key: ["id % 5 AS group", id], value: amount, reduce: latest}
  hours: {stream: s, key: id, window: 1 hour, reduce: count}
"""
IN_AVRO = STREAM.replace("debezium", "debezium\n    encoding: avro")
FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "name", "type": "string"},
    {"field": "amount", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
]
SCHEMA = {"type": "struct", "fields": [{"field": f, "type": "struct", "fields": FIELDS} for f in ("before", "after")]}


# As Connect's AvroConverter writes it: Debezium's own types have a name, and no logical type.
VALUE = {"type": "record", "name": "Value", "fields": [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "amount", "default": None, "type": ["null", {
        "type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2, "connect.name": "org.apache.kafka.connect.data.Decimal"}]},
    {"name": "at", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}], "default": None},
]}  # fmt: skip
OPTIONAL = {"lsn": "long", "ts_ms": "long", "file": "string", "pos": "long", "snapshot": "string"}
AVRO = {"type": "record", "name": "Envelope", "namespace": "shop.public.t", "connect.name": "shop.public.t.Envelope", "fields": [
    {"name": "before", "type": ["null", VALUE], "default": None},
    {"name": "after", "type": ["null", "Value"], "default": None},
    {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
        {"name": "connector", "type": "string"},
        *({"name": name, "type": ["null", kind], "default": None} for name, kind in OPTIONAL.items())]}},
    {"name": "op", "type": "string"},
    {"name": "ts_ms", "type": ["null", "long"], "default": None},
]}  # fmt: skip


# Each encoding and each database with some other in `make test`, all of them at full depth.
PAIRS = [("wrapped", "postgresql"), ("bare", "mysql"), ("avro", "postgresql")]
PAIRS += [("wrapped", "mysql"), ("bare", "postgresql"), ("avro", "mysql")]


def drawn_row(dice, id):
    amount, at = dice.choice((None, dice.randrange(-(10**9) + 1, 10**9))), T0 + dice.randrange(10**10)
    return {"id": id, "name": dice.choice("abcdefg"), "amount": amount, "at": dice.choice((None, at))}


def changes_of(dice, steps):
    """What happens to a table: changes with their positions, no two of one key with the same one."""
    now, lsn = {}, FIRST_LSN

    def change(op, before, after):
        key = before["id"] if op == "d" else after["id"]
        return {"op": op, "key": key, "before": before, "row": after, "position": lsn}

    for id in range(5):  # a snapshot, all of it at one position
        now[id] = drawn_row(dice, id)
        yield change("r", None, now[id])
    for _ in range(steps):
        lsn += dice.randint(1, 500)
        id = dice.randrange(12)
        before, kind = now.get(id), dice.random()
        if before is None:
            now[id] = drawn_row(dice, id)
            yield change("c", None, now[id])
        elif kind < 0.25:
            yield change("d", now.pop(id), None)
        elif kind < 0.4 and (other := dice.randrange(12)) not in now:  # its key changes
            now[other] = {**drawn_row(dice, other)}
            yield change("d", now.pop(id), None)
            yield change("c", None, now[other])
        else:
            now[id] = drawn_row(dice, id)
            yield change("u", before, now[id])


def digits(cents):
    return base64.b64encode(cents.to_bytes(5, "big", signed=True)).decode()


def written(row, encoding, whole=True):
    """A row as Debezium writes it: with its schema, or so that it can be read without one. Of one that is deleted there may be the key alone."""
    if row is None:
        return None
    row = row if whole else {"id": row["id"], "name": "", "amount": None, "at": None}
    amount, at = row["amount"], row["at"]
    if encoding == "bare":
        return {**row, "amount": None if amount is None else str(Decimal(amount) / 100), "at": at and iso(at)}
    decimal = None if amount is None else digits(amount)
    return {**row, "amount": decimal if encoding == "wrapped" or amount is None else Decimal(amount).scaleb(-2)}


def source_of(position, connector):
    if connector == "mysql":
        return {
            "connector": connector,
            "file": f"binlog.{position // 10_000:06}",
            "pos": position % 10_000,
            "ts_ms": position // 10,
        }
    return {"connector": connector, "lsn": position, "ts_ms": position // 10, "snapshot": position == FIRST_LSN}


def payload_of(change, encoding, connector):
    body = {"op": change["op"], "source": source_of(change["position"], connector), "ts_ms": 1}
    whole = change["op"] != "d" or change["position"] % 2
    body |= {"before": written(change["before"], encoding, whole), "after": written(change["row"], encoding)}
    if change["op"] == "d" and change["position"] % 3 == 0 and encoding != "avro":
        body["before"] = None  # then its record's key says which
    if encoding == "avro":
        body["source"] |= {"snapshot": str(body["source"].get("snapshot", "false")).lower()}
        return struct.pack(">bI", 0, 1) + encoded(AVRO, body)
    return json.dumps({"schema": SCHEMA, "payload": body} if encoding == "wrapped" else body).encode()


@pytest.mark.slow
@pytest.mark.parametrize("pair", first(3, PAIRS), ids="-".join)
def test_the_state_is_the_table(spark, lake, pair):
    encoding, connector = pair
    dice = random.Random(f"{connector} {encoding}")
    changes = [*changes_of(dice, STEPS)]
    delivered = [*changes, *dice.choices(changes, k=STEPS // 3)]  # some are sent again
    if encoding != "bare":  # in any order; else nearly as they were made, some late
        dice.shuffle(delivered)
    else:
        for _ in range(STEPS // 4):
            place = dice.randrange(len(delivered))
            delivered.insert(min(place + dice.randrange(20), len(delivered)), delivered.pop(place))
    records, told = [], []
    for change in delivered:
        told.append({**change, "order": (change["position"], 0, len(records) + 1)})
        id = {"id": change["key"]}
        key = json.dumps({"schema": None, "payload": id} if encoding == "wrapped" else id)
        records.append((key, payload_of(change, encoding, connector), {}))
        if change["op"] == "d":
            records.append((key, None, {}))  # the tombstone
    begin = {"op": "c", "before": None, "row": drawn_row(dice, 99), "position": FIRST_LSN, "key": 99}
    with SchemaRegistry() as registry:
        stream = STREAM
        if encoding == "avro":
            registry.register("t-value", json.dumps(AVRO))
            stream = f"registry: {{url: '{registry.url}'}}\n" + IN_AVRO
        config = lake(stream)
        assert differ(spark, config, records, payload_of(begin, encoding, connector)) == len(records)
    right = table(told)
    assert right and any(change["op"] == "d" for change in told)
    found = {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/whole") if r["key"] != 99}
    assert found == {
        key: {
            **row,
            "amount": row["amount"] and Decimal(row["amount"]).scaleb(-2),
            "at": row["at"] and stamp(row["at"]),
        }
        for key, row in right.items()
    }
    names = {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/names") if r["key"] != 99}
    assert names == {k: v["name"] for k, v in right.items()}


def test_value_row_is_the_whole_row(lake):
    config = lake(STREAM)
    assert config.stores["whole"].value == "struct(`id`, `name`, `amount`, `at`)"
    other = lake(
        "streams:\n  s: {topic: t, schema: 'id INT, row INT'}\nstores:\n  a: {stream: s, key: id, value: row, reduce: max}\n"
    )
    assert other.stores["a"].value == "row", "a column"


def test_a_mirrored_store_takes_no_writes(lake):
    from api import create_app

    client = create_app(lake(STREAM)).test_client()
    for method, path in (
        ("put", "/stores/whole/keys/1"),
        ("delete", "/stores/whole/keys/1"),
        ("post", "/stores/whole/keys"),
    ):
        answer = getattr(client, method)(path, json={"value": None})
        assert (answer.status_code, answer.get_json()["type"].rpartition(":")[2]) == (405, "ordered-store"), method
        assert answer.headers["Allow"] == client.options(path).headers["Allow"] == "GET, HEAD, OPTIONS"
    paths = client.get("/openapi.json").get_json()["paths"]
    assert not [path for path, operations in paths.items() if {"put", "delete"} & {*operations} and "whole" in path]


def test_changes_in_avro_are_read_as_their_schema_says(lake):
    from statehouse.formats.format import Schema
    from statehouse.records import decoder_for

    with SchemaRegistry() as registry:
        config = lake(f"registry: {{url: '{registry.url}'}}\n" + IN_AVRO)
    row = {"id": 1, "name": "a", "amount": -1, "at": -1}
    change = {"op": "c", "key": 1, "before": None, "row": row, "position": 8}
    payloads = [
        payload_of(change, "avro", "postgresql"),
        payload_of({**change, "op": "d", "before": row, "row": None}, "avro", "mysql"),
    ]
    payloads += [payloads[0][:-1], payloads[0][:1], None]
    none = [None] * len(payloads)
    decoder = decoder_for(config.streams["s"], [], [])
    assert decoder.decode(none, none, none, payloads)["_reason"].to_pylist()[:2] == ["unknown schema: 1"] * 2
    found = decoder.knowing({"1": Schema("AVRO", json.dumps(AVRO))}).decode(none, none, none, payloads).to_pylist()
    assert [r["_op"] for r in found] == ["report", "purge", "report", "report", "tombstone"]
    assert [bool(r["_reason"]) for r in found] == [False, False, True, True, False]
    utc = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.timezone.utc)
    assert [(r["id"], r["name"], r["amount"], r["at"]) for r in found[:2]] == [
        (1, "a", Decimal("-0.01"), utc),
        (1, "", None, None),
    ]
    assert [r["_source"]["position"] for r in found[:2]] == [8, 8]
