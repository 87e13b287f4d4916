"""Kafka's records as rows of the changelog, or the reason why one is refused. Nothing here reads or writes.

What a record is, is said once for both halves, by :mod:`statehouse.records`; it runs in Spark's Python workers, a batch of rows at
a time. Lookups, and the event time, are SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.lookup import Lookups, many
from statehouse.config import Stream
from statehouse.fold import in_years, literal, quoted
from statehouse.headers import OP_HEADER, STORE_HEADER
from statehouse.records import SAID, RecordDecoder
from statehouse.tables import EVENT_COLUMNS

# As in jobs.feed.new: a time that is no number in the code that Spark makes.
NOW = "array(current_timestamp())[CASE WHEN _partition IS NULL THEN 1 ELSE 0 END]"
UNTIMED = "'found no time in the years 1583 to 9999 with the record, expected one'"
# What is handed to Python of a record, and back again as it was.
RECORD = {
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_key": "STRING",
    "_headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "_bytes": "BINARY",
}


def _reason(stream: Stream) -> str:
    """SQL: why a report that Python has taken is refused, or null."""
    branches = []
    if stream.time_columns:
        given = " OR ".join(f"{quoted(c)} IS NOT NULL" for c in stream.time_columns)
        branches += [
            (f"({given}) AND _time IS NULL", literal(f"found no time in {stream.time}")),
            (
                f"NOT ({in_years('_time')})",
                "'found an event time outside the years 1 to 9999'",
            ),
        ]
    for lookup in stream.lookups:
        rows, by = quoted(many(lookup)), f"concat_ws('/', {', '.join(by for _, by in lookup.matches)})"
        said = f"concat({literal(f'{lookup.name}: found ')}, {rows}, ' rows with the key ', {by}, ', expected one')"
        branches.append((f"{rows} > 1", said))
    branches.append(
        (
            "_time IS NULL AND _timestamp IS NULL",
            "'found no time, expected one: with the record there is none in the years 1583 to 9999'",
        )
    )
    return "CASE " + " ".join(f"WHEN {test} THEN {reason}" for test, reason in branches) + " END"


def _header(name: str) -> str:
    """SQL: the last header of a name; null where there is none."""
    # Not by filter(headers, h -> ...): Spark makes no code of that.
    found = f"CAST(nullif(array_position(reverse(headers.key), {literal(name)}), 0) AS INT)"
    return f"element_at(reverse(headers.value), {found})"


def _decoded(decoder: RecordDecoder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark's workers do with batches of records."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {name: batch.column(name) for name in RECORD}
            given = (batch.column(name).to_pylist() for name in ("_op", "_store", "_key", "_bytes"))
            decoded = decoder.decode(*given)
            said = dict(zip(decoded.schema.names, decoded.columns, strict=True))
            del said["_text"]  # which Spark makes of the bytes again
            yield pa.record_batch(columns | said)

    return run


def parse(records: DataFrame, stream: Stream, decoder: RecordDecoder, lookups: Lookups | None = None) -> DataFrame:
    """Kafka's records (with headers) as the changelog's columns, ``_reason`` (null: accepted) and, for the quarantine, ``_text``,
    ``_bytes``, ``_headers`` and ``_timestamp``, which are null where the event is accepted: the callers keep these rows in memory."""
    said = [name for name in SAID if name != "_text"]
    columns = {**RECORD, **{c.name: c.type for c in stream.columns}, **dict.fromkeys(said, "STRING")}
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    report = "_op = 'report' AND _reason IS NULL"
    return (
        records.selectExpr(
            "topic AS _topic",
            "partition AS _partition",
            "offset AS _offset",
            "timestamp AS _timestamp",
            "headers AS _headers",
            "value AS _bytes",
            "try_validate_utf8(CAST(key AS STRING)) AS _key",
            f"{_header(OP_HEADER)} AS _op",
            f"{_header(STORE_HEADER)} AS _store",
        )
        .mapInArrow(_decoded(decoder), schema)  # type: ignore[arg-type]
        .withColumn("_text", F.expr("try_validate_utf8(CAST(_bytes AS STRING))"))
        .transform(lookups.join if lookups else lambda rows: rows)
        .withColumn("_time", F.expr(f"CASE WHEN {report} THEN CAST({stream.time or 'NULL'} AS TIMESTAMP) END"))
        .withColumn(
            "_reason",
            F.expr(
                f"coalesce(_reason, CASE WHEN _op = 'report' THEN {_reason(stream)} WHEN _timestamp IS NULL THEN {UNTIMED} END)"
            ),
        )
        .withColumn("_event_time", F.expr("coalesce(_time, _timestamp)"))
        .withColumn("_log_time", F.expr(NOW))
        .withColumn("_payload", F.expr("_text" if stream.keep_payload else "CAST(NULL AS STRING)"))
        .select(
            *(quoted(c.name) for c in stream.known),
            *EVENT_COLUMNS,
            "_reason",
            *(
                F.expr(f"CASE WHEN _reason IS NOT NULL THEN {c} END").alias(c)
                for c in ("_text", "_bytes", "_headers", "_timestamp")
            ),
        )
    )


def accepted(parsed: DataFrame, stream: Stream) -> DataFrame:
    """The rows for the changelog."""
    rows = parsed.where("_reason IS NULL")
    return rows.select(*(quoted(c.name) for c in stream.known), *EVENT_COLUMNS)


def refused(parsed: DataFrame) -> DataFrame:
    """The rows for the quarantine: nothing of the record is lost."""
    return parsed.where("_reason IS NOT NULL").selectExpr(
        "_topic AS topic",
        "_partition AS partition",
        "_offset AS offset",
        "_timestamp AS timestamp",
        "_key AS key",
        "_text AS payload",
        "CASE WHEN _text IS NULL THEN _bytes END AS payload_bytes",
        "_headers AS headers",
        "_reason AS reason",
        "_log_time AS log_time",
    )
