"""Kafka's records as rows of the changelog, made in DuckDB before the changelog has them.

What :mod:`jobs.parse` does in Spark, told from the same settings. Two JSON readers do not agree on everything, and need not: what is
made here is forgotten as soon as the changelog has, or has refused, the same coordinates.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from api.duck import literal, quoted, selected
from api.fold import GUARD
from api.lookup import Lookups
from api.prepared import Bag, Prepared
from statehouse.config import Stream
from statehouse.fold import Rule
from statehouse.kafka import OP_HEADER, STORE_HEADER, usable_time
from statehouse.transpile import duckdb_type, to_duckdb
from statehouse.values import Column

RECORDS = {
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_key": "STRING",
    "_text": "STRING",
    "_op": "STRING",
    "_store": "STRING",
    "_log_time": "TIMESTAMP",  # when it was read
}
TIME = pa.timestamp("ms", "UTC")
ARROW = {"STRING": pa.large_string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP": TIME}
LEAST, GREATEST = "TIMESTAMPTZ '0001-01-01 00:00:00+00'", "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"
REPORT = "report"
NUMBER = "'-?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]+)?'"


def records(messages: Iterable[Message]) -> pa.Table:
    """What Kafka's client gives, as a table of :data:`RECORDS`."""
    now = time.time_ns() // 1_000_000
    return table((*_record(message), now) for message in messages)


def table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """A table of :data:`RECORDS`; moments are milliseconds since 1970."""
    columns = zip(*rows, strict=True)
    made = {n: pa.array(c, ARROW[kind]) for c, (n, kind) in zip(columns, RECORDS.items(), strict=True)}
    return pa.table(made)


def _record(message: Message) -> tuple[Any, ...]:
    place = message.topic(), message.partition(), message.offset(), message.timestamp()[1]
    return record(*place, message.key(), message.value(), message.headers())


def record(
    topic: str | None, partition: int | None, offset: int | None, timestamp: int, key: Any, value: Any, headers: Any
) -> tuple[Any, ...]:
    """A record as a row of :data:`RECORDS`, but for the last column."""
    named = dict(headers or ())  # the last of a name counts
    op, store = _decoded(named.get(OP_HEADER)), _decoded(named.get(STORE_HEADER))
    if op is None:
        op = REPORT if value is not None else "purge"
    return (
        topic,
        partition,
        offset,
        usable_time(timestamp),
        _decoded(key),
        _decoded(value),
        op,
        None if op == REPORT else store,
    )


def _decoded(found: bytes | str | None) -> str | None:
    try:
        return found.decode() if isinstance(found, bytes) else found
    except UnicodeDecodeError:
        return None


class Parser:
    """Of one stream, for a cursor of its own; ``rules`` are those of its stores that are known, and ``stores`` the names of all.
    ``more``: further columns of the rows, by name, in DuckDB's words.

    Raises sqlglot's errors where the stream's time has no words in DuckDB.
    """

    def __init__(
        self,
        db: duckdb.DuckDBPyConnection,
        stream: Stream,
        rules: Iterable[Rule],
        stores: Sequence[str],
        more: Mapping[str, str] | None = None,
    ) -> None:
        self._records, self._lookups = Bag(db, "_records", RECORDS), Lookups(db, stream)

        def prepared(name: str, control: str | None) -> Prepared:
            parsed = f"({_query(stream, control, '_records', self._lookups)})"
            return Prepared(db, name, f"SELECT *, {selected(more)} FROM {parsed}" if more else parsed)

        self._query = prepared("_parsed", _control(list(rules), stores))
        self._reports = prepared("_parsed reports", None)

    def parse(self, found: pa.Table) -> pa.Table:
        """The rows for the changelog of those records that are not refused."""
        self._lookups.refresh()
        self._records.put(found)
        reports = pc.all(pc.equal(found["_op"], REPORT)).as_py()
        return (self._reports if reports else self._query).rows()


def _query(stream: Stream, control: str | None, found: str, lookups: Lookups) -> str:
    """``control`` says whether a set or purge is taken; None: there are only reports, which are made in three quarters of the time."""
    names = [quoted(c.name) for c in stream.known]
    spec = literal(json.dumps({c.name: "JSON" for c in stream.columns}))
    values = ", ".join(f"{_value(c)} AS {quoted(c.name)}" for c in stream.columns)
    event_time = to_duckdb(f"CAST({stream.time} AS TIMESTAMP)") if stream.time else "NULL"
    payload = "_text" if stream.keep_payload else "CAST(NULL AS VARCHAR)"
    is_report, is_set = (f"_op = '{REPORT}'", "_op = 'set'") if control else ("TRUE", "FALSE")
    opened = "ltrim(_text, ' ' || chr(9) || chr(10) || chr(13)) LIKE '{%'"
    objects = f"(SELECT *, CASE WHEN json_valid(_text) AND {opened} THEN _text END AS _object FROM {found})"
    shaped = f"(SELECT *, CASE WHEN {is_report} THEN json_transform(_object, {spec}) END AS _json FROM {objects})"
    return f"""
SELECT {", ".join(names)}, _topic, _partition, _offset, coalesce(_time, _timestamp) AS _event_time, _log_time,
  _op, _key, _store, _agent, _value, {payload} AS _payload
FROM (SELECT *, CASE WHEN {is_report} THEN {GUARD.format(event_time)} END AS _time,
    CASE WHEN {is_set} THEN _object ->> '$.value' END AS _value, CASE WHEN {is_set} THEN _object ->> '$.agent' END AS _agent
  FROM {lookups.joined(f"(SELECT *, {values} FROM {shaped})")})
WHERE coalesce(_time, _timestamp) IS NOT NULL AND CASE WHEN {is_report} THEN {_report(stream)} ELSE {control or "FALSE"} END
{"ORDER BY _partition, _offset" if stream.lookups else ""}"""  # a join leaves them in any order


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
    tests = ["_object IS NOT NULL"]
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
        "(_op = 'purge' OR coalesce(list_contains(json_keys(_object), 'value'), FALSE))",
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
