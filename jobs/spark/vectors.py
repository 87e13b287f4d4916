"""New rows of keys in one commit, without the joins of Delta's own MERGE, which has to tell again what is inserted from what is updated.

The cost is the rows': whoever read the old ones has seen in which file, and in which place of it, each is. They are marked there in
deletion vectors, and the new ones appended. It is Delta's transaction with what MERGE would have given it (its
``DMLWithDeletionVectorsHelper``, of Delta 4.4), by way of the JVM.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statehouse.errors import StatehouseError
from statehouse.tables import VECTORS, byte_count

PLACE = {"_file": "_metadata.file_path", "_row": "_metadata.row_index"}  # of a row that was read


def is_enabled(delta: DeltaTable) -> bool:
    """Whether rows of a table are to be marked, and not their files written anew."""
    return delta.metadata().configuration.get(VECTORS) == "true"


def with_place(rows: DataFrame, delta: DeltaTable) -> DataFrame:
    """A table's rows with the :data:`PLACE` of each."""
    places = PLACE if byte_count(delta) else {"_file": "CAST(NULL AS STRING)", "_row": "CAST(NULL AS BIGINT)"}
    return rows.selectExpr("*", *(f"{expression} AS {name}" for name, expression in places.items()))


def replace_rows(
    spark: SparkSession,
    path: str,
    version: int,
    places: DataFrame | None,
    rows: DataFrame,
    txn: tuple[str, int],
    counts: Mapping[str, int],
) -> None:
    """Commit what follows a table's version: without the rows at some :data:`PLACE`, and with some more. The commit has a ``txn``, an
    application id with its number, and the ``counts`` of rows that MERGE tells: ``Inserted``, ``Updated`` and ``Deleted``.

    Raises StatehouseError where the table has another version by now, and Delta's error where another process commits meanwhile.
    """
    jvm: Any = spark._jvm
    began = time.monotonic()
    delta, option = jvm.org.apache.spark.sql.delta, jvm.scala.Option
    # Delta takes a commit's settings from the session that its thread has.
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
    transaction = delta.DeltaLog.forTable(spark._jsparkSession, path).startTransaction()
    if transaction.readVersion() != version:
        raise StatehouseError(
            f"{path}: found version {transaction.readVersion()}, expected {version}; one writer a table"
        )
    transaction.readWholeTable()
    changed, replaced = _mark(spark, transaction, places) if places else ([], [])
    added = [*_items(jvm, transaction.writeFiles(rows._jdf))]
    metrics = {f"numTargetRows{name}": count for name, count in {**counts, "Copied": 0}.items()}
    metrics |= {"operationNumSourceRows": sum(counts.values())}
    for name, sizes in {"Added": [f.size() for f in added], "Removed": [f.size() for f in replaced]}.items():
        metrics |= {f"numTargetFiles{name}": len(sizes), f"numTargetBytes{name}": sum(sizes)}
    metrics["executionTimeMs"] = int((time.monotonic() - began) * 1000)
    transaction.registerSQLMetrics(spark._jsparkSession, _metrics(spark, metrics))
    none, nothing = option.empty(), _sequence(jvm, [])
    merge = getattr(delta, "DeltaOperations$Merge")(none, none, none, none, nothing, nothing, nothing)
    now = int(time.time() * 1000)
    position = delta.actions.SetTransaction(*txn, option.apply(now))
    removed = [file.removeWithTimestamp(now, True) for file in replaced]
    transaction.commit(_sequence(jvm, [position, *changed, *removed, *added]), merge)


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
