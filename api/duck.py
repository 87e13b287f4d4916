"""DuckDB with its delta extension: opened in one place, one cursor a thread."""

from __future__ import annotations

import importlib.util
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from statehouse.errors import LakeBusy, StatehouseError

WRONG = ("1.5.1", "1.5.2")  # they give wrong rows where a filter is on a partition column


def quoted(name: str) -> str:
    """A name as DuckDB's SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string as DuckDB's SQL writes it."""
    return "'" + text.replace("'", "''") + "'"


def connect(version: str = duckdb.__version__, root: str | None = None) -> duckdb.DuckDBPyConnection:
    """A new in-memory database that can attach Delta tables; its times are UTC. With a ``root`` on a file system no SQL
    gets at any other file, and nothing can be loaded or set any more."""
    if version in WRONG:
        raise StatehouseError(
            f"found DuckDB {version}, which reads wrong rows from partitioned Delta tables: pip install 'duckdb==1.5.5'"
        )
    connection = duckdb.connect()
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
    if root is not None and "://" not in root:  # elsewhere DuckDB loads what reads the store when it first has to
        connection.execute(f"SET allowed_directories = [{literal(root)}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def types(db: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    """The columns of a relation with the types that they are kept with: moments are plain UTC."""
    described = db.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return {row[0]: row[1].replace("TIMESTAMP WITH TIME ZONE", "TIMESTAMP") for row in described}


SCANS = (
    500  # of one connection: DuckDB 1.5.5 keeps some 18 KiB of every filtered scan of a Delta table until it is closed
)


class Pool:
    """Some connections for reads of the lake itself, each for one caller at a time and made anew every so often."""

    def __init__(self, root: str, count: int, seconds: float) -> None:
        self._root, self._seconds = root, seconds
        self._free: queue.LifoQueue[_Used | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)

    @contextmanager
    def table(self, path: str, version: int) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """A connection, and what a version of a table is called there. Raises LakeBusy where all are taken for too long, or
        what is read is gone."""
        try:
            used = self._free.get(timeout=self._seconds)
        except queue.Empty:
            raise LakeBusy(f"found too many reads of {path}, expected a turn within {self._seconds} s") from None
        try:
            if used is None or used.scans >= SCANS:
                if used:
                    used.connection.close()
                used = _Used(connect(root=self._root))
            used.scans += 1
            name = quoted(path)
            if used.versions.get(path) != version:
                used.connection.execute(f"DETACH DATABASE IF EXISTS {name}")
                how = f"TYPE delta, READ_ONLY, PIN_SNAPSHOT, VERSION {int(version)}"
                used.connection.execute(f"ATTACH {literal(path)} AS {name} ({how})")
                used.versions[path] = version
            yield used.connection, name
        except duckdb.Error as error:
            raise LakeBusy(f"{path} cannot be read at version {version}: {str(error).splitlines()[0]}") from error
        finally:
            self._free.put(used)


@dataclass
class _Used:
    connection: duckdb.DuckDBPyConnection
    scans: int = 0
    versions: dict[str, int] = field(default_factory=dict)  # attached, by path


def _extension() -> Path | None:
    """The signed extension as the wheel brings it: loaded from where it is, nothing is copied or fetched."""
    spec = importlib.util.find_spec("duckdb_extension_delta")
    folders = (spec and spec.submodule_search_locations) or []
    found = (Path(f, "extensions", f"v{duckdb.__version__}", "delta.duckdb_extension") for f in folders)
    return next((file for file in found if file.is_file()), None)
