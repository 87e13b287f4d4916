"""Whether DuckDB can compute a store's expressions too: transpiled by sqlglot, bound by DuckDB itself.

What it cannot is no error: such a store is served at the MERGE's freshness.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import sqlglot

from api.duck import quoted
from api.fold import Fold
from statehouse.config import Config, Store, Stream
from statehouse.fold import Rule
from statehouse.tables import changelog_columns
from statehouse.transpile import duckdb_type, to_duckdb


def check(config: Config, rules: dict[str, Rule]) -> list[tuple[tuple, str]]:
    """What DuckDB cannot compute: a path in the file, such as ``("stores", "rewards", "value")``, and why. Of a store
    whose ``rules`` are known (with the types that Spark found) the whole fold is tried, on no rows."""
    found: list[tuple[tuple, str]] = []
    # sqlglot also prints what it raises.
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    with duckdb.connect() as connection:
        for stream in config.streams.values():
            try:
                connection.execute(f"CREATE OR REPLACE TABLE events ({_columns(stream)})")
            except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
                found.append((("streams", stream.name, "schema"), _reason(error)))
                continue
            for store in config.stores_of(stream.name):
                wrong = list(_store(connection, store))
                found += wrong or _fold(connection, rules.get(store.name))
    return found


def _fold(connection: duckdb.DuckDBPyConnection, rule: Rule | None) -> list[tuple[tuple, str]]:
    if rule is None:
        return []
    try:
        fold = Fold(connection, rule, "probe")
        fold.apply(pa.table({}), "events", lambda: "events")
        fold.absent(0)
    except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
        return [(("stores", rule.store.name, "reduce"), _reason(error))]
    return []


def _columns(stream: Stream) -> str:
    return ", ".join(f"{quoted(n)} {duckdb_type(t)}" for n, t in changelog_columns(stream).items())


def _expressions(store: Store) -> Iterator[tuple[tuple, str]]:
    for index, key in enumerate(store.keys):
        yield ("key", index) if store.composite else ("key",), key.expression
    if store.agent:
        yield ("agent",), store.agent
    if store.value:
        yield ("value",), store.value
    if store.where:
        yield ("where",), f"CASE WHEN {store.where} THEN 1 END"


def _store(connection: duckdb.DuckDBPyConnection, store: Store) -> Iterator[tuple[tuple, str]]:
    for place, expression in _expressions(store):
        try:
            connection.execute(f"PREPARE probe AS SELECT {to_duckdb(expression)} FROM events")
            connection.execute("DEALLOCATE probe")
        except (sqlglot.errors.SqlglotError, duckdb.Error) as error:
            yield ("stores", store.name, *place), _reason(error)


def _reason(error: Exception) -> str:
    return f"DuckDB cannot compute it: {str(error).splitlines()[0]}"
