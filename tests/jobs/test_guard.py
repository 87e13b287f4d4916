"""What an expression of the file throws on, stops nothing: not its stream, its store, its route, and no other one."""

from __future__ import annotations

import json
import threading
from decimal import Decimal

import pytest
from pyspark.sql import Row

from api import create_app
from jobs.attempts import Attempts
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.route import Router
from jobs.run import catch_up
from jobs.spark import guard
from statehouse.values import safe
from tests.support.api_lake import eventually
from tests.support.records import SCHEMA, record, rows

CONFIG = """
streams:
  s: {topic: t, schema: "key STRING, ms BIGINT, i INT, tags ARRAY<STRING>", time: timestamp_millis(ms)}
stores:
  last: {stream: s, key: key, value: "element_at(tags, i)", reduce: latest}
  by: {stream: s, key: "element_at(tags, i)", value: i, reduce: count, where: "element_at(tags, i) <> 'c'"}
routes:
  out: {from: s, select: [key, "element_at(tags, i) AS tag"], to: {table: out}}
"""
T0 = 1_700_000_000_000
TAGS = ["a", "b", "c"]
HUGE = 2**63 - 1


def sent(number, **payload):
    return record("t", 0, number, 10**15 + number, None, {"key": f"k{number % 3}", "tags": TAGS, **payload})


def drawn(count=60, first=0):
    """Records, of which each seventh has a time that cannot be computed, and each fifth an index that is none."""
    found = []
    for number in range(first, first + count):
        ms = HUGE if number % 7 == 3 else T0 + number
        wrong = 0 if number % 2 else -(2**31)  # by the latter Spark would read outside of its memory, and end
        found.append(sent(number, ms=ms, i=(wrong if number % 5 == 2 else 1 + number % 3)))
    return found


def right(records):
    """The oracle: what each store has, and what its route's table."""
    last, by, out = {}, {}, []
    for *_, value, _ in records:
        event = json.loads(value)
        if event["ms"] == HUGE:
            continue
        key, i = event["key"], event["i"]
        tag = TAGS[i - 1] if i > 0 else None
        last[key] = tag
        if i:
            out.append((key, tag))
        if tag not in (None, "c"):
            by[tag] = by.get(tag, 0) + 1
    return {"last": {key: tag for key, tag in last.items() if tag is not None}, "by": by}, out


def state(spark, config, store):
    return {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/{store}")}


def merge_all(spark, config):
    """By new merges each time: each begins without knowing of what throws."""
    attempts = Attempts(config, "merge")
    catch_up([Merge(spark, config, s) for s in config.stores.values()], attempts, threading.Event())
    assert not attempts.errors


@pytest.mark.slow
def test_what_cannot_be_computed_is_null_and_a_time_that_cannot_is_refused(spark, lake):
    config, records = lake(CONFIG), drawn()
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame(records[:30], SCHEMA))
    ingest.batch(spark.createDataFrame(records[30:50], SCHEMA))  # by the guard from the beginning
    ingest.batch(spark.createDataFrame([r for r in records[50:] if b'"ms": 9' not in r[5]], SCHEMA))
    merge_all(spark, config)
    expected, out = right(records)
    assert {store: state(spark, config, store) for store in config.stores} == expected
    bad = rows(spark, f"{config.root}/quarantine/s")
    times = [r for r in bad if r["reason"].startswith("timestamp_millis(ms) cannot be computed: ")]
    assert {r["offset"] for r in times} == {n for n in range(50) if n % 7 == 3} and ingest.refused == len(times)
    assert all("long overflow" in r["reason"] and json.loads(r["payload"])["ms"] == HUGE for r in times)
    router = Router(spark, config, config.routes["out"])
    router.round()
    sent_on = [(r["key"], r["tag"]) for r in rows(spark, f"{config.root}/routes/out")]
    assert sorted(sent_on, key=str) == sorted(out, key=str)
    refused = [r for r in rows(spark, f"{config.root}/quarantine/s") if r["reason"].startswith("route out: ")]
    assert {r["offset"] for r in refused} == {n for n in range(60) if n % 5 == 2 and n % 7 != 3 and n % 2}
    assert all("The index 0 is invalid" in r["reason"] for r in refused)
    ingest.batch(spark.createDataFrame([sent(60, ms=T0 + 99, i=0)], SCHEMA))
    router.round()
    assert len(rows(spark, f"{config.root}/quarantine/s")) == len(bad) + len(refused) + 1


EDGES = """
streams:
  s: {topic: t, schema: "key STRING, b BINARY, text STRING, x DOUBLE, n DECIMAL(20,2)"}
stores:
  text: {stream: s, key: key, value: CAST(b AS STRING), reduce: latest}
  by_text: {stream: s, key: "coalesce(CAST(b AS STRING), 'none')", reduce: count}
  greatest: {stream: s, key: key, value: CAST(text AS DOUBLE), reduce: max}
  total: {stream: s, key: key, value: x, reduce: sum}
  mean: {stream: s, key: key, value: n, reduce: avg}
"""


@pytest.mark.slow
def test_bytes_that_are_no_text_and_numbers_beyond_all_are_null(spark, lake):
    config, n = lake(EDGES), "982352376773846080.73"
    events = [{"b": "/w==", "text": "NaN", "x": 1.7e308, "n": n}, {"b": "QQ==", "text": "5", "x": -1.7e308}]
    events += [{"text": "Infinity"}]
    ingest = Ingest(spark, config, config.streams["s"])
    records = [record("t", 0, i, 10**15 + i, None, {"key": "k", **e}) for i, e in enumerate(events)]
    expected = {
        "text": {},
        "by_text": {"A": 1, "none": 1},  # text that is not UTF-8 is no key
        "greatest": {"k": 5.0},
        "total": {"k": 0.0},
        "mean": {"k": float(Decimal(n))},
    }
    for part in (records[:2], records[2:]):
        ingest.batch(spark.createDataFrame(part, SCHEMA))
    app = create_app(config)
    try:
        merge_all(spark, config)
        eventually(lambda: {s["position"] for s in app.test_client().get("/stores").get_json()["stores"]} == {2})
        for store, states in expected.items():
            assert state(spark, config, store) == states
            shown = app.test_client().get(f"/stores/{store}/keys").get_json()["rows"]
            assert {row["key"]: row["value"] for row in shown} == states, "and every row can be read"
        more = [record("t", 0, n, 10**15 + n, None, {"key": "k", "x": 1.7e308}) for n in (3, 4)]
        ingest.batch(spark.createDataFrame(more, SCHEMA))
        read = lambda: app.test_client().get("/stores/total/keys/k?freshness=changelog").get_json()  # noqa: E731
        eventually(lambda: read()["position"] == 3)
        assert read()["value"] is None, "beyond all numbers"
        merge_all(spark, config)
        assert state(spark, config, "total") == {"k": None}
    finally:
        app.extensions["statehouse"].replica.stop()


def test_the_guard_gives_null_for_what_throws_and_leaves_all_else(spark):
    session = spark.newSession()
    guard.install(session)
    session.createDataFrame([Row(n=HUGE, i=0), Row(n=1, i=1)]).createOrReplaceTempView("t")
    query = "SELECT {0} AS a, {1} AS b, {0} IS NULL AND {2} IS NULL AS c FROM t ORDER BY n"
    words = [
        guard.TRY.format(e)
        for e in ("timestamp_millis(n)", "element_at(array('x'), CAST(i AS INT))", "struct(timestamp_millis(n))")
    ]
    for form in ("CODEGEN_ONLY", "FALLBACK"):
        session.conf.set("spark.sql.codegen.wholeStage", str(form == "CODEGEN_ONLY").lower())
        found = session.sql(query.format(*words)).collect()
        assert [(r["a"] is None, r["b"], r["c"]) for r in found] == [(False, "x", False), (True, None, True)]
    with pytest.raises(Exception, match="UNRESOLVED_ROUTINE|cannot resolve"):
        spark.newSession().sql("SELECT statehouse_try(1)").collect()


def test_a_failure_that_no_expression_is_to_blame_for_is_raised_as_it_is(spark, lake):
    calls = []

    def work():
        calls.append(standing.text)
        raise OSError("no space left on device")

    standing = guard.Guard("x")
    with pytest.raises(OSError, match="no space"):
        standing.run(spark.newSession(), work)
    assert calls == [guard.PLAIN] and not standing.up, "what was done before is not done twice"

    def refuse():
        calls.append(standing.text)
        spark.sql("SELECT raise_error('on purpose')").collect()

    with pytest.raises(Exception, match="on purpose"):
        standing.run(spark.newSession(), refuse)
    assert calls == [guard.PLAIN, guard.PLAIN, guard.TRY] and not standing.up


@pytest.mark.parametrize(
    "expression", ["element_at(a, i)", "element_at(a, element_at(b, i))", "Element_At (split(s, '[(]'), i + 0)"]
)
def test_no_index_ends_spark(spark, expression):
    spark.createDataFrame(
        [Row(a=["x"], b=[1], i=-(2**31), s="x(")], "a ARRAY<STRING>, b ARRAY<INT>, i INT, s STRING"
    ).createOrReplaceTempView("t")
    assert spark.sql(f"SELECT {safe(expression)} AS x FROM t").first() == (None,)
    assert safe("element_at(a, 1) || element_at(m, 'k')") == "element_at(a, 1) || element_at(m, 'k')"
