"""The sections ``streams:`` and ``lookups:``: topics, what their payloads are written in, and small tables that join them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from sqlglot import exp

from statehouse.config.base import Section
from statehouse.formats import format as formats
from statehouse.formats.format import Schema as PayloadSchema
from statehouse.topics import INTERNAL
from statehouse.values import (
    ORDERED,
    Column,
    Expression,
    OneOrMore,
    Schema,
    StreamTopics,
    Topic,
    parse_expression,
    parse_schema,
)


class Lookup(Section):
    """A small table, of whose rows a stream's events get the one that has their key: a column of that name, a struct."""

    name: str = ""
    stream: str
    table: str = Field(min_length=1)  # a Delta table, a CSV file with a header, or Parquet
    schema_: Schema = Field(alias="schema")
    key: Annotated[list[str], OneOrMore] = Field(min_length=1)
    by: Annotated[list[Expression], OneOrMore] = Field(default_factory=list)  # 'on' is true in YAML

    @cached_property
    def columns(self) -> list[Column]:
        """The table's columns that are wanted."""
        return parse_schema(self.schema_)

    @property
    def matches(self) -> list[tuple[Column, str]]:
        """The table's key, and the expression over the stream's columns that each part of it is equal to."""
        known = {c.name: c for c in self.columns}
        return [(known[name], expression) for name, expression in zip(self.key, self.by or self.key, strict=True)]

    @property
    def column(self) -> Column:
        """The column that events get."""
        fields = ", ".join(f"`{c.name}`: {c.type}" for c in self.columns)
        return Column(name=self.name, type=f"STRUCT<{fields}>")

    @model_validator(mode="after")
    def _consistent(self) -> Lookup:
        names = [c.name for c in self.columns]
        if unknown := [name for name in self.key if name not in names]:
            raise ValueError(f"found the key {unknown[0]!r}, expected one of {', '.join(names)}")
        if self.by and len(self.by) != len(self.key):
            raise ValueError(f"found by: {', '.join(self.by)}, expected as many expressions as key has columns")
        return self


class Stream(Section):
    """A topic, or several, what their payloads are written in, and their shape."""

    name: str = ""
    topic: Topic = (
        ""  # where sets and purges go, too: of several the first; empty: nowhere, as a pattern's topics are not known
    )
    topics: StreamTopics | None = None  # a list, or a pattern
    format: Literal["json", "avro", "protobuf", "json_schema", "string", "csv", "bytes", "debezium"] = "json"
    schema_: Schema | None = Field(default=None, alias="schema", validate_default=True)  # None: it is derived
    schema_file: str | None = Field(default=None, min_length=1)  # of Avro without a registry
    subject: str | None = Field(default=None, min_length=1)  # in the registry
    on_new_field: Literal["add", "ignore"] = "add"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","  # of CSV
    encoding: Literal["json", "avro"] = "json"  # of Debezium
    time: Expression | None = None
    order: Expression | None = None  # None: by their time
    keep_payload: bool = False
    keep_headers: bool = False
    cluster_by: Annotated[list[str], OneOrMore, Field(max_length=4)] = Field(default_factory=list)

    _lookups: tuple[Lookup, ...] = PrivateAttr(())
    _askable_topics: tuple[str, ...] = PrivateAttr(())
    _registry: dict[str, Any] | None = PrivateAttr(None)
    _schemas: tuple[tuple[str, PayloadSchema], ...] = PrivateAttr(())
    _derived: bool = PrivateAttr(False)

    @cached_property
    def columns(self) -> list[Column]:
        """The payload's columns, in the file's order; of changes of a table those of its rows, and where each comes from."""
        columns = parse_schema(self.schema_) if self.schema_ else []
        return [*columns, Column(name=formats.SOURCE, type=formats.SOURCE_TYPE)] if self.captured else columns

    @property
    def several(self) -> bool:
        """Whether it may have more than one topic: then its partitions are numbered through (:mod:`statehouse.numbering`)."""
        return self.topics is not None

    @property
    def topic_text(self) -> str:
        """Its topics as they are shown: ``orders``, ``orders, returns``, or a pattern."""
        return self.topics if isinstance(self.topics, str) else ", ".join(self.topics or [self.topic])

    def reads(self, topic: str) -> bool:
        """Whether a topic is one of its own."""
        if isinstance(self.topics, str):
            return not topic.startswith(INTERNAL) and re.fullmatch(self.topics, topic) is not None
        return topic in (self.topics or [self.topic])

    @property
    def captured(self) -> bool:
        """Whether its events are changes of a table's rows."""
        return self.format == formats.DEBEZIUM

    @property
    def ranked(self) -> bool:
        """Whether its events are in another order than that of their times."""
        return self.order is not None

    @property
    def registered(self) -> bool:
        """Whether its payloads name their schemas, which are in the registry."""
        in_avro = self.captured and self.encoding == formats.AVRO
        return in_avro or (self.format in formats.KINDS and self.schema_file is None)

    @property
    def registry(self) -> dict[str, Any]:
        """The registry's settings."""
        return self._registry or {}

    @property
    def subject_name(self) -> str:
        """The subject in the registry that has the versions of its schema."""
        return self.subject or f"{self.topic}-value"

    @property
    def schemas(self) -> tuple[tuple[str, PayloadSchema], ...]:
        """The schemas of its payloads that are known, by id."""
        return self._schemas

    @property
    def derived(self) -> bool:
        """Whether its columns are not written in the file, but derived from a schema."""
        return self._derived

    @property
    def payload_format(self) -> formats.Format:
        """What its payloads are written in."""
        return formats.Format(self.format, self.delimiter, self.registered, self.schemas)

    def with_columns(self, ddl: str, schemas: tuple[tuple[str, PayloadSchema], ...]) -> Stream:
        """The same with columns that are derived, or those that it has, and with known schemas. ValueError where ``cluster_by`` is of no
        such columns."""
        stream = self.model_copy(update={"schema_": ddl})
        for name in ("columns", "types", "time_columns"):  # worked out of other columns
            stream.__dict__.pop(name, None)
        stream._derived = self._derived or self.schema_ is None
        stream._schemas = schemas
        return stream._checked_order()

    @cached_property
    def types(self) -> dict[str, str]:
        """The types of the payload's columns, in Spark's DDL, by name."""
        return {column.name: column.type for column in self.columns}

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """What its events are joined with."""
        return self._lookups

    @property
    def askable_topics(self) -> tuple[str, ...]:
        """Patterns of the topics that a task which is asked for in it may send to."""
        return self._askable_topics

    @property
    def known(self) -> list[Column]:
        """The columns that expressions may name: the payload's, and those of the lookups."""
        return [*self.columns, *(lookup.column for lookup in self.lookups)]

    @cached_property
    def time_columns(self) -> list[str]:
        """The columns that the event time is made of."""
        # Of a struct's field the column that it is in.
        columns = parse_expression(self.time).find_all(exp.Column) if self.time else ()
        return sorted({column.parts[0].name for column in columns})

    @model_validator(mode="before")
    @classmethod
    def _placed(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if isinstance(topics := data.get("topics"), list) and topics:
            data = {"topic": topics[0], **data}
        if data.get("format") == formats.DEBEZIUM:
            return {"time": formats.SOURCE_TIME, "order": formats.SOURCE_POSITION, **data}
        return data

    @field_validator("schema_", mode="before")
    @classmethod
    def _needed(cls, schema: Any, info: ValidationInfo) -> Any:
        if schema is None and info.data.get("format") in formats.WRITTEN:
            raise ValueError("found no 'schema', expected one")
        if schema is None:
            return formats.DEFAULT_SCHEMAS.get(str(info.data.get("format")))
        return schema

    @model_validator(mode="after")
    def _fits(self) -> Stream:
        if not self.topic and self.topics is None:
            raise ValueError("found no 'topic', expected one, or topics: a list of them or a pattern of their names")
        if self.topic and not self.reads(self.topic):
            raise ValueError(f"topic: found {self.topic!r}, expected one of topics: sets and purges are read from it")
        fits = (  # a setting, the formats that it is for, and whether it is set
            ("schema_file", (formats.AVRO,), self.schema_file is not None),
            ("subject", formats.KINDS, self.subject is not None),
            ("on_new_field", formats.KINDS, "on_new_field" in self.model_fields_set),
            ("delimiter", (formats.CSV,), "delimiter" in self.model_fields_set),
            ("encoding", (formats.DEBEZIUM,), "encoding" in self.model_fields_set),
            ("keep_payload", (formats.JSON,), self.keep_payload),
        )
        for name, known, is_set in fits:
            if is_set and self.format not in known:
                raise ValueError(f"found {name} with format: {self.format}, expected it with {' or '.join(known)}")
        if self.registered and self.schema_ is None and not (self.topic or self.subject):
            raise ValueError(
                "found topics without subject, expected it, or schema: whose columns are they, of many topics?"
            )
        if self.schema_file and self.subject:
            raise ValueError("found schema_file and subject, expected one: a schema is in a file, or in the registry")
        if self.format in formats.DEFAULT_SCHEMAS and len(self.columns) != 1:
            raise ValueError(f"schema: found {len(self.columns)} columns, expected one: a payload is one value")
        if self.format == formats.BYTES and self.columns[0].type != "BINARY":
            raise ValueError(f"schema: found {self.columns[0].type}, expected BINARY: a payload is bytes")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Stream:
        return self if self.schema_ is None else self._checked_order()  # else they are not known yet

    def _checked_order(self) -> Stream:
        """The same; ValueError where it is clustered by what is no column, or has no order."""
        plain = {c.name: c.type for c in self.columns if c.type.upper().startswith(ORDERED)}
        if unknown := [name for name in self.cluster_by if name not in plain]:
            setting = f"cluster_by: {unknown[0]!r}"
            raise ValueError(f"found {setting}, expected columns of the schema that have an order: {', '.join(plain)}")
        return self
