"""What a topic's payloads are written in, and each as the JSON object that it means.

The payloads themselves say what they are, where the user does not. What is not JSON is read by the decoder of the stream that is proposed:
what ``init`` sees is what the jobs will see.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from statehouse.config.file import from_document
from statehouse.config.models import Stream
from statehouse.errors import ConfigError
from statehouse.formats.debezium import ROWS, rows_of
from statehouse.formats.format import AVRO, BYTES, CSV, DEBEZIUM, JSON, KINDS, STRING, Format, Schema
from statehouse.formats.wire import frame_of, ids_of
from statehouse.payload import Refused, read_object
from statehouse.records import decoder_for
from statehouse.yaml_file import parse_yaml

if TYPE_CHECKING:
    from statehouse.formats.registry import Registry

LOOKED_AT = 200  # payloads, to find their format
DELIMITERS = ",;\t|"
CHANGE = {"op", "before", "after", "source"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]+)?")
_encode = msgspec.json.Encoder(decimal_format="number").encode


class Payload(NamedTuple):
    """Of a record: its value, what its headers say of its schema, and its key as text."""

    value: bytes
    id: bytes | None = None
    key: str | None = None


@dataclass(frozen=True)
class Encoding:
    """What the payloads of a ``topic`` are written in: the ``settings`` of its stream that say so (``format``, ``encoding``,
    ``schema_file``, ``subject``, ``delimiter``), and the properties of the ``registry`` that has their schemas. ``environ`` has more of
    these, as any configuration's."""

    topic: str = "t"
    settings: Mapping[str, str] = field(default_factory=dict)
    registry: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def format(self) -> str:
        """The format's name."""
        return self.settings.get("format", JSON)

    @cached_property
    def stream(self) -> Stream:
        """The topic's stream with these settings, and with the columns that its schema has. Raises ConfigError."""
        nowhere = f"{tempfile.gettempdir()}/{uuid.uuid4()}"  # or what is kept in a lake would say the columns
        document: dict[str, Any] = {"root": nowhere, "kafka": {"bootstrap.servers": "127.0.0.1:9092"}}
        document["streams"] = {"s": {"topic": self.topic, **self.settings}}
        if self.registry:
            document["registry"] = dict(self.registry)
        file = Path("statehouse.yaml")
        yaml = parse_yaml(json.dumps(document), str(file), "a statehouse.yaml")
        return from_document(yaml, file, self.environ).streams["s"]

    @property
    def derived(self) -> bool:
        """Whether its columns are those of a schema, or always the same, and not found in the values."""
        return self.format in (*KINDS, STRING, BYTES)

    def objects(self, payloads: Sequence[Payload]) -> list[str | Refused]:
        """Each payload as the text of a JSON object, or why it is refused. Raises ConfigError and RegistryUnavailable."""
        values, ids = [payload.value for payload in payloads], [payload.id for payload in payloads]
        if self.format == DEBEZIUM:
            schemas = self.schemas(payloads) if "encoding" in self.settings else ()
            format = Format(DEBEZIUM, framed=bool(schemas), schemas=schemas)
            return rows_of(values, ids, [payload.key for payload in payloads], format)
        if self.format == CSV:
            return _csv_objects(values, self.settings.get("delimiter", ","))
        if not self.derived:
            return [_text(value) for value in values]
        schemas = self.schemas(payloads) if self.stream.registered else ()
        none = [None] * len(values)
        rows = decoder_for(self.stream, [], []).knowing(dict(schemas)).decode(none, none, none, values, ids)
        reasons = rows.column("_reason").to_pylist()
        objects = rows.select([column.name for column in self.stream.columns]).to_pylist(maps_as_pydicts="strict")
        return [
            _encode(row).decode() if reason is None else Refused(reason)
            for row, reason in zip(objects, reasons, strict=True)
        ]

    def schemas(self, payloads: Sequence[Payload]) -> tuple[tuple[str, Schema | None], ...]:
        """The schemas that payloads name, by id. Raises RegistryUnavailable."""
        ids = ids_of((payload.value, payload.id) for payload in payloads)
        return tuple(self.client.find(sorted(ids)).items())

    @cached_property
    def client(self) -> Registry:
        """Its registry's."""
        from statehouse.formats.registry import registry_of

        settings = {"format": AVRO, "schema": "a INT"}  # so that no column is asked for
        return registry_of(Encoding(self.topic, settings, self.registry, self.environ).stream.registry)


def detect(payloads: Sequence[Payload], given: Encoding) -> Encoding:
    """The encoding of payloads, of which the user has ``given`` some settings. Raises ConfigError and RegistryUnavailable."""
    payloads = payloads[-LOOKED_AT:]
    settings = dict(given.settings)
    if "format" not in settings:
        settings = {**_settings(payloads, given), **settings}
    if settings["format"] == DEBEZIUM and _framed(payloads):
        settings["encoding"] = AVRO
    if (
        settings["format"] == CSV
        and "delimiter" not in settings
        and (delimiter := _delimiter(payloads)) not in (None, ",")
    ):
        settings["delimiter"] = str(delimiter)
    if settings["format"] == JSON:
        return Encoding(given.topic)
    in_registry = AVRO in settings.values() or settings["format"] in KINDS
    if not in_registry or "schema_file" in settings:
        return Encoding(given.topic, settings)
    if not given.registry:
        raise ConfigError(
            "--registry: found none, expected the registry that has the schemas of the payloads",
            advice="name it: --registry http://127.0.0.1:8081",
        )
    if settings["format"] == AVRO and "subject" not in settings and (subject := _subject(payloads, given)):
        settings["subject"] = subject
    return Encoding(given.topic, settings, given.registry, given.environ)


def _settings(payloads: Sequence[Payload], given: Encoding) -> dict[str, str]:
    """The format of payloads, by a look at them."""
    if "schema_file" in given.settings:
        return {"format": AVRO}
    in_header = given.registry and _most(payloads, lambda payload: payload.id is not None)
    if not payloads or (
        not in_header and _most(payloads, lambda payload: read_object(payload.value.decode()) is not None)
    ):
        return {"format": DEBEZIUM if has_changes(payloads) else JSON}
    if _framed(payloads):
        return _of_registry(payloads, given)
    if not _most(payloads, lambda payload: payload.value.decode() is not None):
        return {"format": BYTES}
    return {"format": CSV if _delimiter(payloads) else STRING}


def _of_registry(payloads: Sequence[Payload], given: Encoding) -> dict[str, str]:
    """The format that the registry says the payloads' schemas are of."""
    if not given.registry:
        return {"format": AVRO}  # most likely; that it needs one is said for all of them
    schemas = [schema for _, schema in given.schemas(payloads) if schema]
    if not schemas:
        raise ConfigError(
            f"--registry: found none of the payloads' schemas at {given.client.url}, expected them",
            advice="name another with --registry",
        )
    if {field["name"] for field in _record(schemas[-1]).get("fields", ())} >= CHANGE:
        return {"format": DEBEZIUM}
    return {"format": next(name for name, kind in KINDS.items() if kind == schemas[-1].kind)}


def _subject(payloads: Sequence[Payload], given: Encoding) -> str | None:
    """The subject of payloads in Avro that is not named by the topic; None where it is, or cannot be told."""
    if given.client.latest(f"{given.topic}-value"):
        return None
    for _, schema in given.schemas(payloads[-1:]):
        record = _record(schema) if schema else {}
        name = ".".join(filter(None, [record.get("namespace"), record.get("name")]))
        return next((one for one in (name, f"{given.topic}-{name}") if name and given.client.latest(one)), None)
    return None


def _record(schema: Schema) -> dict[str, Any]:
    """The record that a schema in Avro is; empty where it is none."""
    parsed = json.loads(schema.text) if schema.kind == KINDS[AVRO] else None
    return parsed if isinstance(parsed, dict) else {}


def _most(payloads: Sequence[Payload], is_one: Callable[[Payload], bool]) -> bool:
    """Whether half of the payloads, or more, are something."""
    count = 0
    for payload in payloads:
        with suppress(Refused, UnicodeDecodeError):
            count += is_one(payload)
    return bool(payloads) and 2 * count >= len(payloads)


def _framed(payloads: Sequence[Payload]) -> bool:
    return _most(payloads, lambda payload: frame_of(payload.value, payload.id).end > 0)


def has_changes(payloads: Sequence[Payload]) -> bool:
    """Whether half of the payloads, or more, are changes of a table's rows, in JSON."""
    return _most(payloads, lambda payload: _is_change(read_object(payload.value.decode())))


def _is_change(object: Mapping[str, Any]) -> bool:
    """Whether an object is a change of a table's row, as Debezium sends it."""
    inner = object.get("payload")
    change = inner if "op" not in object and isinstance(inner, dict) else object
    return change.get("op") in (*ROWS, "t", "m") and isinstance(change.get("source"), dict)


def _delimiter(payloads: Sequence[Payload]) -> str | None:
    """What is between the cells of CSV; None where the payloads are none."""
    for delimiter in DELIMITERS:
        with suppress(UnicodeDecodeError, csv.Error):
            counts = {len(_line(payload.value, delimiter)) for payload in payloads}
            if len(counts) == 1 and max(counts) > 1:
                return delimiter
    return None


def _line(value: bytes, delimiter: str) -> list[str]:
    lines = list(csv.reader(io.StringIO(value.decode(), newline=""), delimiter=delimiter, strict=True))
    return lines[0] if len(lines) == 1 else []


def _csv_objects(values: Sequence[bytes], delimiter: str) -> list[str | Refused]:
    """Lines of CSV as objects with the names ``c1``, ``c2`` and so on: a line says nothing of names. One with another number of cells than
    most is refused."""
    lines: list[list[str] | Refused] = []
    for value in values:
        try:
            lines.append(_line(value, delimiter) or Refused("found no line, or several, expected one"))
        except (UnicodeDecodeError, csv.Error) as error:
            lines.append(Refused("not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not CSV: {error}"))
    counts = Counter(len(line) for line in lines if not isinstance(line, Refused))
    usual = counts.most_common(1)[0][0] if counts else 0
    return [
        line
        if isinstance(line, Refused)
        else Refused(f"found {len(line)} cells, expected {usual}")
        if len(line) != usual
        else _encode({f"c{number}": _cell(text) for number, text in enumerate(line, 1)}).decode()
        for line in lines
    ]


def _cell(text: str) -> Any:
    bare = text.strip()
    if bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    return msgspec.Raw(bare.encode()) if _NUMBER.fullmatch(bare) else text or None


def _text(value: bytes) -> str | Refused:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Refused("not UTF-8")
