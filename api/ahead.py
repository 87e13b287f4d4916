"""The fold of what is pending, as queries that DuckDB has planned once: planning takes it several times as long as running them.

DuckDB plans a prepared query anew where a table that it reads was made anew, where it is told what time it is, and where it reads
a registered table of Arrow's. So the rows go in and out of tables that stay (:class:`Bag`), and the time is that of the newest event.
It does not where a table has other rows, though its optimizer takes what it knows of those for granted (of an empty one, that it stays so):
so these queries are not optimized.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from api.duck import quoted
from api.fold import GUARD, Fold
from api.overlay import Key, keys_of
from api.snapshot import casts
from statehouse.config import Stream
from statehouse.fold import quoted as spark_quoted
from statehouse.tables import EVENT_COLUMNS
from statehouse.transpile import duckdb_type, to_duckdb

KEPT = 50_000  # rows that came into a table and went, before it is made anew: DuckDB does not give back what they took


class Bag:
    """A table of a DuckDB connection that is filled and emptied again and again."""

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


class Ahead:
    """A store's pending events, and what they make on top of its state. Raises sqlglot's or DuckDB's errors as a fold does."""

    def __init__(self, fold: Fold, stream: Stream, types: Mapping[str, str], name: str) -> None:
        db, rule = fold.db.cursor(), fold.rule
        db.execute("PRAGMA disable_optimizer")  # of this cursor
        events = {**{c.name: c.type for c in stream.columns}, **EVENT_COLUMNS}
        self.db, self._name = db, f"{name}_ahead"
        self.pending, self.new = Bag(db, f"{name}_pending", events), Bag(db, f"{name}_new", events)
        self.before = Bag(db, f"{name}_before", rule.state_columns)
        keys = ", ".join(map(spark_quoted, rule.key_columns))
        touched = f"SELECT DISTINCT {keys} FROM ({rule.project(self.new.name, guard=GUARD)})"
        of = f"SELECT * FROM ({rule.project(self.pending.name, guard=GUARD)}) WHERE ({keys}) IN ({touched})"
        before, tombstones = self.before.name, fold.tombstones
        made = rule.combine(rule.spread(f"({rule.fold(f'({of})')})", before, tombstones), before, tombstones)
        whole = "window_start IS NOT NULL" if rule.store.windows else "TRUE"  # a purge is remembered by its key
        key = casts({name: types[name] for name in rule.key_columns})
        self._prepare("keys", f"SELECT {key} FROM ({to_duckdb(touched)})")
        shown = f"SELECT {casts(dict(types))}, _present, _conflict FROM ({to_duckdb(made)}) WHERE {whole}"
        self._prepare("rows", self._timed(shown))

    def keys(self) -> list[Key]:
        """The keys that the new events touch, without windows."""
        return keys_of(self.db.execute(f"EXECUTE {quoted(f'{self._name}_keys')}").to_arrow_table().columns)

    def rows(self) -> pa.Table:
        """What the pending events of those keys make of the rows ``before``: the state's columns, ``_present``, and whether
        a key has to be folded again from the whole changelog, ``_conflict``."""
        return self.db.execute(f"EXECUTE {quoted(f'{self._name}_rows')}").to_arrow_table()

    def close(self) -> None:
        """Drop the tables."""
        for bag in (self.pending, self.new, self.before):
            bag.close()
        self.db.close()

    def _prepare(self, name: str, query: str) -> None:
        self.db.execute(f"PREPARE {quoted(f'{self._name}_{name}')} AS {query}")

    def _timed(self, query: str) -> str:
        """The query, for which it is now when its newest event was read."""
        now = sqlglot.parse_one(f"(SELECT max(_log_time) FROM {quoted(self.new.name)})", dialect="duckdb")

        def replaced(node: exp.Expr) -> exp.Expr:
            return now.copy() if isinstance(node, exp.CurrentTimestamp) else node

        return sqlglot.parse_one(query, dialect="duckdb").transform(replaced).sql("duckdb")
