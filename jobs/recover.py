"""A state folded anew from the whole changelog: a doubted one, or one under a changed rule.

In five steps; what a crash after each leaves behind:

1. Fold the changelog into a draft, ``_recover/<store>``, by the very rounds of :mod:`jobs.merge`. *The live state is
   as it was; the next recovery begins its draft anew.*
2. Compare the draft with the live state. *Nothing is written. Without a swap it ends here, and the draft waits.*
3. Replace the state in one commit: rows, columns, rule, the position under a new application id, and a generation one
   higher. *The state is the new one. The tombstones are still of the generation before, and whoever opens the store to
   merge goes on with step 4 before anything else:* :func:`jobs.spark.tables.finish_swap`.
4. Replace the tombstones in one commit that has the state's generation. *The draft is left over.*
5. Delete the draft.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.merge import Merge
from jobs.spark.expressions import rule_of
from jobs.spark.tables import describe_difference, draft_of, finish_swap, remove, replace, state_properties
from statehouse.config.models import Config, Store
from statehouse.errors import FeedLost
from statehouse.fold import Rule
from statehouse.progress import SILENT, Progress
from statehouse.spark_sql import quoted
from statehouse.tables import (
    GENERATION,
    buckets,
    folded,
    generation,
    metadata,
    opened,
    position,
    rows_and_bytes,
    stored_rule,
    table,
)

log = logging.getLogger("statehouse")
SAMPLES = 5


@dataclass(frozen=True)
class Difference:
    """What a recovery changes: numbers of keys (of keys and windows, where windowed), and some of each. ``rule`` says how
    the rules differ; empty: they are the same. ``position`` is the changelog version that both states were compared at,
    None where the live one's is gone: then new events are part of the difference."""

    store: str
    rule: str
    position: int | None
    added: int
    gone: int
    changed: int
    same: int
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    swapped: bool = False


def recover(
    spark: SparkSession, config: Config, store: Store, swap: bool = False, progress: Progress = SILENT
) -> Difference:
    """Fold a store's state anew, compare it with the live one, and replace that: always where the rule is as it was,
    else only to ``swap``. The caller holds the lake's lock ``recover``, and ``merge`` too where the state is replaced."""
    live, folder = Merge(spark, config, store), draft_of(config, store.name)
    finish_swap(spark, config, store.name)
    draft = Merge(spark, config, store, folder)
    stored = stored_rule(opened(live.state), store.name)
    changed = stored is not None and bool(describe_difference(stored, draft.rule))
    if not (changed and swap and _is_usable(draft)):  # the draft of the comparison before will do
        remove(spark, folder)
    begin_fold(progress, draft)
    at = _catch_up(draft, position(live.state))
    progress.begin("comparing")
    difference = _difference(draft, live, stored, at)
    if changed and not swap:
        return difference
    progress.begin("replacing the state")
    return Difference(**{**vars(difference), "swapped": _replace_live(draft, live, stored)})


def fold_anew(spark: SparkSession, config: Config, store: Store, progress: Progress = SILENT) -> None:
    """Fold a store's state anew from the changelog and replace it, whatever it was before. Without a changelog nothing happens. The caller
    holds the locks as for :func:`recover`."""
    live, folder = Merge(spark, config, store), draft_of(config, store.name)
    finish_swap(spark, config, store.name)
    remove(spark, folder)
    draft = Merge(spark, config, store, folder)
    begin_fold(progress, draft)
    _replace_live(draft, live, stored_rule(opened(live.state), store.name))


def begin_fold(progress: Progress, merge: Merge) -> None:
    """Tell the progress that a store is folded now, and of how many events where it begins with the first one."""

    def events() -> int | None:
        return rows_and_bytes(merge.changelog)[0] if position(merge.state) is None else None

    progress.begin(f"folding {merge.store.name}", events)


def _replace_live(draft: Merge, live: Merge, stored: Rule | None) -> bool:
    """Steps 3 to 5, of a draft that is brought to the head; False where there is no changelog yet."""
    if draft.round() is None and opened(draft.state) is None:
        return False
    _swap(draft, live, stored)
    finish_swap(live.spark, live.config, live.store.name)
    return True


def will_swap(spark: SparkSession, config: Config, store: Store) -> bool:
    """Whether a recovery replaces the state without being asked to: where the rule is as it was."""
    stored = stored_rule(opened(table(config, "state", store.name)), store.name)
    return stored is None or not describe_difference(stored, rule_of(spark, config, store))


def _is_usable(draft: Merge) -> bool:
    delta = opened(draft.state)
    stored = stored_rule(delta, draft.store.name)
    return stored is not None and not describe_difference(stored, draft.rule) and buckets(delta) == draft.store.buckets


def _catch_up(draft: Merge, upto: int | None) -> int | None:
    """Bring the draft to the live state's position, for a fair comparison; to the head where that version is gone."""
    try:
        draft.round(upto)
        return upto
    except FeedLost as error:
        log.warning("%s; folding all of it, and comparing with what is newer", error)
        remove(draft.spark, draft_of(draft.config, draft.store.name))
        draft.checked = False
        draft.round()
        return None


def _difference(draft: Merge, live: Merge, stored: Rule | None, at: int | None) -> Difference:
    rule = describe_difference(stored, draft.rule) if stored else ""
    new, old = opened(draft.state), opened(live.state)
    load = draft.spark.read.format("delta").load
    if not new or not old or not stored or stored.keys != draft.rule.keys:
        rows, before = (load(draft.state).count() if new else 0), (load(live.state).count() if old else 0)
        return Difference(draft.store.name, rule, at, rows, before, 0, 0)
    both = _join(load(draft.state), load(live.state), stored, draft.rule)
    shown = both.select(*(_as_text(both, name) for name in both.columns))
    counts = {row["_kind"]: row["count"] for row in both.groupBy("_kind").count().collect()}
    samples = {
        kind: [
            {k: v for k, v in row.asDict(recursive=True).items() if k != "_kind" and (k, kind) not in HIDDEN}
            for row in shown.where(F.col("_kind") == kind).orderBy(*map(quoted, stored.keys)).limit(SAMPLES).collect()
        ]
        for kind in ("added", "gone", "changed")
        if counts.get(kind)
    }
    numbers = {kind: counts.get(kind, 0) for kind in ("added", "gone", "changed", "same")}
    return Difference(draft.store.name, rule, at, **numbers, samples=samples)


def _as_text(rows: DataFrame, name: str) -> Column:
    """A column as people see it: a time as text, for PySpark cannot make Python's of each."""
    column, kind = F.col(quoted(name)), rows.schema[name].dataType.simpleString()
    return column.cast("string").alias(name) if "timestamp" in kind else column


HIDDEN = {("was", "added"), ("is", "gone")}


def _same(old: Rule, new: Rule) -> str:
    """SQL: whether a live row ``l`` and a draft's ``d`` have the same value; where their types differ, by their text."""
    if old.value_type == new.value_type:
        return new.same("l.value", "d.value")
    return "to_json(struct(l.value AS v)) <=> to_json(struct(d.value AS v))"


def _join(draft: DataFrame, live: DataFrame, old: Rule, new: Rule) -> DataFrame:
    """Every key of either, its two values, and the kind of difference."""
    keys = [*map(quoted, new.keys)]
    first = keys[0]
    joined = draft.alias("d").join(live.alias("l"), F.expr(new.matching("d", "l")), "full")
    return joined.selectExpr(
        *(f"coalesce(d.{k}, l.{k}) AS {k}" for k in keys),
        "l.value AS was",
        "d.value AS is",
        f"CASE WHEN l.{first} IS NULL THEN 'added' WHEN d.{first} IS NULL THEN 'gone' "
        f"WHEN {_same(old, new)} THEN 'same' ELSE 'changed' END AS _kind",
    )


def _swap(draft: Merge, live: Merge, stored: Rule | None) -> None:
    """Step 3. What did not change keeps the time at which it last did."""
    new, old = opened(draft.state), opened(live.state)
    assert new is not None
    head, rule, load = folded(new), draft.rule, live.spark.read.format("delta").load  # in the session that commits
    rows = load(draft.state)
    if old and stored and stored.keys == rule.keys:
        before = load(live.state).alias("l")
        at = f"CASE WHEN l.{quoted(next(iter(rule.keys)))} IS NOT NULL AND {_same(stored, rule)} THEN l.changed_at ELSE d.changed_at END"
        columns = (f"{at} AS changed_at" if c == "changed_at" else f"d.{quoted(c)}" for c in rows.columns)
        rows = rows.alias("d").join(before, F.expr(rule.matching("d", "l")), "left").selectExpr(*columns)
    counts = metadata(draft.state, "unkeyed") or {"unkeyed": 0, "late": 0}
    properties = {**state_properties(draft.config, rule), GENERATION: str(generation(old) + 1 if old else 1)}
    with live.table.committing(head or 0, counts, raised=1):
        replace(rows, live.state, properties)


def texts(difference: Difference) -> list[str]:
    """The difference in lines for people."""
    lines = [f"{difference.store}: {difference.rule or 'the same rule'}"]
    lines.append(
        f"{difference.added} added, {difference.gone} gone, {difference.changed} changed, {difference.same} the same"
    )
    if difference.position is None:
        lines.append("(compared with newer events: the changelog at the live state's position is gone)")
    for kind, rows in difference.samples.items():
        for row in rows:
            key = "/".join(str(v) for k, v in row.items() if k not in ("was", "is"))
            values = {"added": "{is}", "gone": "{was}", "changed": "{was} → {is}"}[kind]
            lines.append(f"  {kind:8}{key}: {values.format(**row)}")
    return lines
