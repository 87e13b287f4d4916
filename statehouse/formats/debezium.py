"""Changes of a table's rows, as Debezium sends them: in JSON, with Connect's ``{"schema": …, "payload": …}`` around them or without, or in Avro.

A change is an object with ``op``, ``before``, ``after`` and ``source``. The row of an insert, an update or a read of a snapshot is ``after``;
of a delete it is ``before``, of which the key is what matters, or the record's key. What a row's columns mean is said by :mod:`statehouse.payload`,
as of any other JSON: so a change becomes the JSON of its row with its source in it. Where there is a schema, what Debezium writes as a number or as
bytes (moments, days, decimals) is made into the text that it means first (:mod:`statehouse.formats.connect`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from statehouse.decoder import decoder_of as row_decoder_of
from statehouse.formats.connect import WITHOUT_ZONE, Change, avro_fields, change_of, connect_fields, without_zone
from statehouse.formats.format import AVRO, SOURCE, Format
from statehouse.formats.framed import FramedDecoder
from statehouse.formats.wire import frame_of
from statehouse.headers import REPORT, TOMBSTONE
from statehouse.payload import SHOWN, Field, Refused, check_depth, read, read_object
from statehouse.types import Type

PURGE = "purge"
ROWS = {"c": "after", "u": "after", "r": "after", "d": "before"}  # by op: which of a change's rows it is about
MOST_SCHEMAS = 256  # that are kept: a table has few, but they come with each of its changes
# The parts of a change in Avro, each as the text of its JSON.
PARTS = tuple(Field(name, Type("STRING", "STRING")) for name in ("op", "before", "after", "source", "ts_ms"))
BINLOG = 10**10  # more than there are bytes in a binlog's file
_NULL = msgspec.Raw(b"null")


class Envelope(msgspec.Struct):
    """A change, or Connect's object around one."""

    op: str | None = None
    before: msgspec.Raw = _NULL
    after: msgspec.Raw = _NULL
    source: msgspec.Raw = _NULL
    ts_ms: msgspec.Raw = _NULL
    schema: msgspec.Raw = _NULL
    payload: msgspec.Raw = msgspec.Raw(b"")  # there is none


class Source(msgspec.Struct, omit_defaults=True):
    """Where a change comes from. The names are Debezium's; ``position`` is ours."""

    connector: str | None = None
    name: str | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    snapshot: str | bool | None = None
    ts_ms: int | None = None
    position: int | None = None
    txId: int | None = None
    lsn: int | None = None
    file: str | None = None
    pos: int | None = None
    row: int | None = None
    gtid: str | None = None
    scn: str | int | None = None
    change_lsn: str | None = None
    commit_lsn: str | None = None


NOTHING = Envelope()  # in the place of a change that Connect's envelope has none in
Changes = tuple[list["ChangeWithSchema | None"], list[str | None]]
_envelope = msgspec.json.Decoder(Envelope).decode
_source = msgspec.json.Decoder(Source).decode


class ChangeWithSchema(NamedTuple):
    """A change, and the schema that it was written with, as JSON; empty where there is none."""

    change: Envelope
    schema: bytes = b""


class ChangeDecoder:
    """Of changes of a table with some columns, the last of which is :data:`SOURCE`; in Avro where the ``format`` is framed, else in JSON."""

    def __init__(self, fields: Sequence[Field], format: Format) -> None:
        self.fields = tuple(fields)
        # Of a row that is deleted there may be the key alone.
        self._optional = tuple(field._replace(required=False) for field in fields)
        self._kinds = {field.name: field.kind.name for field in fields}
        self._changes: dict[bytes, dict[str, Change]] = {}
        self._unzoned: dict[str, Change] = {n: without_zone for n, kind in self._kinds.items() if kind in WITHOUT_ZONE}
        self._schemas = {id: schema.text.encode() for id, schema in format.schemas if schema is not None}
        self._avro: FramedDecoder | None = None
        if format.framed:
            self._avro = FramedDecoder(PARTS, dataclasses.replace(format, name=AVRO))

    def decode(
        self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None], keys: Sequence[str | None]
    ) -> tuple[list[pa.Array], list[str | None], list[str]]:
        """The columns of changes; for each change the reason why it is refused, or None; and its operation: a report, a purge or a
        tombstone. A payload that is None is no change: it has no values and no reason. ``ids`` are the records' headers with the
        schema's id, ``keys`` are the records' keys."""
        changes, reasons = self._in_avro(payloads, ids) if self._avro else _in_json(payloads)
        operations = [REPORT] * len(payloads)
        texts: list[str | None] = [None] * len(payloads)
        deleted: list[str | None] = [None] * len(payloads)
        for index, entry in enumerate(changes):
            if entry is None:
                continue
            try:
                operations[index], text = self._row(entry, keys[index])
            except Refused as reason:
                reasons[index] = str(reason)
                continue
            (deleted if operations[index] == PURGE else texts)[index] = text
        columns, wrong = row_decoder_of(self.fields).decode(texts)
        if any(text is not None for text in deleted):
            others, also = row_decoder_of(self._optional).decode(deleted)
            places = [index + len(payloads) * (text is not None) for index, text in enumerate(deleted)]
            order = pa.array(places, pa.int64())
            columns = [pa.concat_arrays(pair).take(order) for pair in zip(columns, others, strict=True)]
            wrong = [one or other for one, other in zip(wrong, also, strict=True)]
        return columns, [one or other for one, other in zip(reasons, wrong, strict=True)], operations

    def _in_avro(self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None]) -> Changes:
        """Changes in Avro: their rows become JSON, as any record that is a text's."""
        assert self._avro
        columns, reasons = self._avro.decode(payloads, ids)
        changes: list[ChangeWithSchema | None] = []
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for payload, id, reason, row in zip(payloads, ids, reasons, rows, strict=True):
            if payload is None or reason is not None:
                changes.append(None)
                continue
            op, *parts = row
            raw = [_NULL if part is None else msgspec.Raw(part.encode()) for part in parts]
            changes.append(ChangeWithSchema(Envelope(op, *raw), self._schemas.get(frame_of(payload, id).id, b"")))
        return changes, reasons

    def _row(self, entry: ChangeWithSchema, key: str | None) -> tuple[str, str | None]:
        """What a change does, and the JSON of its row."""
        change, schema = entry
        if change is NOTHING:
            return TOMBSTONE, None
        op = change.op
        if op is None:
            raise Refused("found no op, expected a change as Debezium sends it, with op, before, after and source")
        if op == "t":
            raise Refused(
                "found a truncate, expected changes of rows: the table's keys are not known here, so none is purged"
            )
        if op not in ROWS:
            raise Refused(f"found op {op[:SHOWN]}, expected one of {', '.join(ROWS)}")
        name = ROWS[op]
        row: msgspec.Raw = getattr(change, name)
        of: str | None = name
        if op == "d" and bytes(row) == b"null":
            row, schema = _key_of(key)
            of = None
        elif not bytes(row).startswith(b"{"):
            raise Refused(f"found op {op} without {name}, expected the row")
        return PURGE if op == "d" else REPORT, _join_source(self._as_text(row, schema, of), _source_json(change))

    def _as_text(self, row: msgspec.Raw, schema: bytes, of: str | None) -> str:
        """A row's JSON, in which values are what they mean by their schema: that of the field ``of``, or the whole."""
        changes = self._changes_by(schema, of) if schema else self._unzoned
        if not changes:
            return str(row, "utf-8")
        values = read_object(str(row, "utf-8"))
        wrong = []
        for name, change in changes.items():
            if (value := values.get(name)) is not None:
                try:
                    values[name] = change(value)
                except Refused as reason:
                    wrong.append(str(reason.at(name)))
        if wrong:
            raise Refused("; ".join(wrong))
        return msgspec.json.encode(values).decode()

    def _changes_by(self, schema: bytes, of: str | None) -> dict[str, Change]:
        """The changes of columns whose values a schema says to convert, by column. They are kept: each schema is read once."""
        known = self._changes.get(mark := schema + (of or "").encode())
        if known is None:
            if len(self._changes) >= MOST_SCHEMAS:
                self._changes.clear()
            parts = avro_fields(read(schema), of) if self._avro and of else connect_fields(read(schema), of)
            changes = {name: change_of(part, self._kinds[name]) for name, part in parts if name in self._kinds}
            known = self._changes[mark] = {name: change for name, change in changes.items() if change}
        return known


@functools.lru_cache(maxsize=64)
def decoder_of(fields: tuple[Field, ...], format: Format) -> ChangeDecoder:
    """The decoder of some columns, made once in a process."""
    return ChangeDecoder(fields, format)


class _Texts(dict[str, str]):
    """Of any column that its values are text, or a number as it is written: so nothing of them is lost."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "STRING"


def rows_of(
    payloads: Sequence[bytes], ids: Sequence[bytes | None], keys: Sequence[str | None], format: Format
) -> list[str | Refused]:
    """The row of each change as JSON, for who does not know its columns yet, or why there is none."""
    decoder = ChangeDecoder((), format)
    decoder._kinds = _Texts()
    changes, reasons = decoder._in_avro(payloads, ids) if decoder._avro else _in_json(payloads)
    rows: list[str | Refused] = []
    for change, reason, key in zip(changes, reasons, keys, strict=True):
        try:
            _, row = decoder._row(change, key) if change else (TOMBSTONE, None)
            rows.append(Refused(reason or "a tombstone") if row is None else row)
        except Refused as refused:
            rows.append(refused)
    return rows


def key_columns(key: str | None) -> tuple[str, ...]:
    """The columns that a record's key is of; none where it is not JSON."""
    try:
        return tuple(read_object(str(_key_of(key)[0], "utf-8")))
    except Refused:
        return ()


def _in_json(payloads: Sequence[bytes | None]) -> Changes:
    """Changes in JSON, without the envelope of Connect's, and the reasons why they are none."""
    changes: list[ChangeWithSchema | None] = [None] * len(payloads)
    reasons: list[str | None] = [None] * len(payloads)
    for index, payload in enumerate(payloads):
        if payload is not None:
            try:
                changes[index] = _unwrap(payload)
            except Refused as reason:
                reasons[index] = str(reason)
    return changes, reasons


def _unwrap(payload: bytes) -> ChangeWithSchema:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise Refused("not UTF-8") from None
    change = _read(text)
    payload = bytes(change.payload)
    if not payload or change.op is not None:
        return ChangeWithSchema(change)
    if payload == b"null":
        return ChangeWithSchema(NOTHING)
    schema = bytes(change.schema)
    return ChangeWithSchema(_read(payload.decode()), b"" if schema == b"null" else schema)


def _read(text: str) -> Envelope:
    check_depth(text)
    try:
        return _envelope(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        read_object(text)  # which says what is wrong with the JSON
        raise Refused(f"found no change as Debezium sends it: {str(error)[:SHOWN]}") from None


def _key_of(key: str | None) -> tuple[msgspec.Raw, bytes]:
    """The columns that a record's key is of, and their schema."""
    try:
        row = read_object(key or "")
    except Refused:
        raise Refused(
            "found op d without before, and with no key in JSON, expected one of them: the row's key"
        ) from None
    if row.keys() == {"schema", "payload"} and isinstance(row["payload"], dict):
        schema = row["schema"]
        return msgspec.Raw(msgspec.json.encode(row["payload"])), b"" if schema is None else msgspec.json.encode(schema)
    return msgspec.Raw(msgspec.json.encode(row)), b""


def _join_source(row: str, source: str) -> str:
    """The JSON of a row with its source as one more column, the last of its name."""
    inner = row[1:-1].strip()
    return f'{{{inner}{"," * bool(inner)}"{SOURCE}":{source}}}'


def _source_json(change: Envelope) -> str:
    """A change's source with its ``position``, as JSON."""
    try:
        source = _source(change.source)
    except (msgspec.MsgspecError, RecursionError):
        return str(change.source, "utf-8")  # null, or what the column refuses with a reason
    if source.ts_ms is None:
        milliseconds = bytes(change.ts_ms)
        source.ts_ms = int(milliseconds) if re.fullmatch(rb"\d{1,15}", milliseconds) else None
    # As the column has them: a change that does not fit at once is read a second time.
    if isinstance(source.snapshot, bool):
        source.snapshot = str(source.snapshot).lower()
    source.scn = None if source.scn is None else str(source.scn)
    source.position = position_of(source)
    return msgspec.json.encode(source).decode()


def position_of(source: Source) -> int | None:
    """A change's place in its database's log, as a number that grows with the log; None for a database whose log is not known here."""
    if source.connector == "postgresql":
        return source.lsn
    if source.connector in ("mysql", "mariadb"):
        number = re.search(r"\d{1,9}$", source.file or "", re.ASCII)
        if number is None or source.pos is None or not 0 <= source.pos < BINLOG:
            return None
        return int(number[0]) * BINLOG + source.pos
    if source.connector == "oracle":
        return int(str(source.scn)) if re.fullmatch(r"\d{1,18}", str(source.scn), re.ASCII) else None
    return None
