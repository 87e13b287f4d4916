"""Small tables. They are read by the names of their files: by its log Spark plans and runs three queries before it reads the first row.
And they are written anew as a whole, as one file, by this process: where Spark writes it, it takes half a second longer."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pyspark
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from jobs.spark import databricks
from jobs.spark.tables import FEED
from statehouse.errors import StatehouseError, first_line
from statehouse.places import remote
from statehouse.tables import byte_count, deleted_rows, files

# Bytes. Such a table is as soon written anew as marked, with some 200,000 keys of a state; and who reads it has few files then.
SMALL = 8 << 20
# Delta's features that ask nothing of who commits as it is done here.
KNOWN = {"appendOnly", "changeDataFeed", "deletionVectors", "invariants", "timestampNtz"}


def is_small(delta: DeltaTable) -> bool:
    """Whether a version of a table is small, and its files have its rows and nothing else: neither partitions nor marks. None is on
    Databricks, where Spark refuses to read a table by its files."""
    if databricks.here():
        return False
    return byte_count(delta) < SMALL and not delta.metadata().partition_columns and not deleted_rows(delta)


def is_rewritten(delta: DeltaTable) -> bool:
    """Whether a table is to be written anew by :func:`replace_rows`: a small one, without a feed of what has changed."""
    return is_small(delta) and is_ours(delta) and delta.metadata().configuration.get(FEED) != "true"


def is_ours(delta: DeltaTable) -> bool:
    """Whether :func:`commit` may write to a table: not to one that somebody has given constraints, clustering, or the like."""
    protocol = delta.protocol()
    return protocol.min_writer_version <= 2 or (
        protocol.min_writer_version == 7 and KNOWN.issuperset(protocol.writer_features or ())
    )


def read(spark: SparkSession, path: str, delta: DeltaTable | None = None, version: int | None = None) -> DataFrame:
    """A table's rows, at its newest version or another, by whichever way is the faster. ``delta`` is the table at that version, where it
    was opened already. What is wrong, such as a version that is gone, is raised as Delta says it, at the latest when the rows are read."""
    with suppress(Exception):
        delta = delta or DeltaTable(path, version=version)
        if is_small(delta):
            return _read_files(spark, path, delta)
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(path)


def struct(delta: DeltaTable) -> StructType:
    """A version's columns as Spark has them."""
    return StructType.fromJson(json.loads(delta.schema().to_json()))


def _read_files(spark: SparkSession, path: str, delta: DeltaTable) -> DataFrame:
    schema, names = struct(delta), files(delta)["path"].to_pylist()
    reader = spark.read.schema(schema).option("__globPaths__", False)
    return reader.parquet(*(f"{path}/{name}" for name in names)) if names else spark.createDataFrame([], schema)


def replace_rows(
    path: str,
    delta: DeltaTable,
    places: pa.Table,
    rows: pa.Table,
    txn: tuple[str, int],
    note: str,
    counts: Mapping[str, int],
) -> None:
    """Commit what follows the version of a table that :func:`is_rewritten`: all of its rows but those at some places (``_file``, a URI,
    and ``_row``, from 0), and some more, which have the table's columns. The commit has a ``txn``, an application id with its number,
    a ``note``, and the ``counts`` of rows that MERGE tells, as the JVM's commits have them (:func:`jobs.spark.vectors.replace_rows`).

    Raises StatehouseError where the table has another version by now.
    """
    began = time.monotonic()
    storage = _storage(path)
    old = files(delta).select(["path", "size_bytes"]).to_pydict()
    whole = pa.concat_tables([*(_without(storage, name, places, rows.schema) for name in old["path"]), rows])
    added: list[Any] = [_write(storage, whole)] if whole.num_rows else []
    sizes = {"Added": [file.size for file in added], "Removed": old["size_bytes"]}
    metrics = {
        **{f"numTargetRows{name}": str(count) for name, count in counts.items()},
        **{f"numTargetFiles{name}": str(len(bytes_)) for name, bytes_ in sizes.items()},
        **{f"numTargetBytes{name}": str(sum(bytes_)) for name, bytes_ in sizes.items()},
        "executionTimeMs": str(int((time.monotonic() - began) * 1000)),
    }
    fields = {"userMetadata": note, "operationMetrics": metrics}
    commit(delta, added, "overwrite", txn, fields)


def commit(delta: DeltaTable, added: list[Any], mode: str, txn: tuple[str, int], fields: Mapping[str, Any]) -> None:
    """Commit files, which are there, to what follows a table's version, with a ``txn`` and some ``fields``; ``mode`` is ``append`` or
    ``overwrite``. Raises StatehouseError where the table has another version by now."""
    properties = CommitProperties({**fields}, max_commit_retries=0, app_transactions=[Transaction(*txn)])
    version = delta.version()
    try:
        delta.create_write_transaction(added, mode, delta.schema(), commit_properties=properties)
    except CommitFailedError as error:
        raise StatehouseError(
            f"{delta.table_uri}: found another version than {version}; one writer a table ({first_line(error)})"
        ) from error


def _storage(path: str) -> pa_fs.FileSystem:
    """The files of a table, by their names."""
    if remote(path):
        return pa_fs.PyFileSystem(DeltaStorageHandler(path))
    return pa_fs.SubTreeFileSystem(path, pa_fs.LocalFileSystem())


def _without(storage: pa_fs.FileSystem, name: str, places: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of a file that are at none of some places."""
    # Spark itself writes times as INT96, which in nanoseconds are those of three centuries.
    rows = pq.read_table(name, filesystem=storage, schema=schema, partitioning=None, coerce_int96_timestamp_unit="us")
    gone = places.filter(pc.ends_with(places["_file"], f"/{name}"))["_row"].combine_chunks()
    numbers = pa.array(range(rows.num_rows), gone.type)
    return rows.filter(pc.invert(pc.is_in(numbers, gone)))


def _write(storage: pa_fs.FileSystem, rows: pa.Table) -> AddAction:
    """Write a file. Of its values the log says nothing: who reads one small file leaves out nothing."""
    name = f"part-00000-{uuid.uuid4()}.snappy.parquet"
    # By it Spark tells that times before 1900, and days before 1582, are of the calendar that they seem to be of.
    made_by = {"org.apache.spark.version": pyspark.__version__}
    pq.write_table(rows.replace_schema_metadata(made_by), name, filesystem=storage)
    size = storage.get_file_info(name).size
    stats = json.dumps({"numRecords": rows.num_rows})
    return AddAction(name, size, {}, int(time.time() * 1000), True, stats)
