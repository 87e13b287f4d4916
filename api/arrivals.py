"""Kafka's records as rows of the changelog, made in DuckDB before the changelog has them.

What :mod:`jobs.parse` does in Spark, told from the same settings. Two JSON readers do not agree on everything, and need not: what is
made here is forgotten as soon as the changelog has, or has refused, the same coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import duckdb
import pyarrow as pa
from confluent_kafka import Message

from api.duck import literal, quoted
from api.fold import GUARD
from statehouse.config import Column, Stream
from statehouse.fold import Rule
from statehouse.kafka import OP_HEADER, STORE_HEADER
from statehouse.transpile import duckdb_type, to_duckdb

RECORDS = pa.schema(
    {
        "_topic": pa.string(),
        "_partition": pa.int32(),
        "_offset": pa.int64(),
        "_timestamp": pa.timestamp("ms", "UTC"),
        "_key": pa.string(),
        "_text": pa.string(),
        "_op": pa.string(),
        "_store": pa.string(),
    }
)
LEAST, GREATEST = "TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"
NUMBER = "'-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?'"


def records(messages: Iterable[Message]) -> pa.Table:
    """What Kafka's client gives, as a table of :data:`RECORDS`."""
    columns = zip(*map(_record, messages), strict=True)
    return pa.table([pa.array(column, kind) for column, kind in zip(columns, RECORDS.types, strict=True)], RECORDS)


def _record(message: Message) -> tuple[object, ...]:
    value, key = message.value(), message.key()
    headers = dict(message.headers() or ())  # the last of a name counts
    op, store = _decoded(headers.get(OP_HEADER)), _decoded(headers.get(STORE_HEADER))
    if op is None:
        op = "report" if value is not None else "purge"
    return (
        message.topic(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        _decoded(key),
        _decoded(value),
        op,
        None if op == "report" else store,
    )


def _decoded(found: bytes | str | None) -> str | None:
    try:
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        return None


class Parser:
    """Of one stream; ``rules`` are those of its stores that are known, and ``stores`` the names of all.

    Raises sqlglot's errors where the stream's time has no words in DuckDB.
    """

    def __init__(self, stream: Stream, rules: Iterable[Rule], stores: Sequence[str]) -> None:
        self._query = _query(stream, list(rules), stores)

    def parse(self, db: duckdb.DuckDBPyConnection, found: pa.Table) -> pa.Table:
        """The rows for the changelog of those records that are not refused."""
        db.register("_records", found)
        try:
            return db.execute(self._query).to_arrow_table()
        finally:
            db.unregister("_records")


def _query(stream: Stream, rules: list[Rule], stores: Sequence[str]) -> str:
    names = [quoted(c.name) for c in stream.columns]
    spec = literal(json.dumps({c.name: "JSON" for c in stream.columns}))
    values = ", ".join(f"{_value(c)} AS {quoted(c.name)}" for c in stream.columns)
    time = to_duckdb(f"CAST({stream.time} AS TIMESTAMP)") if stream.time else "NULL"
    payload = "_text" if stream.keep_payload else "CAST(NULL AS VARCHAR)"
    return f"""
SELECT {", ".join(names)}, _topic, _partition, _offset, coalesce(_time, _timestamp) AS _event_time, now() AS _log_time,
  _op, _key, _store, _agent, _value, {payload} AS _payload
FROM (SELECT *, CASE WHEN _op = 'report' THEN {GUARD.format(time)} END AS _time,
    CASE WHEN _op = 'set' THEN _text ->> '$.value' END AS _value, CASE WHEN _op = 'set' THEN _text ->> '$.agent' END AS _agent
  FROM (SELECT *, {values}
    FROM (SELECT *, CASE WHEN _op = 'report' AND _object THEN json_transform(_text, {spec}) END AS _json
      FROM (SELECT * REPLACE (CAST(_timestamp AS TIMESTAMPTZ) AS _timestamp), coalesce(json_valid(_text) AND ltrim(_text, ' ' || chr(9) || chr(10) || chr(13)) LIKE '{{%', FALSE) AS _object
        FROM _records))))
WHERE CASE WHEN _op = 'report' THEN {_report(stream)} ELSE {_control(rules, stores)} END"""


def _raw(column: Column) -> str:
    return f"_json.{quoted(column.name)}"


def _value(column: Column) -> str:
    """A column's value of its JSON text; null where that is not of its type."""
    raw, kind, made = _raw(column), column.type.upper(), duckdb_type(column.type)
    text = f"CASE WHEN {raw} LIKE '\"%' THEN {raw} ->> '$' END"
    if kind == "STRING":
        return f"CASE WHEN {raw} LIKE '\"%' THEN {raw} ->> '$' ELSE CAST({raw} AS VARCHAR) END"
    if kind == "BOOLEAN":
        return f"CASE CAST({raw} AS VARCHAR) WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    if kind.endswith("INT"):
        return f"CASE WHEN regexp_full_match({raw}, '-?[0-9]+') THEN TRY_CAST(CAST({raw} AS VARCHAR) AS {made}) END"
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        return f"CASE WHEN regexp_full_match({raw}, {NUMBER}) THEN TRY_CAST(CAST({raw} AS VARCHAR) AS {made}) END"
    if kind in ("TIMESTAMP", "DATE", "TIMESTAMP_NTZ"):
        return f"TRY_CAST({text} AS {made})"
    return f"TRY_CAST({raw} AS {made})"


def _report(stream: Stream) -> str:
    """Whether a report is taken."""
    tests = ["_object"]
    tests += [f"({_raw(c)} IS NULL OR {quoted(c.name)} IS NOT NULL)" for c in stream.columns]
    tests += [f"{quoted(c.name)} IS NOT NULL" for c in stream.columns if c.required]
    if stream.time_columns:
        given = " OR ".join(f"{quoted(c)} IS NOT NULL" for c in stream.time_columns)
        tests += [f"(NOT ({given}) OR _time IS NOT NULL)", f"coalesce(_time BETWEEN {LEAST} AND {GREATEST}, TRUE)"]
    return " AND ".join(tests)


def _control(rules: list[Rule], stores: Sequence[str]) -> str:
    """Whether a set or purge is taken."""
    known = ", ".join(map(literal, stores)) or "''"
    tests = [
        "_op IN ('set', 'purge')",
        "_key IS NOT NULL",
        f"coalesce(_store IN ({known}), _op = 'purge')",
        "(_op = 'purge' OR (_object AND list_contains(json_keys(_text), 'value')))",
    ]
    for rule in rules:
        keyed = " AND ".join(f"{_guarded(k)} IS NOT NULL" for k in rule.control_keys())
        if rule.store.windows:
            settable = "FALSE"
        else:
            null = "FALSE" if rule.store.reducer.additive else "TRUE"
            settable = f"CASE WHEN _value IS NULL THEN {null} ELSE {_guarded(rule.set_value())} IS NOT NULL END"
        tests.append(
            f"(_store IS DISTINCT FROM {literal(rule.store.name)} OR ({keyed} AND (_op = 'purge' OR {settable})))"
        )
    return " AND ".join(tests)


def _guarded(expression: str) -> str:
    return GUARD.format(to_duckdb(expression))
