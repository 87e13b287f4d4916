"""New rows of keys in one commit, without the joins of Delta's own MERGE, which has to tell again what is inserted from what is updated.

* Of a large table the cost is the rows': whoever read the old ones has seen in which file, and in which place of it, each is. They are
  marked there in deletion vectors, and the new ones appended.
* A small table is written anew as a whole. It is read, and its files are removed, by their names.

Either is Delta's transaction with what MERGE would have given it (its ``DMLWithDeletionVectorsHelper``, of Delta 4.4), by way of the JVM.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark import small
from jobs.spark.tables import FEED
from statehouse.errors import StatehouseError
from statehouse.tables import VECTORS, files

PLACE = {"_file": "_metadata.file_path", "_row": "_metadata.row_index"}  # of a row that was read


def is_enabled(delta: DeltaTable) -> bool:
    """Whether rows of a table are to be marked, and not their files written anew."""
    return delta.metadata().configuration.get(VECTORS) == "true"


def with_place(rows: DataFrame) -> DataFrame:
    """A table's rows with the :data:`PLACE` of each."""
    return rows.selectExpr("*", *(f"{expression} AS {name}" for name, expression in PLACE.items()))


def is_rewritten(delta: DeltaTable) -> bool:
    """Whether a table is to be written anew as a whole: a small one, without a feed of what has changed."""
    return small.is_small(delta) and delta.metadata().configuration.get(FEED) != "true"


def replace_rows(
    spark: SparkSession,
    path: str,
    version: int,
    places: DataFrame | None,
    rows: DataFrame | None,
    txn: tuple[str, int],
    counts: Mapping[str, int],
) -> None:
    """Commit what follows a table's version: without the rows at some :data:`PLACE`, and with some more. The commit has a ``txn``, an
    application id with its number, and the ``counts`` of rows that MERGE tells: ``Inserted``, ``Updated`` and ``Deleted``.

    Raises StatehouseError where the table has another version by now, and Delta's error where another process commits meanwhile.
    """
    commit = _Commit(spark, path, version)
    now = spark._jvm.java.lang.System.currentTimeMillis()  # type: ignore[union-attr]
    changed, replaced = _mark(spark, commit.transaction, places) if places else ([], [])
    removed = [(file.removeWithTimestamp(now, True), file.size()) for file in replaced]
    commit.end(rows, changed, removed, txn, {**counts, "Copied": 0})


def replace_all(
    spark: SparkSession, path: str, delta: DeltaTable, rows: DataFrame, txn: tuple[str, int], counts: Mapping[str, int]
) -> None:
    """The same with ``rows`` in the place of all that the table :func:`is_rewritten` has at this version."""
    commit = _Commit(spark, path, delta.version())
    jvm: Any = spark._jvm
    removed = []
    for file in files(delta).select(["path", "size_bytes"]).to_pylist():
        fields = {"path": file["path"], "size": file["size_bytes"], "deletionTimestamp": int(time.time() * 1000)}
        action = {"remove": {**fields, "dataChange": True, "extendedFileMetadata": True, "partitionValues": {}}}
        removed.append((jvm.org.apache.spark.sql.delta.actions.Action.fromJson(json.dumps(action)), file["size_bytes"]))
    commit.end(rows, [], removed, txn, counts)


class _Commit:
    """The commit that follows a table's version."""

    def __init__(self, spark: SparkSession, path: str, version: int) -> None:
        jvm: Any = spark._jvm
        self.spark, self.jvm, self.began = spark, jvm, time.monotonic()
        # Delta takes a commit's settings from the session that its thread has.
        jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        self.transaction = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
            spark._jsparkSession, path
        ).startTransaction()
        if self.transaction.readVersion() != version:
            raise StatehouseError(
                f"{path}: found version {self.transaction.readVersion()}, expected {version}; one writer a table"
            )
        self.transaction.readWholeTable()

    def end(
        self,
        rows: DataFrame | None,
        changed: list[Any],
        removed: list[tuple[Any, int]],
        txn: tuple[str, int],
        counts: Mapping[str, int],
    ) -> None:
        """Commit some rows, files that are ``changed``, and files that are ``removed``, with the bytes of each."""
        jvm, delta, option = self.jvm, self.jvm.org.apache.spark.sql.delta, self.jvm.scala.Option
        added = [*_items(jvm, self.transaction.writeFiles(rows._jdf))] if rows else []
        metrics = {f"numTargetRows{name}": count for name, count in counts.items()}
        metrics |= {"operationNumSourceRows": sum(counts[name] for name in ("Inserted", "Updated", "Deleted"))}
        for name, sizes in {"Added": [file.size() for file in added], "Removed": [size for _, size in removed]}.items():
            metrics |= {f"numTargetFiles{name}": len(sizes), f"numTargetBytes{name}": sum(sizes)}
        metrics["executionTimeMs"] = int((time.monotonic() - self.began) * 1000)
        self.transaction.registerSQLMetrics(self.spark._jsparkSession, _metrics(self.spark, metrics))
        none, nothing = option.empty(), _sequence(jvm, [])
        merge = getattr(delta, "DeltaOperations$Merge")(none, none, none, none, nothing, nothing, nothing)
        position = delta.actions.SetTransaction(*txn, option.apply(int(time.time() * 1000)))
        actions = [position, *changed, *(action for action, _ in removed), *added]
        self.transaction.commit(_sequence(jvm, actions), merge)


def _mark(spark: SparkSession, transaction: Any, places: DataFrame) -> tuple[list[Any], list[Any]]:
    """Mark the rows at some places as deleted: the actions for files that keep some rows (as they are from now on, and as they were), and
    the files of which no row is left."""
    jvm: Any = spark._jvm
    delta = jvm.org.apache.spark.sql.delta
    files = transaction.snapshot().allFiles().collectAsList()
    true = jvm.org.apache.spark.sql.catalyst.expressions.Literal.TrueLiteral()
    columns = [jvm.scala.Option.apply(F.col(name)._jc) for name in PLACE]
    results = delta.commands.DeletionVectorBitmapGenerator.buildRowIndexSetsForFilesMatchingCondition(
        *(spark._jsparkSession, transaction, True, places._jdf, _sequence(jvm, files), true, *columns)
    )
    helper = delta.commands.DMLWithDeletionVectorsHelper
    by_name = helper.generateCandidateFileMap(transaction.deltaLog().dataPath(), _sequence(jvm, files))
    changed, replaced = [], []
    for touched in _items(jvm, helper.findFilesWithMatchingRows(transaction, by_name, results)):
        file = touched.fileLogEntry()
        if touched.isFullyReplaced():
            replaced.append(file)
            continue
        pair = file.removeRows(touched.newDeletionVector(), True, True)
        changed += [pair._1(), pair._2()]
    return changed, replaced


def _metrics(spark: SparkSession, values: Mapping[str, int]) -> Any:
    jvm: Any = spark._jvm
    metrics = {}
    for name, value in values.items():
        metrics[name] = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(
            spark.sparkContext._jsc.sc(), name
        )
        metrics[name].set(value)
    return jvm.PythonUtils.toScalaMap(metrics)


def _sequence(jvm: Any, items: Iterable[Any]) -> Any:
    return jvm.PythonUtils.toSeq([*items])


def _items(jvm: Any, sequence: Any) -> Any:
    return jvm.scala.jdk.javaapi.CollectionConverters.asJava(sequence)
