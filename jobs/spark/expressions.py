"""The file's expressions as Spark sees them: their types and those of a store, or what is wrong with one; and a key's text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructType
from sqlglot.dialects.spark import Spark

from statehouse.alike import given
from statehouse.alike_reducers import own_given_or_written
from statehouse.config.models import Config, Own, Store, Stream
from statehouse.errors import ConfigError
from statehouse.fold import Rule
from statehouse.reducers import ORDER
from statehouse.spark_sql import TIMES, quoted
from statehouse.tables import changelog_columns
from statehouse.types import INTEGERS, NUMBERS

KEYS = ("STRING", "BOOLEAN", *INTEGERS, "DECIMAL", *TIMES)
CARRIED = (*KEYS, *NUMBERS, "BINARY")  # by tables and both engines, beside what is nested
KNOWN = "a type that JSON and both engines have"


def schema_of(columns: Mapping[str, str]) -> StructType:
    """Columns that expressions may name, all nullable: what is NOT NULL is refused with a reason, not by the parser."""
    schema = cast(StructType, StructType.fromDDL(", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())))
    for field in schema.fields:
        field.nullable = True
    return schema


def ddl(kind: DataType) -> str:
    """A type as Spark's DDL in capitals; but a struct's fields have the names that they were declared with."""
    if isinstance(kind, ArrayType):
        return f"ARRAY<{ddl(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{ddl(kind.keyType)}, {ddl(kind.valueType)}>"
    if isinstance(kind, StructType):
        return f"STRUCT<{', '.join(f'{_field(f.name)}: {ddl(f.dataType)}' for f in kind.fields)}>"
    return kind.simpleString().upper()


def _field(name: str) -> str:
    """A field's name, quoted where Spark or sqlglot could take it for something else."""
    plain = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name.upper() not in Spark.Tokenizer.KEYWORDS
    return name if plain else quoted(name)


def is_one(kind: DataType, names: Sequence[str]) -> bool:
    """Whether a type is one of these, such as ``DECIMAL``, whatever its digits."""
    return ddl(kind).partition("(")[0] in names


def can_carry(kind: DataType) -> bool:
    """Whether tables and both engines can carry a type."""
    if isinstance(kind, ArrayType):
        return can_carry(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and can_carry(kind.valueType)
    if isinstance(kind, StructType):
        return all(can_carry(f.dataType) for f in kind.fields)
    return is_one(kind, CARRIED)


def holds_map(kind: DataType) -> bool:
    """Whether a type is a map, or has one in it."""
    if isinstance(kind, StructType):
        return any(holds_map(f.dataType) for f in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and holds_map(kind.elementType))


_TYPES: dict[tuple[Any, ...], DataType] = {}  # of expressions over columns: each job asks for those of all stores


def data_type(
    spark: SparkSession, stream: Stream, expression: str, columns: Mapping[str, str] | None = None
) -> DataType:
    """The type of an expression over a stream's columns (by default all that the changelog has); ConfigError with Spark's own words."""
    seen = columns if columns is not None else changelog_columns(stream)
    asked = expression, *seen.items()
    if asked not in _TYPES:
        try:
            rows = spark.createDataFrame([], schema_of(seen))
            _TYPES[asked] = rows.selectExpr(f"({expression}) AS x").schema[0].dataType
        except (AnalysisException, ParseException) as error:
            raise ConfigError(refusal(error)) from None
    return _TYPES[asked]


def type_of(spark: SparkSession, stream: Stream, expression: str, columns: Mapping[str, str] | None = None) -> str:
    """The same as :func:`ddl`."""
    return ddl(data_type(spark, stream, expression, columns))


def refusal(error: Exception) -> str:
    """What Spark says is wrong with an expression, in short."""
    text = " ".join(str(error).split(";\n")[0].split())
    return text.split(" SQLSTATE")[0].split(" == SQL")[0]


def rule_of(spark: SparkSession, config: Config, store: Store) -> Rule:
    """The store with the types that Spark finds for its keys and its value; ConfigError names the setting."""
    stream = config.streams[store.stream]

    def infer_type(setting: str, expression: str) -> str:
        try:
            return type_of(spark, stream, expression)
        except ConfigError as error:
            raise ConfigError(f"stores.{store.name}.{setting}: found {expression!r}: {error}") from None

    keys = tuple(infer_type("key", k.expression) for k in store.keys)
    value = infer_type("value", store.value) if store.value else "BOOLEAN"
    for setting, expression in (("where", store.where), ("agent", store.agent)):
        if expression:
            infer_type(setting, expression)
    written = given(store, changelog_columns(stream))
    if not isinstance(store.reduce, Own):
        return Rule(store, keys, value, nulled=written, ranked=stream.ranked, captured=stream.captured)
    try:
        types = own_types(spark, store.reduce, value)
        written = (*written, *own_given_or_written(store.reduce, value, types))
        return Rule(store, keys, value, types, written, ranked=stream.ranked, captured=stream.captured)
    except ConfigError as error:
        raise ConfigError(f"stores.{store.name}.reduce.{error}") from None


def own_types(spark: SparkSession, reduce: Own, value: str) -> tuple[str, ...]:
    """The types of a user's reducer: of its columns, then of its result. ConfigError begins with the place, ``fold.x: ``."""

    def infer_type(place: str, columns: str, expression: str) -> str:
        try:
            frame = spark.createDataFrame([], columns).selectExpr(f"({expression}) AS x")
        except (AnalysisException, ParseException) as error:
            raise ConfigError(f"{place}: found {expression!r}: {refusal(error)}") from None
        kind = frame.schema[0].dataType
        if not can_carry(kind) and not isinstance(kind, NullType):
            raise ConfigError(f"{place}: found {expression!r} of type {ddl(kind)}, expected {KNOWN}")
        return ddl(kind)

    seen = f"value {value}, event_time TIMESTAMP, agent STRING, _order {ORDER}"
    columns = {c: infer_type(f"fold.{c}", seen, e) for c, e in reduce.fold.items()}
    for column, expression in reduce.fold.items():
        if not _aggregates(spark, seen, expression):
            raise ConfigError(f"fold.{column}: found {expression!r}, expected an aggregate such as max(value)")
    if unfit := next((c for c, t in columns.items() if t == "VOID"), None):
        raise ConfigError(f"fold.{unfit}: found {reduce.fold[unfit]!r} of no type, expected CAST(... AS type)")
    fields = ", ".join(f"{quoted(c)}: {t}" for c, t in columns.items())
    for column, expression in reduce.combine.items():
        infer_type(
            f"combine.{column}", f"a STRUCT<{fields}>, b STRUCT<{fields}>", f"CAST(({expression}) AS {columns[column]})"
        )
    state = ", ".join(f"{quoted(c)} {t}" for c, t in columns.items())
    return (*columns.values(), infer_type("result", state, reduce.result))


def _aggregates(spark: SparkSession, columns: str, expression: str) -> bool:
    """Whether an expression makes one row of many: Spark lets it stand beside a plain column only if it does not."""
    try:
        spark.createDataFrame([], columns).selectExpr("_order", f"({expression}) AS x")
    except AnalysisException:
        return True
    return False


def key_text(rule: Rule, parts: Sequence[str] | None = None) -> str:
    """SQL: a key as Kafka's key: text, as a set or purge has it. The parts of a composite key, or a key and its window, are
    percent-encoded and separated by '/'. They are the columns of that name, or other expressions."""
    texts = [_text(p, kind) for p, kind in zip(parts or map(quoted, rule.keys), rule.keys.values(), strict=True)]
    if len(texts) == 1 and not rule.store.composite:
        return texts[0]
    return f"concat_ws('/', {', '.join(f'''replace(url_encode({text}), '+', '%20')''' for text in texts)})"


def _text(column: str, kind: str) -> str:
    if kind != "TIMESTAMP":
        return f"CAST({column} AS STRING)"
    fraction = f"CASE WHEN unix_micros({column}) % 1000000 <> 0 THEN date_format({column}, '.SSSSSS') ELSE '' END"
    return f"concat(date_format({column}, \"yyyy-MM-dd'T'HH:mm:ss\"), {fraction}, 'Z')"
