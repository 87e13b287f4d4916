"""A stream's format as plain values, which are sent to Spark's executors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

JSON, AVRO, PROTOBUF, JSON_SCHEMA = "json", "avro", "protobuf", "json_schema"
STRING, CSV, BYTES, DEBEZIUM = "string", "csv", "bytes", "debezium"
# Formats whose payloads name a schema of a registry, and how the registry calls them.
KINDS = {AVRO: "AVRO", PROTOBUF: "PROTOBUF", JSON_SCHEMA: "JSON"}
WRITTEN = (JSON, CSV, DEBEZIUM)  # nothing else says which columns their payloads have
DEFAULT_SCHEMAS = {STRING: "value STRING", BYTES: "value BINARY"}
UNKNOWN = "unknown schema: "  # a record waits for the schema of the id that follows
IN_FILE = ""  # the id of a schema that is in a file
# Where a change of a table's row comes from: a column of its events, as Debezium has it; `position` is made of what its database calls it.
SOURCE = "_source"
SOURCE_TYPE = (
    "STRUCT<connector: STRING, name: STRING, db: STRING, `schema`: STRING, `table`: STRING, snapshot: STRING, ts_ms: BIGINT,"
    " position: BIGINT, txId: BIGINT, lsn: BIGINT, file: STRING, pos: BIGINT, `row`: INT, gtid: STRING, scn: STRING,"
    " change_lsn: STRING, commit_lsn: STRING>"
)
SOURCE_TIME, SOURCE_POSITION = f"timestamp_millis({SOURCE}.ts_ms)", f"{SOURCE}.position"


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
