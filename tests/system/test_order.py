"""`order:` of a stream: states go by what the payloads say, whatever the events' times, and in whatever order and batches they come."""

from __future__ import annotations

import datetime as dt
import functools
import json
import random

import duckdb
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from api.engine.fold import Fold
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.config.models import Store
from statehouse.errors import ConfigError, DefinitionChanged
from statehouse.fold import Rule
from statehouse.records import decoder_for
from statehouse.spark_sql import GREATEST_RANK, rank_of
from statehouse.tables import changelog_columns, definition_of, stored_rule
from statehouse.transpile import to_duckdb
from statehouse.types import parse_type
from statehouse.yaml_file import parse_yaml
from tests.support.alike import differ
from tests.support.depth import deep, sized
from tests.support.law import OWN, OWN_TYPES, STORES, WINDOWS, reduce_of
from tests.support.oracle import fold, windowed
from tests.support.records import SCHEMA, iso, record, rows
from tests.support.store_routes import ROUTE, Lake, of_key

T0 = 1_700_000_000_000_000
BATCHES = 4
STREAM = "streams:\n  s: {topic: t, schema: 'key STRING, agent STRING, value STRING, n BIGINT, v %s, ts TIMESTAMP', time: ts, order: %s}\n"
LOG = (
    "key VARCHAR, agent VARCHAR, value VARCHAR, n BIGINT, d DECIMAL(12,2), _partition INT, _offset BIGINT, _event_time TIMESTAMPTZ,"
    " _op VARCHAR, _store VARCHAR, _rank BIGINT, _key VARCHAR, _agent VARCHAR, _value VARCHAR"
)
# Ranks collide, and are at their limits; a later one may have an earlier time.
RANKS = st.integers(-3, 3) | st.sampled_from([GREATEST_RANK, -GREATEST_RANK, GREATEST_RANK - 1, 0])
EVENT = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["report"] * 8 + ["null", "purge"]),
        "agent": st.sampled_from("pqr"),
        "letter": st.sampled_from("abc"),
        "n": st.integers(-5, 9),
        "time": st.integers(-2, 3).map(lambda s: T0 + s * 1_000_000),
        "rank": RANKS,
        "partition": st.integers(0, 1),
        "batches": st.sets(
            st.integers(0, BATCHES - 1), min_size=1, max_size=2
        ),  # one that is in two comes a second time
    }
)


@functools.cache
def drawn():
    """Keys of some events each."""
    found = []

    @settings(max_examples=sized(150, 1000), phases=[Phase.generate], database=None, derandomize=True)
    @given(st.lists(EVENT, min_size=2, max_size=14))
    def collect(one):
        found.append(one)

    collect()
    return {f"k{number}": events for number, events in enumerate(found)}


def log_of(batch):
    """The rows of the changelog in a batch; one that comes a second time, as a producer's retry does, has coordinates of its own."""
    for number, (key, events) in enumerate(drawn().items()):
        for index, event in enumerate(events):
            if batch not in event["batches"]:
                continue
            again = batch != min(event["batches"])
            values = (event["letter"], event["n"], event["n"] / 4) if event["op"] == "report" else (None,) * 3
            at = dt.datetime.fromtimestamp(event["time"] / 1e6, dt.timezone.utc)
            op = "purge" if event["op"] == "purge" else "report"
            offset = 100 * number + 2 * index + again
            yield [
                key,
                event["agent"],
                *values,
                event["partition"],
                offset,
                at,
                op,
                None,
                event["rank"],
                None,
                None,
                None,
            ]


def expected(store):
    """The oracle's states."""
    column = STORES[store][0]
    name, arguments = reduce_of(store)
    found = {}
    for number, (key, events) in enumerate(drawn().items()):
        told = []
        for index, event in enumerate(events):
            value = {"value": event["letter"], "n": event["n"], "d": event["n"] / 4}[column]
            for again in range(len(event["batches"])):
                order = (event["rank"], event["partition"], 100 * number + 2 * index + again)
                op = "purge" if event["op"] == "purge" else "report"
                made = {"op": op, "agent": event["agent"], "value": value if event["op"] == "report" else None}
                told.append({**made, "order": order, "time": event["time"]})
        if store in WINDOWS:
            step = 1_000_000 if store.startswith("hop") else 2_000_000
            for start, state in windowed(name, told, 2_000_000, step, *arguments).items():
                found[key, start] = state
        elif (state := fold(name, told, *arguments)) is not None:
            found[key] = state
    return found


@pytest.mark.parametrize("store", [store for store in STORES if store != "dec" and store != "w_sum"])
def test_duckdb_folds_by_rank(store):
    column, kind, reduce = STORES[store]
    made = parse_yaml(reduce, "t", "a rule").data if reduce is OWN else reduce
    more = {"window": WINDOWS[store]} if store in WINDOWS else {}
    definition = {"name": store, "stream": "s", "key": "key", "agent": "agent", "value": column, "reduce": made, **more}
    own = OWN_TYPES if reduce is OWN else ()
    rule = Rule(Store.model_validate(definition), ("STRING",), kind, own, ranked=True, captured=True)
    keys = ", ".join(rule.keys)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(f"CREATE TABLE log ({LOG}); CREATE TABLE batch ({LOG})")
        folded = Fold(db, rule, "s")
        db.execute("CREATE TABLE state AS FROM s_state")
        for position in range(BATCHES):
            frame = pd.DataFrame(log_of(position), columns=[c.split()[0] for c in LOG.split(", ")], dtype=object)  # noqa: F841
            db.execute("DELETE FROM batch; INSERT INTO batch SELECT * FROM frame; INSERT INTO log SELECT * FROM batch")
            table = folded.apply(db.sql("FROM state").to_arrow_table(), "batch", lambda: "log")
            folded.remember(folded.absent(position))
            db.execute(f"DELETE FROM state WHERE ({keys}) IN (SELECT ({keys}) FROM {table})")
            columns = "* EXCLUDE (_present, _here, _conflict)"
            db.execute(f"INSERT INTO state BY NAME SELECT {columns} FROM {table} WHERE _present")
        start = "epoch_us(window_start)" if store in WINDOWS else "NULL"
        found = db.execute(f"SELECT key, {start}, value, epoch_us(event_time) FROM state").fetchall()
    assert {k if w is None else (k, w): (v, t) for k, w, v, t in found} == expected(store)


def test_a_rank_has_at_most_eighteen_digits():
    cases = [
        ("BIGINT", "9223372036854775807", None),
        ("BIGINT", str(GREATEST_RANK), GREATEST_RANK),
        ("BIGINT", str(-GREATEST_RANK - 1), None),
        ("DECIMAL(38, 0)", str(10**37), None),
        ("DECIMAL(20, 0)", "12", 12),
        ("TIMESTAMP", "'9999-12-31T23:59:59.999999Z'", 253_402_300_799_999_999),
        ("TIMESTAMP", "'0001-01-01T00:00:00Z'", -62_135_596_800_000_000),
        ("DATE", "'1970-01-02'", 86_400_000_000),
        ("BIGINT", "NULL", None),
    ]
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        for kind, text, right in cases:
            made = rank_of(f"CAST({text} AS {kind})", parse_type(kind))
            assert db.execute(f"SELECT {to_duckdb(made)}").fetchone() == (right,), (kind, text)
    for kind in ("STRING", "DOUBLE", "DECIMAL(9, 2)", "ARRAY<INT>"):
        with pytest.raises(ValueError, match="expected a whole number or a time"):
            rank_of("x", parse_type(kind))


def test_a_stream_without_an_order_is_as_it_was(lake):
    config = lake(
        "streams:\n  s: {topic: t, schema: 'k STRING, v BIGINT'}\nstores:\n  a: {stream: s, key: k, value: v, reduce: sum}\n"
    )
    rule = Rule(config.stores["a"], ("STRING",), "BIGINT")
    assert "_rank" not in changelog_columns(config.streams["s"])
    assert "_rank" not in "".join((rule.events("log"), rule.fold("log"), rule.combine("a", "b", "c")))
    assert json.loads(definition_of(rule)) == {
        "stream": "s",
        "key": "k",
        "value": "v",
        "reduce": "sum",
        "types": ["STRING", "BIGINT"],
    }


def test_a_state_knows_that_its_events_are_ranked(lake):
    config = lake(STREAM % ("BIGINT", "v") + "stores:\n  a: {stream: s, key: key, value: n, reduce: latest}\n")
    rule = Rule(config.stores["a"], ("STRING",), "BIGINT", ranked=True)
    text = definition_of(rule)

    class Table:
        def metadata(self):
            return type("", (), {"configuration": {"statehouse.definition": text}})

    assert stored_rule(Table(), "a") == rule


def test_sets_and_purges_say_their_place_in_it(lake):
    config = lake(STREAM % ("BIGINT", "v") + "stores:\n  a: {stream: s, key: key, value: n, reduce: latest}\n")
    decoder = decoder_for(config.streams["s"], config.stores.values(), [])
    records = [None, b"purge", b"set"], [None, b"a", b"a"], ["k"] * 3, [None, None, b'{"value": 1}'], None
    reasons = decoder.decode(*records)["_reason"].to_pylist()
    assert ["without the header statehouse-order" in reason for reason in reasons] == [True] * 3
    found = decoder.decode(*records, [b"7", b"-1", b"999999999999999999"])
    assert found["_reason"].to_pylist() == [None] * 3
    assert found["_given_rank"].to_pylist() == ["7", "-1", "999999999999999999"]
    reasons = decoder.decode(*records, [b"1.5", b"\xff", b"1000000000000000000"])["_reason"].to_pylist()
    assert ["expected a whole number of at most 18 digits" in reason for reason in reasons] == [True] * 3


def test_no_task_sets_what_is_ordered(lake):
    stores = "stores:\n  a: {stream: s, key: key, value: n, reduce: latest}\n"
    with pytest.raises(ConfigError, match="expected a store of a stream without order"):
        lake(STREAM % ("BIGINT", "v") + stores + "tasks:\n  x: {store: a, set: {store: a, value: '1'}}\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("BIGINT", "v"),
        ("TIMESTAMP", "v"),
        pytest.param("DECIMAL(17, 0)", "v - 1", marks=deep),
        pytest.param("STRUCT<at: INT>", "v.at", marks=deep),
    ],
)
def test_both_halves_go_by_it(spark, lake, kind, order):
    stores = """stores:
  last: {stream: s, key: key, value: n, reduce: latest}
  first: {stream: s, key: key, value: n, reduce: first}
  votes: {stream: s, key: key, agent: agent, value: n % 3, reduce: majority}
  hours: {stream: s, key: key, value: n, window: 1 hour, reduce: max}
"""
    config = lake(STREAM % (kind, order) + stores)
    dice, events, refused, records = random.Random(kind), {}, 0, []
    for offset in range(1, sized(300, 5000)):
        rank = dice.choice((dice.randint(-20, 20), None if dice.random() < 0.2 else 5))
        kind_of_event = dice.random()
        if (
            rank is not None and kind_of_event < 0.1
        ):  # a set or a purge, which says its place itself; kept apart from what is compared below
            place = T0 + rank if kind == "TIMESTAMP" else rank
            headers = {"statehouse-op": b"purge", "statehouse-store": b"votes", "statehouse-order": str(place).encode()}
            records.append((f"k{dice.randrange(9)}", None, headers))
            continue
        time, key = T0 + dice.randrange(3 * 3600) * 1_000_000, f"k{dice.randrange(9)}"
        value = rank
        if rank is not None and kind == "TIMESTAMP":
            value = iso(T0 + rank)
        if rank is not None and kind.startswith("STRUCT"):
            value = {"at": rank}
        body = {"key": key, "agent": dice.choice("pqr"), "n": dice.randrange(9), "v": value, "ts": iso(time)}
        records.append((None, json.dumps(body).encode(), {}))
        if rank is None:
            refused += 1
        else:
            made = {
                "op": "report",
                "agent": body["agent"],
                "value": body["n"],
                "order": (rank, 0, offset),
                "time": time,
            }
            events.setdefault(key, []).append(made)
    first = {
        "key": "z",
        "n": 0,
        "v": {"TIMESTAMP": iso(T0)}.get(kind, {"at": 1} if "STRUCT" in kind else 1),
        "ts": iso(T0),
    }
    assert differ(spark, config, records, json.dumps(first).encode()) == len(records) - refused
    for store in ("last", "first"):
        found = {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/{store}") if r["key"] != "z"}
        assert found == {k: fold({"last": "latest"}.get(store, store), e)[0] for k, e in events.items()}
    reasons = {r["reason"] for r in rows(spark, f"{config.root}/quarantine/s")}
    assert all(reason.startswith(f"found no place in the order {order}, expected") for reason in reasons)


@pytest.mark.slow
def test_a_changelog_keeps_its_order(spark, lake):
    stores = "stores:\n  a: {stream: s, key: key, value: n, reduce: latest}\n"
    config = lake(STREAM % ("BIGINT", "v") + stores)
    sent = [record("t", 0, i, T0, "k", {"key": "k", "n": n, "v": v}) for i, (n, v) in enumerate([(1, 2), (2, 1)])]
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(sent, SCHEMA))
    Merge(spark, config, config.stores["a"]).round()
    assert [r["value"] for r in rows(spark, f"{config.root}/state/a")] == [1]
    for other in ("v + 1", "ts"):
        changed = lake(STREAM % ("BIGINT", other) + stores)
        with pytest.raises(DefinitionChanged, match="the events of its changelog have the order v, the file says"):
            Ingest(spark, changed, changed.streams["s"])


TOLD = [("total", "resend"), ("last", "append"), *sized([], [("total", "append"), ("last", "resend")])]
ROUTED = """streams:
  s: {topic: t, format: debezium, schema: 'key STRING, n BIGINT', order: _source.lsn}
stores:
  total: {stream: s, key: key, value: n, reduce: sum}
  last: {stream: s, key: key, value: "nullif(n, 0)", reduce: latest}
routes:
""" + "".join(ROUTE.format(store=store, late=late, more="") for store, late in TOLD)


class Changes(Lake):
    """A lake that changes of a table come to, in any order."""

    def ingest(self, seed, count, resets=True):
        dice, records = random.Random(seed), []
        for offset in range(self.offset, self.offset + count):
            key, n, rank = f"k{dice.randrange(3)}", dice.randrange(-5, 6), dice.randrange(-40, 40)
            time = T0 + dice.randrange(4 * 3600) * 1_000_000
            op = "purge" if resets and dice.random() < 0.15 else "report"
            row = {"before" if op == "purge" else "after": {"key": key, "n": n}}
            source = {"connector": "postgresql", "lsn": rank, "ts_ms": time // 1000}
            body = {"op": "d" if op == "purge" else "c", **row, "source": source}
            records.append(record("t", 0, offset, T0, None, body))
            made = {"op": op, "agent": None, "n": n, "order": (rank, 0, offset), "time": time}
            self.known.append((key, ("total", "last"), made))
        self.offset += count
        Ingest(self.spark, self.config, self.config.streams["s"]).batch(self.spark.createDataFrame(records, SCHEMA))


@pytest.mark.slow
def test_routes_from_a_store_tell_the_states_in_that_order(spark, lake, monkeypatch):
    monkeypatch.setattr("jobs.spark.steps.PASS", 1)  # a deep tree
    changes = Changes(spark, lake(ROUTED))
    for seed, resets in ((2, True), (3, False), (4, True))[: sized(2, 3)]:
        changes.ingest(seed, sized(15, 40), resets)
        changes.merge()
        changes.send()
    changes.check(TOLD)
    for store, reduce in (("total", "sum"), ("last", "latest")):
        found = {r["key"]: r["value"] for r in rows(spark, f"{changes.config.root}/state/{store}")}
        events = of_key(changes.known, store)
        values = {
            k: [{**e, "value": (e["n"] or None) if store == "last" else e["n"]} for e in many]
            for k, many in events.items()
        }
        assert found == {k: state[0] for k, many in values.items() if (state := fold(reduce, many))}
