"""Kafka's records as rows of the changelog, before the changelog has them.

What a record is, is said once for both halves, by :mod:`statehouse.records`; lookups, and the event time, are SQL, here DuckDB's as in
:mod:`jobs.spark.parse` Spark's. What is made here is forgotten as soon as the changelog has, or has refused, the same coordinates.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from api.engine.duck import Connection, quoted, selected
from api.engine.fold import GUARD
from api.engine.prepared import ArrowSource, Prepared
from api.replica.lookup import Lookups
from statehouse.alike import check_stream, kind_of, nulled
from statehouse.config.models import Store, Stream
from statehouse.fold import Rule
from statehouse.formats.columns import grown
from statehouse.formats.format import SOURCE, Schemas
from statehouse.formats.registry import registry_of, wanted_by
from statehouse.formats.wire import ID_HEADER
from statehouse.headers import OP_HEADER, ORDER_HEADER, REPORT, STORE_HEADER, TOMBSTONE
from statehouse.kafka import usable_time
from statehouse.numbering import Numbering
from statehouse.payload import GREATEST_TIME, LEAST_TIME
from statehouse.records import RANK, SAID, decoder_for, fields_of, headers_of
from statehouse.spark_sql import in_years, rank_of
from statehouse.tables import EVENT_COLUMNS, HEADER_COLUMNS, TOPIC_PARTITION, event_columns
from statehouse.transpile import to_duckdb

TIME = pa.timestamp("ms", "UTC")
HEADERS = OP_HEADER, STORE_HEADER, ID_HEADER, ORDER_HEADER  # those that matter
OWN_HEADERS = "_op_header", "_store_header", "_schema_header", "_order_header"
# A record as Kafka has it.
RECORDS = {
    "_topic": pa.large_string(),
    TOPIC_PARTITION: pa.int32(),
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_timestamp": TIME,
    "_key": pa.large_string(),  # null where it is not UTF-8
    "_bytes": pa.large_binary(),
    **dict.fromkeys(OWN_HEADERS, pa.large_binary()),
    "_headers": pa.map_(pa.string(), pa.string()),
    "_timestamp_type": pa.string(),
    "_log_time": TIME,  # when it was read
}
HANDED = ("_op_header", "_store_header", "_key", "_bytes", "_schema_header", "_order_header")  # to the decoder
IN_ORDER = f"_op IN ('{REPORT}', 'purge')"  # what has its rank from its payload, where it does not give it itself
KINDS = {**EVENT_COLUMNS, **HEADER_COLUMNS, TOPIC_PARTITION: "INT", "_timestamp": "TIMESTAMP"}
PLACED = {name: KINDS[name] for name in RECORDS if name in KINDS}
TIMES = {TIMESTAMP_CREATE_TIME: "CreateTime", TIMESTAMP_LOG_APPEND_TIME: "LogAppendTime"}


def records(messages: Iterable[Message], numbering: Numbering) -> pa.Table:
    """What Kafka's client gives, as a table of :data:`RECORDS`."""
    now = time.time_ns() // 1_000_000
    return table((*_record(message, numbering), now) for message in messages)


def table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """A table of :data:`RECORDS`; moments are milliseconds since 1970."""
    columns = zip(*rows, strict=True)
    return pa.table({n: pa.array(c, kind) for c, (n, kind) in zip(columns, RECORDS.items(), strict=True)})


def _record(message: Message, numbering: Numbering) -> tuple[Any, ...]:
    topic, partition = message.topic() or "", message.partition() or 0
    number, (kind, at), more = numbering.number(topic, partition), message.timestamp(), message.headers()
    return record(topic, number, message.offset(), at, message.key(), message.value(), more, TIMES.get(kind), partition)


def record(
    topic: str, number: Any, offset: Any, time: int, key: Any, value: Any, headers: Any, kind: Any = None, *place: int
) -> tuple[Any, ...]:
    """A record as a row of :data:`RECORDS`, but for the last column; its ``number`` of a partition is Kafka's where that is not given."""
    by_name = dict(headers or ())  # the last of a name counts
    try:
        key = key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        key = None
    own, every = map(by_name.get, HEADERS), headers_of(by_name) if headers else None
    return topic, *(place or (number,)), number, offset, usable_time(time), key, value, *own, every, kind


class Parser:
    """Of one stream, for a cursor of its own; ``rules`` are those of its ``stores`` whose types are known.
    ``more``: further columns of the rows, by name, in DuckDB's words.

    Raises sqlglot's errors where the stream's time, or what it is looked up by, has no words in DuckDB, or others.
    """

    def __init__(
        self,
        db: Connection,
        stream: Stream,
        rules: Iterable[Rule],
        stores: Sequence[Store],
        more: Mapping[str, str] | None = None,
    ) -> None:
        check_stream(stream)
        self._decoder, self._stream = decoder_for(stream, stores, rules), stream
        self._placed = {n: kind for n, kind in PLACED.items() if n in event_columns(stream) or n == "_timestamp"}
        columns = stream.types | self._placed | dict.fromkeys((*SAID, *([RANK] if stream.ranked else [])), "STRING")
        self._events, self._lookups = ArrowSource(db, "_decoded", columns), Lookups(db, stream)
        query = f"({_query(stream, '_decoded', self._lookups)})"
        self._query = Prepared(db, "_parsed", f"SELECT *, {selected(more)} FROM {query}" if more else query)

    def parse(self, records: pa.Table) -> pa.Table:
        """The rows for the changelog of those records that are not refused. Raises RegistryUnavailable where one has a schema that is not
        known, and the registry does not tell it."""
        self._lookups.refresh()
        decoded = self._decode(records)
        events = pa.Table.from_batches([decoded])
        for name in self._placed:
            events = events.append_column(name, records[name])
        self._events.put(events.filter(events["_reason"].is_null()))
        return self._query.rows()

    def learn(self, ids: Iterable[str]) -> Schemas:
        """Ask the registry for those of some schemas that are not known; what it says of them. Raises RegistryUnavailable.

        As in the jobs, a schema's new fields are columns from then on: a record whose value does not fit into one is refused. Their
        values are of no use here, since no store can name them yet."""
        known = dict(self._decoder.format.schemas)
        if not (wanted := [id for id in ids if id not in known]):
            return {}
        schemas = registry_of(self._stream.registry).find(wanted)
        # That there is none of an id may not stay so.
        if learned := {id: schema for id, schema in schemas.items() if schema}:
            self._stream = grown(self._stream, learned)
            self._decoder = dataclasses.replace(self._decoder.knowing(learned), fields=fields_of(self._stream))
        return schemas

    def _decode(self, records: pa.Table) -> pa.RecordBatch:
        given = [records[name].to_pylist() for name in HANDED]
        decoded = self._decoder.decode(*given)
        if self._decoder.format.framed and (ids := wanted_by(decoded["_reason"].to_pylist())):
            schemas = self.learn(ids)
            decoded = self._decoder.knowing(schemas).decode(*given)
        return decoded


def _query(stream: Stream, events: str, lookups: Lookups) -> str:
    placed = [name for name in event_columns(stream) if name in PLACED and name != "_key"]
    names, columns = [*(quoted(c.name) for c in stream.known), *placed], stream.types
    event_time = to_duckdb(f"CAST({nulled(stream.time, columns)} AS TIMESTAMP)") if stream.time else "NULL"
    payload = "_text" if stream.keep_payload else "CAST(NULL AS VARCHAR)"
    rank, ranked, deletes = "", "", ""
    if stream.captured:  # a delete's time is when it was made: the row of before has another's
        made = f"{SOURCE}.ts_ms BETWEEN {LEAST_TIME // 1000} AND {GREATEST_TIME // 1000}"
        deletes = f"WHEN _op = 'purge' AND {made} THEN {to_duckdb(f'timestamp_millis({SOURCE}.ts_ms)')}"
    if stream.order:
        made = to_duckdb(rank_of(nulled(stream.order, columns), kind_of(stream.order, columns)))
        given = f"CASE WHEN {RANK} IS NOT NULL THEN CAST({RANK} AS BIGINT)"
        rank = f", {given} WHEN {IN_ORDER} THEN {GUARD.format(made)} END AS _rank"
        ranked = f"AND (_rank IS NOT NULL OR NOT {IN_ORDER})"
    return f"""
SELECT {", ".join(names)}, coalesce(_time, _timestamp) AS _event_time,
  _op, {f"CASE WHEN _op <> '{TOMBSTONE}' THEN _key END AS _key" if stream.captured else "_key"}, _store, _agent, _value, {payload} AS _payload{", _rank" if rank else ""}
FROM (SELECT *, CASE WHEN _op = '{REPORT}' THEN {GUARD.format(event_time)} {deletes} END AS _time{rank}
  FROM {lookups.joined(events)})
WHERE coalesce(_time, _timestamp) IS NOT NULL AND {_timed(stream)} {ranked}
{"ORDER BY _partition, _offset" if stream.lookups else ""}"""  # a join leaves them in any order


def _timed(stream: Stream) -> str:
    """Whether a report has an event time that counts."""
    if not stream.time_columns:
        return "TRUE"
    given = " OR ".join(f"{quoted(c)} IS NOT NULL" for c in stream.time_columns)
    known = f"(NOT ({given}) OR _time IS NOT NULL) AND coalesce({to_duckdb(in_years('_time'))}, TRUE)"
    return f"(_op <> '{REPORT}' OR ({known}))"
