"""Queries that DuckDB plans once: of a few rows that takes several times as long as to run them.

DuckDB plans a prepared query anew where a table that it reads was made anew, where it is told what time it is, and where something
was registered since. So the rows come from objects that are registered once and have others each time (:class:`ArrowSource`), and who wants the
time has it among them. It does not where a table has other rows, though its optimizer takes what it knows of those for granted (of an
empty one, that it stays so): so these queries are not optimized.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from api.engine.duck import ROWS, Connection, quoted
from statehouse.transpile import duckdb_type


def cursor(db: Connection) -> Connection:
    """A cursor for what is here."""
    connection = db.cursor()
    connection.execute("PRAGMA disable_optimizer")
    return connection


class ArrowSource:
    """Rows under a name, for the queries of one cursor: at each run those that are in it. Its columns by their types in Spark's words.

    DuckDB reads it by Arrow's interface for any object that has rows (the two methods at the end), at a third of what it takes to
    insert a few rows into a table.
    """

    def __init__(self, db: Connection, name: str, columns: Mapping[str, str]) -> None:
        made = ", ".join(f"CAST(NULL AS {duckdb_type(t)}) AS {quoted(c)}" for c, t in columns.items())
        self._schema: pa.Schema = db.execute(f"SELECT {made}").to_arrow_table().schema
        self.rows = self._schema.empty_table()
        db.register(name, self)

    def put(self, rows: pa.Table) -> None:
        """Have these rows, by the names of their columns, in the place of the others."""
        given = ((rows[field.name], field.type) for field in self._schema)
        columns = [column if column.type == kind else column.cast(kind) for column, kind in given]
        self.rows = pa.table(columns, schema=self._schema)

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


class Prepared:
    """A query in DuckDB's words, of a name of its own."""

    def __init__(self, db: Connection, name: str, query: str) -> None:
        self._db, self._name = db, name
        db.execute(f"PREPARE {quoted(name)} AS {query}")

    def rows(self) -> pa.Table:
        """What it gives now."""
        return self._db.execute(f"EXECUTE {quoted(self._name)}").to_arrow_reader(ROWS).read_all()
