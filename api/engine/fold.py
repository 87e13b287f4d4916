"""The one fold, in DuckDB: the registry's own SQL, transpiled, on tables in this process.

What :mod:`jobs.merge` does with a MERGE is done here with the same queries, the same tombstones, and the same second look at keys
that a late reset tore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from api.engine.duck import ROWS, Connection, casts, quoted
from statehouse.alike import check_store, given
from statehouse.alike_reducers import own_given
from statehouse.config.models import Own, Stream
from statehouse.fold import Rule
from statehouse.kinds import Differs
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.tables import changelog_columns
from statehouse.transpile import duckdb_type, to_duckdb

GUARD = "TRY({})"  # what a user's expression cannot compute is null, as in Spark without ANSI mode


def spoken(rule: Rule, stream: Stream) -> Rule:
    """A rule with its expressions as both engines are given them. Raises :class:`statehouse.kinds.Differs` where one is not known to mean
    the same here."""
    columns = changelog_columns(stream)
    if rule.ranked != stream.ranked:
        raise Differs("the state is of another order of events than the stream's")
    check_store(rule.store, columns)
    own: tuple[tuple[str, str], ...] = ()
    if isinstance(rule.store.reduce, Own):
        own = own_given(rule.store.reduce, rule.value_input, rule.own_types)
    return replace(rule, nulled=(*given(rule.store, columns), *own))


def project(rule: Rule, changelog: str, of: str | None = None) -> str:
    """A store's events out of rows of the changelog, in Spark's words; of all keys, or of those in a relation."""
    events = rule.project(changelog, guard=GUARD)
    if of is None:
        return events
    keys = ", ".join(map(spark_quoted, rule.key_columns))
    return f"SELECT * FROM ({events}) WHERE ({keys}) IN (SELECT {keys} FROM {of})"


def touched(rule: Rule, changelog: str, names: Iterable[str], types: Mapping[str, str]) -> str:
    """The key's columns of these names that a store's events out of rows of the changelog have, each once, as the state's ``types``; in
    DuckDB's words."""
    return f"SELECT DISTINCT {casts({n: types[n] for n in names})} FROM ({to_duckdb(project(rule, changelog))})"


class Fold:
    """A store's state and tombstones as two tables of a DuckDB connection, ``<name>_state`` and ``<name>_tombstones``, or another
    fold's ``tombstones``.

    Raises sqlglot's or DuckDB's error where the store's expressions have no words in DuckDB.
    """

    def __init__(self, db: Connection, rule: Rule, name: str, tombstones: str | None = None) -> None:
        self.db, self.rule = db, rule
        self.state, self.tombstones = f"{name}_state", tombstones or f"{name}_tombstones"
        self._rows = f"{name}_rows"
        self._no_rows = _created(self.state, rule.state_columns)  # of each batch, so made once
        db.execute(self._no_rows)
        self.remembers = False  # whether there are tombstones
        if tombstones is None:
            db.execute(_created(self.tombstones, rule.tombstone_columns))

    def apply(self, rows: pa.Table, events: str, changelog: Callable[[], str], of: str | None = None) -> str:
        """Fold new changelog rows, the relation ``events``, into the state ``rows`` of the keys that they touch: the name of
        a table of rows as ``combine`` gives them, of each that may have changed; ``of`` a relation of keys, only of those.

        ``changelog`` gives a relation of all rows up to and with these; it is asked for only where a late reset tore a key.
        """
        db = self.db
        db.execute(self._no_rows)
        if rows.num_rows:
            db.register("_before", rows)
            db.execute(f"INSERT INTO {quoted(self.state)} BY NAME SELECT * FROM _before")
            db.unregister("_before")
        self._fold(events, of)
        self._make(self._rows, self._combined(self.state, self.tombstones))
        torn = f"SELECT {self._keys()} FROM {quoted(self._rows)} WHERE _conflict"
        if db.execute(f"SELECT count(*) FROM ({torn})").fetchone() != (0,):
            self._fold(changelog(), f"(SELECT * FROM {self._rows} WHERE _conflict)")
            # Of a torn window nothing may be left: the state's own windows tell that there is one to be absent.
            self._make("_anew", self._combined(self.state, None, again=True))
            db.execute(f"CREATE OR REPLACE TEMP TABLE _again AS SELECT * FROM _anew WHERE ({self._keys()}) IN ({torn})")
            db.execute(f"DELETE FROM {quoted(self._rows)} WHERE _conflict")
            db.execute(f"INSERT INTO {quoted(self._rows)} BY NAME SELECT * FROM _again")
        return self._rows

    def absent(self, position: int) -> pa.Table:
        """What is to be remembered of the keys that :meth:`apply` has made absent; the ``position`` orders it."""
        remembered = to_duckdb(f"SELECT {self.rule.remembered()} FROM {self._rows} WHERE NOT _present")
        extra = f"{int(position)} AS position, now() AS log_time"
        return self.db.execute(f"SELECT *, {extra} FROM ({remembered})").to_arrow_table(ROWS)

    def remember(self, absent: pa.Table) -> None:
        """Put that, or what the table of tombstones has, among the tombstones."""
        if absent.num_rows:
            self.db.register("_absent", absent)
            self.db.execute(f"INSERT INTO {quoted(self.tombstones)} BY NAME SELECT * FROM _absent")
            self.db.unregister("_absent")
            self.remembers = True

    def alone(self, events: str) -> str:
        """Fold a store's events, a relation in Spark's words that ``project`` made, with nothing else: the name of a table
        of rows as ``combine`` gives them."""
        self._make("_folded", self.rule.fold(events))
        self._make(self._rows, self._combined(None, None, again=True))
        return self._rows

    def _keys(self) -> str:
        return ", ".join(map(quoted, self.rule.keys))

    def _fold(self, log: str, of: str | None = None) -> None:
        """One row a key, as the table ``_folded``; of all keys, or of those in a relation."""
        self._make("_folded", self.rule.fold(f"({project(self.rule, log, of)})"))

    def _combined(self, state: str | None, tombstones: str | None, again: bool = False) -> str:
        """What the rows of ``_folded`` make of the state's."""
        rows = self.rule.spread("_folded", state, tombstones)
        return self.rule.combine(rows, self.state, tombstones, again)

    def _make(self, table: str, query: str) -> None:
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE {quoted(table)} AS {to_duckdb(query)}")


def _created(table: str, columns: Mapping[str, str]) -> str:
    definitions = ", ".join(f"{quoted(c)} {duckdb_type(t)}" for c, t in columns.items())
    return f"CREATE OR REPLACE TABLE {quoted(table)} ({definitions})"
