"""Kafka's records as rows of the changelog, or the reason why one is refused. Nothing here reads or writes.

What a record is, is said once for both halves, by :mod:`statehouse.records`; it runs in Spark's Python workers, a batch of rows at
a time. Lookups, and the event time, are SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.spark.expressions import ddl, schema_of
from jobs.spark.guard import PLAIN, error_of
from jobs.spark.lookup import Lookups, count_column
from statehouse.alike import nulled
from statehouse.config.models import Stream
from statehouse.errors import ConfigError
from statehouse.formats.format import SOURCE
from statehouse.headers import TOMBSTONE
from statehouse.numbering import Numbering
from statehouse.payload import GREATEST_TIME, LEAST_TIME
from statehouse.records import RANK, SAID, RecordDecoder, header_maps, header_text, parse_headers
from statehouse.spark_sql import in_years, literal, quoted, rank_of
from statehouse.tables import HEADER_COLUMNS, TOPIC_PARTITION, coordinates, event_columns
from statehouse.types import parse_type
from statehouse.values import safe

# As in jobs.spark.change_feed.from_offsets: a time that is no number in the code that Spark makes.
NOW = "array(current_timestamp())[CASE WHEN _partition IS NULL THEN 1 ELSE 0 END]"
UNTIMED = "'found no time in the years 1583 to 9999 with the record, expected one'"
THROWN = "the time cannot be computed"  # the reason, until :func:`refused_rows` is told the engine's
# What is handed to Python of a record, and back again as it was. Headers are JSON: as an array of structs they would take as much of the
# processor as all the rest, also where there are none.
RECORD = {
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_key": "STRING",
    "_header_list": "STRING",
    "_bytes": "BINARY",
}
UNTOLD = f"CASE WHEN _op <> '{TOMBSTONE}' THEN _key END"  # what says nothing keeps no key that could not be erased by its row
IN_ORDER = "_op IN ('report', 'purge')"  # what has its rank from its payload, where it does not give it itself
HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"


def _reason(stream: Stream, guard: str) -> str:
    """SQL: why a report that Python has taken is refused, or null; ``guard`` as in :func:`parse`."""
    branches = []
    if stream.time_columns:
        given = " OR ".join(f"{quoted(c)} IS NOT NULL" for c in stream.time_columns)
        if guard != PLAIN:  # a struct is null for no other reason
            throws = f"{guard.format(f'struct({_time(stream)})')} IS NULL"
            branches.append((f"({given}) AND _time IS NULL AND {throws}", literal(THROWN)))
        branches += [
            (f"({given}) AND _time IS NULL", literal(f"found no time in {stream.time}")),
            (
                f"NOT ({in_years('_time')})",
                "'found an event time outside the years 1 to 9999'",
            ),
        ]
    for lookup in stream.lookups:
        rows, by = quoted(count_column(lookup)), f"concat_ws('/', {', '.join(by for _, by in lookup.matches)})"
        message = f"concat({literal(f'{lookup.name}: found ')}, {rows}, ' rows with the key ', {by}, ', expected one')"
        branches.append((f"{rows} > 1", message))
    branches.append(
        (
            "_time IS NULL AND _timestamp IS NULL",
            "'found no time, expected one: with the record there is none in the years 1583 to 9999'",
        )
    )
    return "CASE " + " ".join(f"WHEN {test} THEN {reason}" for test, reason in branches) + " END"


def numbered(records: DataFrame, numbering: Numbering) -> DataFrame:
    """Kafka's records of several topics, whose ``partition`` is the number that the stream has for it; ``topic_partition`` is Kafka's."""
    by_topic: dict[str, dict[int, int]] = {}
    for (topic, partition), number in numbering.numbers.items():
        by_topic.setdefault(topic, {})[partition] = number
    # An array of each topic's: a map of all would be searched for each record.
    numbers = (
        f"{literal(topic)}, array({', '.join(str(of.get(p, 'NULL')) for p in range(max(of) + 1))})"
        for topic, of in by_topic.items()
    )
    number_of = f"element_at(element_at(map({', '.join(numbers)}), topic), partition + 1)" if by_topic else "partition"
    return records.withColumn("topic_partition", F.col("partition")).withColumn("partition", F.expr(number_of))


def _decode_batches(
    decoder: RecordDecoder, keep_all: bool, given: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What is done with batches of records; ``keep_all``: whether SQL may refuse more of them; ``given`` are their columns."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = {name: batch.column(name) for name in given if name != "_headers"}
            keys, values = (columns[name].to_pylist() for name in ("_key", "_bytes"))
            operations, stores, requeued, schemas, ranks = parse_headers(columns["_header_list"])
            decoded = decoder.decode(operations, stores, keys, values, schemas, ranks)
            results = dict(zip(decoded.schema.names, decoded.columns, strict=True))
            del results["_text"]  # which Spark makes of the bytes again
            results["_requeued"] = pa.array(map(header_text, requeued), pa.string())
            if "_headers" in given:
                columns["_headers"] = header_maps(columns["_header_list"])
            if not keep_all:  # the record itself goes back only where it may be refused
                rows = pa.array(range(batch.num_rows), pa.int64())
                refused = pc.or_(results["_reason"].is_valid(), columns["_timestamp"].is_null())
                refused_only = pc.if_else(refused, rows, pa.scalar(None, pa.int64()))
                for name in ("_header_list", "_bytes"):
                    columns[name] = columns[name].take(refused_only)
            yield pa.record_batch(columns | results)

    return run


def _may_refuse(stream: Stream) -> bool:
    """Whether SQL may refuse a record that Python has taken and that has a time of its own."""
    plain = {c.name.lower() for c in stream.columns if c.type.upper() == "TIMESTAMP"}
    return (
        bool(stream.lookups)
        or stream.keep_payload
        or stream.ranked
        or (stream.time or "").strip("` ").lower() not in {"", *plain}
    )


def parse(
    records: DataFrame,
    stream: Stream,
    decoder: RecordDecoder,
    lookups: Lookups | None = None,
    guard: str = PLAIN,
    here: bool = False,
) -> DataFrame:
    """Kafka's records, with headers, as rows with the changelog's columns and, besides:

    * ``_reason``: why the record is refused; null where it is accepted,
    * ``_requeued``: the place of the refused record that it was sent again for,
    * ``_text``, ``_bytes``, ``_header_list`` and ``_timestamp``, for the quarantine; null where the record is accepted, since callers keep
      these rows in memory.

    ``guard`` is written around what a user wrote (:mod:`jobs.spark.guard`). ``here``: records are read at once, and by this process, which
    needs no workers to start."""
    added = [*(name for name in SAID if name != "_text"), *([RANK] if stream.ranked else []), "_requeued"]
    given = {**RECORD, **({"_topic": "STRING", TOPIC_PARTITION: "INT"} if stream.several else {})}
    if stream.keep_headers:
        given |= {"_timestamp_type": "STRING", "_headers": HEADER_COLUMNS["_headers"]}
    columns = {**given, **stream.types, **dict.fromkeys(added, "STRING")}
    schema = schema_of(columns)
    kind = "CASE timestampType WHEN 0 THEN 'CreateTime' WHEN 1 THEN 'LogAppendTime' END"
    if "timestampType" not in records.columns:  # of a file
        kind = "CAST(NULL AS STRING)"
    report = "_op = 'report' AND _reason IS NULL"
    time = guard.format(f"CAST({_time(stream)} AS TIMESTAMP)")
    known = "coalesce(_time, _timestamp)" if stream.captured else "_timestamp"  # of what is no report
    decode = _decode_batches(decoder, _may_refuse(stream), list(given))
    return (
        records.selectExpr(
            "partition AS _partition",
            "offset AS _offset",
            "timestamp AS _timestamp",
            "CASE WHEN headers IS NOT NULL THEN to_json(headers) END AS _header_list",
            "value AS _bytes",
            "try_validate_utf8(CAST(key AS STRING)) AS _key",
            *(["topic AS _topic", f"topic_partition AS {TOPIC_PARTITION}"] if stream.several else []),
            *([f"{kind} AS _timestamp_type"] if stream.keep_headers else []),
        )
        .transform(lambda rows: _decode_here(rows, decode, schema) if here else rows.mapInArrow(decode, schema))
        .withColumn("_topic", F.col("_topic") if stream.several else F.lit(stream.topic))
        .withColumn("_text", F.expr("try_validate_utf8(CAST(_bytes AS STRING))"))
        .transform(lambda rows: lookups.join(rows, guard) if lookups else rows)
        .withColumn("_time", F.expr(f"CASE WHEN {report} THEN {time} {_delete_time(stream)} END"))
        .transform(lambda rows: _add_rank(rows, stream, guard) if stream.ranked else rows)
        .withColumn(
            "_reason",
            F.expr(
                f"coalesce(_reason, CASE WHEN _op = 'report' THEN {_reason(stream, guard)} WHEN {known} IS NULL THEN {UNTIMED} END"
                f"{', ' + _rank_reason(stream) if stream.ranked else ''})"
            ),
        )
        .withColumn("_event_time", F.expr("coalesce(_time, _timestamp)"))
        .transform(lambda rows: rows.withColumn("_key", F.expr(UNTOLD)) if stream.captured else rows)
        .withColumn("_log_time", F.expr(NOW))
        .withColumn("_payload", F.expr("_text" if stream.keep_payload else "CAST(NULL AS STRING)"))
        .select(
            *(quoted(c.name) for c in stream.known),
            *event_columns(stream),
            "_reason",
            "_requeued",
            *(
                F.expr(f"CASE WHEN _reason IS NOT NULL THEN {c} END").alias(c)
                for c in ("_text", "_bytes", "_header_list", "_timestamp")
            ),
        )
    )


def _decode_here(
    rows: DataFrame, decode: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: StructType
) -> DataFrame:
    decoded = [*decode(rows.toArrow().to_batches())]
    table = pa.Table.from_batches(decoded).select(schema.names) if decoded else []
    return rows.sparkSession.createDataFrame(table, schema)


def accepted_rows(parsed: DataFrame, stream: Stream) -> DataFrame:
    """The rows for the changelog."""
    rows = parsed.where("_reason IS NULL")
    return rows.select(*(quoted(c.name) for c in stream.known), *event_columns(stream))


def time_reason(parsed: DataFrame, stream: Stream) -> str:
    """The reason for rows whose time cannot be computed, with the engine's words where there are such rows; else :data:`THROWN`."""
    error = error_of(parsed.where(f"_reason = {literal(THROWN)}"), f"CAST({_time(stream)} AS TIMESTAMP)")
    return f"{stream.time} cannot be computed: {error}" if error else THROWN


def refused_rows(parsed: DataFrame, stream: Stream, time_reason: str = THROWN) -> DataFrame:
    """The rows for the quarantine: nothing of the record is lost. ``time_reason`` is the reason where the time cannot be computed."""
    return parsed.where("_reason IS NOT NULL").selectExpr(
        "_topic AS topic",
        *([f"{TOPIC_PARTITION} AS topic_partition"] if stream.several else []),
        "_partition AS partition",
        "_offset AS offset",
        "_timestamp AS timestamp",
        "_key AS key",
        "_text AS payload",
        "CASE WHEN _text IS NULL THEN _bytes END AS payload_bytes",
        f"from_json(_header_list, '{HEADERS}') AS headers",
        f"CASE WHEN _reason = {literal(THROWN)} THEN {literal(time_reason)} ELSE _reason END AS reason",
        "_log_time AS log_time",
    )


def requeued_rows(parsed: DataFrame, stream: Stream) -> DataFrame:
    """Which refused records have come back, for ``requeued/<stream>``."""
    return parsed.where("_requeued IS NOT NULL").selectExpr(
        "try_cast(split_part(_requeued, ':', 1) AS INT) AS partition",
        "try_cast(split_part(_requeued, ':', 2) AS BIGINT) AS offset",
        f"concat_ws(':', {', '.join(coordinates(stream))}) AS sent_as",
        "_log_time AS log_time",
    )


def _delete_time(stream: Stream) -> str:
    """SQL: a branch of a CASE that gives the time of a row's delete: that of its source, as the deleted row has an earlier event's."""
    if not stream.captured:
        return ""
    usable = f"{SOURCE}.ts_ms BETWEEN {LEAST_TIME // 1000} AND {GREATEST_TIME // 1000}"
    return f"WHEN _op = 'purge' AND {usable} THEN timestamp_millis({SOURCE}.ts_ms)"


def _add_rank(rows: DataFrame, stream: Stream, guard: str) -> DataFrame:
    """The rows with ``_rank``, by the stream's ``order:``. Raises ConfigError where that is no whole number and no time."""
    order = safe(nulled(stream.order or "NULL", stream.types))
    try:
        rank = rank_of(order, parse_type(ddl(rows.selectExpr(f"({order}) AS x").schema[0].dataType)))
    except ValueError as error:
        raise ConfigError(f"streams.{stream.name}.order: found {stream.order!r} {error}") from None
    given_or_computed = (
        f"CASE WHEN {RANK} IS NOT NULL THEN CAST({RANK} AS BIGINT) WHEN {IN_ORDER} THEN {guard.format(rank)} END"
    )
    return rows.withColumn("_rank", F.expr(f"CASE WHEN _reason IS NULL THEN {given_or_computed} END"))


def _rank_reason(stream: Stream) -> str:
    """SQL: why an event that has no rank is refused."""
    reason = f"found no place in the order {stream.order}, expected a whole number of at most 18 digits, or a time"
    return f"CASE WHEN {IN_ORDER} AND _rank IS NULL THEN {literal(reason)} END"


def _time(stream: Stream) -> str:
    """The time of a stream's events, as Spark is given it."""
    return safe(nulled(stream.time or "NULL", stream.types))
