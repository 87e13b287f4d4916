"""The law: a state is a function of the set of events, for any order, any batches, any repetition.

Hypothesis draws the examples; all of them run in one lake, each with keys of its own, so that sixty examples cost
six MERGEs a store and not three hundred. The same examples go through Spark's MERGE and through DuckDB's fold.
"""

from __future__ import annotations

import datetime as dt
import functools
import random
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import chain

import duckdb
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from api.fold import Fold
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.fold import Rule
from tests.oracle import fold, windowed
from tests.records import EPOCH, SCHEMA, control, iso, record, rows
from tests.support.depth import sized

# The range of the values: a reducer of a user's own.
OWN = (
    "{fold: {low: min(value), high: max(value)}, "
    "combine: {low: 'least(a.low, b.low)', high: 'greatest(a.high, b.high)'}, result: high - low}"
)
STORES = {
    # store: (value column, its type, the reducer's yaml)
    "latest": ("value", "STRING", "latest"),
    "majority": ("value", "STRING", "majority"),
    "at_least_one": ("value", "STRING", "at_least_one(b, no)"),
    "first": ("value", "STRING", "first"),
    "sum": ("n", "BIGINT", "sum"),
    "dec": ("d", "DECIMAL(12,2)", "sum"),
    "count": ("n", "BIGINT", "count"),
    "min": ("n", "BIGINT", "min"),
    "max": ("n", "BIGINT", "max"),
    "avg": ("n", "BIGINT", "avg"),
    "own": ("n", "BIGINT", OWN),
    "w_count": ("n", "BIGINT", "count"),
    "w_sum": ("d", "DECIMAL(12,2)", "sum"),
    "w_majority": ("value", "STRING", "majority"),
    "hop_latest": ("value", "STRING", "latest"),
    "hop_own": ("n", "BIGINT", OWN),
}
# Windows of two seconds; hopping ones begin every second.
WINDOWS = {s: ("2 seconds" if s[0] == "w" else "2 seconds every 1 second") for s in STORES if s[:2] in ("w_", "ho")}
OWN_TYPES = ("BIGINT", "BIGINT", "BIGINT")
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
BATCHES = 6
DRAWN, DRAWN_FOR_SPARK = sized((200, 30), (500, 60))
JOINED = sized(3, 1)  # so many batches are one for Spark, where a MERGE takes a second

# Times collide and run backwards, values are few so that majorities tie; a key may be anything. Few keys and times, and
# often a single batch: otherwise two events of a key hardly ever tie, and a late reset hardly ever falls between two.
TIMES = st.integers(-2, 3).map(lambda s: T0 + s * 1_000_000)
KEYS = st.sampled_from(["a", "a", "ü/%2F \u2603", "x" * 3000])
OPS = st.sampled_from(["report"] * 8 + ["null", "set", "set null", "purge", "purge all"])
EVENTS = st.lists(
    st.tuples(
        KEYS, OPS, st.sampled_from("pqrstu"), st.sampled_from("abc"), st.integers(-5, 9), TIMES, st.integers(0, 1)
    ),
    min_size=3,
    max_size=20,
)
CUTS = st.integers(1, BATCHES).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=20, max_size=20))
CHANGELOG = (
    "key VARCHAR, agent VARCHAR, value VARCHAR, n BIGINT, d DECIMAL(12,2), ts TIMESTAMPTZ, _partition INT,"
    " _offset BIGINT, _event_time TIMESTAMPTZ, _op VARCHAR, _key VARCHAR, _store VARCHAR, _agent VARCHAR, _value VARCHAR"
)


def reduce_of(store):
    """The oracle's name and arguments of a store's reducer."""
    if STORES[store][2] is OWN:
        return "own", []
    name, _, arguments = STORES[store][2].partition("(")
    return name, [a.strip() for a in arguments.rstrip(")").split(",") if a.strip()]


def as_made(example, number):
    """A drawn example as Kafka's records and as the changelog's rows, each with the index of its draw, and as the
    oracle's events by store and key."""
    records, log, expected = [], [], {s: {} for s in STORES}
    offsets = {0: 1000 * number, 1: 1000 * number}
    for index, (key, op, agent, letter, n, time, partition) in enumerate(example):
        key, values = f"{number}:{key}", {"value": letter, "n": n, "d": Decimal(n) / 4}
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


def microseconds(at):
    """A UTC time, naive or not, since 1970."""
    return (at.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)


@pytest.mark.slow
def test_spark_merges_agree_with_the_oracle_in_any_order_and_batches(spark, lake):
    config = lake(CONFIG)
    drawn_batches, _, expected = drawn(DRAWN_FOR_SPARK)
    batches = [list(chain(*drawn_batches[first : first + JOINED])) for first in range(0, BATCHES, JOINED)]
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ingest = Ingest(spark, config, config.streams["s"])
    merges = [Merge(spark, config, s) for s in config.stores.values()]
    for number, batch in enumerate(batches, 1):
        ingest.offsets = {}  # the batches are out of offset order on purpose: the law is about sets
        frame = spark.createDataFrame(batch, SCHEMA)
        ingest.batch(frame)
        ingest.batch(frame)  # sent again: its coordinates are known
        # Each store has merges of its own: of one batch, or of some.
        some = [merge for merge in merges if number == len(batches) or dice.random() < 0.5]
        with ThreadPoolExecutor(3) as threads:  # a merge of few rows is spent on planning, on one core
            list(threads.map(Merge.round, some))
    assert ingest.refused == 0
    for store, state in expected.items():
        table = rows(spark, f"{config.root}/state/{store}")
        found = {
            (r["key"], microseconds(r["window_start"])) if store in WINDOWS else r["key"]: (
                r["value"],
                microseconds(r["event_time"]),
            )
            for r in table
        }
        assert found == state, store


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
