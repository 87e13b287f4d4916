"""A stream's format as plain values, which are sent to Spark's executors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

JSON, AVRO, PROTOBUF, JSON_SCHEMA = "json", "avro", "protobuf", "json_schema"
STRING, CSV, BYTES = "string", "csv", "bytes"
# Formats whose payloads name a schema of a registry, and how the registry calls them.
KINDS = {AVRO: "AVRO", PROTOBUF: "PROTOBUF", JSON_SCHEMA: "JSON"}
WRITTEN = (JSON, CSV)  # nothing else says which columns their payloads have
DEFAULT_SCHEMAS = {STRING: "value STRING", BYTES: "value BINARY"}
UNKNOWN = "unknown schema: "  # a record waits for the schema of the id that follows
IN_FILE = ""  # the id of a schema that is in a file


class Schema(NamedTuple):
    """A schema as text, and the names and texts of those that it refers to, each after those that it refers to itself. ``kind`` is what
    the registry calls its format."""

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


Schemas = Mapping[str, "Schema | None"]  # by id; None: the registry has none of this id


@dataclass(frozen=True)
class Format:
    """``framed``: each payload, or a header of its record, has the id of its schema, which is one of ``schemas``. Else there is
    one, whose id is :data:`IN_FILE`."""

    name: str = JSON
    delimiter: str = ","  # of CSV
    framed: bool = False
    schemas: tuple[tuple[str, Schema | None], ...] = ()

    def knowing(self, more: Schemas) -> Format:
        """The same with further schemas."""
        return dataclasses.replace(self, schemas=tuple({**dict(self.schemas), **more}.items()))
