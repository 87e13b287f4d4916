"""Routes of a store's events, each with the states before and after it, against a few lines of plain Python."""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from itertools import pairwise

import pytest

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.recover import recover
from jobs.run import merge_once
from jobs.spark.position import Position
from jobs.spark.steps import branches
from statehouse.errors import ConfigError
from tests.support import payloads
from tests.support.depth import first, sized
from tests.support.lakes import T0
from tests.support.records import SCHEMA, iso, record, rows
from tests.support.store_routes import CONFIG, ROUTE, Lake, appended, text
from tests.support.topics import messages


@pytest.fixture
def routed(lake, broker, spark):
    topic = f"told-{os.getpid()}-{random.randrange(10**9)}"
    return Lake(spark, lake(text(topic), broker.bootstrap))


@pytest.mark.slow
def test_each_event_is_told_with_its_states_whatever_the_batches(routed, broker, monkeypatch):
    monkeypatch.setattr("jobs.spark.steps.PASS", sized(10**6, random.choice([1, 10**6])))  # a flat tree, or a deep one
    assert problems(routed.spark, routed.config) == []
    # Of the second seed there are events again: at the same time, of the same agent, of the same value.
    for seed in sized((2, 3), (random.randrange(10**6), 2, 3)):
        routed.ingest(seed, sized(25, 40), resets=seed == 2)
        if seed == 2:  # two batches in one merge, and a start
            routed.ingest(seed + 1, sized(15, 20))
            routed.started()
        routed.merge()
        routed.send()
    assert routed.send() == [None] * len(routed.routers)
    routed.check()
    expected = [(k, b and b[0], a and a[0]) for k, _, _, _, b, a in appended(routed.known, "total")]
    topic = routed.config.routes["told"].to.topic
    found = [json.loads(m.value()) for m in messages(broker.bootstrap, topic)]
    for key in {k for k, *_ in expected}:  # of a key in the order of the log
        pairs = [(b or 0, a) for k, b, a in expected if k == key and b != a]
        assert [(m["had"], m["has"]) for m in found if m["key"] == key] == pairs


@pytest.mark.slow
@pytest.mark.parametrize("passes", first(1, [1, 10**6]))
def test_a_report_from_before_a_purge_is_told_though_its_window_never_was(lake, spark, monkeypatch, passes):
    monkeypatch.setattr("jobs.spark.steps.PASS", passes)
    house = Lake(
        spark, lake(CONFIG.format(topic="t") + ROUTE.format(store="hours", late="append", more=", window_start"))
    )
    hour, records, events = 3_600_000_000, [], []
    sent = [("report", 5), ("purge", 4), ("report", 1), ("report", 6), ("report", 2)]
    for offset, (op, hours) in enumerate(sent):
        time = T0 + hours * hour
        body = {"key": "k", "agent": "p", "n": 1, "ts": iso(time)} if op == "report" else None
        events.append(("k", ("hours",), {"op": op, "agent": "p", "n": 1, "order": (time, 0, offset)}))
        records.append(record("t", 0, offset, time, "k", body))
    house.ingest_these(records, events)
    house.merge("hours")
    house.send()
    house.check([("hours", "append")])


@pytest.mark.slow
def test_a_keys_messages_are_in_the_order_of_the_log_whatever_is_asked_for(lake, broker, spark):
    asked = {
        "bare": ["key"],
        "renamed": ["agent AS key"],
        "state": ["key", "after.value AS n"],
        "sorted": ["key", "row_number() OVER (PARTITION BY key ORDER BY _offset DESC) AS nth"],
    }
    topics = {name: f"{name}-{os.getpid()}-{random.randrange(10**9)}" for name in asked}
    routes = (
        f"  {name}: {{from: {{store: total}}, select: {json.dumps(['_offset', *asked[name]])}, to: {{topic: {topic}, key: key}}}}\n"
        for name, topic in topics.items()
    )
    house = Lake(spark, lake(CONFIG.format(topic="t") + "".join(routes), broker.bootstrap))
    for _ in range(2):
        for count in (40, 5, 60, 3, 20):  # a file each, of which Spark reads the largest first
            house.ingest(random.randrange(10**6), count, resets=False)
        house.merge("total")
        house.send(*asked)
        house.started()
    for name, topic in topics.items():
        offsets: dict[str, list[int]] = {}
        for message in messages(broker.bootstrap, topic):
            offsets.setdefault(message.key(), []).append(json.loads(message.value())["_offset"])
        assert sum(map(len, offsets.values())) == len(house.known)
        assert len(offsets) > 1 and all(mine == sorted(mine) for mine in offsets.values()), name


@pytest.mark.slow
def test_after_a_crash_a_recovery_or_a_lost_log_each_event_is_there_once(routed, broker, monkeypatch):
    names, topic = ("total_resend", "told"), routed.config.routes["told"].to.topic
    routed.ingest(random.randrange(10**6), 20)
    routed.merge("total")
    routed.send(*names)
    routed.ingest(random.randrange(10**6), 20, resets=False)
    routed.merge("total")
    with monkeypatch.context() as patch:  # what was sent is not noted
        patch.setattr(Position, "move", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            routed.send("told")
    routed.started()
    routed.send("told")
    recover(routed.spark, routed.config, routed.config.stores["total"], swap=True)  # the state from before is no more
    routed.ingest(random.randrange(10**6), 20)
    routed.merge("total")
    routed.send(*names)
    routed.ingest(random.randrange(10**6), 20, resets=False)
    routed.merge("total")
    monkeypatch.setattr("jobs.spark.change_feed.changes", lost)  # the first time
    routed.send(*names)
    routed.check([("total", "resend")])
    read = routed.config.streams["s"].topic
    expected = {
        f"{read}:0:{offset}": (key, before and before[0], after and after[0])
        for key, offset, _, _, before, after in appended(routed.known, "total")
        if (before and before[0]) != (after and after[0])
    }
    found = {}
    for message in messages(broker.bootstrap, topic):
        said, value = {n: v.decode() for n, v in message.headers()}, json.loads(message.value())
        made = value["key"], value["had"], value["has"]
        assert found.setdefault(said["statehouse-source"], made) == made, "a repeat says the same"
    assert found == {source: (key, before or 0, after) for source, (key, before, after) in expected.items()}


@pytest.mark.slow
def test_where_no_event_is_the_stores_the_position_moves_on(lake, spark):
    stores = "  rare: {stream: s, key: key, value: n, where: n > 5, reduce: sum}\n"
    routes = "  rare: {from: {store: rare}, select: [key, after.value AS has], to: {table: rare}}\n"
    text = CONFIG.format(topic="t").replace("routes:\n", f"{stores}routes:\n{routes}")
    found = Lake(spark, lake(text))
    for last in (5, 6):
        event = record("t", 0, last, T0, "k", {"key": "k", "agent": "p", "n": last, "ts": iso(T0)})
        ingest = Ingest(spark, found.config, found.config.streams["s"])
        ingest.batch(spark.createDataFrame([event], SCHEMA))
        merge_once(Merge(spark, found.config, found.config.stores["rare"]))
        assert found.send("rare")[0].head == last - 4
    assert rows(spark, f"{found.config.root}/routes/rare") == [{"key": "k", "has": 6}]


VALUES = """
streams:
  s: {{topic: t, schema: "key STRING, ts TIMESTAMP, {columns}", time: ts}}
stores:
  last: {{stream: s, key: key, value: "struct({names})", reduce: latest}}
routes:
  told:
    from: {{store: last}}
    select:
      - key AS of
      - _offset AS at
      - unix_micros(_event_time) AS time
      - to_json(struct({names})) AS said
      - to_json(before.value) AS had
      - to_json(after.value) AS has
    to: {{table: told}}
"""


def taken(dice, kind):
    """A value that a column takes."""
    while True:
        with suppress(payloads.Wrong):
            value = payloads.draw_value(dice, kind)
            payloads.meaning(value, kind)
            return value


@pytest.mark.slow
def test_values_of_every_type_are_told_as_they_are(lake, spark):
    nested = [("ARRAY", "TIMESTAMP"), ("MAP", "DECIMAL(38, 10)"), ("STRUCT", (("Name", "DOUBLE"), ("b", "BINARY")))]
    kinds = [*dict.fromkeys(payloads.SCALARS[:-2]), "DECIMAL(38, 0)", "DECIMAL(38, 38)", *nested]
    schema = [(f"v{number}", kind) for number, kind in enumerate(kinds)]
    columns = ", ".join(f"{name} {payloads.ddl(kind)}" for name, kind in schema)
    found = Lake(spark, lake(VALUES.format(columns=columns, names=", ".join(name for name, _ in schema))))
    assert problems(spark, found.config) == []
    ingest, dice, count = Ingest(spark, found.config, found.config.streams["s"]), random.Random(), sized(300, 3000)
    for batch in range(2):
        records = []
        for offset in range(batch * count, (batch + 1) * count):
            key = f"k{dice.randrange(9)}"
            payload = {"key": key, **{name: taken(dice, kind) for name, kind in [*schema, ("ts", "TIMESTAMP")]}}
            records.append(record("t", 0, offset, T0, key, payloads.write(payload).encode()))
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        merge_once(Merge(spark, found.config, found.config.stores["last"]))
        found.send("told")
    newest, last = {}, {}
    made = sorted(rows(spark, f"{found.config.root}/routes/told"), key=lambda r: r["at"])
    assert len(made) == 2 * count
    for r in made:
        newest[r["of"]] = max(newest.get(r["of"], ()), (r["time"], r["at"], r["said"]))
        assert (r["had"], r["has"]) == (last.get(r["of"]), newest[r["of"]][2])
        last[r["of"]] = r["has"]


def lost(spark, path, start, head):
    """A change feed whose files are gone."""
    return spark.read.format("delta").option("versionAsOf", 10**6).load(path)


def test_what_may_be_selected_is_said(lake, spark):
    def wrong(route):
        config = CONFIG.format(topic="t") + f"  r: {{{route}, to: {{table: r}}}}\n"
        return problems(spark, lake(config))

    assert wrong("from: {store: total}, select: [key, window_start]")[0][0] == ("routes", "r", "select")
    said = wrong("from: {store: total}, select: [befor.value]")[0][1]
    assert said.endswith("(there are the event's columns, key, and of before and after value, total, event_time)")
    assert wrong("from: {store: total}, where: after.value")[0][0] == ("routes", "r", "where")
    assert wrong("from: {store: total}, where: after.value > 1, select: ['*']") == []
    assert wrong("from: {store: hours}, select: [key, window_start, after.value AS n]") == []
    with pytest.raises(ConfigError, match=r"found store 'nothing', expected one of total, votes, last, hours"):
        wrong("from: {store: nothing}")
    with pytest.raises(ConfigError, match=r"found late, expected from: \{store: ...\} too"):
        wrong("from: s, late: resend")
    with pytest.raises(ConfigError, match="resend"):
        wrong("from: {store: total}, late: again")


@pytest.mark.parametrize("sizes", [{1: 5}, {3: 1}, {10: 100_000}, {100_000: 1}, {1: 10**6, 5000: 3}])
def test_no_key_costs_the_square_of_its_events(sizes):
    spans = branches(sizes)
    assert spans[0] >= max(sizes) and spans[-1] == 1
    assert all(not one % other for one, other in pairwise(spans))
    folded = sum(
        keys * size * min(-(-size // span), parent // span)
        for size, keys in sizes.items()
        for parent, span in pairwise(spans)
    )
    assert folded < 200 * sum(keys * size for size, keys in sizes.items())
