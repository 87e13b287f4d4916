"""Changelog → ``state/<store>``: the fold, and a MERGE that commits the position with the rows.

A round for one store, in four steps; what a crash after each leaves behind:

1. Read the position p from the state table and the changelog's rows of (p, head]. Fold them to one row a key,
   combine with the state's rows and the tombstones. *Nothing is written.*
2. Keys whose late reset cuts through values that were added up already are folded again from the whole
   changelog. *Nothing is written.*
3. Append the keys that are absent now to the tombstones. *They hold nothing that adds up, so the same round
   again, or a reader that sees them early, comes to the same rows.*
4. MERGE the rows into the state; the same commit holds ``txn(changelog) = head``. *The round is done; trying it
   again changes nothing.*

A store without a position reads the whole changelog, by the same steps: a backfill is a long first round.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.lake import create_store
from jobs.rules import rule_of
from jobs.session import fresh
from statehouse.config import Config, Store
from statehouse.errors import DefinitionChanged, StatehouseError, first_line
from statehouse.fold import quoted
from statehouse.tables import POSITION, metadata, opened, position, table

log = logging.getLogger("statehouse")


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
    """One store's merge."""

    def __init__(self, spark: SparkSession, config: Config, store: Store) -> None:
        self.spark = fresh(spark)
        self.config, self.store = config, store
        self.rule = rule_of(self.spark, config, store)
        self.changelog = table(config, "changelog", store.stream)
        self.state = table(config, "state", store.name)
        self.tombstones = table(config, "tombstones", store.name)
        self.checked = False  # that the tables are there and of this rule

    def round(self) -> Round | None:
        """Fold what is new, if anything is: one commit of the state table. None when there is nothing new."""
        log = opened(self.changelog)
        if log is None:
            return None
        start, head = position(self.state), log.version()
        if start is None or not self.checked:  # not at every poll: it opens three logs
            create_store(self.spark, self.config, self.rule)
            self.checked = True
        if start == head or head == 0:  # version 0 is the empty table
            return None
        began = time.monotonic()
        slice_ = self._slice(start, head)
        events, resets, unkeyed = self._sql(self.rule.count("log"), log=slice_).collect()[0]
        total = (metadata(self.state, "unkeyed") or {}).get("unkeyed", 0) + unkeyed
        if not events:  # only the position moves
            self._move(head, total)
            return Round(self.store.name, start, head, 0, 0, time.monotonic() - began)
        # A checkpoint and not a cache: the plan behind it is long, and would be planned again by each step that follows.
        rows = self._rows(slice_, resets > 0).localCheckpoint()
        keys, absent, torn = rows.selectExpr("count(*)", "count_if(NOT _present)", "count_if(_conflict)").collect()[0]
        if torn:
            rows = self._again(rows, head).localCheckpoint()
            absent = rows.where("NOT _present").count()
        if absent:
            self._remember(rows, head)
        self._merge(rows, head, total)
        return Round(self.store.name, start, head, events, keys, time.monotonic() - began)

    def _slice(self, start: int | None, head: int) -> DataFrame:
        """The changelog's rows of (start, head]."""
        reader = self.spark.read.format("delta")
        if start is None:
            return reader.option("versionAsOf", head).load(self.changelog)
        feed = reader.option("readChangeFeed", True).option("startingVersion", start + 1).option("endingVersion", head)
        return feed.load(self.changelog).where("_change_type = 'insert'")

    def _sql(self, query: str, **views: DataFrame) -> DataFrame:
        for name, frame in views.items():
            frame.createOrReplaceTempView(name)
        return self.spark.sql(query)

    def _rows(self, slice_: DataFrame, resets: bool) -> DataFrame:
        """The new rows of the slice's keys."""
        rule, load = self.rule, self.spark.read.format("delta").load
        events = self._sql(rule.project("log"), log=slice_)
        folded = self._sql(rule.fold("events", resets), events=events)
        views = {"folded": folded, "state": load(self.state)}
        if (tombstones := opened(self.tombstones)) and tombstones.version() > 0:  # there has been one
            views["tombstones"] = load(self.tombstones)
        return self._sql(rule.combine("folded", "state", "tombstones" if "tombstones" in views else None), **views)

    def _again(self, rows: DataFrame, head: int) -> DataFrame:
        """The same rows; those of keys that a late reset tore, folded from the whole changelog."""
        rule = self.rule
        torn = F.broadcast(rows.where("_conflict").select(*map(quoted, rule.keys)))
        whole = self._sql(rule.project("log"), log=self._slice(None, head)).join(torn, list(rule.keys), "semi")
        folded = self._sql(rule.fold("events"), events=whole)
        state = self.spark.read.format("delta").load(self.state)
        anew = self._sql(rule.combine("folded", "state", None, again=True), folded=folded, state=state)
        return rows.where("NOT _conflict").unionByName(anew)

    def _remember(self, rows: DataFrame, head: int) -> None:
        absent = rows.where("NOT _present")
        remembered = ["*", f"CAST({head} AS BIGINT) AS position", "current_timestamp() AS log_time"]
        frame = self._sql(f"SELECT {self.rule.remembered()} FROM absent", absent=absent).selectExpr(*remembered)
        frame.coalesce(1).write.format("delta").mode("append").save(self.tombstones)

    def _merge(self, rows: DataFrame, head: int, unkeyed: int) -> None:
        columns = {c: f"n.{quoted(c)}" for c in self.rule.state_columns}
        on = " AND ".join(f"s.{quoted(k)} = n.{quoted(k)}" for k in self.rule.keys)
        with self._committing(head, unkeyed):
            (
                DeltaTable.forPath(self.spark, self.state)
                .alias("s")
                .merge(rows.where("_present OR _here").alias("n"), on)
                .whenMatchedDelete("NOT n._present")
                .whenMatchedUpdate(set={quoted(c): e for c, e in columns.items()})
                .whenNotMatchedInsert("n._present", values={quoted(c): e for c, e in columns.items()})
                .execute()
            )
        if position(self.state) != head:  # the txn was there already: somebody else has merged meanwhile
            raise StatehouseError(
                f"store {self.store.name}: its state was written by another process; one writer a table"
            )

    def _move(self, head: int, unkeyed: int) -> None:
        nothing = self.spark.read.format("delta").load(self.state).limit(0)
        with self._committing(head, unkeyed):
            nothing.write.format("delta").mode("append").save(self.state)

    @contextmanager
    def _committing(self, head: int, unkeyed: int) -> Iterator[None]:
        """Settings of this store's own session for one commit; left behind they would skip later writes in silence."""
        settings = {
            "spark.databricks.delta.write.txnAppId": POSITION,
            "spark.databricks.delta.write.txnVersion": str(head),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps({"unkeyed": unkeyed}),
        }
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(name)


def pace(took: float, every: float) -> float:
    """Seconds to wait after a round: ``every`` from start to start, and never merging more than a quarter of the time."""
    return max(every - took, 3 * took)


def run(merges: list[Merge], stopping: threading.Event, every: float, tell: Callable[[Round], None]) -> None:
    """Merge every store that has something new, round after round, until told to stop; the round in hand is finished.

    A round that fails is said and tried again from its position: nothing is committed by halves.
    """
    failures, warm = 0, False
    stopping.wait(every)  # the first batches are on their way: one round for them, not one for nothing
    while not stopping.is_set():
        began = time.monotonic()
        try:
            worked = catch_up(merges, tell, stopping)
            failures = 0
        except DefinitionChanged:
            raise
        except Exception as error:  # a full disk, an object store that is away: the next round may do
            failures += 1
            worked = 0
            log.error("merge: %s; trying again", first_line(error))
        took = time.monotonic() - began
        # The first round is spent on compiling as much as on merging, and measures nothing.
        pause = pace(took, every) if warm else every
        warm = warm or worked > 0
        stopping.wait(max(pause, min(2**failures, 30)) if worked or failures else 0.2)


def catch_up(merges: list[Merge], tell: Callable[[Round], None], stopping: threading.Event | None = None) -> int:
    """One round of every store; the number of those that had something new."""
    worked = 0
    for merge in merges:
        if stopping and stopping.is_set():
            break
        if done := merge.round():
            tell(done)
            worked += 1
    return worked
