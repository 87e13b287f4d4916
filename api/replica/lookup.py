"""The tables that a stream's events are joined with, for events that the changelog does not have yet: see :mod:`jobs.spark.lookup`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from api.engine.delta import pin
from api.engine.duck import Connection, literal, quoted
from api.engine.fold import GUARD
from api.engine.prepared import ArrowSource
from statehouse.alike import nulled
from statehouse.config.models import Lookup, Stream
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.spark_sql import text_as, within_years
from statehouse.tables import opened
from statehouse.transpile import duckdb_type, to_duckdb

SECONDS = 1.0  # between two looks at whether a table has changed
ROWS = "_rows"
log = logging.getLogger("statehouse.api")


class Lookups:
    """Of one stream, for queries of one cursor."""

    def __init__(self, db: Connection, stream: Stream) -> None:
        self._sources = [(lookup, ArrowSource(db, _name(lookup), _columns(lookup))) for lookup in stream.lookups]
        self._columns = stream.types
        self._stamps: dict[str, Any] = {}
        self._due = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Read again what has changed. Raises DuckDB's or deltalake's errors for a table that could not be read so far; of another
        one what it was before counts."""
        if not self._sources or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + SECONDS
        for lookup, source in self._sources:
            try:
                if (stamp := _stamp(lookup.table)) != self._stamps.get(lookup.name):
                    source.put(table_of(lookup))
                    self._stamps[lookup.name] = stamp
            except Exception as error:
                if lookup.name not in self._stamps:
                    raise
                log.warning("lookup %s: %s cannot be read: %s", lookup.name, lookup.table, str(error).splitlines()[0])

    def joined(self, events: str) -> str:
        """A relation with a column more for each lookup; without the events whose key more than one row has."""
        for lookup, _ in self._sources:
            keys = (
                f"_key{i} = CASE WHEN _op = 'report' THEN {GUARD.format(to_duckdb(nulled(by, self._columns)))} END"
                for i, (_, by) in enumerate(lookup.matches)
            )
            names = ", ".join([*(f"_key{i}" for i in range(len(lookup.key))), ROWS])
            events = f"""(SELECT * EXCLUDE ({names}) FROM {events} LEFT JOIN {quoted(_name(lookup))} ON {" AND ".join(keys)}
    WHERE coalesce({ROWS}, 1) = 1)"""
        return events


def table_of(lookup: Lookup) -> pa.Table:
    """A lookup's table as it is now: a row a key, with the struct of one of its rows, and how many there are."""
    with closing(duckdb.connect()) as db:
        db.execute("SET TimeZone = 'UTC'")
        relation = _relation(db, lookup.table)
        described = db.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
        names = {name.strip().lower(): (name, kind) for name, kind, *_ in described}
        cells = {c.name: _cell(*names[c.name.lower()], c.type) for c in lookup.columns}
        row = ", ".join(f"{quoted(name)} := {cell}" for name, cell in cells.items())
        keys = {f"_key{i}": cells[column.name] for i, (column, _) in enumerate(lookup.matches)}
        named = ", ".join(f"{cell} AS {name}" for name, cell in keys.items())
        return db.execute(
            f"""SELECT {named}, first(struct_pack({row})) AS {quoted(lookup.name)}, count(*) AS {ROWS} FROM {relation}
            WHERE {" AND ".join(f"{cell} IS NOT NULL" for cell in keys.values())} GROUP BY {", ".join(keys.values())}"""
        ).to_arrow_table()


def _cell(name: str, given: str, kind: str) -> str:
    """A column as one of a type; null where it is none, and where it is a time outside the years 1 to 9999."""
    if given == "VARCHAR" and kind.upper() != "STRING":
        return GUARD.format(to_duckdb(within_years(text_as(f"trim({spark_quoted(name)})", kind), kind)))
    return to_duckdb(within_years("_cell", kind)).replace("_cell", f"TRY_CAST({quoted(name)} AS {duckdb_type(kind)})")


def _relation(db: Connection, path: str) -> str:
    if path.lower().endswith(".csv"):
        how = """header = true, all_varchar = true, delim = ',', quote = '"', escape = '"'"""
        return f"read_csv({literal(path)}, {how})"
    if (delta := opened(path)) is not None:
        return pin(db, path, delta.version(), "_table")
    return f"read_parquet({literal(path if not Path(path).is_dir() else path + '/*.parquet')})"


def _stamp(path: str) -> Any:
    """What changes when a table does."""
    if (delta := opened(path)) is not None:
        return str(delta.metadata().id), delta.version()
    files: Iterable[Path] = Path(path).iterdir() if Path(path).is_dir() else [Path(path)]
    return sorted((str(file), os.stat(file).st_mtime_ns, os.stat(file).st_size) for file in files)


def _name(lookup: Lookup) -> str:
    return f"_lookup {lookup.name}"


def _columns(lookup: Lookup) -> dict[str, str]:
    keys = {f"_key{i}": column.type for i, (column, _) in enumerate(lookup.matches)}
    return {**keys, lookup.name: lookup.column.type, ROWS: "BIGINT"}
