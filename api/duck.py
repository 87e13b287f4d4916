"""DuckDB with its delta extension: opened in one place, one cursor a thread."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import duckdb

from statehouse.errors import StatehouseError

WRONG = ("1.5.1", "1.5.2")  # they give wrong rows where a filter is on a partition column


def selected(expressions: Mapping[str, str]) -> str:
    """A select list of expressions by the names that they get."""
    return ", ".join(f"{made} AS {quoted(name)}" for name, made in expressions.items())


def quoted(name: str) -> str:
    """A name as DuckDB's SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as DuckDB's SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def connect(
    version: str = duckdb.__version__, root: str | None = None, threads: int | None = None, footers: bool = False
) -> duckdb.DuckDBPyConnection:
    """A new in-memory database that can attach Delta tables; its times are UTC. With a ``root`` on a file system no SQL
    gets at any other file, and nothing can be loaded or set any more. With ``footers`` it remembers what it has read of
    every file: 25 KiB each."""
    if version in WRONG:
        raise StatehouseError(
            f"found DuckDB {version}, which reads wrong rows from partitioned Delta tables: pip install 'duckdb==1.5.5'"
        )
    connection = duckdb.connect(config={"threads": threads} if threads else {})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of every cursor
    try:
        extension = _extension()
        if extension is None:
            connection.execute("INSTALL delta")
        connection.execute(f"LOAD {literal(str(extension))}" if extension else "LOAD delta")
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise StatehouseError(
            f"DuckDB {version} has no delta extension ({reason}): pip install 'duckdb-extension-delta=={version}'"
        ) from None
    if footers:
        connection.execute("SET parquet_metadata_cache = true")  # a lake's files do not change
    connection.execute("SET arrow_large_buffer_size = true")  # a column of strings may have more than 2 GiB
    if root is not None and "://" not in root:  # elsewhere DuckDB loads what reads the store when it first has to
        connection.execute("SET enable_external_file_cache = false")  # the machine's own has them
        connection.execute(f"SET allowed_directories = [{literal(root)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def types(db: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """The columns of a relation with the types that they are kept with: moments are plain UTC."""
    described = db.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {row[0]: row[1].replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP") for row in described}


def _extension() -> Path | None:
    """The signed extension as the wheel brings it: loaded from where it is, nothing is copied or fetched."""
    spec = importlib.util.find_spec("duckdb_extension_delta")
    folders = (spec and spec.submodule_search_locations) or []
    found = (Path(f, "extensions", f"v{duckdb.__version__}", "delta.duckdb_extension") for f in folders)
    return next((file for file in found if file.is_file()), None)
