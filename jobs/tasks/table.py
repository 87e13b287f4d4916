"""The table ``tasks``: a row for each task, and in every commit the positions up to which the changelogs and the states were looked at."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark import small
from jobs.spark.tables import create
from jobs.tasks.messages import MESSAGE
from statehouse.config.models import Config
from statehouse.tables import TASK_COLUMNS, metadata, select, tasks_table

Row = dict[str, Any]
NAME = "tasks"  # of the job, under which its positions are
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
MICROSECONDS = (
    "statehouse.microseconds"  # a table that has it has no times of INT96, which deltalake would take for nanoseconds
)
PROPERTIES = {"delta.dataSkippingStatsColumns": "status,due", "delta.checkpointInterval": "50", MICROSECONDS: "true"}


def shape_rows(rows: DataFrame, **given: str) -> DataFrame:
    """Rows for :meth:`TaskTable.merge`: columns by expressions, the others null."""
    expressions = {"status": "CASE WHEN cancelled THEN 'cancelled' ELSE 'waiting' END", "sent": "0", **given}
    columns = [f"CAST({expressions.get(c, 'NULL')} AS {t}) AS `{c}`" for c, t in TASK_COLUMNS.items()]
    if "cancelled" not in rows.columns:
        rows = rows.withColumn("cancelled", F.lit(False))
    return rows.selectExpr(*columns, "cancelled")


class TaskTable:
    """The table of a lake's tasks, by one session. ``now`` gives seconds since 1970."""

    def __init__(self, spark: SparkSession, config: Config, now: Callable[[], float]) -> None:
        assert config.tasks is not None
        self.spark, self.config, self.now = spark, config, now
        self.path, self.tasks = tasks_table(config), config.tasks
        self._positions: dict[str, Any] | None = None
        self.next_due: dt.datetime | None = None
        self.awaited_stores: set[str] = set()  # those that somebody's tasks wait for
        self._tidied = float("-inf")

    @property
    def positions(self) -> dict[str, Any]:
        """Up to where all was looked at: ``streams`` and ``offsets`` by a stream's name, ``stores`` by a store's. Who changes them has
        them committed with what was found. They are there once the table was begun."""
        assert self._positions
        return self._positions

    def forget(self) -> None:
        """Forget the positions, as a round has failed: the table tells."""
        self._positions = None

    def due(self, now: float) -> list[Row]:
        """What waits and is due, in seconds since 1970, in due order."""
        waiting = f"status = 'waiting' AND due <= to_timestamp_micros({int(now * 1_000_000)})"
        return select(DeltaTable(self.path), f"SELECT * FROM found WHERE {waiting} ORDER BY due, id")

    def begin(self) -> int:
        """Read the positions, if they are not known; the table's version."""
        unknown = self._positions is None
        if unknown:
            create(self.spark, self.path, TASK_COLUMNS, PROPERTIES)
            stored = (metadata(self.path, NAME) or {}).get(NAME, {})
            self._positions = {"streams": {}, "offsets": {}, "stores": {}, **stored}
            if MICROSECONDS not in DeltaTable(self.path).metadata().configuration:
                self._rewrite()
        if time.monotonic() - self._tidied >= self.config.maintain_every / 1000:
            self._tidy()
            self._tidied = time.monotonic()
        elif unknown:
            self._await()
        return DeltaTable(self.path).version()

    def _rewrite(self) -> None:
        """Write the rows of a table that is of an earlier version anew: by Spark, which reads its times rightly."""
        done = self._text()
        self.read("TRUE").write.format("delta").mode("overwrite").option("userMetadata", done).save(self.path)
        self.spark.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('{MICROSECONDS}' = 'true')")

    def _text(self) -> str:
        return json.dumps({NAME: self._positions})

    def _with_positions(self) -> CommitProperties:
        return CommitProperties(custom_metadata={"userMetadata": self._text()})

    def _move(self) -> None:
        """Commit the positions alone."""
        schema = pa.schema(DeltaTable(self.path).schema().to_arrow())
        write_deltalake(self.path, schema.empty_table(), mode="append", commit_properties=self._with_positions())

    def merge(self, rows: DataFrame) -> None:
        """Put rows of the table's columns and ``cancelled`` into the table, with the positions, in one commit. What waits is over
        where it is ``cancelled``, or has ``ended`` before it was due."""
        daily = "(t.task IS NOT NULL AND t.key IS NULL)"
        due = f"CASE WHEN t.sent = 0 OR {daily} THEN s.due ELSE t.due END"
        ended = "coalesce(s.ended, t.ended)"
        self.spark.conf.set(USER_METADATA, self._text())
        try:
            (
                SparkTable.forPath(self.spark, self.path)
                .alias("t")
                .merge(rows.alias("s"), "t.id = s.id")
                .whenMatchedUpdate(
                    "t.status = 'waiting' AND (s.cancelled OR s.ended < t.due)",
                    {"status": "'cancelled'", "reason": "s.reason", "ended": ended},
                )
                .whenMatchedUpdate(
                    f"s.topic IS NOT NULL AND (t.status = 'waiting' OR {daily})",
                    {"status": "'waiting'", "ended": "s.ended", "due": due, **{f"`{c}`": f"s.`{c}`" for c in MESSAGE}},
                )
                .whenMatchedUpdate("s.ended IS NOT NULL", {"ended": ended})
                .whenNotMatchedInsert("s.due IS NOT NULL", {f"`{c}`": f"s.`{c}`" for c in TASK_COLUMNS})
                .execute()
            )
        finally:
            self.spark.conf.unset(USER_METADATA)
        self._await()

    def put(self, frames: Sequence[DataFrame]) -> None:
        """All of these in one commit, which moves the positions also where there is nothing."""
        rows = reduce(DataFrame.unionByName, frames).localCheckpoint() if frames else None
        if rows and not rows.isEmpty():
            self.merge(rows)
        else:
            self._move()

    def read(self, where: str) -> DataFrame:
        """Its rows, as Spark reads them."""
        return small.read(self.spark, self.path).where(where)

    def commit(self, rows: list[Row]) -> None:
        """Commit what became of rows that were sent: their ids, and the columns that are new."""
        time_type = pa.timestamp("us", "UTC")
        types = {"id": pa.string(), "status": pa.string(), "due": time_type, "sent": pa.int64(), "sent_at": time_type}
        source = pa.Table.from_pylist(rows, pa.schema({**types, "reason": pa.string()}))
        merge = DeltaTable(self.path).merge(
            source, "t.id = s.id", source_alias="s", target_alias="t", commit_properties=self._with_positions()
        )
        merge.when_matched_update({c: f"s.{c}" for c in source.column_names if c != "id"}).execute()
        self._await()

    def _tidy(self) -> None:
        """End what is of rules that are no more, forget what has been over for as long as tombstones are kept, and keep the table
        as :mod:`jobs.maintain` does the others."""
        delta, now = DeltaTable(self.path), int(self.now() * 1_000_000)
        for daily in (True, False):
            names = ", ".join(f"'{name}'" for name, task in self.tasks.items() if bool(task.at) == daily) or "''"
            delta.update(
                predicate=f"task IS NOT NULL AND (key IS NULL) = {daily} AND task NOT IN ({names}) AND ended IS NULL",
                updates={
                    "status": "CASE WHEN status = 'waiting' THEN 'cancelled' ELSE status END",
                    "reason": "CASE WHEN status = 'waiting' THEN 'there is no such rule any more' ELSE reason END",
                    "ended": f"to_timestamp_micros({now})",
                },
                commit_properties=self._with_positions(),
            )
        over = "status <> 'waiting' AND (ended IS NOT NULL OR task IS NULL)"
        old = f"to_timestamp_micros({now - self.config.tombstones * 1000})"
        delta.delete(f"{over} AND coalesce(sent_at, ended, due) < {old}", commit_properties=self._with_positions())
        delta.optimize.compact(commit_properties=self._with_positions())
        delta.vacuum(self.config.version_hours, False, False, commit_properties=self._with_positions())
        self._await()

    def _await(self) -> None:
        """Find out what is waited for."""
        self.next_due = select(DeltaTable(self.path), "SELECT min(due) AS due FROM found WHERE status = 'waiting'")[0][
            "due"
        ]
        asked = "status = 'waiting' AND task IS NULL AND value IS NOT NULL AND ended IS NULL"
        self.awaited_stores = {
            row["store"] for row in select(DeltaTable(self.path), f"SELECT DISTINCT store FROM found WHERE {asked}")
        }
