"""The changelog's rows between two of its versions, as the jobs behind it read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from statehouse.config.models import Config, Stream
from statehouse.decoder import in_payloads
from statehouse.fold import gained, gained_columns
from statehouse.payload import Field
from statehouse.spark_sql import quoted
from statehouse.tables import table

# What Spark and Delta say of a version whose log or whose files are gone, or may be.
GONE = (
    "FILE_NOT_EXIST",
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND_DELETED_FILE_RETENTION_DURATION",
    "Could not find any delta files",
)

GAINED = "_gained"


def is_gone(error: BaseException) -> bool:
    """Whether an error says that a table no longer has what came between two of its versions."""
    return any(word in str(error) for word in GONE)


def from_offsets(offsets: Mapping[int, int], mark: str = "") -> str:
    """SQL: whether a record is at or after its partition's offset; ``mark`` stands before the names of the columns.

    A number in the text would be one in the code that Spark makes of it, which the JVM would have to compile anew for each
    batch, and until it has, run slowly. A map is not.
    """
    pairs = ", ".join(f"{partition}, {offset}L" for partition, offset in offsets.items())
    return f"{mark}offset >= coalesce(element_at(map({pairs}), {mark}partition), 0)" if offsets else "TRUE"


def changes(spark: SparkSession, path: str, start: int, head: int) -> DataFrame:
    """The change data feed of a table's versions in (start, head]."""
    reader = spark.read.format("delta").option("readChangeFeed", True)
    return reader.option("startingVersion", start + 1).option("endingVersion", head).load(path)


def events(spark: SparkSession, config: Config, stream: Stream, start: int | None, head: int) -> DataFrame:
    """A changelog's rows of (start, head], with the columns that its schema has gained; of all up to head where start is None."""
    path = table(config, "changelog", stream.name)
    if start is None:
        rows = spark.read.format("delta").option("versionAsOf", head).load(path)
    else:
        rows = changes(spark, path, start, head).where("_change_type = 'insert'")
    fields = gained_columns(stream, rows.columns)
    added = gained(stream, rows.columns, GAINED)
    if fields:
        parts = ", ".join(f"{quoted(field.name)}: {field.kind.ddl}" for field in fields)
        kinds = cast(StructType, StructType.fromDDL(f"{GAINED} STRUCT<{parts}>"))
        rows = rows.mapInArrow(_add_gained(fields), StructType([*rows.schema.fields, *kinds.fields]))
    for name, expression in added.items():
        rows = rows.withColumn(name, F.expr(expression))
    return rows.drop(GAINED)


def _add_gained(fields: Sequence[Field]) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What gives rows of a changelog with what their payloads have for columns that its schema has gained. A function of its own, so
    that it is sent to executors as it is: they need not have all that this module imports."""

    def add(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column(GAINED, in_payloads(fields, batch["_payload"].to_pylist()))

    return add
