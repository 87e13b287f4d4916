"""A process that answers SQL over the lake's tables for :mod:`api.reads.sql`, one statement after the other.

A process of its own: what a statement takes of the processor and of memory is bounded and taken from no other request, and one that
does not end is killed. Each statement gets a new database with views of the tables that it names and nothing else: DuckDB may read
those tables' files, and no other file, address or setting.

Over its pipes go pickles, each after its length in eight bytes: a :class:`Statement` in, an :class:`Result` or a :class:`Failure` out. Both ends are ours.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa

from api.engine.delta import pin
from api.engine.duck import ROWS, Connection, literal, quoted, reach
from statehouse.tables import files as table_files
from statehouse.tables import opened

LENGTH = struct.Struct(">Q")
MEMORY = "512MB"  # of a statement's sorts, groups and joins; there is no spilling to a disk
BEYOND = 1 << 30  # bytes of all that the process takes for a statement: DuckDB does not count its lists and texts
NO_MEMORY = "the statement needed more memory than it may have"
NICE = 10  # others go first
# What callers of the other routes do not see either: of a state the reducer's own columns begin so.
HIDDEN = "_"
# Functions that may be in FROM; others read files, or run SQL that is nowhere looked at.
FUNCTIONS = ("unnest", "range", "generate_series")
SETTINGS = ("current_setting", "getvariable")  # functions that show what is no row of a table
NAME = 6  # bytes at least of a value in JSON, beside its name
LOCKED = (
    f"SET memory_limit = '{MEMORY}'",
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


@dataclass(frozen=True)
class Statement:
    """A statement, the paths of the tables that it may name as ``schema.table``, and how many rows and bytes may be answered;
    whether each row is written with the ``names`` of its columns."""

    sql: str
    tables: Mapping[str, str]
    rows: int
    size: int
    names: bool = True


@dataclass(frozen=True)
class Result:
    """The rows as an Arrow stream, whether there are more, and the versions of the tables that they are of."""

    rows: bytes
    more: bool
    versions: dict[str, int]


@dataclass(frozen=True)
class Failure:
    """What is wrong with a statement."""

    reason: str


def answer(statement: Statement) -> Result | Failure:
    """Run a statement."""
    with duckdb.connect(config={"threads": 1}) as db:
        try:
            return _run(db, statement)
        except (MemoryError, duckdb.OutOfMemoryException):
            return Failure(NO_MEMORY)
        except Exception as error:  # DuckDB's, or Arrow's of a value that it has no place for
            return Failure(NO_MEMORY if "bad_alloc" in str(error) else str(error))


def _run(db: Connection, statement: Statement) -> Result | Failure:
    nodes = list(_nodes(_parsed(db, statement.sql)))
    functions = {node["function"]["function_name"].lower() for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    if wrong := functions - set(FUNCTIONS):
        return Failure(f"found {min(wrong)}(…) in FROM, expected a table of the lake, or {', '.join(FUNCTIONS)}")
    if any(str(node.get("function_name", "")).lower() in SETTINGS for node in nodes):
        return Failure(f"found {' or '.join(SETTINGS)}, expected no settings")
    there = {name.lower(): name for name in statement.tables}
    own = {entry["key"].lower() for node in nodes for entry in (node.get("cte_map") or {}).get("map", ())}
    named = {_name(node) for node in nodes if node.get("type") == "BASE_TABLE"}
    if unknown := named - {*there, *own}:
        return Failure(f"found {min(unknown)}, expected one of {', '.join(statement.tables)}")
    db.execute("SET TimeZone = 'UTC'")
    versions = _views(db, {there[name]: statement.tables[there[name]] for name in named if name in there})
    for setting in LOCKED:
        db.execute(setting)
    reader = db.execute(statement.sql).to_arrow_reader(ROWS)
    sink, left, more = pa.BufferOutputStream(), statement.rows, False
    if statement.names:
        beside = sum(len(json.dumps(name)) + NAME for name in reader.schema.names)
        left = min(left, statement.size // (beside or 1))
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            fit = _fit(batch, left, statement.size - sink.tell())
            writer.write_batch(batch.slice(0, fit))
            left -= fit
            if more := fit < batch.num_rows:
                break
    return Result(sink.getvalue().to_pybytes(), more, versions)


def _parsed(db: Connection, sql: str) -> Any:
    """A statement as DuckDB's parser takes it apart, before anything is looked up. Raises its error where that is not one SELECT."""
    kinds = [statement.type.name for statement in db.extract_statements(sql)]
    if kinds != ["SELECT"]:
        raise duckdb.ParserException(f"found {', '.join(kinds) or 'no statement'}, expected one SELECT")
    row = db.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    assert row is not None
    tree = json.loads(row[0])
    if tree["error"]:
        raise duckdb.ParserException(tree["error_message"])
    return tree["statements"]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The objects in what a statement is made of."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _name(table: Mapping[str, Any]) -> str:
    """A table as a statement names it."""
    parts = (table["catalog_name"], table["schema_name"], table["table_name"])
    return ".".join(part for part in parts if part).lower()


def _fit(batch: pa.RecordBatch, rows: int, room: int) -> int:
    """How many of a batch's rows there is room for."""
    fit = batch.num_rows if batch.nbytes <= room else max(0, room) * batch.num_rows // batch.nbytes
    return min(rows, fit)


def _views(db: Connection, tables: Mapping[str, str]) -> dict[str, int]:
    """Make some tables; the version of each, whatever is committed meanwhile."""
    versions: dict[str, int] = {}
    files: list[str] = []
    for name, path in tables.items():
        if (delta := opened(path)) is None:
            raise duckdb.CatalogException(f"{name} is not there yet: nothing has been written to it")
        versions[name] = delta.version()
        reach(db, path)
        view = pin(db, path, delta.version(), f"{name}@")
        schema, _, table = name.rpartition(".")
        names = pa.schema(delta.schema().to_arrow()).names
        columns = ", ".join(quoted(column) for column in names if shown(name, column))
        at = f"{quoted(schema)}.{quoted(table)}" if schema else quoted(table)
        if schema:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)}")
        db.execute(f"CREATE VIEW {at} AS SELECT {columns} FROM {view}")
        files += [f"{path}/{unquote(file)}" for file in table_files(delta)["path"].to_pylist()]
    db.execute(f"SET allowed_paths = [{', '.join(map(literal, files))}]")
    return versions


def shown(table: str, column: str) -> bool:
    """Whether a statement sees a column of a table."""
    return not table.startswith("state.") or not column.startswith(HIDDEN)


def send(pipe: IO[bytes], message: Any) -> None:
    """Put a message into a pipe."""
    data = pickle.dumps(message)
    pipe.write(LENGTH.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Take a message out of a pipe; None where it has ended."""
    head = pipe.read(LENGTH.size)
    return pickle.loads(pipe.read(LENGTH.unpack(head)[0])) if len(head) == LENGTH.size else None


def _bound() -> None:
    """Let the process have so much more memory than it has, where the system knows of such a bound."""
    with suppress(ImportError, OSError):
        import resource

        used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if used:
            most = (int(used[1]) << 10) + BEYOND
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _watch(parent: int) -> None:
    """End with the process that asks, also amid a statement."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main(parent: int) -> None:
    """Answer until the pipe ends, or the process that asks, whose id is told: it may have ended before this one has begun."""
    os.nice(NICE)
    _bound()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed is no answer
    while (statement := receive(sys.stdin.buffer)) is not None:
        send(answers, answer(statement))
