"""``state/<store>`` as a round of its merge found it, and the ways to put new rows in the place of the old ones. Each is one commit, which
holds the position too, and fails where somebody else has committed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as DeltaLog
from pyspark.sql import DataFrame, SparkSession

from jobs.spark import databricks, keyed, small, vectors
from statehouse.errors import StatehouseError
from statehouse.fold import Rule
from statehouse.spark_sql import quoted
from statehouse.tables import BUCKET, application, buckets, byte_count, folded, generation, opened, row_count

CHANGES = {  # the rows of a round that change the state, counted
    "inserted": "count_if(_present AND NOT _here)",
    "updated": "count_if(_present AND _here)",
    "deleted": "count_if(NOT _present AND _here)",
}
FEW = 300_000  # keys that are sent to where the state is read, and not the state to where they are
ROOM = 256 << 20  # bytes that one process may hold of a state's rows, for each thread that merges


class State:
    """The table of a rule's state. ``spark`` is a session of its own."""

    def __init__(self, spark: SparkSession, rule: Rule, path: str) -> None:
        self.spark, self.rule, self.path = spark, rule, path
        self._delta: DeltaLog | None = None
        self.rewritten = self.marked = False  # how rows are put in the place of others

    def look(self) -> None:
        """Find the newest version."""
        self._delta = opened(self.path)
        self.rewritten = self.marked = False

    def choose(self) -> None:
        """Choose how rows are put in the place of others; not at every look, as it reads what files there are."""
        ours = {*self.rule.state_columns} == {field.name for field in self.delta.schema().fields}
        self.rewritten = ours and small.is_rewritten(self.delta)
        self.marked = vectors.is_enabled(self.delta) and byte_count(self.delta) >= small.SMALL

    @property
    def delta(self) -> DeltaLog:
        """The version that was found."""
        assert self._delta
        return self._delta

    @property
    def is_there(self) -> bool:
        """Whether there is a table."""
        return self._delta is not None

    @property
    def position(self) -> int | None:
        """The changelog's version that is folded; None: nothing is yet."""
        return folded(self._delta) if self._delta else None

    @property
    def carried(self) -> tuple[str, ...]:
        """What a row has besides the state's columns: where it is, if it is to be replaced there."""
        return tuple(vectors.PLACE) if self.rewritten or self.marked else ()

    @property
    def size(self) -> str:
        """SQL: about how many bytes some rows have in memory; of rows that one process is not to hold that is not asked."""
        if not self.rewritten:
            return "CAST(NULL AS BIGINT)"
        kinds = {quoted(name): kind.upper() for name, kind in self.rule.state_columns.items()}
        varying = [
            name if kind in ("STRING", "BINARY") else f"CAST({name} AS STRING)"
            for name, kind in kinds.items()
            if kind in ("STRING", "BINARY") or "<" in kind
        ]
        lengths = "".join(f" + coalesce(octet_length({text}), 0)" for text in varying)
        return f"sum(CAST({16 * len(kinds)} AS BIGINT){lengths})"

    def read(self) -> DataFrame:
        """All rows, with what is :attr:`carried`."""
        state = small.read(self.spark, self.path, self.delta)
        return vectors.with_place(state, self.delta) if self.carried else state

    def rows_of(self, column: str, keys: pa.ChunkedArray) -> DataFrame | None:
        """The rows whose ``column`` is one of some ``keys``, with what is :attr:`carried`; None where Spark is to read them."""
        return keyed.rows_of_keys(self.spark, self.path, self.delta, column, keys, ROOM)

    def in_touched_buckets(self, rows: DataFrame) -> str:
        """SQL: whether a row of the state is in a bucket of some rows. Literals, so that no other one is read, or written."""
        touched = rows.selectExpr(self._bucket()).distinct().collect()
        return f"{BUCKET} IN ({', '.join(str(row[BUCKET]) for row in touched) or 'NULL'})"

    def move(self, head: int, counts: Mapping[str, int]) -> None:
        """Commit the position alone."""
        if databricks.here() or not small.is_ours(self.delta):
            nothing = self.spark.read.format("delta").load(self.path).limit(0)
            with self.committing(head, counts):
                nothing.write.format("delta").mode("append").save(self.path)
            return
        with self.committing(head, counts):
            small.commit(self.delta, [], "append", self._txn(head), {"userMetadata": json.dumps(counts)})

    def replace(self, rows: DataFrame, totals: Mapping[str, int], head: int, counts: Mapping[str, int]) -> None:
        """Commit the position with some rows, as :meth:`Rule.combine` gives them with what is :attr:`carried`, in the place of those of
        the same keys. ``totals`` has how many they are, ``keys``, and the :data:`CHANGES`."""
        if not any(totals[name] for name in CHANGES):
            self.move(head, counts)
        elif self.rewritten and self._has_room(totals):
            self._rewrite(rows, totals, head, counts)
        elif not byte_count(self.delta):
            self._append(rows.where("_present"), head, counts)
        elif self.carried and vectors.is_enabled(self.delta):
            self._mark(rows, totals, head, counts)
        else:
            self._merge(rows, head, counts)

    def _has_room(self, totals: Mapping[str, int]) -> bool:
        """Whether one process may hold the whole state, if its rows are as large as the new ones. A first batch that is not small had
        better be written by all cores."""
        rows = row_count(self.delta)
        return totals["bytes"] / totals["keys"] * (rows + totals["keys"]) <= (ROOM if rows else small.SMALL)

    def _append(self, rows: DataFrame, head: int, counts: Mapping[str, int]) -> None:
        with self.committing(head, counts):
            self._lay_out(rows).write.format("delta").mode("append").save(self.path)

    def _rewrite(self, rows: DataFrame, totals: Mapping[str, int], head: int, counts: Mapping[str, int]) -> None:
        columns, places = [*map(quoted, self.rule.state_columns)], [*vectors.PLACE]
        collected = rows.where("_present OR _here").select(*columns, *places, "_present").toArrow()
        copied = row_count(self.delta) - totals["updated"] - totals["deleted"]
        with self.committing(head, counts):
            small.replace_rows(
                self.path,
                self.delta,
                collected.select(places).drop_null(),
                collected.filter(collected["_present"]).select([*self.rule.state_columns]),
                self._txn(head),
                json.dumps(counts),
                {**_merged_rows(totals), "Copied": copied},
            )

    def _mark(self, rows: DataFrame, totals: Mapping[str, int], head: int, counts: Mapping[str, int]) -> None:
        with self.committing(head, counts):
            vectors.replace_rows(
                self.spark,
                self.path,
                self.delta.version(),
                rows.where("_here").select(*vectors.PLACE) if totals["updated"] or totals["deleted"] else None,
                self._lay_out(rows.where("_present")),
                self._txn(head),
                _merged_rows(totals),
            )

    def _merge(self, rows: DataFrame, head: int, counts: Mapping[str, int]) -> None:
        changed, condition = rows.where("_present OR _here"), self.rule.matching("s", "n")
        columns = {c: f"n.{quoted(c)}" for c in self.rule.state_columns}
        inserted = columns
        if buckets(self.delta):
            condition += f" AND s.{BUCKET} = n.{BUCKET} AND s.{self.in_touched_buckets(changed)}"
            changed = changed.selectExpr("*", self._bucket())
            inserted = {**columns, BUCKET: f"n.{BUCKET}"}
        with self.committing(head, counts):
            (
                DeltaTable.forPath(self.spark, self.path)
                .alias("s")
                .merge(changed.alias("n"), condition)
                .whenMatchedDelete("NOT n._present")
                .whenMatchedUpdate(set={quoted(c): e for c, e in columns.items()})
                .whenNotMatchedInsert("n._present", values={quoted(c): e for c, e in inserted.items()})
                .execute()
            )

    def _bucket(self) -> str:
        return f"{self.rule.bucket(buckets(self.delta) or 1)} AS {BUCKET}"

    def _lay_out(self, rows: DataFrame) -> DataFrame:
        """Rows with the columns of the state's table; where that has buckets, with the rows of each bucket in one partition."""
        columns = [*map(quoted, self.rule.state_columns)]
        if not buckets(self.delta):
            return rows.select(*columns)
        return rows.selectExpr(*columns, self._bucket()).repartition(BUCKET)

    def _txn(self, head: int) -> tuple[str, int]:
        return application(generation(self.delta)), head

    @contextmanager
    def committing(self, head: int, counts: Mapping[str, int], raised: int = 0) -> Iterator[None]:
        """Settings of this store's own session for one commit of the state: its position, and the running counts. Left
        behind they would skip later writes in silence. ``raised``: by how much the commit raises the generation.

        Raises StatehouseError where another process has written the state.
        """
        state = opened(self.path)
        now = (generation(state) if state else 0) + raised
        settings = {
            "spark.databricks.delta.write.txnAppId": application(now),
            "spark.databricks.delta.write.txnVersion": str(head),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps(counts),
        }
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(name)
        done = opened(self.path)
        if (
            not done or folded(done) != head or generation(done) != now
        ):  # the txn was there already: passed over in silence
            raise StatehouseError(
                f"store {self.rule.store.name}: its state was written by another process; one writer a table"
            )


def _merged_rows(totals: Mapping[str, int]) -> dict[str, int]:
    """Numbers of rows as Delta's MERGE names them."""
    return {name.capitalize(): totals[name] for name in CHANGES}
