"""Small tables, read by the names of their files: by its log Spark plans and runs three queries before it reads the first row."""

from __future__ import annotations

import json
from contextlib import suppress

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jobs.spark import databricks
from statehouse.tables import byte_count, deleted_rows, files

# Bytes. Such a table is as soon written anew as marked, with some 200,000 keys of a state; and who reads it has few files then.
SMALL = 8 << 20


def is_small(delta: DeltaTable) -> bool:
    """Whether a version of a table is small, and its files have its rows and nothing else: neither partitions nor marks. None is on
    Databricks, where Spark refuses to read a table by its files."""
    if databricks.here():
        return False
    return byte_count(delta) < SMALL and not delta.metadata().partition_columns and not deleted_rows(delta)


def read(spark: SparkSession, path: str, delta: DeltaTable | None = None, version: int | None = None) -> DataFrame:
    """A table's rows, at its newest version or another, by whichever way is the faster. ``delta`` is the table at that version, where it
    was opened already. What is wrong, such as a version that is gone, is raised as Delta says it, at the latest when the rows are read."""
    with suppress(Exception):
        delta = delta or DeltaTable(path, version=version)
        if is_small(delta):
            return _read_files(spark, path, delta)
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(path)


def _read_files(spark: SparkSession, path: str, delta: DeltaTable) -> DataFrame:
    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    names = files(delta)["path"].to_pylist()
    reader = spark.read.schema(schema).option("__globPaths__", False)
    return reader.parquet(*(f"{path}/{name}" for name in names)) if names else spark.createDataFrame([], schema)
