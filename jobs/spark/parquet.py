"""Parquet files of other writers: their times may be in nanoseconds, which Spark refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark.session import new_session
from statehouse.places import remote
from statehouse.spark_sql import quoted


def read(spark: SparkSession, path: str) -> DataFrame:
    """A file, or a folder of them; times in nanoseconds, as pandas writes them, are cut to microseconds, but for those inside of a
    struct, a list or a map, which Spark refuses as ever."""
    columns = () if remote(path) else _in_nanoseconds(Path(path))
    if not columns:
        return spark.read.parquet(path)
    reading = new_session(spark)
    reading.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    rows = reading.read.parquet(path)
    return rows.withColumns({name: F.expr(f"timestamp_micros(floor({quoted(name)} / 1000))") for name in columns})


def _in_nanoseconds(path: Path) -> list[str]:
    """The columns with such times, as the first file has them."""
    file = min(path.glob("*.parquet"), default=None) if path.is_dir() else path
    if file is None:
        return []
    schema = pq.ParquetFile(file).schema
    columns = [schema.column(place) for place in range(len(schema))]
    return [c.path for c in columns if c.physical_type == "INT64" and "timeUnit=nanoseconds" in str(c.logical_type)]
