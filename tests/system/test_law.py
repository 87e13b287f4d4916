"""The law: a state is a function of the set of events, for any order, any batches, any repetition, any times, values and windows.

Hypothesis draws the examples; all of them run in one lake, each with keys of its own, so that sixty examples cost
six MERGEs a store and not three hundred. The same examples go through Spark's MERGE and through DuckDB's fold.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import chain

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import example as such_as
from hypothesis import strategies as st

from api.engine.fold import Fold
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.spark.session import sql
from statehouse.config.models import Store
from statehouse.fold import Rule
from statehouse.kafka import FIRST_MS
from statehouse.transpile import to_duckdb
from tests.support.depth import FULL, sized
from tests.support.law import OWN, OWN_TYPES, STORES, WINDOWS, reduce_of
from tests.support.oracle import YEAR_ONE, fold, windowed
from tests.support.records import EPOCH, SCHEMA, control, iso, record
from tests.support.values import (
    BITS,
    KINDS,
    LAST,
    MOMENTS,
    NUMBERS,
    SCALARS,
    arrow,
    as_set,
    comparable,
    in_python,
    moment,
)
from tests.support.values import drawn as values_of

SETTABLE = [s for s in STORES if s not in WINDOWS]
WITHDRAWN = ("latest", "majority", "at_least_one")  # a set of null means something
CONFIG = """
streams:
  s:
    topic: t
    schema: key STRING, agent STRING, value STRING, n BIGINT, d DECIMAL(12,2), ts TIMESTAMP
    time: ts
stores:
""" + "".join(
    f"  {name}: {{stream: s, key: key, agent: agent, value: {column}, reduce: {reduce if reduce is OWN else repr(reduce)}"
    + (f", window: {WINDOWS[name]}" if name in WINDOWS else "")
    + "}\n"
    for name, (column, _, reduce) in STORES.items()
)
T0 = 1_700_000_000_000_000
# Where the times of an example are: mostly here, else where a calendar or a number ends.
PLACES = [T0] * 5 + [
    YEAR_ONE + 3_000_000,
    -12_219_292_800_000_001,  # amid the days of October 1582 that the older calendar does not have
    -9_223_372_036_000_123,
    -1,
    9_223_372_036_900_000,
    LAST - 4_000_000,
]
BATCHES = 6
DRAWN, DRAWN_FOR_SPARK = sized((200, 30), (500, 60))
JOINED = sized(3, 1)  # so many batches are one for Spark, where a MERGE takes seconds
IN_SPARK = sized(("majority", "avg", "own", "w_sum", "hop_latest"), tuple(STORES))

# Times collide and run backwards, values are few so that majorities tie; a key may be anything. Few keys and times, and
# often a single batch: otherwise two events of a key hardly ever tie, and a late reset hardly ever falls between two.
TIMES = st.integers(-2, 3).map(lambda s: s * 1_000_000)
KEYS = st.sampled_from(["a", "a", "ü/%2F \u2603", "x" * 3000])
OPS = st.sampled_from(["report"] * 8 + ["null", "set", "set null", "purge", "purge all"])
EVENTS = st.tuples(
    st.sampled_from(PLACES),
    st.lists(
        st.tuples(
            KEYS, OPS, st.sampled_from("pqrstu"), st.sampled_from("abc"), st.integers(-5, 9), TIMES, st.integers(0, 1)
        ),
        min_size=3,
        max_size=20,
    ),
).map(lambda drawn: [(*event[:5], drawn[0] + event[5], event[6]) for event in drawn[1]])
CUTS = st.integers(1, BATCHES).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=20, max_size=20))
CHANGELOG = (
    "key VARCHAR, agent VARCHAR, value VARCHAR, n BIGINT, d DECIMAL(12,2), ts TIMESTAMPTZ, _partition INT,"
    " _offset BIGINT, _event_time TIMESTAMPTZ, _op VARCHAR, _key VARCHAR, _store VARCHAR, _agent VARCHAR, _value VARCHAR"
)


def as_made(example, number):
    """A drawn example as Kafka's records and as the changelog's rows, each with the index of its draw, and as the
    oracle's events by store and key."""
    records, log, expected = [], [], {s: {} for s in STORES}
    offsets = {0: 1000 * number, 1: 1000 * number}
    for index, (key, op, agent, letter, n, time, partition) in enumerate(example):
        key, values = f"{number}:{key}", {"value": letter, "n": n, "d": Decimal(n) / 4}
        if time < FIRST_MS * 1000 and op != "null":  # such a time is a payload's, and never a record's own
            op = "report"
        if op in ("null", "set null"):
            values = dict.fromkeys(values)
        # Reports and purges without a store go to all of them; a set to each of those that it means something to.
        one = [list(STORES)[n % len(STORES)]]
        many = list(WITHDRAWN if op == "set null" else SETTABLE if op == "set" else STORES)
        for targets in [[t] for t in many] if op.startswith("set") else [one] if op == "purge" else [many]:
            offset = offsets[partition]
            offsets[partition] += 1
            if op in ("report", "null"):
                kind, headers, body = "report", None, {"key": key, "agent": agent, "ts": iso(time), **values}
            elif op.startswith("set"):
                kind, headers = "set", control("set", targets[0])
                body = {"value": values[STORES[targets[0]][0]], "agent": agent}
            else:
                kind, headers, body = "purge", None if op == "purge all" else control("purge", targets[0]), None
            sent = {c: float(v) if isinstance(v, Decimal) else v for c, v in body.items()} if body else None
            records.append((index, record("t", partition, offset, time, key, sent, headers)))
            at = EPOCH.replace(tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=time)
            own = [body[c] for c in ("key", "agent", "value", "n", "d")] + [at] if kind == "report" else [None] * 6
            set_value = str(body["value"]) if kind == "set" and body["value"] is not None else None
            store = None if headers is None else targets[0]
            voter = agent if kind == "set" else None
            log.append((index, [*own, partition, offset, at, kind, key, store, voter, set_value]))
            for target in targets:
                made = {
                    "op": kind,
                    "agent": agent,
                    "value": values[STORES[target][0]],
                    "order": (time, partition, offset),
                }
                expected[target].setdefault(key, []).append(made)
    return records, log, expected


def oracle(expected):
    """Every store's keys with their value and event time."""
    states = {}
    for store, keys in expected.items():
        name, arguments = reduce_of(store)
        if store in WINDOWS:
            step = 1_000_000 if store.startswith("hop") else 2_000_000
            folded = {
                (key, start): found
                for key, events in keys.items()
                for start, found in windowed(name, events, 2_000_000, step, *arguments).items()
            }
        else:
            folded = {key: fold(name, events, *arguments) for key, events in keys.items()}
        states[store] = {k: v for k, v in folded.items() if v is not None}
    return states


@functools.cache
def drawn(count):
    """``count`` drawn examples, cut into batches at random: records and changelog rows by batch, and what is right."""
    examples = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, derandomize=True)
    @given(EVENTS, CUTS)
    def collect(example, cut):
        examples.append((example, cut))

    collect()
    records, logs = [[] for _ in range(BATCHES)], [[] for _ in range(BATCHES)]
    expected = {s: {} for s in STORES}
    for number, (example, cut) in enumerate(examples):
        made, log, events = as_made(example, number)
        for (index, one), (_, row) in zip(made, log, strict=True):
            records[cut[index]].append(one)
            logs[cut[index]].append(row)
        for store, keys in events.items():
            expected[store].update(keys)
    return records, logs, oracle(expected)


@pytest.mark.slow
def test_spark_merges_agree_with_the_oracle_in_any_order_and_batches(spark, lake, monkeypatch):
    config = lake(CONFIG)
    drawn_batches, _, expected = drawn(DRAWN_FOR_SPARK)
    batches = [list(chain(*drawn_batches[first : first + JOINED])) for first in range(0, BATCHES, JOINED)]
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ingest = Ingest(spark, config, config.streams["s"])
    merges = [Merge(spark, config, config.stores[name]) for name in IN_SPARK]
    for number, batch in enumerate(batches, 1):
        if number > len(batches) / 2:
            monkeypatch.setattr("jobs.spark.small.SMALL", 0)  # rows are marked from now on, as in a large state
        ingest.offsets = {}  # the batches are out of offset order on purpose: the law is about sets
        frame = spark.createDataFrame(batch, SCHEMA)
        ingest.batch(frame, here=number % 3 == 0)
        ingest.batch(frame, here=number % 2 == 0)  # sent again: its coordinates are known
        # Each store has merges of its own: of one batch, or of some.
        some = [merge for merge in merges if number == len(batches) or dice.random() < 0.5]
        with ThreadPoolExecutor(3) as threads:  # a merge of few rows is spent on planning, on one core
            list(threads.map(Merge.round, some))
    assert ingest.refused == 0
    for store in IN_SPARK:
        start = "unix_micros(window_start)" if store in WINDOWS else "NULL"
        table = spark.read.format("delta").load(f"{config.root}/state/{store}")
        table = table.selectExpr("key", f"{start} AS start", "value", "unix_micros(event_time) AS time").collect()
        found = {(r.key, r.start) if store in WINDOWS else r.key: (r.value, r.time) for r in table}
        assert found == expected[store], store


@pytest.mark.parametrize("store", STORES)
def test_duckdb_agrees_with_the_oracle_in_any_order_and_batches(lake, store):
    _, batches, expected = drawn(DRAWN)
    db = duckdb.connect()
    db.execute("SET TimeZone = 'UTC'")
    db.execute(f"CREATE TABLE log ({CHANGELOG})")
    db.execute(f"CREATE TABLE batch ({CHANGELOG})")
    own_types = OWN_TYPES if STORES[store][2] is OWN else ()
    rule = Rule(lake(CONFIG).stores[store], ("STRING",), STORES[store][1], own_types)
    folded, keys = Fold(db, rule, "s"), ", ".join(rule.keys)
    db.execute("CREATE TABLE state AS FROM s_state")
    for position, batch in enumerate(batches):
        frame = pd.DataFrame(batch, columns=[c.split()[0] for c in CHANGELOG.split(", ")], dtype=object)  # noqa: F841
        db.execute("DELETE FROM batch")
        db.execute("INSERT INTO batch SELECT * FROM frame")
        db.execute("INSERT INTO log SELECT * FROM batch")
        made = folded.apply(db.sql("FROM state").to_arrow_table(), "batch", lambda: "log")
        folded.remember(folded.absent(position))
        db.execute(f"DELETE FROM state WHERE ({keys}) IN (SELECT ({keys}) FROM {made})")
        db.execute(
            f"INSERT INTO state BY NAME SELECT * EXCLUDE (_present, _here, _conflict) FROM {made} WHERE _present"
        )
    start = "epoch_us(window_start)" if store in WINDOWS else "NULL"
    found = db.execute(f"SELECT key, {start}, value, epoch_us(event_time) FROM state").fetchall()
    assert {k if w is None else (k, w): (v, t) for k, w, v, t in found} == expected[store]


# Windows of any kind, over times of any year. A window is a number of milliseconds.
STEPS = st.sampled_from([60_000, 900_000, 3_600_000, 86_400_000, 604_800_000]) | st.integers(1, 10_000_000)
SPANS = st.tuples(STEPS, st.integers(1, 1440) | st.sampled_from([1, 2, 1440]), st.floats(0, 1, exclude_max=True)).map(
    lambda drawn: (max(drawn[0], int(drawn[0] * (drawn[1] - drawn[2]))), drawn[0])
)
EDGES = [(86_400_000, 60_000), (3_600_000, 900_000), (604_800_000, 604_800_000), (1440, 1)]  # length, step
ROW = {
    "key": pa.string(), "agent": pa.string(), "_partition": pa.int32(), "_offset": pa.int64(),
    "_event_time": pa.timestamp("us", "UTC"), "_op": pa.string(), "_key": pa.string(), "_store": pa.string(),
    "_agent": pa.string(), "_value": pa.string(),
}  # fmt: skip


def log_of(events, kind="BOOLEAN"):
    """Events of keys, each as the oracle has it, as rows of a changelog whose column ``v`` has their values."""
    columns = {**ROW, "v": arrow(kind)}
    made = []
    for key, event in events:
        time, partition, offset = event["order"]
        row = dict.fromkeys(columns) | {"_partition": partition, "_offset": offset, "_event_time": moment(time)}
        row |= {"_op": event["op"], "_key": key}
        if event["op"] == "report":
            row |= {"key": key, "agent": event["agent"], "v": in_python(event["value"], kind)}
        elif event["op"] == "set":
            row |= {"_store": "s", "_agent": event["agent"], "_value": as_set(event["value"], kind)}
        made.append(row)
    return pa.Table.from_pylist(made, pa.schema(columns))


def rule_of(kind, reduce, **more):
    """A store's rule over such rows."""
    definition = {"name": "s", "stream": "s", "key": "key", "agent": "agent", "value": "v", "reduce": reduce, **more}
    return Rule(Store.model_validate(definition), ("STRING",), kind)


def in_windows(size, step):
    """Of a window, in milliseconds, the rule that counts its events; with times for them."""
    return rule_of("BOOLEAN", "count", value=None, window=f"{size} milliseconds every {step} milliseconds")


def counted(rule, times):
    """The oracle's count of each window of one key."""
    events = [{"op": "report", "agent": "a", "value": 1, "order": (time, 0, i)} for i, time in enumerate(times)]
    return {start: n for start, (n, _) in windowed("count", events, *rule.store.windows).items()}


def times_log(times):
    return log_of(
        [("k", {"op": "report", "agent": "a", "value": True, "order": (t, 0, i)}) for i, t in enumerate(times)]
    )


COUNTED = "SELECT unix_micros(window_start) AS start, count(*) AS n FROM ({}) GROUP BY window_start"


@such_as(EDGES[0], [T0, YEAR_ONE, YEAR_ONE + 59_999_999, LAST])
@such_as(EDGES[1], [T0 + 2_235_000_000, YEAR_ONE + 1])
@such_as(EDGES[2], [YEAR_ONE, YEAR_ONE + 86_400_000_000 * 7])
@given(SPANS, st.lists(MOMENTS, min_size=1, max_size=3))
def test_duckdb_has_an_event_in_all_of_its_windows(span, times):
    rule, log = in_windows(*span), times_log(times)  # noqa: F841  # DuckDB finds it
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute("CREATE TABLE log AS FROM log")
        query = rule.project("log", guard="TRY({})")
        assert dict(db.execute(to_duckdb(COUNTED.format(query))).fetchall()) == counted(rule, times)
        (none,) = db.execute(to_duckdb(f"SELECT {rule.counts['unkeyed']} FROM {rule.events('log')}")).fetchone()
        assert none == sum(not counted(rule, [time]) for time in times)


@pytest.mark.slow
def test_spark_has_an_event_in_all_of_its_windows(spark):
    spans = [*EDGES, *some(SPANS, 6)]
    times = [T0, T0 + 2_235_000_001, -1, YEAR_ONE, YEAR_ONE + 59_999_999, YEAR_ONE + 1_000_000_000_000, LAST]
    for span in spans:
        rule = in_windows(*span)
        query = COUNTED.format(rule.project("log"))
        found = sql(spark, query, log=spark.createDataFrame(times_log(times))).collect()
        assert {r.start: r.n for r in found} == counted(rule, times), span
        query = f"SELECT {rule.counts['unkeyed']} AS n FROM {rule.events('log')}"
        none = sql(spark, query, log=spark.createDataFrame(times_log(times))).collect()[0].n
        assert none == sum(not counted(rule, [time]) for time in times), span


def some(strategy, count):
    """Some examples of a strategy, others each time."""
    found = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(one):
        found.append(one)

    collect()
    return found


# Values of every type, with every reducer that takes them.
def reducers(kind):
    """The reducers that a type is reduced by, as tests.support.oracle has them."""
    found = ["latest", "first", "count"]
    found += ["majority"] if "MAP" not in kind else []
    found += ["min", "max"] if kind in SCALARS else []
    return found + (["sum", "avg"] if kind.startswith(NUMBERS) else [])


def some_of(fit, number):
    """Three of a type's reducers, others for the next type, in which sums are; all of them in `make law`."""
    if FULL:
        return fit
    return {fit[number % len(fit)], fit[(number + 1) % len(fit)], fit[-2]}


def histories(kind, reduce):
    """Events of one key, cut into two batches: whether each is in the second."""
    value = values_of(kind, narrow=reduce in ("sum", "avg"))
    if reduce == "count":
        value = value | st.none()
    ops = ["report"] * 8 + ["purge"] + ([] if reduce == "count" else ["set"])
    event = st.tuples(st.sampled_from(ops), st.sampled_from("pq"), st.none() | value, MOMENTS, st.booleans())
    return st.lists(event, min_size=2, max_size=7)


def as_events(number, example, reduce):
    """An example as events of a key, as the oracle has them, with their batches; nothing resets to null but what may."""
    for index, (op, agent, value, time, second) in enumerate(example):
        if op == "set" and value is None and reduce not in WITHDRAWN:
            op = "report"
        event = {"op": op, "agent": agent, "value": value, "order": (time, index % 2, 100 * number + index)}
        yield f"k{number}", event, second


def expected_of(kind, reduce, events):
    """The oracle's states of keys."""
    states = {}
    for key, of in events.items():
        state = fold(reduce, of)
        if state is not None:
            value, time = state
            if reduce == "sum" and kind in BITS and not -(2**63) <= value < 2**63:
                value = None  # it has no place in a BIGINT
            if (reduce == "sum" and kind in ("FLOAT", "DOUBLE")) or reduce == "avg":
                value = float(value)
            states[key] = value, time
    return states


def same(found, expected, reduce):
    """Whether two states are; floating-point values but for the last digits."""
    if reduce not in ("sum", "avg"):
        return found == expected
    return found.keys() == expected.keys() and all(
        found[key][1] == time
        and (found[key][0] == value or math.isclose(found[key][0], value, rel_tol=1e-9, abs_tol=1e-9))
        for key, (value, time) in expected.items()
    )


def result_kind(kind, reduce):
    """The type of the state's value."""
    return rule_of(kind, reduce).value_type


def cases(kind, reduce, count):
    """Drawn events as two batches of rows, and the oracle's states."""
    events, batches = {}, ([], [])
    for number, example in enumerate(some(histories(kind, reduce), count)):
        for key, event, second in as_events(number, example, reduce):
            events.setdefault(key, []).append(event)
            batches[second].append((key, event))
    return [log_of(batch, kind) for batch in batches], expected_of(kind, reduce, events)


def states_of(table, kind, reduce):
    """Rows of a state, an Arrow table, as the oracle has them."""
    columns = (table[name].to_pylist() for name in ("key", "value", "event_time"))
    kind = result_kind(kind, reduce)
    return {
        key: (comparable(value, kind), comparable(time, "TIMESTAMP")) for key, value, time in zip(*columns, strict=True)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_duckdb_folds_values_of_every_type(kind):
    for reduce in some_of(reducers(kind), KINDS.index(kind)):
        batches, expected = cases(kind, reduce, sized(20, 500))
        with duckdb.connect() as db:
            db.execute("SET TimeZone = 'UTC'")
            rule = rule_of(kind, reduce)
            folded = Fold(db, rule, "s")
            state = db.sql("FROM s_state").to_arrow_table()
            for position, batch in enumerate(batches):
                db.register("batch", batch)
                db.register("log", pa.concat_tables(batches[: position + 1]))
                made = folded.apply(state, "batch", lambda: "log")
                folded.remember(folded.absent(position))
                changed = db.execute(f"SELECT * EXCLUDE (_here, _conflict) FROM {made}").to_arrow_table()
                db.register("changed", changed)
                db.register("before", state)
                columns = ", ".join(f'"{c}"' for c in rule.state_columns)
                kept = f"SELECT {columns} FROM before WHERE key NOT IN (SELECT key FROM changed)"
                state = db.execute(f"{kept} UNION ALL SELECT {columns} FROM changed WHERE _present").to_arrow_table()
            assert same(states_of(state, kind, reduce), expected, reduce), reduce


@pytest.mark.slow
def test_spark_folds_values_of_every_type(spark):
    for number, kind in enumerate(KINDS):
        fit = reducers(kind)
        for reduce in {fit[number % len(fit)], fit[-1]}:
            batches, expected = cases(kind, reduce, 20)
            rule = rule_of(kind, reduce)
            columns = ", ".join(f"`{name}` {of}" for name, of in rule.state_columns.items())
            log = spark.createDataFrame(pa.concat_tables(batches))
            # Late resets are the merge's business: here all is folded again where one tears.
            folded = sql(spark, rule.fold("placed"), placed=sql(spark, rule.project("log"), log=log))
            made = sql(
                spark, rule.combine("folded", "state", None), folded=folded, state=spark.createDataFrame([], columns)
            )
            state = made.where("_present").select("key", "value", "event_time").toArrow()
            assert same(states_of(state, kind, reduce), expected, reduce), (kind, reduce)
