"""States folded anew: identical rows, a changed rule's difference as the oracle predicts it, and no harm by interruption."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from api.engine import duck
from api.engine.changelog import attach
from jobs import recover as recovery
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.recover import recover
from jobs.run import merge_once
from jobs.spark import change_feed, small
from jobs.spark import tables as tables_of
from jobs.spark.state import State
from statehouse.config.file import rule_file
from statehouse.decoder import Decoder
from statehouse.errors import DefinitionChanged, FeedLost
from statehouse.payload import Field
from statehouse.status import store_status
from statehouse.tables import generation, opened, position
from statehouse.transpile import to_duckdb
from statehouse.types import parse_type
from tests.support.depth import FULL, deep, first, sized
from tests.support.lakes import BATCHES, CONFIG, COUNT, T0, compacted, drawn, merged, more, right, state, whole, written
from tests.support.records import SCHEMA, Heard, iso, record


@pytest.mark.slow
def test_a_recovered_state_has_identical_rows_and_goes_on(spark, filled):
    config, events = filled
    before = {store: whole(spark, config, store) for store in config.stores}
    for store in (config.stores[name] for name in sized(("hours",), tuple(config.stores))):
        heard = Heard()
        found = recover(spark, config, store, progress=heard)
        steps = [f"folding {store.name}", COUNT, 0], ["comparing", None, 0], ["replacing the state", None, 0]
        assert heard.steps == [*steps]
        assert (found.added, found.gone, found.changed, found.swapped) == (0, 0, 0, True)
        assert found.same == len(before[store.name]) and found.position == BATCHES and found.rule == ""
        assert whole(spark, config, store.name) == before[store.name], "row for row, changed_at included"
        table = opened(f"{config.root}/state/{store.name}")
        assert generation(table) == 1 and position(table.table_uri) == BATCHES
    assert not Path(config.root, "_recover", "total").exists()
    records, new = drawn(99, first=COUNT, resets=False)
    more(spark, config, records)
    for store in config.stores:
        assert state(spark, config, store) == right(events + new, store)


@pytest.mark.slow
def test_a_changed_rule_is_refused_compared_and_swapped(spark, lake, filled, tmp_path):
    config, events = filled
    before = whole(spark, config, "total")
    changed = written(lake, "n > 0")
    with pytest.raises(DefinitionChanged, match="'statehouse recover total --swap' makes that the state"):
        Merge(spark, changed, changed.stores["total"]).round()
    old, new = right(events, "total"), right(events, "total", lambda event: event["n"] > 0)
    found = recover(spark, changed, changed.stores["total"])
    assert not found.swapped and "where: None → 'n > 0'" in found.rule
    assert (found.added, found.gone) == (len(new.keys() - old.keys()), len(old.keys() - new.keys()))
    assert found.changed == sum(old[k] != new[k] for k in old.keys() & new.keys()) > 0
    assert found.same == sum(old[k] == new[k] for k in old.keys() & new.keys())
    for row in found.samples["changed"]:
        assert (row["was"], row["is"]) == (old[row["key"]], new[row["key"]])
    assert whole(spark, config, "total") == before, "nothing is changed by looking"
    records, later = drawn(7, first=COUNT, resets=False)
    more(spark, config, records, "total")  # the live state goes on meanwhile, under the old rule
    (tmp_path / "rule.yaml").write_text("stream: s\nkey: key\nvalue: n\nreduce: sum\nwhere: n > 0\n")
    rule = rule_file(tmp_path / "rule.yaml", config, "total")
    assert recover(spark, config, rule, swap=True).swapped
    assert state(spark, config, "total") == right(events + later, "total", lambda event: event["n"] > 0)
    with pytest.raises(DefinitionChanged):
        Merge(spark, config, config.stores["total"]).round()
    records, last = drawn(8, first=COUNT + 120, resets=False)
    more(spark, changed, records, "total")
    assert state(spark, config, "total") == right(events + later + last, "total", lambda event: event["n"] > 0)


STEPS = {  # the first two show each outcome
    # where it is interrupted: (module, function, before or after, whether the state is the new one by then)
    "after the draft": (Merge, "round", "after", False),
    "after the swap": (recovery, "replace", "after", True),
    "before the swap": (recovery, "replace", "before", False),
    "before the tombstones": (tables_of, "replace", "before", True),
    "before the draft": (Merge, "round", "before", False),
    "after the comparison": (recovery, "_difference", "after", False),
    "after the tombstones": (tables_of, "replace", "after", True),
    "after the draft is gone": (tables_of, "remove", "after", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", first(2, STEPS))
def test_interrupted_anywhere_the_state_is_as_before_or_the_new_one(spark, lake, filled, monkeypatch, step):
    config, events = filled
    before = whole(spark, config, "total")
    changed = written(lake, "n > 0")
    module, function, when, swapped = STEPS[step]
    work = getattr(module, function)

    def dies(*arguments, **options):
        if when == "after":
            work(*arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, function, dies)
        with pytest.raises(KeyboardInterrupt):
            recover(spark, changed, changed.stores["total"], swap=True)
    new = right(events, "total", lambda event: event["n"] > 0)
    if swapped:
        assert state(spark, config, "total") == new
    else:
        assert whole(spark, config, "total") == before
        merged(spark, config, "total")  # goes on as if nothing had been
        assert recover(spark, changed, changed.stores["total"], swap=True).swapped
    late = {"key": "gone", "n": 1, "ts": iso(T0 + 5)}
    # Older than its purge: the tombstones are the new ones.
    more(spark, changed, [record("t", 0, COUNT, T0, "gone", late)], "total")
    assert state(spark, config, "total") == new


MERGE_STEPS = tuple((Merge, name) for name in ("_read", "_rows", "_keep", "_fold_torn_anew", "_remember"))
LAST_STEPS = {"_mark": State, "_rewrite": State, "commit": small}
HOW = ["after _mark", "before commit", "before _mark", "after _rewrite", "before _rewrite"]


@pytest.mark.slow
@pytest.mark.parametrize("how", first(2, HOW))
def test_a_merge_interrupted_between_any_two_steps_and_tried_again(spark, lake, monkeypatch, how):
    when, last = how.split()
    if last == "_mark":
        monkeypatch.setattr("jobs.spark.small.SMALL", 0)  # its rows are marked, as a large state's
    steps = (*MERGE_STEPS, (LAST_STEPS[last], last))
    config, known = written(lake), []
    stores = [config.stores[name] for name in ("total", "hours")[: 2 if FULL or last == "_mark" else 1]]
    ingest = Ingest(spark, config, config.streams["s"])
    reached = set()
    for number in range(sized(2, 7)):
        records, events = drawn(20 + number, 80, first=80 * number)
        known += events
        ingest.batch(spark.createDataFrame(records, SCHEMA))
        for store in stores:
            for step in steps if number else ():  # each try goes on from where the last one died
                work = getattr(*step)

                def dies(*arguments, work=work, step=step):
                    reached.add(step)
                    if when == "after":
                        work(*arguments)
                    raise KeyboardInterrupt

                with monkeypatch.context() as interrupted, suppress(KeyboardInterrupt):
                    interrupted.setattr(*step, dies)
                    Merge(spark, config, store).round()
            Merge(spark, config, store).round()
    assert reached == set(steps), "each step was reached"
    merged(spark, config, *(store.name for store in stores))
    for store in stores:
        assert state(spark, config, store.name) == right(known, store.name)


def test_a_table_whose_making_was_interrupted_is_made(spark, lake):
    config = written(lake)
    for folder in ("changelog/s", "quarantine/s", "state/total", "tombstones/total"):
        Path(config.root, folder, "_delta_log", "_staged_commits").mkdir(parents=True)
    more(spark, config, [record("t", 0, 0, T0, "k", {"key": "k", "agent": "a", "n": 1, "ts": iso(T0)})], "total")
    assert state(spark, config, "total") == {"k": 1}


@pytest.mark.slow
def test_a_compacted_changelog_whose_old_log_is_gone_folds_to_the_same(spark, filled):
    config, events = filled
    before = {store: whole(spark, config, store) for store in config.stores}
    behind, new = drawn(50, first=COUNT, resets=False)
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(behind, SCHEMA))
    Merge(spark, config, config.stores["votes"]).round()  # the other two are behind when the feed is lost
    compacted(spark, config)
    with pytest.raises(FeedLost, match="no longer has what came between its versions 3 and"):
        Merge(spark, config, config.stores["total"]).round()
    assert whole(spark, config, "total") == before["total"]
    assert all([merge_once(Merge(spark, config, s)) for s in config.stores.values()])
    for store in config.stores:
        assert state(spark, config, store) == right(events + new, store)
    found = recover(spark, config, config.stores["votes"])
    assert (found.added, found.gone, found.changed) == (0, 0, 0)


@deep
@pytest.mark.slow
def test_a_store_that_was_down_for_longer_than_versions_folds_to_the_same(spark, filled):
    """Delta may refuse versions that are older than it keeps removed files, also where all files are there: not with our settings,
    but with another platform's."""
    config, events = filled
    behind, new = drawn(50, first=COUNT, resets=False)
    ingest = Ingest(spark, config, config.streams["s"])
    for part in (behind[:25], behind[25:]):
        ingest.batch(spark.createDataFrame(part, SCHEMA))
    commits = sorted(Path(config.root, "changelog/s/_delta_log").glob("*.json"))
    for number, file in enumerate(commits[:-1]):
        os.utime(file, (time.time() - 10 * 86_400 + number,) * 2)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    merges = {name: Merge(spark, config, store) for name, store in config.stores.items()}
    enforced = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
    merges["total"].spark.conf.set(enforced, "true")
    with pytest.raises(FeedLost, match="no longer has what came between its versions 3 and"):
        merges["total"].round()
    assert merges["votes"].round().start == 3
    assert sum(merge_once(merge) for merge in merges.values()) == 2
    for store in config.stores:
        assert state(spark, config, store) == right(events + new, store)


@pytest.mark.slow
def test_a_late_event_older_than_an_expired_tombstone_counts_until_the_next_recovery(spark, lake):
    config, stores = written(lake), ("total", "hours")
    more(spark, config, [record("t", 0, 0, T0, "k", None), record("t", 0, 1, T0, "l", None)], *stores)
    for store in stores:
        Merge(spark, config, config.stores[store]).expire()  # nothing is old enough
    late = [{"key": key, "agent": "a", "n": 4, "ts": iso(T0 - 10**6)} for key in "kl"]
    more(spark, config, [record("t", 0, 2, T0, "k", late[0])], *stores)
    assert state(spark, config, "total") == state(spark, config, "hours") == {}, "the purge is remembered"
    soon = written(lake, tombstones="0 seconds")
    for store in stores:
        Merge(spark, soon, soon.stores[store]).expire()
    more(spark, soon, [record("t", 0, 3, T0, "l", late[1])], *stores)
    assert state(spark, config, "total") == {"l": 4}, "as if it had never been purged"
    assert recover(spark, config, config.stores["total"]).gone == 1
    assert state(spark, config, "total") == {}, "the changelog knows better"


@pytest.mark.slow
def test_windows_are_kept_for_their_retention(spark, lake):
    text = CONFIG.format(where="", tombstones="7 days").replace("window: 1 hour", "window: 1 hour, retention: 10 days")
    config = lake(text)
    now = int(dt.datetime.now(dt.timezone.utc).timestamp()) * 1_000_000
    day = 24 * 3600 * 1_000_000
    old, young = now - 12 * day, now - 3 * day
    made = [{"key": "k", "agent": "a", "n": 1, "ts": iso(time)} for time in (old, young, young)]
    more(spark, config, [record("t", 0, i, now, "k", m) for i, m in enumerate(made)], "hours")
    hour = 3_600_000_000
    assert state(spark, config, "hours") == {("k", young // hour * hour): 2}
    merge = Merge(spark, config, config.stores["hours"])
    assert store_status(config, "hours")["late"] == 1
    short = lake(text.replace("retention: 10 days", "retention: 1 day"))
    assert recover(spark, short, short.stores["hours"]).gone == 1
    merge.expire()
    assert state(spark, config, "hours") == {("k", young // hour * hour): 2}
    Merge(spark, short, short.stores["hours"]).expire()
    assert state(spark, config, "hours") == {}


@pytest.mark.slow
def test_a_column_added_later_is_filled_from_the_payload_where_that_was_kept(spark, lake):
    text = """
streams:
  s:
    topic: t
    schema: key STRING{}, ts TIMESTAMP
    keep_payload: {}
stores:
  n: {{stream: s, key: key, value: {}, reduce: latest}}
"""
    for keep, filled_in in (("true", {"a": 1, "b": 2}), ("false", {"b": 2}))[: sized(1, 2)]:
        config = lake(text.format("", keep, "key"))
        records = [record("t", 0, i, T0 + i, k, {"key": k, "n": i + 1}) for i, k in enumerate("ab")]
        Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(records[:1], SCHEMA))
        merged(spark, config)
        gained = lake(text.format(", n BIGINT", keep, "n"))
        Ingest(spark, gained, gained.streams["s"]).batch(spark.createDataFrame(records, SCHEMA))
        assert recover(spark, gained, gained.stores["n"], swap=True).swapped
        assert state(spark, gained, "n") == filled_in
        shutil.rmtree(gained.root)


GAINED = {
    "n": "INT",
    "t": "TIMESTAMP",
    "d": "DECIMAL(5,2)",
    "b": "BOOLEAN",
    "f": "DOUBLE",
    "s": "STRING",
    "a": "ARRAY<INT>",
}
SENT = (
    '{"n": 5, "t": 1700000000, "d": 1.005, "b": true, "f": 1.5, "s": 1.50, "a": [1, null]}',
    '{"n": "5", "t": "12:00", "d": "1.005", "b": "true", "f": "1.5", "s": {"x": 1.50}, "a": ["1", 2.5]}',
    '{"n": 1.5, "t": "2024", "d": 1e400, "b": 1, "f": 1e400, "s": null, "a": 1}',
    '{"n": 1, "n": 2, "t": "2024-05-05T10:00:00Z", "f": "NaN", "s": "\\u00e9"}',
    '{"n": 2147483648, "t": "0000-01-01T00:00:00Z", "d": 1000}',
)


def test_a_column_added_later_is_what_it_would_have_been_in_both_engines(spark, lake):
    text = "streams:\n  s: {{topic: t, schema: 'key STRING, ts TIMESTAMP{}', keep_payload: true}}\n"
    config = lake(text.format(""))
    payloads = [body.replace("{", f'{{"key": "k{i}", ', 1).encode() for i, body in enumerate(SENT)]
    records = [record("t", 0, i, T0 + i, None, payload) for i, payload in enumerate(payloads)]
    Ingest(spark, config, config.streams["s"]).batch(spark.createDataFrame(records, SCHEMA))
    config = lake(text.format("".join(f", {name} {kind}" for name, kind in GAINED.items())))
    fields = [Field(name, parse_type(kind)) for name, kind in GAINED.items()]
    expected = {f.name: Decoder([f]).decode([p.decode() for p in payloads])[0][0].to_pylist() for f in fields}
    assert expected["n"] == [5, None, None, 2, None], (
        "as if it had been there, and null where it would have been refused"
    )
    stream, head = config.streams["s"], opened(f"{config.root}/changelog/s").version()
    names = ", ".join(GAINED)
    found = change_feed.events(spark, config, stream, None, head).orderBy("key").selectExpr(*GAINED).toArrow()
    assert found.cast(pa.schema([(f.name, f.kind.arrow) for f in fields])).to_pydict() == expected
    with duck.connect() as db:
        for _ in range(2):  # the second one finds the function there
            relation = attach(db, config, stream, head)
            there = db.execute(to_duckdb(f"SELECT {names} FROM {relation} ORDER BY key")).to_arrow_table()
    assert there.cast(pa.schema([(f.name, f.kind.arrow) for f in fields])).to_pydict() == expected
