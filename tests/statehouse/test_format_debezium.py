"""Changes as Debezium sends them: what a row's values mean, by their schema or without one; deletes, keys, and what is refused."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.records import decoder_for
from tests.support.records import EPOCH

ROW = "id BIGINT NOT NULL, name STRING NOT NULL, at TIMESTAMP"
POSTGRES = {
    "connector": "postgresql",
    "lsn": 42,
    "ts_ms": 1_700_000_000_000,
    "db": "d",
    "schema": "public",
    "table": "t",
}


@pytest.fixture
def decode(lake):
    def run(payloads, schema=ROW, keys=None, setting=""):
        config = lake(f"streams:\n  s: {{topic: t, format: debezium, schema: '{schema}'{setting}}}\n")
        values = [json.dumps(p).encode() if isinstance(p, dict) else p for p in payloads]
        none = [None] * len(values)
        found = decoder_for(config.streams["s"], [], []).decode(none, none, keys or none, values)
        return found.to_pylist()

    return run


def change(op="c", before=None, after=None, source=POSTGRES, **more):
    return {"op": op, "before": before, "after": after, "source": source, **more}


def test_what_each_operation_is(decode):
    row = {"id": 1, "name": "a", "at": None}
    found = decode([
        change("c", None, row), change("u", row, {**row, "name": "b"}), change("r", None, row),
        change("d", row), change("d", {"id": 1}), None,
    ])  # fmt: skip
    assert [r["_reason"] for r in found] == [None] * 6
    assert [r["_op"] for r in found] == ["report"] * 3 + ["purge"] * 2 + ["tombstone"]
    assert [(r["id"], r["name"]) for r in found] == [(1, "a"), (1, "b"), (1, "a"), (1, "a"), (1, None), (None, None)]
    assert [r["_source"] and r["_source"]["position"] for r in found] == [42] * 5 + [None]
    assert found[0]["_source"]["table"] == "t" and found[0]["_source"]["ts_ms"] == 1_700_000_000_000


def test_a_delete_without_its_row_is_of_the_record_s_key(decode):
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": {"id": 7}}
    keys = ['{"id": 7}', json.dumps(wrapped), ' { "id" : 7 } ', "7", None, "{"]
    found = decode([change("d")] * len(keys), keys=keys)
    assert [r["id"] for r in found] == [7, 7, 7, None, None, None]
    assert [bool(r["_reason"]) for r in found] == [False] * 3 + [True] * 3


def test_connect_s_envelope_is_taken_off(decode):
    row = {"id": 1, "name": "a"}
    found = decode([{"schema": None, "payload": change("c", None, row)}, {"schema": None, "payload": None}])
    assert [(r["_op"], r["id"], r["_reason"]) for r in found] == [("report", 1, None), ("tombstone", None, None)]


@pytest.mark.parametrize(("payload", "reason"), [
    ({"id": 1}, "found no op, expected a change as Debezium sends it"),
    (change("t"), "found a truncate"),
    (change("m"), "found op m, expected one of c, u, r, d"),
    (change("c"), "found op c without after"),
    (change("u", {"id": 1}, [1]), "found op u without after"),
    (change("c", None, {"id": 1}), "name: found nothing, expected STRING NOT NULL"),
    (change("c", None, {"id": "x", "name": "a"}), 'id: found "x", expected BIGINT'),
    (change("c", None, {"id": 1, "name": "a"}, "s"), '_source: found "s", expected STRUCT'),
    (b"{", "not JSON"), (b"\xff", "not UTF-8"), (b"[]", "not a JSON object: found []"), (b'{"op": 1}', "found no change"),
    (b"[" * 5000, "nested"),
])  # fmt: skip
def test_what_is_refused_says_why(decode, payload, reason):
    assert reason in decode([payload])[0]["_reason"]


@pytest.mark.parametrize(("source", "position"), [
    ({"connector": "postgresql", "lsn": 0}, 0),
    ({"connector": "postgresql"}, None),
    ({"connector": "mysql", "file": "binlog.000009", "pos": 9_999_999_999}, 99_999_999_999),
    ({"connector": "mysql", "file": "binlog.000010", "pos": 4}, 100_000_000_004),
    ({"connector": "mariadb", "file": "mariadb-bin.000001", "pos": 7, "row": 2}, 10_000_000_007),
    ({"connector": "mysql", "file": "binlog", "pos": 4}, None),
    ({"connector": "oracle", "scn": "123456789012"}, 123_456_789_012),
    ({"connector": "oracle", "scn": 5}, 5),
    ({"connector": "sqlserver", "change_lsn": "00000027:00000758:0005"}, None),
    ({"connector": "postgresql", "lsn": 5, "snapshot": True}, 5),
    ({"connector": "postgresql", "lsn": 5, "snapshot": "last"}, 5),
    (None, None),
])  # fmt: skip
def test_a_source_s_position_grows_with_its_log(decode, source, position):
    (found,) = decode([change("c", None, {"id": 1, "name": "a"}, source)])
    assert found["_reason"] is None
    assert (found["_source"] or {}).get("position") == position


def test_the_envelope_s_time_is_taken_where_the_source_has_none(decode):
    source = {"connector": "postgresql", "lsn": 1}
    (found,) = decode([change("c", None, {"id": 1, "name": "a"}, source, ts_ms=5)])
    assert found["_source"]["ts_ms"] == 5


# What a value of a database is as Debezium writes it, with the schema's name, and the column's that is to come out.
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
DAYS = st.integers(-719_162, 2_932_896)


def based(number):
    size = number.bit_length() // 8 + 1
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


def at(micros):
    return EPOCH.replace(tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=micros)


def iso(moment):
    """As `time.precision.mode=isostring` has it."""
    return moment.isoformat().replace("+00:00", "Z")


def digits(number, scale):
    return Decimal(number).scaleb(-scale)


CASES = st.one_of(
    MICROS.map(lambda m: ("TIMESTAMP", "io.debezium.time.MicroTimestamp", "int64", m, None, at(m))),
    MICROS.map(lambda m: ("TIMESTAMP_NTZ", "io.debezium.time.MicroTimestamp", "int64", m, None, at(m).replace(tzinfo=None))),
    MICROS.map(lambda m: ("TIMESTAMP", "io.debezium.time.Timestamp", "int64", m // 1000, None, at(m // 1000 * 1000))),
    MICROS.map(lambda m: ("TIMESTAMP", "io.debezium.time.NanoTimestamp", "int64", m * 1000 + 999, None, at(m))),
    MICROS.map(lambda m: ("TIMESTAMP", "io.debezium.time.ZonedTimestamp", "string", at(m).isoformat(), None, at(m))),
    MICROS.map(lambda m: ("BIGINT", "io.debezium.time.MicroTimestamp", "int64", m, None, m)),
    DAYS.map(lambda d: ("DATE", "io.debezium.time.Date", "int32", d, None, dt.date(1970, 1, 1) + dt.timedelta(days=d))),
    MICROS.map(lambda m: ("TIMESTAMP", "io.debezium.time.IsoTimestamp", "string", iso(at(m)), None, at(m))),
    MICROS.map(
        lambda m: ("TIMESTAMP_NTZ", "io.debezium.time.IsoTimestamp", "string", iso(at(m)), None, at(m).replace(tzinfo=None))
    ),
    MICROS.map(lambda m: ("DATE", "io.debezium.time.IsoDate", "string", f"{at(m).date()}Z", None, at(m).date())),
    MICROS.map(lambda m: ("STRING", "io.debezium.time.IsoDate", "string", f"{at(m).date()}Z", None, f"{at(m).date()}Z")),
    st.times().map(
        lambda t: ("STRING", "io.debezium.time.MicroTime", "int64",
                   ((t.hour * 60 + t.minute) * 60 + t.second) * 1_000_000 + t.microsecond, None, t.isoformat())
    ),
    st.tuples(st.integers(-(10**18) + 1, 10**18 - 1), st.integers(0, 6)).map(
        lambda p: (f"DECIMAL(38, {p[1]})", "org.apache.kafka.connect.data.Decimal", "bytes", based(p[0]),
                   {"scale": str(p[1])}, digits(*p))
    ),
    st.tuples(st.integers(-(10**18), 10**18), st.integers(0, 6)).map(
        lambda p: ("DECIMAL(38, 6)", "io.debezium.data.VariableScaleDecimal", "struct",
                   {"scale": p[1], "value": based(p[0])}, None, digits(*p))
    ),
    st.binary().map(lambda b: ("BINARY", None, "bytes", base64.b64encode(b).decode(), None, b)),
    st.text().map(lambda t: ("STRING", "io.debezium.data.Json", "string", t, None, t)),
    st.uuids().map(lambda u: ("STRING", "io.debezium.data.Uuid", "string", str(u), None, str(u))),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: ("BIGINT", None, "int64", n, None, n)),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda f: ("DOUBLE", None, "double", f, None, f)),
    st.lists(st.none() | st.integers(-5, 5)).map(lambda v: ("ARRAY<INT>", None, "array", v, None, v)),
)  # fmt: skip


@given(MICROS)
def test_text_with_a_zone_in_a_column_without_one_needs_no_schema(micros):
    from statehouse.config.models import Stream

    schema = "id INT, seen TIMESTAMP_NTZ, day DATE, at TIMESTAMP, name STRING"
    stream = Stream.model_validate({"name": "s", "topic": "t", "format": "debezium", "schema": schema})
    row = {"id": 1, "seen": iso(at(micros)), "day": f"{at(micros).date()}Z", "at": iso(at(micros)), "name": "Z"}
    payloads = [json.dumps(change("c", None, one)).encode() for one in (row, {**row, "seen": None, "day": 7})]
    found = decoder_for(stream, [], []).decode([None] * 2, [None] * 2, [None] * 2, payloads).to_pylist()
    naive = at(micros).replace(tzinfo=None)
    assert [found[0][name] for name in row] == [1, naive, naive.date(), at(micros), "Z"]
    assert found[1]["_reason"].startswith("day: found 7")


@given(st.lists(CASES, min_size=1, max_size=5), st.sampled_from("cud"))
def test_values_mean_what_their_schema_says(cases, op):
    from statehouse.config.models import Stream
    from statehouse.records import fields_of

    schema = ", ".join(f"c{n} {case[0]}" for n, case in enumerate(cases))
    stream = Stream.model_validate({"name": "s", "topic": "t", "format": "debezium", "schema": schema})
    assert fields_of(stream)[-1].name == "_source"
    fields = []
    for number, (_, name, kind, _, parameters, _) in enumerate(cases):
        field = {"field": f"c{number}", "type": kind, "optional": True}
        fields.append(
            {**field, **({"name": name} if name else {}), **({"parameters": parameters} if parameters else {})}
        )
    row = {f"c{number}": case[3] for number, case in enumerate(cases)}
    rows = [{"type": "struct", "fields": fields, "field": which} for which in ("before", "after")]
    payload = change(op, row if op == "d" else None, None if op == "d" else row)
    text = json.dumps({"schema": {"type": "struct", "fields": rows}, "payload": payload}).encode()
    (found,) = decoder_for(stream, [], []).decode([None], [None], [None], [text]).to_pylist()
    assert found["_reason"] is None
    for number, case in enumerate(cases):
        assert found[f"c{number}"] == case[5], case


@pytest.mark.parametrize(("kind", "name", "value", "reason"), [
    ("TIMESTAMP", "io.debezium.time.MicroTimestamp", 9_223_372_036_825_200_000, "found a time outside the years 1 to 9999"),
    ("TIMESTAMP", "io.debezium.time.MicroTimestamp", "x", "found x, expected a moment as a whole number"),
    ("DATE", "io.debezium.time.Date", 2_932_897, "found a day outside the years 1 to 9999"),
    ("STRING", "io.debezium.time.MicroTime", -1, "expected a time of the day"),
    ("DECIMAL(9, 2)", "org.apache.kafka.connect.data.Decimal", "?", "expected a decimal's digits in base64"),
    ("DECIMAL(9, 2)", "org.apache.kafka.connect.data.Decimal", based(10**12), "found 10000000000.00, expected DECIMAL(9, 2)"),
    ("DECIMAL(9, 2)", "io.debezium.data.VariableScaleDecimal", 4, "found no decimal"),
])  # fmt: skip
def test_a_value_that_no_column_has_is_refused(decode, kind, name, value, reason):
    field = {"field": "c", "type": "int64", "name": name, "parameters": {"scale": "2"}}
    schema = {"fields": [{"field": "after", "fields": [field]}]}
    (found,) = decode([{"schema": schema, "payload": change("c", None, {"c": value})}], schema=f"c {kind}")
    assert found["_reason"].startswith("c: ") and reason in found["_reason"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_schema_stops_it(schema):
    from statehouse.config.models import Stream

    stream = Stream.model_validate({"name": "s", "topic": "t", "format": "debezium", "schema": "id INT"})
    text = json.dumps({"schema": schema, "payload": change("c", None, {"id": 1})}).encode()
    (found,) = decoder_for(stream, [], []).decode([None], [None], [None], [text]).to_pylist()
    assert found["id"] == 1 or found["_reason"]
