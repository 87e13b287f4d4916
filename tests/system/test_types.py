"""Values keep the names and the digits of their types, in the tables, in the API and in messages; what nobody carries is refused."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.engine.types import conforming
from api.replica.replica import Replica
from api.writes.events import set_to
from jobs.check import problems
from jobs.ingest import Ingest
from jobs.load import load
from jobs.merge import Merge
from jobs.recover import recover, texts
from jobs.spark import kafka_sink
from jobs.spark.expressions import rule_of
from jobs.spark.lookup import table_of
from jobs.spark.tables import describe_difference, describe_outdated
from statehouse.errors import ConfigError
from statehouse.fold import Rule
from tests.support.depth import first
from tests.support.records import EPOCH, SCHEMA, control, record

STREAMS = """
streams:
  n:
    topic: n
    schema: >-
      k STRING, a STRING, s STRUCT<x: INT, Yy: STRING, `order`: ARRAY<STRUCT<Zz: TIMESTAMP>>>, attrs MAP<STRING, STRING>,
      list ARRAY<INT>, at TIMESTAMP, big DECIMAL(38,10), raw BINARY, deep STRUCT<m: MAP<STRING, INT>>
stores:
"""
STORES = """
  last: {stream: n, key: k, value: s, reduce: latest}
  least: {stream: n, key: k, value: s, reduce: first}
  most: {stream: n, key: k, agent: a, value: s, reduce: majority}
  attrs: {stream: n, key: k, value: attrs, reduce: latest}
  deep: {stream: n, key: k, value: deep, reduce: first}
  list: {stream: n, key: k, agent: a, value: list, reduce: majority}
  raw: {stream: n, key: k, value: raw, reduce: latest}
  total: {stream: n, key: k, value: big, reduce: sum}
  when: {stream: n, key: k, value: at, reduce: latest}
"""
STRUCT = {"x": 1, "Yy": "p", "order": [{"Zz": "9999-12-31T23:59:59.999999Z"}]}
SENT = {
    "k": "a", "a": "p", "s": STRUCT, "attrs": {"b": "1", "A": "2"}, "list": [1, None, 3], "at": "0001-01-01T00:00:00Z",
    "raw": "aGk=", "deep": {"m": {"Q": 1}},
}  # fmt: skip
PUT = {
    "last": {"x": 5, "Yy": "q", "order": None},
    "most": {"x": 5, "Yy": "q", "order": [{"Zz": "0001-01-01T00:00:00Z"}, None]},
    "attrs": {"New": "n"},
    "list": [7],
    "raw": "eA==",
    "when": "9999-12-31T23:59:59.999999Z",
}
T0 = 1_700_000_000_000_000


def sent(offset, value, key=None, headers=None):
    return record("n", 0, offset, T0 + offset * 1_000_000, key, value, headers)


def shown(config):
    """What the API shows of each store's key `a`, and of `put`."""
    replica = Replica(config.model_copy(update={"api": config.api.model_copy(update={"freshness": "changelog"})}))
    replica.refresh()
    found = {}
    for store in config.stores:
        for key in ("a", "put"):
            (line,) = replica.snapshot(store).lookup([[key]])
            found[store, key] = json.loads(line, parse_float=Decimal)["value"] if line else None
    replica.stop()
    return found


EXPECTED = {
    **{(store, "a"): STRUCT for store in ("last", "least", "most")},
    **{("attrs", "a"): SENT["attrs"], ("deep", "a"): SENT["deep"], ("list", "a"): [1, None, 3], ("raw", "a"): "aGk="},
    ("total", "a"): Decimal("12345678901234567890123456.0000000002"),
    ("when", "a"): "0001-01-01T00:00:00Z",
    **{(store, "put"): value for store, value in PUT.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("here", first(1, [False, True]), ids=["by workers", "by the driver"])
def test_values_are_what_was_sent_in_both_engines(spark, lake, here):
    config = lake(STREAMS + STORES)
    assert problems(spark, config) == []
    ingest = Ingest(spark, config, config.streams["n"])
    states = {name: Merge(spark, config, store) for name, store in config.stores.items()}
    big = b'{"k": "a", "big": 12345678901234567890123456.0000000001}', b'{"k": "a", "big": 0.0000000001}'
    records = [sent(0, SENT), sent(1, big[0])]
    for store, value in PUT.items():
        made = set_to(["put"], {"value": value}, config.stores[store], states[store].rule)
        records.append(sent(len(records), made.payload.encode(), "put", control("set", store)))
    ingest.batch(spark.createDataFrame(records[:1], SCHEMA), here=here)
    for state in states.values():
        state.round()
    before = {name: value for (name, key), value in shown(config).items() if key == "a"}
    ingest.batch(spark.createDataFrame([*records[1:], sent(len(records), big[1])], SCHEMA), here=here)
    assert ingest.refused == 0
    followed = shown(config)
    for state in states.values():
        state.round()
    merged = shown(config)
    ignored = {("least", "put"), ("deep", "put"), ("total", "put")}
    for found in (followed, merged):
        latest = {k: v for k, v in found.items() if k not in ignored}
        assert latest == {
            **EXPECTED,
            **{k: latest[k] for k in [("last", "a"), ("attrs", "a"), ("raw", "a"), ("when", "a")]},
        }
    assert before["last"] == STRUCT and before["attrs"] == SENT["attrs"] and before["raw"] == "aGk="
    messages = (
        spark.read.format("delta")
        .load(states["most"].state)
        .select(kafka_sink.json(["key", "value", "reports"]).alias("m"))
    )
    told = {(m := json.loads(row.m))["key"]: m for row in messages.collect()}
    times = {"order": [{"Zz": "9999-12-31T23:59:59.999999Z"}]}
    assert told["a"]["value"] == {**STRUCT, **times} == told["a"]["reports"]["p"]["value"]


@pytest.mark.slow
def test_a_map_that_stays_the_same_has_not_changed(spark, lake):
    config = lake(STREAMS + "  attrs: {stream: n, key: k, value: attrs, reduce: latest}\n")
    ingest, state = Ingest(spark, config, config.streams["n"]), Merge(spark, config, config.stores["attrs"])
    seen = []
    for offset, attrs in enumerate([{"a": "1"}, {"a": "1"}, {"a": "2"}]):
        ingest.batch(spark.createDataFrame([sent(offset, {"k": "a", "attrs": attrs})], SCHEMA))
        state.round()
        seen += [
            r.at
            for r in spark.read.format("delta").load(state.state).selectExpr("unix_micros(changed_at) AS at").collect()
        ]
    assert seen[0] == seen[1] < seen[2]


REFUSED = [
    ("value: attrs, agent: a, reduce: majority", "can be compared"),
    ("value: deep, agent: a, reduce: majority", "can be compared"),
    ("value: deep, reduce: max", "one order"),
    ("value: s, reduce: min", "one order"),
    ("value: list, agent: a, reduce: 'at_least_one(x, y)'", "arguments"),
    ("value: big, agent: a, reduce: 'at_least_one(alarm, 0)'", "found 'alarm', expected a"),
    ("value: at - current_timestamp(), reduce: latest", "JSON and both engines"),
    ("value: 'NULL', reduce: first", "JSON and both engines"),
    ("value: parse_json(a), reduce: latest", "JSON and both engines"),
    ("value: 'map(1, a)', reduce: latest", "JSON and both engines"),
    ("value: 'CAST(big AS DECIMAL(38,38))', reduce: sum", "at most 36 decimals"),
    ("value: a, reduce: sum", "a number"),
    ("value: k, key: at - current_timestamp(), reduce: latest", "found a key of type INTERVAL"),
    (
        "value: at, reduce: {fold: {x: max(value) - min(value)}, combine: {x: 'greatest(a.x, b.x)'}, result: x}",
        "both engines",
    ),
]


@pytest.mark.slow
def test_what_a_reducer_cannot_take_is_refused_by_check(spark, lake):
    for setting, reason in REFUSED:
        key = "" if "key:" in setting else "key: k, "
        config = lake(f"{STREAMS}  s: {{stream: n, {key}{setting}}}\n")
        found = " ".join(message for _, message in problems(spark, config))
        assert reason in found, (setting, found)


@pytest.mark.parametrize(
    "column",
    [
        "i INTERVAL DAY",
        "v VARIANT",
        "c CHAR(3)",
        "v VARCHAR(3)",
        "s STRUCT<a: INT, b: INTERVAL YEAR>",
        "m MAP<INT, INT>",
    ],
)
def test_a_column_that_no_half_can_carry_is_refused(lake, column):
    with pytest.raises(ConfigError, match="schema: column .*: found "):
        lake(f"streams: {{n: {{topic: n, schema: 'k STRING, {column}'}}}}\n")


MOMENTS = [dt.datetime(1, 1, 1), dt.datetime(1677, 1, 1), EPOCH, dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]


@pytest.mark.slow
def test_files_of_other_writers_are_loaded_with_their_times(spark, lake, tmp_path):
    config = lake("streams: {t: {topic: t, schema: 'k STRING, at TIMESTAMP', time: at}}\n")
    near = [EPOCH, dt.datetime(2024, 2, 29, 1, 2, 3, 4)]
    files = {
        "micros": (MOMENTS, pa.timestamp("us", "UTC"), {}),
        "int96": (MOMENTS, pa.timestamp("us", "UTC"), {"use_deprecated_int96_timestamps": True}),
        "nanos": (near, pa.timestamp("ns"), {}),
        "zoned": (near, pa.timestamp("ns", "UTC"), {}),
    }
    for name, (moments, kind, how) in files.items():
        rows = pa.table({"k": [name] * len(moments), "at": pa.array(moments, kind)})
        pq.write_table(rows, tmp_path / f"{name}.parquet", **how)
        assert load(spark, config, config.streams["t"], tmp_path / f"{name}.parquet").events == len(moments)
    log = spark.read.format("delta").load(f"{config.root}/changelog/t")
    found: dict[str, set[int]] = {}
    for row in log.selectExpr("k", "unix_micros(at) AS at").collect():
        found.setdefault(row.k, set()).add(row.at)
    micros = {
        name: {(m - EPOCH) // dt.timedelta(microseconds=1) for m in moments} for name, (moments, _, _) in files.items()
    }
    assert found == micros


@pytest.mark.slow
def test_a_lookup_has_the_times_of_its_table(spark, lake, tmp_path):
    rows = pa.table({"k": list("abcd"), "at": pa.array(MOMENTS, pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "places.parquet", use_deprecated_int96_timestamps=True)
    config = lake(
        "streams: {t: {topic: t, schema: 'k STRING'}}\n"
        "lookups: {place: {stream: t, table: places.parquet, schema: 'k STRING, at TIMESTAMP', key: k}}\n"
    )
    found = table_of(spark, config.lookups["place"]).selectExpr("place.k AS k", "unix_micros(place.at) AS at").collect()
    assert {row.k: row.at for row in found} == {
        k: (m - EPOCH) // dt.timedelta(microseconds=1) for k, m in zip("abcd", MOMENTS, strict=True)
    }


@pytest.mark.slow
def test_a_recovery_shows_times_of_the_first_day(spark, lake):
    stores = "  when: {stream: n, key: at, value: at, reduce: latest%s}\n"
    config = lake(STREAMS + stores % "")
    Ingest(spark, config, config.streams["n"]).batch(spark.createDataFrame([sent(0, SENT)], SCHEMA))
    Merge(spark, config, config.stores["when"]).round()
    config = lake(STREAMS + stores % ", where: k <> 'a'")
    found = recover(spark, config, config.stores["when"])
    assert found.gone == 1
    assert any("0001-01-01 00:00:00" in line for line in texts(found))


@pytest.mark.slow
def test_a_sum_that_has_no_place_is_null_in_both_engines(spark, lake):
    stores = "  total: {stream: n, key: k, value: big, reduce: sum}\n  whole: {stream: n, key: k, value: whole, reduce: sum}\n"
    config = lake(STREAMS.replace("raw BINARY", "whole BIGINT, raw BINARY") + stores)
    ingest = Ingest(spark, config, config.streams["n"])
    most = b"9" * 28 + b"." + b"9" * 10
    greatest = b'{"k": "a", "big": 9223372036854775807, "whole": 9223372036854775807}'
    payloads = [b'{"k": "a", "big": %s}' % most, greatest, greatest]
    states = [Merge(spark, config, store) for store in config.stores.values()]
    for offset, payload in enumerate([*payloads, b'{"k": "b", "big": 1.5, "whole": 1}']):
        ingest.batch(spark.createDataFrame([sent(offset, payload)], SCHEMA))
        if offset == 0:
            for state in states:
                state.round()
    followed = shown(config)
    for state in states:
        state.round()
    assert followed == shown(config)
    assert followed["total", "a"] is None and followed["whole", "a"] is None


@pytest.mark.slow
def test_types_of_before_are_no_other_rule(spark, lake):
    config = lake(STREAMS + "  last: {stream: n, key: k, value: s, reduce: latest}\n")
    kind = rule_of(spark, config, config.stores["last"]).value_type
    assert kind == "STRUCT<x: INT, Yy: STRING, order: ARRAY<STRUCT<Zz: TIMESTAMP>>>"
    old = Rule(config.stores["last"], ("STRING",), "STRUCT<X:INT,YY:STRING,ORDER:ARRAY<STRUCT<ZZ:TIMESTAMP>>>")
    new = rule_of(spark, config, config.stores["last"])
    assert not describe_difference(old, new) and describe_outdated(old, new) and not describe_outdated(new, new)
    assert describe_difference(replace(old, value_input="STRUCT<X:BIGINT>"), new)


@pytest.mark.slow
def test_a_time_beyond_the_years_is_null_in_both_engines(spark, lake):
    stores = "  key: {stream: t, key: timestamp_micros(n), reduce: count}\n  value: {stream: t, key: k, value: timestamp_micros(n), reduce: max}\n"
    stores += "  day: {stream: t, key: k, value: \"date_add(to_date('9999-12-31'), 2)\", reduce: latest}\n"
    config = lake(f"streams: {{t: {{topic: n, schema: 'k STRING, n BIGINT'}}}}\nstores:\n{stores}")
    ingest = Ingest(spark, config, config.streams["t"])
    states = {name: Merge(spark, config, store) for name, store in config.stores.items()}
    ends = [-62_135_596_800_000_001, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000]
    numbers = [*enumerate(ends), (4, 253_402_300_799_999_998), (5, 253_402_300_799_999_999)]

    def all_shown():
        replica = Replica(config.model_copy(update={"api": config.api.model_copy(update={"freshness": "changelog"})}))
        replica.refresh()
        found = {name: (s := replica.snapshot(name)).rows(s.page(None, 100)[0]) for name in config.stores}
        replica.stop()
        return {name: [(str(row["key"]), str(row["value"])) for row in rows] for name, rows in found.items()}

    for begin, end in ((0, 1), (1, 6)):
        some = [sent(n, {"k": "a", "n": at}) for n, at in numbers[begin:end]]
        ingest.batch(spark.createDataFrame(some, SCHEMA))
        if begin == 0:
            for state in states.values():
                state.round()
    followed = all_shown()
    for state in states.values():
        state.round()
    assert followed == all_shown()
    assert followed["value"] == [("a", "9999-12-31 23:59:59.999999")]
    keys = ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999998", "9999-12-31 23:59:59.999999"]
    assert followed["key"] == [(key, "2" if key.endswith("9") else "1") for key in keys]
    assert followed["day"] == []


KIND = "STRUCT<x: INT, Yy: ARRAY<STRUCT<at: TIMESTAMP>>, m: MAP<STRING, DECIMAL(38, 10)>>"
FULL = {"x": 1, "Yy": [{"at": "2024-01-01T00:00:00Z"}], "m": {"a": "12345678901234567890123456.0000000001"}}


@pytest.mark.parametrize(
    ("value", "sent_value"),
    [
        ({"x": 1, "Yy": [{"at": "2024-01-01"}], "m": {"a": Decimal("12345678901234567890123456.0000000001")}}, FULL),
        ({"m": {}}, {"x": None, "Yy": None, "m": {}}),
        ({"X": 1}, None),
        ({"x": 1.5}, None),
        ({"x": 2**31}, None),
        ({"Yy": [{"at": "10000-01-01"}]}, None),
        ({"Yy": [{"at": "2024-01-01", "more": 1}]}, None),
        ({"m": {"a": "1"}}, None),
        ([], None),
    ],
)
def test_a_set_is_looked_at_as_deep_as_it_goes(value, sent_value):
    if sent_value is None:
        with pytest.raises(ValueError, match="expected"):
            conforming(value, KIND)
    else:
        assert conforming(value, KIND) == sent_value
