"""Small tables that a stream's events are joined with before anything else: a row's struct becomes a column of the event.

The event has in the changelog what the table said when it was read. So a state is a function of the changelog as ever: folding it
anew, in Spark or in DuckDB, asks no table that says something else by now.
"""

from __future__ import annotations

import logging
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from jobs.spark import parquet
from jobs.spark.tables import files, hadoop_path
from statehouse.alike import nulled
from statehouse.config.models import Config, Lookup, Stream
from statehouse.errors import ConfigError, StatehouseError, first_line
from statehouse.spark_sql import quoted, text_as, within_years
from statehouse.tables import opened
from statehouse.values import safe

log = logging.getLogger("statehouse")


def count_column(lookup: Lookup) -> str:
    """The column with the number of rows that have an event's key."""
    return f"_rows of {lookup.name}"


def _key(lookup: Lookup, index: int) -> str:
    return f"_key {index} of {lookup.name}"


def table_of(spark: SparkSession, lookup: Lookup) -> DataFrame:
    """A lookup's table as it is now: a row a key, with the struct of its first row, and how :func:`count_column` there are. Raises
    ConfigError where it cannot be read, or lacks a column."""
    try:
        rows = _read(spark, lookup.table)
        names = {name.strip().lower(): name for name in rows.columns}
        if missing := [c.name for c in lookup.columns if c.name.lower() not in names]:
            raise ConfigError(
                f"{lookup.table}: found no column {missing[0]!r}, expected it among {', '.join(rows.columns)}"
            )
        cells = [(c, _cell(rows, names[c.name.lower()], c.type)) for c in lookup.columns]
        columns = [f"{within_years(cell, c.type)} AS {quoted(c.name)}" for c, cell in cells]
        keys = [F.col(quoted(column.name)).alias(_key(lookup, i)) for i, (column, _) in enumerate(lookup.matches)]
        cells_and_row = rows.selectExpr(*columns).withColumn(
            lookup.name, F.struct(*(quoted(c.name) for c in lookup.columns))
        )
        grouped = cells_and_row.groupBy(*keys).agg(
            F.first(quoted(lookup.name)).alias(lookup.name), F.count("*").alias(count_column(lookup))
        )
        # By Arrow: Python has no time of the year 1 that PySpark could make.
        return spark.createDataFrame(grouped.dropna(subset=[_key(lookup, i) for i in range(len(keys))]).toArrow())
    except StatehouseError:
        raise
    except Exception as error:  # no such file, no such format, no such type: Spark has many words for it
        raise ConfigError(f"{lookup.table}: cannot be read: {first_line(error)}") from error


def _cell(rows: DataFrame, name: str, kind: str) -> str:
    """SQL: a column as one of a type; text only where both engines read it alike, else null."""
    if isinstance(rows.schema[name].dataType, StringType) and kind.upper() != "STRING":
        return text_as(f"trim({quoted(name)})", kind)
    return f"CAST({quoted(name)} AS {kind})"


def repeated_key(lookup: Lookup, table: DataFrame) -> str:
    """A key that more than one row has, in words; empty where there is none."""
    texts = [f"CAST({quoted(_key(lookup, i))} AS STRING)" for i in range(len(lookup.key))]
    row = table.where(f"{quoted(count_column(lookup))} > 1").selectExpr(*texts, quoted(count_column(lookup))).first()
    return f"{row[-1]} rows with the key {'/'.join(map(str, row[:-1]))!r}" if row else ""


def _read(spark: SparkSession, path: str) -> DataFrame:
    if path.lower().endswith(".csv"):
        return spark.read.csv(path, header=True, escape='"', encoding="UTF-8", multiLine=True)
    return parquet.read(spark, path) if opened(path) is None else spark.read.format("delta").load(path)


def _stamp(spark: SparkSession, path: str) -> Any:
    """A value that changes when the table does: its version, or the times and sizes of its files."""
    if (delta := opened(path)) is not None:
        return str(delta.metadata().id), delta.version()
    statuses = files(spark, path).listStatus(hadoop_path(spark, path))
    return sorted((f.getPath().toString(), f.getModificationTime(), f.getLen()) for f in statuses)


class Lookups:
    """The tables of a stream, each read again when it has changed."""

    def __init__(self, spark: SparkSession, config: Config, stream: Stream) -> None:
        self._spark = spark
        self._lookups = config.streams[stream.name].lookups
        self._columns = stream.types
        self._tables = {
            lookup.name: (_stamp_or_none(spark, lookup), table_of(spark, lookup)) for lookup in self._lookups
        }

    def join(self, events: DataFrame, guard: str = "{}") -> DataFrame:
        """Rows with a column more for each lookup, null where its table has no such key, and one that counts its rows. ``guard`` is
        written around what a user wrote."""
        for lookup in self._lookups:
            table = F.broadcast(self._table(lookup))
            same = (
                f"CASE WHEN _op = 'report' THEN ({guard.format(safe(nulled(by, self._columns)))}) END = {quoted(_key(lookup, i))}"
                for i, (_, by) in enumerate(lookup.matches)
            )
            keys = [_key(lookup, i) for i in range(len(lookup.key))]
            events = events.join(table, F.expr(" AND ".join(same)), "left").drop(*keys)
        return events

    def _table(self, lookup: Lookup) -> DataFrame:
        stamp, table = self._tables[lookup.name]
        now = _stamp_or_none(self._spark, lookup)
        if now is not None and now != stamp:
            try:
                table = table_of(self._spark, lookup)
                log.info("lookup %s: %s has changed and is read again", lookup.name, lookup.table)
            except ConfigError as error:  # half written, say: it is what it was until it can be read
                log.warning("lookup %s: %s; what it was before still counts", lookup.name, error)
            self._tables[lookup.name] = now, table
        return table


def _stamp_or_none(spark: SparkSession, lookup: Lookup) -> Any:
    try:
        return _stamp(spark, lookup.table)
    except Exception:  # it is not there for a moment
        return None
