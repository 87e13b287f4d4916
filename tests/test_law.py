"""The law: a state is a function of the set of events, for any order, any batches, any repetition.

Hypothesis draws the examples; all of them run in one lake, each with keys of its own, so that sixty examples cost six
MERGEs a store and not three hundred.
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jobs.ingest import Ingest
from jobs.merge import Merge
from tests.oracle import fold
from tests.records import SCHEMA, control, iso, record, rows

STORES = {
    # store: (value column, the reducer's yaml)
    "latest": ("value", "latest"),
    "majority": ("value", "majority"),
    "at_least_one": ("value", "at_least_one(b, no)"),
    "first": ("value", "first"),
    "sum": ("n", "sum"),
    "dec": ("d", "sum"),
    "count": ("n", "count"),
    "min": ("n", "min"),
    "max": ("n", "max"),
    "avg": ("n", "avg"),
}
CONFIG = """
streams:
  s:
    topic: t
    schema: key STRING, agent STRING, value STRING, n BIGINT, d DECIMAL(12,2), ts TIMESTAMP
    time: ts
stores:
""" + "".join(
    f"  {name}: {{stream: s, key: key, agent: agent, value: {column}, reduce: '{reduce}'}}\n"
    for name, (column, reduce) in STORES.items()
)
T0 = 1_700_000_000_000_000
BATCHES = 6

# Times collide and run backwards, values are few so that majorities tie; a key may be anything.
TIMES = st.integers(-3, 8).map(lambda s: T0 + s * 1_000_000)
KEYS = st.sampled_from(["a", "b", "ü/%2F \u2603", "x" * 3000])
OPS = st.sampled_from(["report"] * 7 + ["null", "set", "set", "purge", "purge all"])
EVENTS = st.lists(
    st.tuples(
        KEYS,
        OPS,
        st.sampled_from("pqr"),
        st.sampled_from("abc"),
        st.integers(-5, 9),
        TIMES,
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=14,
)


def reduce_of(store):
    """The oracle's name and arguments of a store's reducer."""
    name, _, arguments = STORES[store][1].partition("(")
    return name, [a.strip() for a in arguments.rstrip(")").split(",") if a.strip()]


def as_records(example, number):
    """A drawn example as Kafka's records, and as the oracle's events by store and key."""
    records, expected = [], {s: {} for s in STORES}
    offsets = {0: 1000 * number, 1: 1000 * number}
    for key, op, agent, letter, n, time, partition in example:
        key, offset = f"{number}:{key}", offsets[partition]
        offsets[partition] += 1
        order = (time, partition, offset)
        given_ = {"value": letter, "n": n, "d": Decimal(n) / 4}
        if op in ("report", "null"):
            given_ = {c: None if op == "null" else v for c, v in given_.items()}
            body = {
                "key": key,
                "agent": agent,
                "ts": iso(time),
                **{
                    c: None if v is None else str(v) if c == "value" else float(v) if c == "d" else v
                    for c, v in given_.items()
                },
            }
            records.append(record("t", partition, offset, time, key, body))
            for store, (column, _) in STORES.items():
                expected[store].setdefault(key, []).append(
                    {"op": "report", "agent": agent, "value": given_[column], "order": order}
                )
            continue
        store = list(STORES)[n % len(STORES)]
        targets = list(STORES) if op == "purge all" else [store]
        headers = None if op == "purge all" else control(op, store)
        value = {**given_, "n": n}[STORES[store][0]]
        body = {"value": float(value) if isinstance(value, Decimal) else value, "agent": agent} if op == "set" else None
        records.append(record("t", partition, offset, time, key, body, headers))
        for target in targets:
            expected[target].setdefault(key, []).append(
                {"op": op.split()[0], "agent": agent, "value": value, "order": order}
            )
    return records, expected


def oracle(expected):
    """Every store's keys with their value and event time."""
    states = {}
    for store, keys in expected.items():
        name, arguments = reduce_of(store)
        folded = {key: fold(name, events, *arguments) for key, events in keys.items()}
        states[store] = {k: v for k, v in folded.items() if v is not None}
    return states


def draw_examples(count):
    """``count`` drawn examples, each with a cut: the batch that each of its events comes in."""
    drawn = []

    @settings(max_examples=count, phases=[Phase.generate], deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(EVENTS, st.data())
    def collect(example, data):
        cut = data.draw(st.lists(st.integers(0, BATCHES - 1), min_size=len(example), max_size=len(example)))
        drawn.append((example, cut))

    collect()
    return drawn


def actual(spark, config, store):
    """A state table as the oracle gives it."""
    found = {}
    for row in rows(spark, f"{config.root}/state/{store}"):
        at = row["event_time"]
        found[row["key"]] = (
            row["value"],
            int((at - __import__("datetime").datetime(1970, 1, 1)).total_seconds() * 1_000_000),
        )
    return found


@pytest.mark.slow
def test_spark_merges_agree_with_the_oracle_in_any_order_and_batches(spark, lake, monkeypatch):
    config = lake(CONFIG)
    monkeypatch.setenv("TZ", "UTC")
    batches, expected = [[] for _ in range(BATCHES)], {s: {} for s in STORES}
    for number, (example, cut) in enumerate(draw_examples(60)):
        records, events = as_records(example, number)
        for made, batch in zip(records, cut, strict=True):
            batches[batch].append(made)
        for store, keys in events.items():
            expected[store].update(keys)
    ingest = Ingest(spark, config, config.streams["s"])
    merges = [Merge(spark, config, s) for s in config.stores.values()]
    for batch in batches:
        ingest.offsets = {}  # the batches are out of offset order on purpose: the law is about sets
        ingest.batch(spark.createDataFrame(batch, SCHEMA))
        for merge in merges:
            merge.round()
    assert ingest.refused == 0
    for store, state in oracle(expected).items():
        assert actual(spark, config, store) == state, store
