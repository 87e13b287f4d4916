"""DuckDB with its delta extension: opened in one place, one cursor a thread."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import duckdb

from statehouse.errors import StatehouseError
from statehouse.places import S3, duckdb_secret, remote, scheme
from statehouse.transpile import CASES

Connection = duckdb.DuckDBPyConnection
# Of one batch as Arrow: DuckDB makes room for so many rows of every column, a million if it is not told. That is never used, but
# each time it is asked for and given back it tears the heap, which had grown to gigabytes, and the process with it.
ROWS = 2048
WRONG = ("1.5.1", "1.5.2")  # they give wrong rows where a filter is on a partition column


def selected(expressions: Mapping[str, str]) -> str:
    """A select list of expressions by the names that they get."""
    return ", ".join(f"{made} AS {quoted(name)}" for name, made in expressions.items())


def quoted(name: str) -> str:
    """A name as DuckDB's SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def casts(types: Mapping[str, str], but: str = "") -> str:
    """A select list of columns, each cast to its type (``but`` those of one type); moments become plain UTC."""
    return ", ".join(quoted(n) if t == but else f"{cast(n, t)} AS {quoted(n)}" for n, t in types.items())


def cast(name: str, kind: str) -> str:
    """A column cast to a type."""
    return f"CAST({quoted(name)} AS {kind})"


def literal(text: str) -> str:
    """A string as DuckDB's SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def connect(
    version: str = duckdb.__version__, root: str | None = None, threads: int | None = None, footers: bool = False
) -> Connection:
    """A new in-memory database that can attach Delta tables; its times are UTC. With a ``root`` no SQL gets at anything outside
    of it, and nothing can be loaded or set any more. With ``footers`` it remembers what it has read of every file: 25 KiB each."""
    if version in WRONG:
        raise StatehouseError(
            f"found DuckDB {version}, which reads wrong rows from partitioned Delta tables: pip install 'duckdb==1.5.5'"
        )
    # To look at the signature of a wheel's, of 82 MB, takes half a second: `serve` does so once. DuckDB does, of what it fetches.
    needed = ("delta", "httpfs", "aws") if scheme(root or "") in S3 else ("delta",)
    trusted, cores = root is not None and all(map(_extension, needed)), {"threads": threads} if threads else {}
    connection = duckdb.connect(config={"allow_unsigned_extensions": trusted, **cores})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")  # of every cursor
    for name, function in CASES.items():
        connection.create_function(name, function, ["VARCHAR"], "VARCHAR")
    _load(connection, "delta")
    reach(connection, root or "")
    if footers:
        connection.execute("SET parquet_metadata_cache = true")  # a lake's files do not change
    connection.execute("SET arrow_large_buffer_size = true")  # a column of strings may have more than 2 GiB
    if root is not None:
        if not remote(root):
            connection.execute("SET enable_external_file_cache = false")  # the machine's own has them
        connection.execute(f"SET allowed_directories = [{literal(root)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def reach(connection: Connection, path: str) -> None:
    """Let a connection read below a path, also where that is on S3."""
    if scheme(path) in S3:
        _load(connection, "httpfs")
        _load(connection, "aws")
        connection.execute(duckdb_secret())


def types(db: Connection, relation: str) -> dict[str, str]:
    """The columns of a relation with the types that they are kept with: moments are plain UTC."""
    described = db.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {row[0]: row[1].replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP") for row in described}


def _extension(name: str) -> Path | None:
    """A signed extension as its wheel brings it, where it is."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = (spec and spec.submodule_search_locations) or []
    files = (Path(f, "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension") for f in folders)
    return next((file for file in files if file.is_file()), None)


def _load(connection: Connection, name: str) -> None:
    """Load an extension: its wheel's, nothing is copied or fetched; without that DuckDB fetches it, where it may."""
    file = _extension(name)
    try:
        if file is None:
            connection.execute(f"INSTALL {name}")
        connection.execute(f"LOAD {literal(str(file))}" if file else f"LOAD {name}")
    except duckdb.Error as error:
        version, reason = duckdb.__version__, str(error).splitlines()[0]
        raise StatehouseError(
            f"DuckDB {version} has no {name} extension ({reason}): pip install 'duckdb-extension-{name}=={version}'"
        ) from None
