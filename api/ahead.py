"""A store's pending events, and what they make on top of its state by the changelog: the fold as one prepared query."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import sqlglot
from sqlglot import exp

from api.duck import quoted
from api.fold import GUARD, Fold
from api.overlay import Key, keys_of
from api.prepared import Bag, Prepared, cursor
from api.snapshot import casts
from statehouse.config import Stream
from statehouse.fold import Rule
from statehouse.fold import quoted as spark_quoted
from statehouse.tables import EVENT_COLUMNS
from statehouse.transpile import to_duckdb


def keys_touched(rule: Rule, types: Mapping[str, str], events: str) -> str:
    """SQL: the keys of the store that some events, a relation in Spark's words, touch, without windows."""
    of = ", ".join(map(spark_quoted, rule.key_columns))
    touched = to_duckdb(f"SELECT DISTINCT {of} FROM ({rule.project(events, guard=GUARD)})")
    return f"SELECT {casts({name: types[name] for name in rule.key_columns})} FROM ({touched})"


def changed(rule: Rule, types: Mapping[str, str], made: str) -> str:
    """SQL: of rows that a fold made, a relation, the state's columns, ``_present`` and ``_conflict``."""
    whole = "window_start IS NOT NULL" if rule.store.windows else "TRUE"  # a purge is remembered by its key
    return f"SELECT {casts(dict(types))}, _present, _conflict FROM {made} WHERE {whole}"


class Ahead:
    """Of one tail; ``types`` are the state's columns in DuckDB. Raises sqlglot's or DuckDB's errors as a fold does."""

    def __init__(self, fold: Fold, stream: Stream, types: Mapping[str, str], name: str) -> None:
        self._db, rule = cursor(fold.db), fold.rule
        events = {**{c.name: c.type for c in stream.columns}, **EVENT_COLUMNS}
        self.pending, self.new = (Bag(self._db, f"{name}_{bag}", events) for bag in ("pending", "new"))
        self.before = Bag(self._db, f"{name}_before", rule.state_columns)
        keys = ", ".join(map(spark_quoted, rule.key_columns))
        touched = f"SELECT {keys} FROM ({rule.project(self.new.name, guard=GUARD)})"
        of = f"SELECT * FROM ({rule.project(self.pending.name, guard=GUARD)}) WHERE ({keys}) IN ({touched})"
        before, tombstones = self.before.name, fold.tombstones
        made = rule.combine(rule.spread(f"({rule.fold(f'({of})')})", before, tombstones), before, tombstones)
        self._keys = Prepared(self._db, f"{name}_keys", keys_touched(rule, types, self.new.name))
        self._rows = Prepared(self._db, f"{name}_rows", self._timed(changed(rule, types, f"({to_duckdb(made)})")))

    def keys(self) -> list[Key]:
        """The keys that the new events touch, without windows."""
        return keys_of(self._keys.rows().columns)

    def rows(self) -> pa.Table:
        """What the pending events of those keys make of the rows ``before``: the state's columns, ``_present``, and whether
        a key has to be folded again from the whole changelog, ``_conflict``."""
        return self._rows.rows()

    def close(self) -> None:
        """Drop the tables."""
        for bag in (self.pending, self.new, self.before):
            bag.close()
        self._db.close()

    def _timed(self, query: str) -> str:
        """The query, for which it is now when its newest event was read."""
        now = sqlglot.parse_one(f"(SELECT max(_log_time) FROM {quoted(self.new.name)})", dialect="duckdb")

        def replaced(node: exp.Expr) -> exp.Expr:
            return now.copy() if isinstance(node, exp.CurrentTimestamp) else node

        return sqlglot.parse_one(query, dialect="duckdb").transform(replaced).sql("duckdb")
