"""The rows of some keys of a large state, read by the process that asks. Spark makes a row of all that it looks at; Polars looks at the keys,
and makes rows of what is wanted, in a third of the time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from jobs.spark import databricks
from jobs.spark.small import struct
from jobs.spark.vectors import PLACE
from statehouse.places import remote
from statehouse.tables import deleted_rows, files

FILE, ROW = PLACE


def rows_of_keys(
    spark: SparkSession, path: str, delta: DeltaTable, column: str, keys: pa.ChunkedArray, most: int
) -> DataFrame | None:
    """The rows of a version of a table whose ``column`` is one of some ``keys``, of which each has one row, with the
    :data:`~jobs.spark.vectors.PLACE` of each.

    None where Spark is to read them: it has other machines for it, the table is in an object store or has partitions, a file does not
    have the table's columns as they are or cannot be read, or the rows have about ``most`` bytes and more.
    """
    if remote(path) or databricks.here() or delta.metadata().partition_columns:
        return None
    if not str(spark.conf.get("spark.master")).startswith("local"):
        return None
    schema, names = to_arrow_schema(struct(delta)), files(delta)["path"].to_pylist()
    footers = [pq.read_metadata(f"{path}/{name}") for name in names]
    if not names or not all(_has(footer, schema) for footer in footers):
        return None
    if len(keys) * max(map(_bytes_a_row, footers)) > most:
        return None
    import polars as pl  # a quarter of a second, which small states never need

    wanted, deleted = pl.Series(keys).implode(), deleted_rows(delta)
    log: Any = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    root = log.forTable(spark._jsparkSession, path).dataPath().toUri().toString()
    scans = (
        pl.scan_parquet(f"{path}/{name}", glob=False, hive_partitioning=False, row_index_name=ROW)
        .filter(pl.col(column).is_in(wanted))
        .with_columns(pl.lit(f"{root}/{name}").alias(FILE))
        for name in names
    )
    schema = pa.schema([*schema, (FILE, pa.string()), (ROW, pa.int64())])
    try:
        by_file = [
            rows.filter(~pl.col(ROW).is_in(pl.Series(deleted[name]).implode())) if name in deleted else rows
            for name, rows in zip(names, pl.collect_all(scans), strict=True)
        ]
        rows = pl.concat(by_file).to_arrow().select(schema.names).cast(schema)
    except (pl.exceptions.PolarsError, pa.ArrowException):  # Spark can, or says what is wrong
        return None
    return spark.createDataFrame(rows, from_arrow_schema(schema))


def _has(footer: pq.FileMetaData, schema: pa.Schema) -> bool:
    """Whether a file has the columns of a table as they are there."""
    kinds = {field.name: field.type for field in footer.schema.to_arrow_schema()}
    return all(kinds.get(field.name) == field.type for field in schema)


def _bytes_a_row(footer: pq.FileMetaData) -> float:
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return sum(group.total_byte_size for group in groups) / max(footer.num_rows, 1)
