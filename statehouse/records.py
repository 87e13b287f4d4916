"""Kafka's records as events of a stream, or the reason why one is refused: for both halves, before and after the changelog has them.

A record with a payload and no operation in its headers is a *report*: its payload has the stream's columns. Any other is a
*control event* (see :mod:`statehouse.headers`): a set or a purge of a key, a task that is asked for, or its end. What is
left to the engines are lookups and the event time, which are SQL.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from statehouse import topics
from statehouse.decoder import decoder_of
from statehouse.formats.debezium import decoder_of as change_decoder_of
from statehouse.formats.decoders import decoder_of as payload_decoder_of
from statehouse.formats.format import DEBEZIUM, JSON, Format, Schemas
from statehouse.formats.wire import ID_HEADER
from statehouse.headers import (
    OP_HEADER,
    ORDER_HEADER,
    REPORT,
    REQUEUED_HEADER,
    STORE_HEADER,
    TASK_OPERATIONS,
    TOMBSTONE,
)
from statehouse.payload import SHOWN, Field, Refused, convert, micros_of, read_object, text_of
from statehouse.types import ENCODED, FORMS, INTEGERS, Type, parse_type, type_or_none

if TYPE_CHECKING:  # executors have neither pydantic nor sqlglot
    from statehouse.config.models import Store, Stream
    from statehouse.fold import Rule

STRING = Type("STRING", "STRING")
# Text beside the payload's columns: what the record does, to which store, as whom and with which value; the payload, and why it is refused.
SAID = ("_op", "_store", "_agent", "_value", "_text", "_reason")
RANK = "_given_rank"  # and, where the stream has an order, the place that a set or a purge gives itself
NOTHING = "not a JSON object: found nothing"
IN_JSON = Format()
Decoded = tuple[list[str | None], list[pa.Array], list[str | None]]  # texts, columns and reasons


@dataclass(frozen=True)
class Target:
    """A store as control events see it. ``key_types`` and ``event_type`` are None where they are not known yet: then neither keys nor
    values are checked."""

    name: str
    key_types: tuple[Type, ...] | None = None
    event_type: Type | None = None
    windowed: bool = False
    additive: bool = False
    composite: bool = False


def target_of(store: Store, rule: Rule | None) -> Target:
    """A store as control events see it; its types are known by its ``rule``."""
    if rule is None:
        return Target(store.name, windowed=bool(store.windows), additive=store.reducer.additive)
    keys = tuple(kind for ddl in rule.key_columns.values() if (kind := type_or_none(ddl)))
    known = len(keys) == len(rule.key_columns)
    kind = type_or_none(rule.event_type)
    return Target(
        store.name, keys if known else None, kind, bool(store.windows), store.reducer.additive, store.composite
    )


def fields_of(stream: Stream) -> tuple[Field, ...]:
    """The columns of a stream's payloads."""
    return tuple(Field(column.name, parse_type(column.type), column.required) for column in stream.columns)


def decoder_for(
    stream: Stream,
    stores: Iterable[Store],
    rules: Iterable[Rule],
    tasks: Sequence[str] | None = None,
    format: Format | None = None,
) -> RecordDecoder:
    """The decoder of a stream, whose ``stores`` are given, and the rules of those whose types are known; its payloads are of the
    stream's format, or of another ``format``."""
    known = {rule.store.name: rule for rule in rules}
    targets = tuple(target_of(store, known.get(store.name)) for store in stores)
    askable = None if tasks is None else tuple(tasks)
    payloads = format or stream.payload_format
    return RecordDecoder(fields_of(stream), targets, askable, stream.askable_topics, payloads, stream.ranked)


@dataclass(frozen=True)
class RecordDecoder:
    """Of one stream: its ``fields``, the ``targets`` of its sets and purges, the stores that a task may set (None: there are no
    tasks here), and patterns of the topics that one may send to; ``ranked``: whether its events are in an order that its payloads tell.
    It is sent to Spark's executors, and so holds nothing but plain values."""

    fields: tuple[Field, ...]
    targets: tuple[Target, ...] = ()
    tasks: tuple[str, ...] | None = None
    topics: tuple[str, ...] = ()
    format: Format = IN_JSON
    ranked: bool = False

    def knowing(self, schemas: Schemas) -> RecordDecoder:
        """The same, which knows further schemas of payloads."""
        return dataclasses.replace(self, format=self.format.knowing(schemas))

    @property
    def schema(self) -> pa.Schema:
        """The columns of :meth:`decode`."""
        added = [pa.field(name, pa.string()) for name in (*SAID, *([RANK] if self.ranked else []))]
        return pa.schema([*decoder_of(self.fields).schema, *added])

    def decode(
        self,
        operations: Sequence[bytes | None],
        stores: Sequence[bytes | None],
        keys: Sequence[str | None],
        values: Sequence[bytes | None],
        ids: Sequence[bytes | None] | None = None,
        ranks: Sequence[bytes | None] | None = None,
    ) -> pa.RecordBatch:
        """Records as :attr:`schema` has them, in their order: of each what its headers say of operation and store, its key as text
        (None where it is not UTF-8), its value, and what its headers say of its schema and of its rank (None: of none anything)."""
        captured = self.format.name == DEBEZIUM
        kinds = [
            header_text(operation) or (REPORT if value is not None or captured else "purge")
            for operation, value in zip(operations, values, strict=True)
        ]
        controls = [index for index, kind in enumerate(kinds) if kind != REPORT]
        if self.format.name == JSON:
            texts, columns, reasons = self._decode_json(values, kinds)
        elif captured:
            texts, columns, reasons = self._decode_changes(values, kinds, ids or [None] * len(values), keys)
        else:
            texts, columns, reasons = self._decode_formatted(values, kinds, ids or [None] * len(values))
        names: list[str | None] = [None] * len(texts)
        agents, given, places = list(names), list(names), list(names)
        for index in controls:
            names[index] = store = header_text(stores[index])
            try:
                agents[index], given[index] = self._check_control(kinds[index], store, keys[index], texts[index])
                if self.ranked and kinds[index] not in TASK_OPERATIONS:
                    places[index] = self._rank(kinds[index], None if ranks is None else header_text(ranks[index]))
            except Refused as reason:
                reasons[index] = str(reason)
        added = (kinds, names, agents, given, texts, reasons, *([places] if self.ranked else []))
        arrays = [pa.array(column, pa.string()) for column in added]
        return pa.record_batch([*columns, *arrays], schema=self.schema)

    def _decode_json(self, values: Sequence[bytes | None], kinds: Sequence[str]) -> Decoded:
        """Reports in JSON; and the text of every record."""
        texts = [None if value is None else _utf8(value) for value in values]
        payloads = [text if kind == REPORT else None for text, kind in zip(texts, kinds, strict=True)]
        columns, reasons = decoder_of(self.fields).decode(payloads)
        if None in payloads:
            for index, (payload, kind) in enumerate(zip(payloads, kinds, strict=True)):
                if payload is None and kind == REPORT:
                    reasons[index] = NOTHING if values[index] is None else "not UTF-8"
        return texts, columns, reasons

    def _decode_formatted(
        self, values: Sequence[bytes | None], kinds: Sequence[str], ids: Sequence[bytes | None]
    ) -> Decoded:
        """Reports in another format; and the text of control events, which are JSON."""
        pairs = list(zip(values, kinds, strict=True))
        texts = [None if value is None or kind == REPORT else _utf8(value) for value, kind in pairs]
        payloads = [value if kind == REPORT else None for value, kind in pairs]
        columns, reasons = payload_decoder_of(self.fields, self.format).decode(payloads, ids)
        for index, (value, kind) in enumerate(pairs):
            if value is None and kind == REPORT:
                reasons[index] = f"found nothing, expected a payload in {self.format.name}"
        return texts, columns, reasons

    def _decode_changes(
        self,
        values: Sequence[bytes | None],
        kinds: list[str],
        ids: Sequence[bytes | None],
        keys: Sequence[str | None],
    ) -> Decoded:
        """Changes of a table's rows, of which those that delete one become purges, and those that say nothing tombstones, in ``kinds``;
        and the text of control events, which are JSON."""
        pairs = list(zip(values, kinds, strict=True))
        texts = [None if value is None or kind == REPORT else _utf8(value) for value, kind in pairs]
        payloads = [value if kind == REPORT else None for value, kind in pairs]
        columns, reasons, changes = change_decoder_of(self.fields, self.format).decode(payloads, ids, keys)
        for index, (value, kind) in enumerate(pairs):
            if kind == REPORT:
                kinds[index] = TOMBSTONE if value is None else changes[index]
        return texts, columns, reasons

    def _check_control(
        self, operation: str, store: str | None, key: str | None, text: str | None
    ) -> tuple[str | None, str | None]:
        """The agent and the value, as text, of a control event."""
        operations = ["set", "purge", *(TASK_OPERATIONS if self.tasks is not None else ())]
        if operation not in operations:
            expected = " or ".join([", ".join(operations[:-1]), operations[-1]])
            raise Refused(f"{OP_HEADER}: found {operation[:SHOWN]}, expected {expected}")
        if key is None and (operation in ("set", "purge") or store is not None):
            raise Refused(f"a {operation} without a key in UTF-8")
        target = next((known for known in self.targets if known.name == store), None)
        if store is not None and target is None:
            names = ", ".join(known.name for known in self.targets) or "none: this stream has no stores"
            raise Refused(f"{STORE_HEADER}: found {store[:SHOWN]}, expected one of {names}")
        if operation in TASK_OPERATIONS:
            self._check_task(operation, store, text)
        if operation == "task" and target and target.windowed:
            raise Refused(f"a task that waits for {store}, expected a store without windows")
        if operation == "set" and target and target.windowed:
            raise Refused(f"a set on {store}, expected a purge: it has windows, and a set names none")
        if target and key is not None:
            _check_key(key, target)
        if operation == "set":
            return _parse_set(target, text)
        return None, text if operation in TASK_OPERATIONS else None

    def _rank(self, operation: str, rank: str | None) -> str:
        """The place of a set or a purge in the order that payloads tell: where there are changes of a table it has none."""
        if self.format.name == DEBEZIUM:
            raise Refused(f"found a {operation} among changes of a table, expected none: its database does not know it")
        if rank is None:
            raise Refused(
                f"found a {operation} without the header {ORDER_HEADER}, expected its place in the stream's order"
            )
        if not re.fullmatch(r"-?[0-9]{1,18}", rank):
            raise Refused(f"{ORDER_HEADER}: found {rank[:SHOWN]}, expected a whole number of at most 18 digits")
        return rank

    def _check_task(self, operation: str, store: str | None, text: str | None) -> None:
        """Whether a task is one: its payload is ``{"due": …, "send": {"topic", "key", "value"}}``, or with ``"set": {"store", "key",
        "value"}``; with ``"value"`` it waits for the state of the key and the store that its record names."""
        body = read_object(text or "")
        if operation == "cancel":
            if not isinstance(body.get("id"), str):
                raise Refused('a cancel whose payload is not a JSON object such as {"id": "t:0:17"}')
            return
        _check_due(body.get("due"))
        send, setting = body.get("send"), body.get("set")
        topic = send.get("topic") if isinstance(send, dict) else None
        wanted = setting.get("store") if isinstance(setting, dict) else None
        if (topic is None) == (wanted is None):
            raise Refused("a task without send.topic and set.store, or with both, expected one")
        if topic is not None:
            possible = topics.is_possible(topic)
            if expected := topics.expected_instead(topic, self.topics) if possible else topics.POSSIBLE:
                raise Refused(f"send.topic: found {str(topic)[:300]}, expected {expected}")
        if wanted is not None:
            if self.tasks is None or wanted not in self.tasks:
                names = ", ".join(self.tasks or ()) or "none: no store can be set"
                raise Refused(f"set.store: found {str(wanted)[:SHOWN]}, expected one of {names}")
            if not isinstance(setting, dict) or setting.get("key") is None or "value" not in setting:
                raise Refused("set: found no key or no value, expected both")
        if "value" in body and store is None:
            raise Refused(f"value: found one, expected the header {STORE_HEADER} too: whose value is waited for")
        if "value" in body and body["value"] is None:
            raise Refused("value: found null, expected a value")


class Header(msgspec.Struct):
    """One of a record's headers as JSON, its value in base64; without one where that is null."""

    key: str
    value: bytes | None = None


_HEADERS = msgspec.json.Decoder(list[Header])


def parse_headers(
    headers: pa.Array,
) -> tuple[list[bytes | None], list[bytes | None], list[bytes | None], list[bytes | None], list[bytes | None]]:
    """The values of our headers, a list for each: operation, store, the refused record that one was sent again for, the payload's schema
    and the record's rank; None where a record has none. ``headers`` are lists as JSON, or null. Of several headers with one name the
    last counts."""
    operations: list[bytes | None] = [None] * len(headers)
    stores, requeued, schemas, ranks = (list(operations) for _ in range(4))
    for index in pc.indices_nonzero(headers.is_valid()).to_pylist():
        by_name = {header.key: header.value for header in _HEADERS.decode(headers[index].as_py())}
        operations[index], stores[index] = by_name.get(OP_HEADER), by_name.get(STORE_HEADER)
        requeued[index], schemas[index] = by_name.get(REQUEUED_HEADER), by_name.get(ID_HEADER)
        ranks[index] = by_name.get(ORDER_HEADER)
    return operations, stores, requeued, schemas, ranks


def header_maps(headers: pa.Array) -> pa.Array:
    """All headers of records as :func:`headers_of` has them; ``headers`` as in :func:`parse_headers`."""
    lists = [None if text is None else _HEADERS.decode(text) for text in headers.to_pylist()]
    maps = [None if of is None else headers_of({header.key: header.value for header in of}) for of in lists]
    return pa.array(maps, pa.map_(pa.string(), pa.string()))


def headers_of(by_name: Mapping[str, bytes | None]) -> list[tuple[str, str | None]]:
    """A record's headers as the column ``_headers`` has them: as text, null where a value is not UTF-8."""
    return [(name, None if value is None else _utf8(value)) for name, value in by_name.items()]


def _utf8(value: bytes) -> str | None:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return None


def header_text(value: bytes | None) -> str | None:
    """A header's value as text; what is not UTF-8 in it is shown as such, and then names no operation and no store."""
    return None if value is None else value.decode(errors="replace")


def _check_due(due: Any) -> None:
    try:
        micros_of(due)
    except (TypeError, ValueError):
        text = due[:SHOWN] if isinstance(due, str) else "nothing" if due is None else msgspec.json.encode(due).decode()
        raise Refused(f"due: found {text[:SHOWN]}, expected a time such as 2026-05-01T10:00:00Z") from None


def _parse_set(target: Target | None, text: str | None) -> tuple[str, str | None]:
    """The agent and the value of a set, as text that both engines read alike."""
    if target is None:
        raise Refused(f"a set without the header {STORE_HEADER}")
    try:
        body = read_object(text or "")
    except Refused:
        body = {}
    if "value" not in body:
        raise Refused('a set whose payload is not a JSON object such as {"value": 1, "agent": "a"}')
    agent, value = convert(body.get("agent"), STRING, "agent"), body["value"]
    if value is None and target.additive:
        raise Refused(f"a set of null, expected a value: to clear a key of {target.name}, purge it")
    kind = target.event_type
    if kind is None:
        return agent, convert(value, STRING, "value")
    return agent, text_of(convert(value, kind, "value"), kind)


def _check_key(key: str, target: Target) -> None:
    """Whether a key's text is one of a store's: a composite key's parts are percent-encoded and separated by '/'."""
    if target.key_types is None:
        return
    parts: list[str | None] = [key]
    if target.composite:
        parts = [_decode_part(part) for part in key.split("/")]
    if len(parts) != len(target.key_types) or not all(map(is_text_of, parts, target.key_types)):
        kinds = "/".join(kind.ddl for kind in target.key_types)
        raise Refused(f"found the key {key[:SHOWN]}, expected a key of {target.name}: {kinds}")


def _decode_part(part: str) -> str | None:
    """A part of a composite key, which is percent-encoded; None where it is not."""
    return _utf8(unquote_to_bytes(part)) if re.fullmatch(ENCODED, part) else None


def is_text_of(text: str | None, kind: Type) -> bool:
    """Whether text is a value of a scalar type in a form that both engines read alike (:data:`statehouse.types.FORMS`)."""
    if text is None or not re.fullmatch(FORMS.get(kind.name, "(?s:.*)"), text):
        return False
    if kind.name == "BOOLEAN":
        return True
    value: Any = int(text) if kind.name in INTEGERS else text
    try:
        convert(text.removesuffix("Z") if kind.name == "TIMESTAMP_NTZ" else value, kind, "")
    except Refused:
        return False
    return True
