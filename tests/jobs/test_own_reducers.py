"""A user's own reducer: what is wrong with it is said, and one that breaks the law is shown doing so."""

from __future__ import annotations

import pytest

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.law import counterexample
from jobs.merge import Merge
from jobs.spark.expressions import rule_of
from statehouse.cli import main
from statehouse.errors import ConfigError
from tests.support.depth import first
from tests.support.records import SCHEMA, record, rows

CONFIG = """
streams:
  s: {{topic: t, schema: "key STRING, n BIGINT, x DOUBLE, w STRING, ts TIMESTAMP", time: ts}}
stores:
  mine: {{stream: s, key: key, value: {value}, reduce: {{fold: {fold}, combine: {combine}, result: {result}}}}}
"""
PLUS = "'a.{c} + b.{c}'"
KEEP = {
    # value, fold, combine, result
    "range": ("n", "{lo: min(value), hi: max(value)}", "{lo: 'least(a.lo, b.lo)', hi: 'greatest(a.hi, b.hi)'}", "hi - lo"),
    "mean": ("x", "{s: sum(value), n: count(value)}", "{s: a.s + b.s, n: a.n + b.n}", "s / n"),
    "words": ("w", "{seen: collect_set(value)}", "{seen: 'array_union(a.seen, b.seen)'}", "array_sort(seen)"),
    "newest": (
        "n",
        "{v: 'max_by(value, _order)', o: max(_order)}",
        "{v: 'CASE WHEN a.o > b.o THEN a.v ELSE b.v END', o: 'greatest(a.o, b.o)'}",
        "v",
    ),
    "seen": ("n", "{since: min(event_time), by: max(agent)}", "{since: 'least(a.since, b.since)', by: 'greatest(a.by, b.by)'}", "since"),
}  # fmt: skip
BREAK = {
    "the first that comes": ("n", "{v: first(value)}", "{v: a.v}", "v"),
    "a list in its order": ("w", "{v: collect_list(value)}", "{v: 'concat(a.v, b.v)'}", "v"),
    "minus": ("n", "{v: sum(value)}", "{v: a.v - b.v}", "v"),
    "a mean of means": ("x", "{v: avg(value)}", "{v: (a.v + b.v) / 2}", "v"),
    "the newer row": ("n", "{v: max(value)}", "{v: b.v}", "v"),
}
WRONG = {
    # what is wrong: (value, fold, combine, result, the place, what is said)
    "no aggregate": ("n", "{v: value}", "{v: a.v}", "v", "fold.v", "expected an aggregate"),
    "no such column": ("n", "{v: max(nope)}", "{v: a.v}", "v", "fold.v", "nope"),
    "no such row": ("n", "{v: max(value)}", "{v: c.v}", "v", "combine.v", "c"),
    "no such result": ("n", "{v: max(value)}", "{v: a.v}", "w", "result", "w"),
}


def config_of(lake, value, fold, combine, result):
    return lake(CONFIG.format(value=value, fold=fold, combine=combine, result=result))


@pytest.mark.slow
@pytest.mark.parametrize("name", first(1, KEEP))
def test_reducers_that_keep_the_law_pass(spark, lake, name):
    config = config_of(lake, *KEEP[name])
    assert problems(spark, config) == []
    assert counterexample(spark, rule_of(spark, config, config.stores["mine"])) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", first(1, BREAK))
def test_reducers_that_break_the_law_are_shown_doing_so(spark, lake, name):
    config = config_of(lake, *BREAK[name])
    assert problems(spark, config) == []
    shown = counterexample(spark, rule_of(spark, config, config.stores["mine"]))
    assert shown.startswith("found a value that depends on order or batches: the batches ")


@pytest.mark.parametrize("name", WRONG)
def test_what_spark_cannot_compute_is_said_with_its_place(spark, lake, name):
    *written, place, says = WRONG[name]
    ((path, message),) = problems(spark, config_of(lake, *written))
    assert path == ("stores", "mine", "reduce", *place.split(".")) and says in message


def test_what_is_not_a_reducer_is_refused_with_its_line(lake):
    with pytest.raises(ConfigError, match=r"yaml:8: stores.mine.reduce: found combine: w, expected fold's columns: v"):
        config_of(lake, "n", "{v: max(value)}", "{w: a.v}", "v")
    with pytest.raises(ConfigError, match="reduce.result: found no 'result', expected one"):
        lake(
            CONFIG.format(value="n", fold="{v: max(value)}", combine="{v: a.v}", result="v").replace(", result: v", "")
        )
    with pytest.raises(ConfigError, match="found a column named 'value', expected a name of its own"):
        config_of(lake, "n", "{value: max(value)}", "{value: a.value}", "value")


@pytest.mark.slow
def test_check_refuses_one_that_breaks_the_law(spark, lake, tmp_path, capsys):
    config_of(lake, *BREAK["minus"])
    assert main(["check", "-c", str(tmp_path / "statehouse.yaml")]) == 2
    assert "statehouse.yaml:8: stores.mine.reduce: found a value that depends on order" in capsys.readouterr().err


@pytest.mark.slow
def test_the_jobs_refuse_one_that_breaks_the_law_too(spark, lake):
    config = config_of(lake, *BREAK["minus"])
    Ingest(spark, config, config.streams["s"])
    with pytest.raises(ConfigError, match="stores.mine.reduce: found a value that depends on order"):
        Merge(spark, config, config.stores["mine"]).round()


@pytest.mark.slow
def test_a_mean_over_a_late_reset_in_two_batches(spark, lake):
    config = config_of(lake, *KEEP["mean"])
    ingest, merge = Ingest(spark, config, config.streams["s"]), Merge(spark, config, config.stores["mine"])
    at = 1_700_000_000_000_000
    sent = [record("t", 0, i, at + i, "k", {"key": "k", "x": x, "ts": None}) for i, x in ((0, 4.0), (2, 1.0), (3, 3.0))]
    ingest.batch(spark.createDataFrame(sent, SCHEMA))
    merge.round()
    ingest.offsets = {}  # the purge comes late, between values that are added up
    ingest.batch(spark.createDataFrame([record("t", 0, 1, at + 1, "k", None)], SCHEMA))
    merge.round()
    (row,) = rows(spark, f"{config.root}/state/mine")
    assert (row["value"], row["n"]) == (2.0, 2)
