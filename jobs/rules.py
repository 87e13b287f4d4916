"""A store's expressions as Spark sees them: their types, or what is wrong with them."""

from __future__ import annotations

from typing import cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from statehouse.config import Config, Store, Stream
from statehouse.errors import ConfigError
from statehouse.fold import Rule

REFUSED_KEYS = ("map", "array", "struct", "binary", "float", "double", "variant")


def schema_of(spark: SparkSession, stream: Stream) -> StructType:
    """The payload's columns, all nullable: what is NOT NULL is refused with a reason, not by the parser."""
    ddl = ", ".join(f"`{c.name}` {c.type}" for c in stream.columns)
    schema = cast(StructType, StructType.fromDDL(ddl))
    for found in schema.fields:
        found.nullable = True
    return schema


def type_of(spark: SparkSession, stream: Stream, expression: str) -> str:
    """The Spark DDL type of an expression over a stream's columns; ConfigError with Spark's own words."""
    try:
        frame = spark.createDataFrame([], schema_of(spark, stream)).selectExpr(f"({expression}) AS x")
        return frame.schema[0].dataType.simpleString().upper()
    except (AnalysisException, ParseException) as error:
        raise ConfigError(_short(error)) from None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split(";\n")[0].split())
    return text.split(" SQLSTATE")[0].split(" == SQL")[0]


def problems(spark: SparkSession, config: Config) -> list[tuple[tuple, str]]:
    """What Spark refuses: the path in the file, and what was found and expected. Empty when all is well."""
    found: list[tuple[tuple, str]] = []

    def ask(stream: Stream, path: tuple, expression: str | None) -> str | None:
        try:
            return type_of(spark, stream, expression) if expression is not None else None
        except ConfigError as error:
            found.append((path, f"found {expression!r}: {error}"))
            return None

    for stream in config.streams.values():
        try:
            schema_of(spark, stream)
        except (AnalysisException, ParseException) as error:
            found.append((("streams", stream.name, "schema"), f"found {stream.schema_!r}: {_short(error)}"))
            continue
        kind = ask(stream, ("streams", stream.name, "time"), stream.time)
        if kind not in (None, "TIMESTAMP", "DATE", "TIMESTAMP_NTZ"):
            message = f"found {stream.time!r} of type {kind}, expected a TIMESTAMP (such as timestamp_millis(...))"
            found.append((("streams", stream.name, "time"), message))
        for store in config.stores_of(stream.name):
            path = ("stores", store.name)
            for index, key in enumerate(store.keys):
                at = (*path, "key", index) if store.composite else (*path, "key")
                kind = ask(stream, at, key.expression)
                if kind and kind.lower().startswith(REFUSED_KEYS):
                    found.append((at, f"found a key of type {kind}, expected text, a whole number, a date or a time"))
            ask(stream, (*path, "agent"), store.agent)
            kind = ask(stream, (*path, "where"), store.where)
            if kind not in (None, "BOOLEAN"):
                found.append(((*path, "where"), f"found {store.where!r} of type {kind}, expected a BOOLEAN"))
            kind = ask(stream, (*path, "value"), store.value)
            if kind and (wrong := _unfit(store, kind)):
                found.append(((*path, "value"), f"found {store.value!r} of type {kind}, expected {wrong}"))
    return found


def _unfit(store: Store, kind: str) -> str | None:
    """What the reducer expects instead of a value of this type."""
    name = store.reducer.name
    if name in ("sum", "avg") and not kind.startswith(
        ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE")
    ):
        return f"a number to {name}"
    if name in ("min", "max", "majority", "at_least_one") and kind.startswith(("MAP", "VARIANT")):
        return "a type whose values can be compared"
    return None


def rule_of(spark: SparkSession, config: Config, store: Store) -> Rule:
    """The store with the types that Spark finds for its keys and its value."""
    stream = config.streams[store.stream]
    keys = tuple(type_of(spark, stream, k.expression) for k in store.keys)
    return Rule(store, keys, type_of(spark, stream, store.value) if store.value else "BOOLEAN")
