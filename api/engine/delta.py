"""A version of a Delta table as a relation in DuckDB.

Not by DuckDB's delta extension where that can be helped: in 1.5.5 each scan leaks the list of the table's files (15 to 30 KiB of a
table of one file; see bench/history.md), which not even the end of the connection frees. So deltalake says which files a version has, and DuckDB reads
them as Parquet, and which of their rows are marked as deleted. The extension reads what that cannot: tables with mapped columns or
partitions. In which bucket a state's row is concerns its writer only: that column is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from api.engine.duck import Connection, literal, quoted
from statehouse.tables import BUCKET, MARKING, deleted_rows, files

PLAIN = {"timestampNtz"}  # what a reader may have to know besides, without a difference to the files
Which = Callable[[pa.Table], pa.Array]
KINDS = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "binary": "BLOB",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}


def pin(db: Connection, path: str, version: int, name: str) -> str:
    """Make a table's version a view of that name, until :func:`unpin`; gives the name as SQL writes it. Whatever is committed
    meanwhile, it is that version. Raises deltalake's or DuckDB's error where it is gone."""
    return next(parts(db, path, version, name))


def parts(
    db: Connection, path: str, version: int, name: str, at_once: int | None = None, which: Which | None = None
) -> Iterator[str]:
    """The same, but the view is of so many of the version's files at once, one part after the other: what DuckDB needs for a
    query, and keeps of its memory, grows with the files of it. With ``which`` only some need be there: of the files with their statistics
    it says so."""
    view = quoted(name)
    delta = DeltaTable(path, version=version)
    actions = files(delta)
    names = actions["path"].to_pylist()
    if not _plain(delta, path, names):
        how = f"TYPE delta, READ_ONLY, PIN_SNAPSHOT, VERSION {int(version)}"
        db.execute(f"ATTACH {literal(path)} AS {quoted(f'{name}@')} ({how})")
        shown = "*" if BUCKET not in delta.metadata().partition_columns else f"* EXCLUDE ({BUCKET})"
        db.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT {shown} FROM {quoted(f'{name}@')}")
        yield view
        return
    fields = [f for f in json.loads(delta.schema().to_json())["fields"] if f["name"] != BUCKET]
    columns = [(quoted(f["name"]), _kind(f["type"])) for f in fields]
    # Of no rows, but with every column: also of a file that is older than one of them.
    none = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in columns)
    casts = ", ".join(f"CAST({column} AS {kind}) AS {column}" for column, kind in columns)
    if which:
        names = actions["path"].filter(which(actions)).to_pylist()
    deleted = deleted_rows(delta)
    step = at_once or len(names) or 1
    for first in range(0, len(names) or 1, step):
        rows = f"SELECT * FROM (SELECT {none}) WHERE FALSE"
        if some := names[first : first + step]:
            places = ", ".join(literal(f"{path}/{unquote(file)}") for file in some)
            found = f"read_parquet([{places}], union_by_name = true, hive_partitioning = false)"
            if marked := [(n, deleted[file]) for n, file in enumerate(map(unquote, some)) if file in deleted]:
                db.register(_deleted(name), _places(marked))
                on = "_f.file_index = _d.file AND _f.file_row_number = _d.row"
                found = f"(SELECT _f.* FROM {found} AS _f ANTI JOIN {quoted(_deleted(name))} AS _d ON {on})"
            rows += f" UNION ALL BY NAME SELECT * FROM {found}"
        db.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS SELECT {casts} FROM ({rows})")
        yield view


@contextmanager
def pinned(db: Connection, path: str, version: int, name: str) -> Iterator[str]:
    """The same as long as it is entered."""
    try:
        yield pin(db, path, version, name)
    finally:
        unpin(db, name)


def unpin(db: Connection, name: str) -> None:
    """Forget a view of :func:`pin`, if there is one."""
    db.execute(f"DROP VIEW IF EXISTS {quoted(name)}")
    db.unregister(_deleted(name))
    db.execute(f"DETACH DATABASE IF EXISTS {quoted(f'{name}@')}")


def _deleted(name: str) -> str:
    return f"{name}-"


def _places(marked: list[tuple[int, pa.Array]]) -> pa.Table:
    """Files, by their number, with the numbers of some rows of each."""
    files = [pa.repeat(number, len(rows)) for number, rows in marked]
    return pa.table({"file": pa.chunked_array(files), "row": pa.chunked_array([rows for _, rows in marked])})


def _plain(delta: DeltaTable, path: str, files: list[str]) -> bool:
    """Whether the table is no more than its files."""
    protocol = delta.protocol()
    features = set(protocol.reader_features or [])
    known = protocol.min_reader_version == 1 or (protocol.min_reader_version == 3 and features <= {*PLAIN, MARKING})
    elsewhere = any(":" in file or file.startswith("/") for file in files)
    pattern = any(character in path for character in "*?[")  # to DuckDB
    return known and set(delta.metadata().partition_columns) <= {BUCKET} and not elsewhere and not pattern


def _kind(kind: Any) -> str:
    """A type of Delta's schema as DuckDB writes it."""
    if isinstance(kind, str):
        return KINDS.get(kind, kind.upper())  # DECIMAL(12,2), DOUBLE, FLOAT, BOOLEAN and DATE are the same
    if kind["type"] == "array":
        return f"{_kind(kind['elementType'])}[]"
    if kind["type"] == "map":
        return f"MAP({_kind(kind['keyType'])}, {_kind(kind['valueType'])})"
    inner = ", ".join(f"{quoted(f['name'])} {_kind(f['type'])}" for f in kind["fields"])
    return f"STRUCT({inner})"
