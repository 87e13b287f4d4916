"""JSON Schema: the columns that a schema has. Its records are JSON behind an id, and are read as any other JSON.

Records are not validated against their schema: the producer did that, and the columns have types of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from statehouse.decoder import decoder_of
from statehouse.formats import values
from statehouse.formats.format import Schema
from statehouse.formats.framed import FramedDecoder
from statehouse.formats.values import scalar
from statehouse.payload import Refused
from statehouse.types import Type

DEEPEST = 50  # levels of a type
INTEGERS = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT"}  # as Kafka Connect notes them
TEXTS = {"date-time": "TIMESTAMP", "date": "DATE"}


class JsonSchemaDecoder(FramedDecoder):
    """See :class:`statehouse.formats.decoders.PayloadDecoder`."""

    def decode(
        self, payloads: Sequence[bytes | None], ids: Sequence[bytes | None]
    ) -> tuple[list[pa.Array], list[str | None]]:
        reasons: list[str | None] = [None] * len(payloads)
        texts: list[str | None] = [None] * len(payloads)
        schema_ids = [""] * len(payloads)
        for index, (payload, id) in enumerate(zip(payloads, ids, strict=True)):
            if payload is None:
                continue
            try:
                frame = self.frame(payload, id)
                schema_ids[index] = frame.id
                self.schema(frame.id)
                texts[index] = _text(payload[frame.end :] if frame.data is payload else payload)
            except Refused as reason:
                reasons[index] = str(self.name_schema(reason, schema_ids[index]))
        columns, wrong = decoder_of(self.fields).decode(texts)
        for index, text in enumerate(wrong):
            if text is not None:
                reasons[index] = str(self.name_schema(Refused(text), schema_ids[index]))
        return columns, reasons


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise Refused("not UTF-8") from None


def columns(schema: Schema) -> list[tuple[str, Type]]:
    """The columns that a schema's objects have; raises Refused for one that cannot be read, or is of no object."""
    try:
        documents = _Documents(schema)
        return documents.properties()
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        if isinstance(error, Refused):
            raise
        detail = f"{type(error).__name__}: {error}"[:200]
        raise Refused(f"found a schema that cannot be read ({detail}), expected a JSON Schema") from None


class _Documents:
    """A schema, and those that it refers to, by name."""

    def __init__(self, schema: Schema) -> None:
        self._main = json.loads(schema.text)
        self._others = {name: json.loads(text) for name, text in schema.references}
        self._open = {
            (id(self._main), id(self._main))
        }  # what is being looked at: parts, and the documents that they are in

    def properties(self) -> list[tuple[str, Type]]:
        columns = self._merge_properties(self._main, self._main, 0)
        if not columns:
            raise Refused("found a schema without properties, expected one of an object that has some")
        return list(columns.items())

    def _merge_properties(self, part: Any, root: Any, depth: int) -> dict[str, Type]:
        """The properties of an object, of all of its parts, or of any of its alternatives."""
        if not isinstance(part, dict) or depth > DEEPEST:
            return {}
        if "$ref" in part:
            with self._follow(part["$ref"], root) as target:
                return self._merge_properties(*target, depth + 1) if target else {}
        properties: dict[str, Type] = {
            name: self._type(inner, root, depth + 1) for name, inner in (part.get("properties") or {}).items()
        }
        for word in ("allOf", "oneOf", "anyOf"):
            for inner in part.get(word) or ():
                properties = {**self._merge_properties(inner, root, depth + 1), **properties}
        return properties

    def _type(self, part: Any, root: Any, depth: int) -> Type:
        if not isinstance(part, dict) or depth > DEEPEST:
            return values.TEXT
        if "$ref" in part:
            with self._follow(part["$ref"], root) as target:  # what has itself in it is JSON
                return self._type(*target, depth + 1) if target else values.TEXT
        for word in ("oneOf", "anyOf"):
            if word in part:
                others = [
                    inner for inner in part[word] if not (isinstance(inner, dict) and inner.get("type") == "null")
                ]
                return self._common_type(others, root, depth)
        if "allOf" in part:
            if len(part["allOf"]) == 1:
                return self._type(part["allOf"][0], root, depth + 1)
            return values.struct(list(self._merge_properties(part, root, depth).items())) or values.TEXT
        kinds = part.get("type")
        if isinstance(kinds, list):
            others = [kind for kind in kinds if kind != "null"]
            return self._common_type([{**part, "type": kind} for kind in others], root, depth)
        if kinds is None and "properties" in part:
            kinds = "object"
        return self._type_of_kind(kinds, part, root, depth)

    def _type_of_kind(self, kind: Any, part: dict[str, Any], root: Any, depth: int) -> Type:
        noted = part.get("connect.type")
        if kind == "object":
            if properties := self._merge_properties(part, root, depth):
                return values.struct(list(properties.items())) or values.TEXT
            inner = part.get("additionalProperties")
            return values.mapping(self._type(inner, root, depth + 1)) if isinstance(inner, dict) else values.TEXT
        if kind == "array":
            return values.array(self._type(part.get("items"), root, depth + 1))
        if kind == "integer":
            return scalar(INTEGERS.get(str(noted), "BIGINT"))
        if kind == "number":
            return scalar("FLOAT" if noted == "float32" else "DOUBLE")
        if kind == "boolean":
            return scalar("BOOLEAN")
        if kind == "string" and (part.get("contentEncoding") == "base64" or noted == "bytes"):
            return scalar("BINARY")
        return scalar(TEXTS.get(str(part.get("format")), "STRING")) if kind == "string" else values.TEXT

    def _common_type(self, parts: Iterable[Any], root: Any, depth: int) -> Type:
        """The type that all of these have; text where they have several."""
        kinds = {self._type(part, root, depth + 1) for part in parts}
        if {kind.name for kind in kinds} == {"BIGINT", "DOUBLE"}:
            return scalar("DOUBLE")
        return kinds.pop() if len(kinds) == 1 else values.TEXT

    @contextmanager
    def _follow(self, reference: str, root: Any) -> Iterator[tuple[Any, Any] | None]:
        """As :meth:`_target`; None where the reference is being followed already, which ends a cycle."""
        part, document = self._target(reference, root)
        key = id(part), id(document)
        if key in self._open:
            yield None
            return
        self._open.add(key)
        yield part, document
        self._open.discard(key)

    def _target(self, reference: str, root: Any) -> tuple[Any, Any]:
        """What a reference leads to, and the document that it is in."""
        name, _, pointer = reference.partition("#")
        if name:
            root = self._others.get(name) or next(
                (text for text in self._others.values() if isinstance(text, dict) and text.get("$id") == name), None
            )
            if root is None:
                raise Refused(f"found a reference to {name}, expected a schema that the registry refers to")
        part = root
        for step in pointer.strip("/").split("/") if pointer.strip("/") else ():
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            part = part[int(step)] if isinstance(part, list) else part[step]
        return part, root
