"""Whether DuckDB gives what Spark gives: of each expression it is known (:mod:`statehouse.alike`), and DuckDB itself binds what sqlglot
makes of it.

What it does not is no error: such a store is served at the MERGE's freshness, and events of such a stream, or of one with such a
lookup, are shown when the changelog has them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import duckdb
import pyarrow as pa
import sqlglot

from api.engine import duck
from api.engine.duck import Connection, quoted
from api.engine.fold import Fold
from statehouse.alike import difference, store_expressions, stream_expressions
from statehouse.alike_reducers import own_parts
from statehouse.config.models import Config, Own
from statehouse.fold import Rule
from statehouse.kinds import Differs
from statehouse.tables import changelog_columns
from statehouse.transpile import duckdb_type, to_duckdb


def check(config: Config, rules: dict[str, Rule]) -> list[tuple[tuple, str]]:
    """What DuckDB cannot compute: a path in the file, such as ``("stores", "rewards", "value")``, and why. Of a store
    whose ``rules`` are known (with the types that Spark found) the whole fold is tried, on no rows."""
    problems: list[tuple[tuple, str]] = []
    # sqlglot also prints what it raises.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    with duck.connect() as connection:
        for stream in config.streams.values():
            columns = changelog_columns(stream)
            try:
                table = ", ".join(f"{quoted(name)} {duckdb_type(kind)}" for name, kind in columns.items())
                connection.execute(f"CREATE OR REPLACE TABLE events ({table})")
            except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
                problems.append((("streams", stream.name, "schema"), _reason(error)))
                continue
            payload = stream.types
            for place, expression in stream_expressions(stream):
                if reason := _wrong(connection, expression, payload):
                    problems.append((place, reason))
            for store in config.stores_of(stream.name):
                wrong = [
                    (("stores", store.name, *place), reason)
                    for place, expression in store_expressions(store)
                    if (reason := _wrong(connection, expression, columns))
                ]
                problems += wrong or _fold(connection, rules.get(store.name))
    return problems


def _fold(connection: Connection, rule: Rule | None) -> list[tuple[tuple, str]]:
    if rule is None:
        return []
    try:
        fold = Fold(connection, rule, "probe")
        fold.apply(pa.table({}), "events", lambda: "events")
        fold.absent(0)
    except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
        return [(("stores", rule.store.name, "reduce"), _reason(error))]
    if not isinstance(rule.store.reduce, Own):
        return []
    parts = own_parts(rule.store.reduce, rule.value_input, rule.own_types)
    differing = [(path, given) for path, _, given in parts if isinstance(given, Differs)]
    return [(("stores", rule.store.name, "reduce", *path), str(given)) for path, given in differing]


def _wrong(connection: Connection, expression: str, columns: Mapping[str, str]) -> str | None:
    """Why DuckDB does not give what Spark gives; None: it does."""
    try:
        connection.execute(f"PREPARE probe AS SELECT {to_duckdb(expression)} FROM events")
        connection.execute("DEALLOCATE probe")
    except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
        return _reason(error)
    return difference(expression, columns)


def _reason(error: Exception) -> str:
    return f"DuckDB cannot compute it: {str(error).splitlines()[0]}"
