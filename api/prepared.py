"""Queries that DuckDB plans once: of a few rows that takes several times as long as to run them.

DuckDB plans a prepared query anew where a table that it reads was made anew, where it is told what time it is, and where it reads
a registered table of Arrow's. So the rows go in and out of tables that stay (:class:`Bag`), and who wants the time has it among them.
It does not where a table has other rows, though its optimizer takes what it knows of those for granted (of an empty one, that it stays
so): so these queries are not optimized.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from api.duck import quoted
from statehouse.transpile import duckdb_type

KEPT = 50_000  # rows that came into a table and went, before it is made anew: DuckDB does not give back what they took


def cursor(db: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A cursor for what is here."""
    made = db.cursor()
    made.execute("PRAGMA disable_optimizer")
    return made


class Bag:
    """A table that is filled and emptied again and again; its columns by their types in Spark's words."""

    def __init__(self, db: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, str]) -> None:
        self.db, self.name, self._count = db, name, 0
        made = ", ".join(f"{quoted(c)} {duckdb_type(t)}" for c, t in columns.items())
        self._made = f"CREATE OR REPLACE TABLE {quoted(name)} ({made})"
        db.execute(self._made)

    def add(self, rows: pa.Table) -> None:
        """Put rows in, by the names of their columns."""
        if rows.num_rows:
            self.db.register("_more", rows)
            self.db.execute(f"INSERT INTO {quoted(self.name)} BY NAME SELECT * FROM _more")
            self.db.unregister("_more")
            self._count += rows.num_rows

    def clear(self) -> None:
        """Take all of them out."""
        if self._count > KEPT:
            self.db.execute(self._made)
            self._count = 0
        else:
            self.db.execute(f"DELETE FROM {quoted(self.name)}")

    def close(self) -> None:
        """Drop the table."""
        self.db.execute(f"DROP TABLE IF EXISTS {quoted(self.name)}")


class Prepared:
    """A query in DuckDB's words, of a name of its own."""

    def __init__(self, db: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
        self._db, self._name = db, name
        db.execute(f"PREPARE {quoted(name)} AS {query}")

    def rows(self) -> pa.Table:
        """What it gives now."""
        return self._db.execute(f"EXECUTE {quoted(self._name)}").to_arrow_table()
