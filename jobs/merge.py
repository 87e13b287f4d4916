"""Changelog → ``state/<store>``: the fold, and a MERGE that commits the position with the rows.

A round for one store, in four steps; what a crash after each leaves behind:

1. Read the position p from the state table and the changelog's rows of (p, head]. Fold them to one row a key,
   combine with the state's rows and the tombstones. *Nothing is written.*
2. Keys whose late reset cuts through values that were added up already are folded again from the whole
   changelog. *Nothing is written.*
3. Append the keys that are absent now to the tombstones. *They hold nothing that adds up, so the same round
   again, or a reader that sees them early, comes to the same rows.*
4. Put the rows into the state in the place of the old ones; the same commit holds ``txn(changelog) = head``. *Before
   the commit: files are left that no version has, until `maintain` deletes them. After it the round is done; trying it again
   changes nothing.*

Before the first step a round makes the tables that are missing, and ends a swap that :mod:`jobs.recover` has begun.
``tests/jobs/test_recover.py`` interrupts it between any two steps.

The last step (:mod:`jobs.spark.state`) costs what the rows do: the old ones are marked as deleted where step 1 has found them, the new
ones appended. A small table is written anew. One without deletion vectors, with buckets or with a feed has a MERGE, which writes the
files anew that have a row of them.

A store without a position reads the whole changelog, by the same steps, and appends instead of merging, unless that is little: a
backfill is a long first round.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.law import keep_the_law
from jobs.spark import change_feed, databricks, small
from jobs.spark.expressions import rule_of
from jobs.spark.guard import Guard
from jobs.spark.session import ADAPTIVE, new_session, observed, sql
from jobs.spark.slices import Slices
from jobs.spark.state import CHANGES, FEW, State
from jobs.spark.tables import create_store, finish_swap
from statehouse.config.models import Config, Store
from statehouse.errors import FeedLost
from statehouse.spark_sql import quoted
from statehouse.tables import (
    buckets,
    byte_count,
    metadata,
    opened,
    position,
    table,
)

COUNTS, FOLDED, TOTALS = "counts", "folded", "totals"
ROWS = {  # of a round, counted
    "keys": "count(*)",
    "absent": "count_if(NOT _present)",
    "torn": "count_if(_conflict)",
    **CHANGES,
}
BACKFILL = 64 << 20  # bytes of a changelog that are folded by all cores and in all of the memory there is
# Keys that are looked for by their values: files, and pages of files, that have none are passed over. Only of types that are equal in one way.
NAMED, EXACT = 100, ("STRING", "BIGINT", "INT")


@dataclass(frozen=True)
class Round:
    """What a merge did: from position (None: the beginning) to head, and the rows it touched."""

    store: str
    start: int | None
    head: int
    events: int
    keys: int
    seconds: float


class Merge:
    """One store's merge; into ``folder`` instead of the live tables, where one is given (see :mod:`jobs.recover`). Merges that share
    ``slices`` read what is new once."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        store: Store,
        folder: str | None = None,
        slices: Slices | None = None,
    ) -> None:
        self.spark = new_session(spark)
        if not databricks.here():  # a MERGE is where nothing is marked
            self.spark.conf.set("spark.databricks.delta.merge.deletionVectors.persistent", "false")
            self.spark.conf.set("spark.sql.parquet.pushdown.inFilterThreshold", NAMED)
        self.config, self.store = config, store
        self.slices, self.shares = slices or Slices(self.spark, config), slices is not None
        self.rule = rule_of(self.spark, config, store)
        self.changelog = table(config, "changelog", store.stream)
        self.state = f"{folder}/state" if folder else table(config, "state", store.name)
        self.table = State(self.spark, self.rule, self.state)
        self.tombstones = f"{folder}/tombstones" if folder else table(config, "tombstones", store.name)
        self.drafting = folder is not None
        self.guard = Guard(f"store {store.name}")
        self.checked = False  # that the tables are there and of this rule

    def is_backfill(self) -> bool:
        """Whether the next round folds all of a changelog that is not small."""
        with suppress(Exception):  # the round says what is wrong
            log = opened(self.changelog) if position(self.state) is None else None
            return log is not None and byte_count(log) > BACKFILL
        return False

    def round(self, upto: int | None = None) -> Round | None:
        """Fold what is new, if anything is: one commit of the state table. None when there is nothing new.

        ``upto`` is a changelog version to stop at. Raises FeedLost where the changelog no longer tells what came after
        the state's position, or what it was at ``upto``; DefinitionChanged where the state is another rule's; ConfigError
        where a user's own reducer that has no state yet breaks the law.
        """
        try:
            return self.guard.run(self.spark, lambda: self._round(upto))
        finally:
            if not self.shares:
                self.slices.forget()

    def _round(self, upto: int | None) -> Round | None:
        head = self.slices.head(self.changelog) if upto is None else upto
        if head is None:
            return None
        self.table.look()
        start = self.table.position
        if start is None or not self.checked:  # not at every poll: it opens three logs
            if not self.drafting:
                finish_swap(self.spark, self.config, self.store.name)
            if not self.table.is_there and self.rule.store.reducer.written:
                keep_the_law(self.spark, self.rule)
            create_store(self.spark, self.config, self.rule, self.state, self.tombstones)
            self.checked = True
            self.table.look()
        if start == head or head == 0:  # version 0 is the empty table
            return None
        many = self.slices.are_many(self.config.streams[self.store.stream], start)
        if not databricks.here():
            self.spark.conf.set(ADAPTIVE, str(many).lower())
        if many:
            with self.slices.alone:
                return self._fold_slice(start, head)
        return self._fold_slice(start, head)

    def _fold_slice(self, start: int | None, head: int) -> Round:
        began = time.monotonic()
        self.table.choose()
        events, counted = self._read(start, head)
        folded_rows, source = self._rows(events, bool(counted and counted["resets"]), start is None)
        rows, totals, watched = self._keep(folded_rows)
        counted = counted or self._observed_counts(source or watched) or self._count_events(events)
        previous = metadata(self.state, "unkeyed") or {}
        counts = {name: previous.get(name, 0) + counted[name] for name in ("unkeyed", "late")}
        if not counted["events"]:
            self.table.move(head, counts)
            return Round(self.store.name, start, head, 0, 0, time.monotonic() - began)
        if totals["torn"]:
            rows, totals, _ = self._keep(self._fold_torn_anew(rows, head))
        if totals["absent"]:
            self._remember(rows, head)
        self.table.replace(rows, totals, head, counts)
        return Round(self.store.name, start, head, counted["events"], totals["keys"], time.monotonic() - began)

    def _keep(self, rows: DataFrame) -> tuple[DataFrame, dict[str, int], DataFrame]:
        """Compute rows once, and count them as :data:`ROWS` says; also the frame that was computed, which tells what was observed. A
        checkpoint and not a cache: the plan behind it is long, and would be planned again by each step that follows."""
        measures = {**ROWS, "bytes": self.table.size}
        watched = rows.observe(TOTALS, *(F.expr(expression).alias(name) for name, expression in measures.items()))
        checkpoint, metrics = watched.localCheckpoint(), observed(watched, TOTALS)
        if metrics:
            return checkpoint, {name: metrics.getAs(name) for name in measures}, watched
        totals = checkpoint.selectExpr(*(f"{expression} AS {name}" for name, expression in measures.items()))
        return checkpoint, totals.collect()[0].asDict(), watched

    def _read(self, start: int | None, head: int) -> tuple[DataFrame, dict[str, int] | None]:
        """The store's events in (start, head] of the changelog, and their counts; or None, where none of them is a set or a
        purge: then they are read once, and counted by the way."""
        try:
            slice_, only_reports = self.slices.read(self.spark, self.config.streams[self.store.stream], start, head)
        except Exception as error:
            if change_feed.is_gone(error):
                raise FeedLost(
                    f"store {self.store.name}: {self.changelog} no longer has what came between its versions {start} and {head}"
                ) from error
            raise
        events = sql(self.spark, f"SELECT * FROM {self.rule.events('log', self.guard.text)}", log=slice_)
        return (events.observe(COUNTS, *self._counts()), None) if only_reports else (events, self._count_events(events))

    def _counts(self) -> list[Column]:
        return [F.expr(expression).alias(name) for name, expression in self.rule.counts.items()]

    def _count_events(self, events: DataFrame) -> dict[str, int]:
        return events.select(*self._counts()).collect()[0].asDict()

    def _observed_counts(self, rows: DataFrame) -> dict[str, int] | None:
        """The counts of the events that some rows were made of, as observed while they were computed; None where there are no rows."""
        metrics = observed(rows, COUNTS)
        return {name: metrics.getAs(name) for name in self.rule.counts} if metrics else None

    def _rows(self, events: DataFrame, resets: bool, first: bool) -> tuple[DataFrame, DataFrame | None]:
        """The new rows of the events' keys (a ``first`` round has all events, and reads no state); and the folded ones where these were
        computed before, and not with the rows: of what reads the events :data:`COUNTS` are observed."""
        rule = self.rule
        placed = sql(self.spark, rule.placed("events"), events=events)
        folded_, source = sql(self.spark, rule.fold("placed", resets), placed=placed), None
        partitioned, state = buckets(self.table.delta) and not first, self.table.read()
        # Looked up besides is where its keys are, which buckets, and the purges in it.
        if self.table.marked or partitioned or (rule.store.windows and resets):
            source = folded_.observe(FOLDED, F.count(F.lit(1)).alias("keys"))
            folded_ = source.localCheckpoint()
        if partitioned:
            state = state.where(self.table.in_touched_buckets(folded_))
        if self.table.marked:
            metrics = observed(source or folded_, FOLDED)
            keys = metrics.getAs("keys") if metrics else folded_.count()
            state = self._of_keys(state, folded_, keys)
        views = {"folded": folded_, "state": state}
        tombstones = None
        if not first and (purges := opened(self.tombstones)) and purges.version() > 0:  # there has been one
            tombstones, views["tombstones"] = "tombstones", small.read(self.spark, self.tombstones)
        spread = rule.spread("folded", "state" if resets and not first else None, tombstones)
        new_rows = sql(
            self.spark, rule.combine(spread, "state", tombstones, again=first, of_state=self.table.carried), **views
        )
        return new_rows, source

    def _of_keys(self, state: DataFrame, rows: DataFrame, count: int) -> DataFrame:
        """The state's rows of the keys of some rows, so many, whatever their windows."""
        keys = [*self.rule.key_columns]
        wanted = rows.select(*map(quoted, keys))
        if count > FEW:  # then they are not sent to where the state is read
            return state.join(wanted, keys, "semi")
        single = len(keys) == 1 and not self.store.windows  # a key has one row
        if self.rule.key_columns[keys[0]] in EXACT and (count <= NAMED or single):
            values = wanted.select(quoted(keys[0])).distinct().toArrow()[0]
            if single and (state_rows := self.table.rows_of(keys[0], values)) is not None:
                return state_rows
            if count <= NAMED:
                state = state.where(F.col(quoted(keys[0])).isin(values.to_pylist()))
        return state.join(F.broadcast(wanted), keys, "semi")

    def _fold_torn_anew(self, rows: DataFrame, head: int) -> DataFrame:
        """The same rows, but those with a ``_conflict`` (a late reset falls between values that are added up) are folded again from the
        whole changelog."""
        rule = self.rule
        torn = F.broadcast(rows.where("_conflict").select(*map(quoted, rule.keys)))
        rows_of_all = change_feed.events(self.spark, self.config, self.config.streams[self.store.stream], None, head)
        log = sql(self.spark, rule.project("log", self.guard.text), log=rows_of_all)
        whole = log.join(torn, list(rule.key_columns), "semi")  # a purge of a key has no window
        folded_ = sql(self.spark, rule.fold("events"), events=whole)
        # Of a torn window nothing may be left: the state's own windows tell that there is one to be absent.
        query = rule.combine(
            rule.spread("folded", "state", None), "state", None, again=True, of_state=self.table.carried
        )
        anew = sql(self.spark, query, folded=folded_, state=self.table.read()).join(torn, list(rule.keys), "semi")
        return rows.where("NOT _conflict").unionByName(anew)

    def _remember(self, rows: DataFrame, head: int) -> None:
        absent = rows.where("NOT _present")
        remembered = ["*", f"CAST({head} AS BIGINT) AS position", "current_timestamp() AS log_time"]
        frame = sql(self.spark, f"SELECT {self.rule.remembered()} FROM absent", absent=absent).selectExpr(*remembered)
        frame.coalesce(1).write.format("delta").mode("append").save(self.tombstones)

    def expire(self) -> None:
        """Remove what has been kept for long enough: tombstones, and windows whose retention is over. A late event for
        such a window is refused by the fold, so that it does not come back in part; one that is older than a tombstone
        that is gone counts as if its key had never been purged, until the next recovery."""
        self._delete(self.tombstones, f"timestampdiff(MILLISECOND, log_time, now()) > {self.config.tombstones}")
        if self.store.windows and self.store.retention:
            for path in (self.state, self.tombstones):
                self._delete(path, self.rule.late("unix_micros(window_start)"))

    def _delete(self, path: str, condition: str) -> None:
        delta = opened(path)
        if delta and delta.version() > 0:
            DeltaTable.forPath(self.spark, path).delete(condition)
