"""Rows as payloads that name a schema of the registry: what a route's `format` asks for."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from jobs.spark.expressions import ddl
from statehouse.config.models import Config, Target
from statehouse.formats.format import Schema
from statehouse.types import Type, parse_type

VALUE = "value"


def columns_of(schema: StructType) -> tuple[tuple[str, Type], ...]:
    """The columns of rows by name. Raises ValueError for one whose type has no form in a payload."""
    return tuple((field.name, parse_type(ddl(field.dataType))) for field in schema)


def schema_of(target: Target, schema: StructType) -> Schema:
    """The schema of a route's messages, by its rows. Raises ValueError where there is none."""
    from statehouse.formats.writing import schema_of  # with packages that others do not need

    return schema_of(target.format, str(target.topic), columns_of(schema))


def register(config: Config, target: Target, schema: Schema) -> int:
    """The id of a schema among the versions of the target's subject. Raises RegistryUnavailable, SchemaRefused."""
    from statehouse.formats.registry import registry_of

    return registry_of(config.registry or {}).register(target.subject or f"{target.topic}-value", schema)


def framed_json(text: Column, id: int) -> Column:
    """The payload of a text of JSON."""
    from statehouse.formats.writing import frame

    return F.concat(F.unhex(F.lit(frame(id).hex())), F.encode(text, "UTF-8"))


def in_avro(messages: DataFrame, rows: StructType, schema: Schema, id: int) -> DataFrame:
    """Messages whose value is a struct, with that as its payload."""
    columns = columns_of(rows)
    fields = [StructField(VALUE, BinaryType()) if f.name == VALUE else f for f in messages.schema]

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from statehouse.formats.writing import avro_payloads

        for batch in batches:
            place = batch.schema.get_field_index(VALUE)
            payloads = avro_payloads(schema, columns, id, batch.column(place))
            yield batch.set_column(place, VALUE, payloads)

    return messages.mapInArrow(encode, StructType(fields))
