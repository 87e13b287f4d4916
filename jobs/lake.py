"""Making the tables: each is created empty, with its properties, by the first job that needs it."""

from __future__ import annotations

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from statehouse.config import Config, Stream
from statehouse.errors import DefinitionChanged
from statehouse.fold import Rule, quoted
from statehouse.tables import DEFINITION, EVENT_COLUMNS, definition_of, opened, stored_rule, table

QUARANTINE_COLUMNS = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "STRING",
    "payload": "STRING",
    "payload_bytes": "BINARY",  # only where the payload is not text
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "reason": "STRING",
    "log_time": "TIMESTAMP",
}
CHANGELOG_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "200",  # a checkpoint is a hiccup of two seconds
    "delta.dataSkippingStatsColumns": "_event_time,_partition,_offset,_key",
}


def changelog_columns(stream: Stream) -> dict[str, str]:
    """The columns of a stream's changelog: the payload's, then the system's."""
    return {**{c.name: c.type for c in stream.columns}, **EVENT_COLUMNS}


def create(spark: SparkSession, path: str, columns: dict[str, str], properties: dict[str, str]) -> None:
    """Create an empty table unless there is one."""
    if opened(path) is not None:
        return
    builder = DeltaTable.createIfNotExists(spark).location(path)
    for name, kind in columns.items():
        builder = builder.addColumn(name, kind)
    for name, value in properties.items():
        builder = builder.property(name, value)
    builder.execute()


def create_stream(spark: SparkSession, config: Config, stream: Stream) -> None:
    """``changelog/<stream>`` and ``quarantine/<stream>``. A column that the schema has gained is added, null in the
    rows that are there; one that has another type now raises DefinitionChanged. One that was dropped stays, and is null."""
    path = table(config, "changelog", stream.name)
    create(spark, path, changelog_columns(stream), CHANGELOG_PROPERTIES)
    kept = {f.name.lower(): f.dataType.simpleString() for f in spark.read.format("delta").load(path).schema}
    for column in stream.columns:
        kind = spark.createDataFrame([], f"x {column.type}").schema[0].dataType.simpleString()
        found = kept.get(column.name.lower())
        if found is None:
            spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({quoted(column.name)} {column.type})")
        elif found != kind:
            raise DefinitionChanged(
                f"stream {stream.name}: the changelog has {column.name} as {found}, the schema says {kind}: give the "
                "column another name, or read it in the store's expression, as in CAST(... AS ...)"
            )
    skipping = {"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": "partition,offset,log_time"}
    create(spark, table(config, "quarantine", stream.name), QUARANTINE_COLUMNS, skipping)


def create_store(spark: SparkSession, config: Config, rule: Rule) -> None:
    """``state/<store>`` and ``tombstones/<store>``. A state folded by another rule raises DefinitionChanged."""
    name = rule.store.name
    kept = stored_rule(config, rule.store)
    if kept is not None and definition_of(kept) != definition_of(rule):
        old, new = kept.store.definition, rule.store.definition
        differing = ", ".join(
            f"{k}: {old.get(k)!r} → {new.get(k)!r}" for k in sorted({*old, *new}) if old.get(k) != new.get(k)
        )
        raise DefinitionChanged(
            f"store {name}: its state was folded by another rule ({differing or 'other types'}). "
            f"Undo the change, give the store a new name, or delete {table(config, 'state', name)} and "
            f"{table(config, 'tombstones', name)}: the state is then folded again from the changelog"
        )
    keys = ",".join(quoted(k) for k in rule.keys)
    state = {
        DEFINITION: definition_of(rule),
        "delta.checkpointInterval": "50",
        "delta.dataSkippingStatsColumns": keys,
    }
    create(
        spark,
        table(config, "tombstones", name),
        rule.tombstone_columns,
        {"delta.dataSkippingStatsColumns": f"{keys},log_time"},
    )
    create(spark, table(config, "state", name), rule.state_columns, state)
