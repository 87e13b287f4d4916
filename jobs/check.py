"""What Spark refuses of a configuration, for ``statehouse check``: where in the file it is, what was found and what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from jobs.route import SOURCE, columns_of, shape_events, shown_columns
from jobs.spark import databricks, registered
from jobs.spark.expressions import (
    KEYS,
    KNOWN,
    can_carry,
    data_type,
    ddl,
    holds_map,
    is_one,
    own_types,
    refusal,
    rule_of,
    schema_of,
    type_of,
)
from jobs.spark.lookup import repeated_key, table_of
from jobs.tasks.messages import visible_columns
from statehouse.config.models import Config, Lookup, Own, Route, Store, Stream, Task
from statehouse.errors import ConfigError, StatehouseError
from statehouse.fold import Rule
from statehouse.kafka_clients import known_to_librdkafka
from statehouse.records import is_text_of
from statehouse.spark_sql import TIMES, rank_of
from statehouse.types import NUMBERS, parse_type

MOST_DECIMALS = 36  # of a number that is added up: one digit more than 38 would be needed for the sum


def unknown_properties(spark: SparkSession, config: Config) -> list[str]:
    """The properties of ``kafka:`` that neither librdkafka nor Spark's client knows."""
    unsure = [name for name in config.kafka if not known_to_librdkafka(name)]
    if not unsure:
        return []
    clients = databricks.kafka_package(spark).clients
    known = {*clients.consumer.ConsumerConfig.configNames(), *clients.producer.ProducerConfig.configNames()}
    return [name for name in unsure if name not in known]


def problems(spark: SparkSession, config: Config) -> list[tuple[tuple, str]]:
    """What Spark refuses: the path in the file, and what was found and expected. Empty when all is well."""
    complaints: list[tuple[tuple, str]] = []

    def ask(
        stream: Stream, path: tuple, expression: str | None, columns: Mapping[str, str] | None = None
    ) -> DataType | None:
        try:
            return data_type(spark, stream, expression, columns) if expression is not None else None
        except ConfigError as error:
            complaints.append((path, f"found {expression!r}: {error}"))
            return None

    for lookup in config.lookups.values():
        complaints += _wrong_table(spark, config, lookup)
    for stream in config.streams.values():
        payload = stream.types
        try:
            schema_of(payload)
        except (AnalysisException, ParseException) as error:
            complaints.append((("streams", stream.name, "schema"), f"found {stream.schema_!r}: {refusal(error)}"))
            continue
        kind = ask(stream, ("streams", stream.name, "time"), stream.time, payload)
        if kind and not is_one(kind, TIMES):
            message = f"found {stream.time!r} of type {ddl(kind)}, expected a TIMESTAMP (such as timestamp_millis(...))"
            complaints.append((("streams", stream.name, "time"), message))
        kind = ask(stream, ("streams", stream.name, "order"), stream.order, payload)
        if kind and (wrong := _wrong_order(kind)):
            complaints.append((("streams", stream.name, "order"), f"found {stream.order!r} {wrong}"))
        for store in config.stores_of(stream.name):
            path = ("stores", store.name)
            for index, key in enumerate(store.keys):
                at = (*path, "key", index) if store.composite else (*path, "key")
                kind = ask(stream, at, key.expression)
                if kind and not is_one(kind, KEYS):
                    complaints.append(
                        (at, f"found a key of type {ddl(kind)}, expected text, a whole number, a date or a time")
                    )
            ask(stream, (*path, "agent"), store.agent)
            kind = ask(stream, (*path, "where"), store.where)
            if kind and ddl(kind) != "BOOLEAN":
                complaints.append(((*path, "where"), f"found {store.where!r} of type {ddl(kind)}, expected a BOOLEAN"))
            kind = ask(stream, (*path, "value"), store.value)
            if kind and (wrong := _wrong_value(store, kind)):
                complaints.append(((*path, "value"), f"found {store.value!r} of type {ddl(kind)}, expected {wrong}"))
            if kind and store.arguments and (wrong := _wrong_arguments(store, ddl(kind))):
                complaints.append(((*path, "reduce"), wrong))
            if isinstance(store.reduce, Own) and (kind or store.value is None):
                try:
                    own_types(spark, store.reduce, ddl(kind) if kind else "BOOLEAN")
                except ConfigError as error:
                    place, _, message = str(error).partition(": ")
                    complaints.append(((*path, "reduce", *place.split(".")), message))
            if store.publish and store.publish.where and not any(at[:2] == path for at, _ in complaints):
                columns = rule_of(spark, config, store).state_columns
                if wrong := _wrong_expression(spark, stream, store.publish.where, columns, boolean=True):
                    complaints.append(((*path, "publish", "where"), wrong))
    for route in config.routes.values():
        stream, refused = config.streams[config.stream_of(route)], [path for path, _ in complaints]
        if not any(at == ("streams", stream.name, "schema") or at[:2] == ("stores", route.store) for at in refused):
            rule = rule_of(spark, config, config.stores[route.store]) if route.store else None
            complaints += _wrong_in(spark, stream, route, rule)
    for task in (config.tasks or {}).values():
        if not any(at[0] == "streams" or at[:2] == ("stores", task.store) for at, _ in complaints):
            complaints += _wrong_task(spark, config, task)
    return complaints


def _wrong_order(kind: DataType) -> str | None:
    """What is wrong with the type of a stream's order."""
    try:
        rank_of("x", parse_type(ddl(kind)))
    except ValueError as error:
        return (
            str(error)
            if str(error).startswith("of type")
            else f"of type {ddl(kind)}, expected a whole number or a time"
        )
    return None


def _wrong_table(spark: SparkSession, config: Config, lookup: Lookup) -> Iterator[tuple[tuple, str]]:
    """What is wrong with a lookup: its table, which is read, and what it is matched by."""
    path, stream = ("lookups", lookup.name), config.streams[lookup.stream]
    for index, (column, by) in enumerate(lookup.matches):
        try:
            rows = spark.createDataFrame([], schema_of(stream.types))
            rows.selectExpr(f"({by}) = CAST(NULL AS {column.type})")
        except (AnalysisException, ParseException) as error:
            yield (*path, "by", index), f"found {by!r}: {refusal(error)}"
    try:
        rows = table_of(spark, lookup)
        if twice := repeated_key(lookup, rows):
            yield (*path, "table"), f"found {twice}, expected one"
    except StatehouseError as error:
        yield (*path, "table"), str(error)


def _wrong_task(spark: SparkSession, config: Config, task: Task) -> Iterator[tuple[tuple, str]]:
    """What Spark refuses of a task."""
    rule, does = rule_of(spark, config, config.stores[task.store]), task.send or task.set_
    path, kind, stream = ("tasks", task.name), "send" if task.send else "set", config.streams[rule.store.stream]
    asked: list[tuple[tuple, Mapping[str, str], str | None]] = [
        (("when",), rule.state_columns, task.when),
        ((kind, "key"), visible_columns(rule), does.key if does else None),
        ((kind, "value"), visible_columns(rule), does.value if does else None),
    ]
    for place, columns, expression in asked:
        if expression is not None and (
            wrong := _wrong_expression(spark, stream, expression, columns, place == ("when",))
        ):
            yield (*path, *place), wrong


def _wrong_in(spark: SparkSession, stream: Stream, route: Route, rule: Rule | None) -> Iterator[tuple[tuple, str]]:
    """What Spark refuses of a route; ``rule`` is that of the store whose events it passes on."""
    columns, everything = columns_of(stream, route, rule)
    path, rows = ("routes", route.name), spark.createDataFrame([], schema_of(columns))
    if route.where and (
        wrong := _wrong_expression(spark, stream, route.where, columns if rule else None, boolean=True)
    ):
        yield (*path, "where"), wrong
        return
    try:
        selected = shape_events(rows, route, everything, f"_offset AS {SOURCE}").drop(
            SOURCE
        )  # a plain column, beside which nothing is summed up
    except (AnalysisException, ParseException) as error:
        known = (
            f" (there are the event's columns, {', '.join(rule.keys)}, and of before and after {', '.join(shown_columns(rule))})"
            if rule
            else ""
        )
        yield (*path, "select"), f"found {', '.join(route.select)!r}: {refusal(error)}{known}"
        return
    names = [n.lower() for n in selected.columns]
    if unfit := [n for n in selected.columns if names.count(n.lower()) > 1 or re.search(r"[ ,;{}()\n\t=]", n)]:
        yield (*path, "select"), f"found a column {unfit[0]!r}, expected a name of its own: write 'expression AS name'"
    elif route.to.registered:
        try:
            registered.schema_of(route.to, selected.schema)
        except ValueError as error:
            yield (*path, "to", "format"), str(error)
    if route.to.key:
        try:
            selected.selectExpr(f"CAST({route.to.key} AS STRING)")
        except (AnalysisException, ParseException) as error:
            yield (*path, "to", "key"), f"found {route.to.key!r}: {refusal(error)} (a key is made of what is selected)"


def _wrong_expression(
    spark: SparkSession,
    stream: Stream,
    expression: str,
    columns: Mapping[str, str] | None = None,
    boolean: bool = False,
) -> str | None:
    """What Spark refuses of an expression, over columns as :func:`type_of` has them, and of a condition that is none."""
    try:
        kind = type_of(spark, stream, expression, columns)
    except ConfigError as error:
        return f"found {expression!r}: {error}"
    return f"found {expression!r} of type {kind}, expected a BOOLEAN" if boolean and kind != "BOOLEAN" else None


def _wrong_value(store: Store, kind: DataType) -> str | None:
    """What the reducer expects instead of a value of this type."""
    name, nested = store.reducer.name, isinstance(kind, (ArrayType, MapType, StructType))
    if name == "count":  # any will do: it is not kept
        return None
    if not can_carry(kind):
        return KNOWN
    if name in ("sum", "avg") and not is_one(kind, NUMBERS):
        return f"a number to {name}"
    if name in ("sum", "avg") and isinstance(kind, DecimalType) and kind.scale > MOST_DECIMALS:
        return f"at most {MOST_DECIMALS} decimals to {name}"
    if name in ("min", "max") and nested:
        return f"a type whose values have one order to both engines, so that there is a {name}"
    if name == "at_least_one" and nested:
        return "a type that the reducer's arguments can be of"
    return "a type whose values can be compared" if name == "majority" and holds_map(kind) else None


def _wrong_arguments(store: Store, kind: str) -> str | None:
    """What is wrong with a reducer's arguments, which are values like the store's."""
    with suppress(ValueError):  # of a type that is refused for itself
        if wrong := [argument for argument in store.arguments if not is_text_of(argument, parse_type(kind))]:
            return f"found {wrong[0]!r}, expected a {kind}, as the values are"
    return None
