"""Making the tables: each is created empty, with its properties, by the first job that needs it."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from jobs.spark import databricks
from jobs.spark.expressions import schema_of
from statehouse.config.models import Config, Stream
from statehouse.errors import DefinitionChanged, FoldAnew
from statehouse.fold import Rule
from statehouse.formats.columns import PROPERTY as SCHEMAS
from statehouse.formats.columns import stored_text
from statehouse.payload import LEAST_TIME
from statehouse.spark_sql import literal, quoted
from statehouse.tables import (
    BUCKET,
    BUCKETS,
    CLUSTERED,
    DEFINITION,
    FOLD,
    FOLDS,
    GENERATION,
    HEADER_COLUMNS,
    LOADED,
    MARKS,
    ORDERED,
    REQUEUED_COLUMNS,
    TOPIC_PARTITION,
    VECTORS,
    buckets,
    changelog_columns,
    definition_of,
    event_columns,
    fold_of,
    generation,
    opened,
    select,
    stored_rule,
    table,
)
from statehouse.values import Column

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
log = logging.getLogger("statehouse")
SKIPPING = "_event_time,_partition,_offset,_key"
FEED = "delta.enableChangeDataFeed"
CHANGELOG_PROPERTIES = {
    FEED: "true",
    "delta.appendOnly": "true",
    "delta.checkpointInterval": "200",  # a checkpoint is a hiccup of two seconds
    "delta.dataSkippingStatsColumns": SKIPPING,
}


def retention(config: Config) -> dict[str, str]:
    """The table properties that say for how long older versions can be read: their files, and their commits."""
    interval = f"interval {config.versions // 1000} seconds"
    return {"delta.deletedFileRetentionDuration": interval, "delta.logRetentionDuration": interval}


def create(
    spark: SparkSession, path: str, columns: dict[str, str], properties: dict[str, str], partition: str | None = None
) -> None:
    """Create an empty table, partitioned by a column where one is given, unless there is one."""
    if opened(path) is not None:
        return
    builder = DeltaTable.createIfNotExists(spark).location(path)
    for name, kind in columns.items():
        builder = builder.addColumn(name, kind)
    for name, value in properties.items():
        builder = builder.property(name, value)
    if partition:
        builder = builder.addColumn(partition, "INT").partitionedBy(partition)
    try:
        builder.execute()
    except AnalysisException as error:
        if "DELTA_TABLE_NOT_FOUND" not in str(error) or not _is_half_created(spark, path):
            raise
        remove(spark, f"{path}/_delta_log")
        builder.execute()


def _is_half_created(spark: SparkSession, path: str) -> bool:
    """Whether a process ended between making a table's folder and its first commit."""
    names = [
        status.getPath().getName() for status in files(spark, path).listStatus(hadoop_path(spark, f"{path}/_delta_log"))
    ]
    return not any(name.endswith((".json", ".parquet")) for name in names)


def create_stream(spark: SparkSession, config: Config, stream: Stream) -> None:
    """``changelog/<stream>`` and ``quarantine/<stream>``. A column that the schema has gained is added, null in the
    rows that are there; one that has another type now raises DefinitionChanged. One that was dropped stays, and is null."""
    path = table(config, "changelog", stream.name)
    schemas = {SCHEMAS: stored_text(stream)} if stream.registered else {}
    order = {ORDERED: stream.order} if stream.order else {}
    changelog = opened(path)
    if changelog is not None and (was := changelog.metadata().configuration.get(ORDERED)) != stream.order:
        raise DefinitionChanged(
            f"stream {stream.name}: the events of its changelog have the order {was or 'of their times'}, the file says "
            f"{stream.order or 'none'}: undo the change, or give the stream another name: then its topic is read anew"
        )
    create(spark, path, changelog_columns(stream), {**CHANGELOG_PROPERTIES, **retention(config), **schemas, **order})
    changelog = opened(path)
    assert changelog
    there = StructType.fromJson(json.loads(changelog.schema().to_json()))  # Spark takes a second for it
    types = {f.name.lower(): f.dataType.simpleString() for f in there}
    wanted = schema_of(changelog_columns(stream))
    own = [
        Column(name=n, type=kind)
        for n, kind in event_columns(stream).items()
        if n == TOPIC_PARTITION or n in HEADER_COLUMNS
    ]
    for column in [*stream.known, *own]:
        kind, known = wanted[column.name].dataType.simpleString(), types.get(column.name.lower())
        if known is None:
            if "TIMESTAMP_NTZ" in column.type.upper():  # a feature of Delta's, which only a new table gets by itself
                spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
            spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS ({quoted(column.name)} {column.type})")
        elif known != kind:
            raise DefinitionChanged(
                f"stream {stream.name}: the changelog has {column.name} as {known}, the schema says {kind}: give the "
                "column another name, or read it in the store's expression, as in CAST(... AS ...)"
            )
    if stream.registered:
        _keep_schemas(spark, path, schemas[SCHEMAS])
    _cluster(spark, path, stream.cluster_by)
    skipping = {"delta.appendOnly": "true", "delta.dataSkippingStatsColumns": "partition,offset,log_time"}
    quarantine = table(config, "quarantine", stream.name)
    create(spark, quarantine, QUARANTINE_COLUMNS, {**skipping, **retention(config)})
    refused = opened(quarantine)
    if stream.several and refused and "topic_partition" not in (f.name for f in refused.schema().fields):
        spark.sql(f"ALTER TABLE delta.`{quarantine}` ADD COLUMNS (topic_partition INT)")


def _keep_schemas(spark: SparkSession, path: str, text: str) -> None:
    """Keep with a changelog what is known of its payloads' schemas."""
    delta = opened(path)
    if delta is not None and delta.metadata().configuration.get(SCHEMAS) != text:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{SCHEMAS}' = {literal(text)})")


def create_requeued(spark: SparkSession, config: Config, stream: Stream) -> str:
    """``requeued/<stream>``: the refused records that were sent again and have come back; its path."""
    path = table(config, "requeued", stream.name)
    create(spark, path, REQUEUED_COLUMNS, {"delta.appendOnly": "true", **retention(config)})
    return path


def _cluster(spark: SparkSession, path: str, by: list[str]) -> None:
    """Have a changelog compacted in the order of these columns from now on (liquid clustering), of which its commits tell each
    file's least and greatest; also whether all of a file are reports, as those of other events say nothing."""
    names = ",".join(map(quoted, by))
    delta = opened(path)
    if delta is None or delta.metadata().configuration.get(CLUSTERED, "") == names:
        return
    skipping = ",".join([SKIPPING, "_op", *map(quoted, by)] if by else [SKIPPING])
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '{skipping}')")
    spark.sql(f"ALTER TABLE delta.`{path}` CLUSTER BY {f'({names})' if by else 'NONE'}")
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{CLUSTERED}' = '{names}')")  # last: it is done


def next_offsets(path: str, which: str) -> dict[int, int]:
    """The next offset of each partition, as the rows of a changelog or a quarantine tell it; of the partitions that
    ``which`` is true of, such as ``= -1``."""
    if not ((delta := opened(path)) and delta.version()):  # as it was made
        return {}
    mark = "_" if any(field.name == "_partition" for field in delta.schema().fields) else ""
    columns = f'{mark}partition AS number, max("{mark}offset") + 1 AS following'
    rows = select(delta, f"SELECT {columns} FROM found WHERE {mark}partition {which} GROUP BY {mark}partition")
    return {row["number"]: row["following"] for row in rows}


def numbers_by_rows(changelog: str, quarantine: str) -> dict[str, Any]:
    """Which numbers the partitions of several topics have, as the rows of a changelog and a quarantine tell it, as a position has it."""
    topics: dict[str, Any] = {}
    for path, mark in ((changelog, "_"), (quarantine, "")):
        delta, kafkas = opened(path), f"{mark}topic_partition"
        if delta is None or not delta.version() or kafkas not in (f.name for f in delta.schema().fields):
            continue
        # Null in the rows of when it had one topic.
        columns = f"{mark}topic AS topic, coalesce({kafkas}, {mark}partition) AS place, max({mark}partition) AS number"
        for row in select(delta, f"SELECT {columns} FROM found WHERE {mark}partition > {LOADED} GROUP BY 1, 2"):
            topics.setdefault(row["topic"], {"partitions": {}})["partitions"][str(row["place"])] = row["number"]
    return {"topics": topics} if topics else {}


def create_store(spark: SparkSession, config: Config, rule: Rule, state: str, tombstones: str) -> None:
    """The tables of a state and its tombstones. A state folded by another rule raises DefinitionChanged, and one with rows that are
    not as they are made today FoldAnew; one that is partitioned otherwise stays so."""
    name, delta = rule.store.name, opened(state)
    stored = stored_rule(delta, name)
    if stored is not None and (changes := describe_difference(stored, rule)):
        raise DefinitionChanged(
            f"store {name}: its state was folded by another rule ({changes}). Undo the change, or migrate: "
            f"'statehouse recover {name}' folds all of the changelog by the new rule and shows what would change, "
            f"'statehouse recover {name} --swap' makes that the state"
        )
    if delta and stored and fold_of(delta) < FOLDS:
        wrong = describe_outdated(stored, rule) or (_begins_before_year_one(spark, state) if rule.store.windows else "")
        if wrong:
            raise FoldAnew(f"store {name}: its state is of an earlier version of statehouse, {wrong}")
    create(spark, tombstones, rule.tombstone_columns, tombstone_properties(rule))
    if delta and (was := buckets(delta)) != rule.store.buckets:
        wanted = rule.store.buckets or "none"
        advice = f"'statehouse recover {name} --swap' lays it out anew"
        log.warning(f"store {name}: its state has {was or 'no'} buckets, the configuration says {wanted}: {advice}")
    properties = state_properties(config, rule)
    create(spark, state, rule.state_columns, properties, BUCKET if rule.store.buckets else None)
    has = delta.metadata().configuration if delta else properties
    changed = {VECTORS: properties[VECTORS], **({FEED: "true"} if rule.store.publish else {})}
    if any(has.get(name, "false") != value for name, value in changed.items()):
        assignments = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
        spark.sql(f"ALTER TABLE delta.`{state}` SET TBLPROPERTIES ({assignments})")


def describe_difference(old: Rule, new: Rule) -> str:
    """How two rules of a store differ, in words; empty where they are the same."""
    marks = [name for name in MARKS if getattr(old, name) != getattr(new, name)]
    if old.store.definition == new.store.definition and all(map(same_type, old.types, new.types)) and not marks:
        return ""
    was, now = old.store.definition, new.store.definition
    names = [k for k in sorted({*was, *now}) if was.get(k) != now.get(k)]
    changes = [f"{k}: {was.get(k)!r} → {now.get(k)!r}" for k in names]
    return ", ".join([*changes, *(["another order of events"] if marks else [])]) or "other types"


def same_type(one: str, other: str) -> bool:
    """Whether two types are the same but for the case of a struct's fields: Spark does not tell cases apart, and types were once
    kept in capitals."""
    return _plain(one).upper() == _plain(other).upper()


def _plain(kind: str) -> str:
    """A type without what does not tell it from another."""
    return re.sub(r"[`\s]", "", kind)


def describe_outdated(old: Rule, new: Rule) -> str:
    """What may be wrong in a state that an earlier version of statehouse folded by the same rule, in words; empty where nothing is."""
    if [*map(_plain, old.types)] != [*map(_plain, new.types)]:
        return "whose structs have their names in capitals, and sets of them nothing in them"
    size, step = new.store.windows or (1, 1)
    if step < 2**31 <= (-(-size // step) - 1) * step:
        return "whose windows were worked out in 32 bits"
    return ""


def _begins_before_year_one(spark: SparkSession, state: str) -> str:
    """That a windowed state has rows which are not made any more, in words; empty where it has none."""
    rows = spark.read.format("delta").load(state).where(f"unix_micros(window_start) < {LEAST_TIME}")
    return "" if rows.isEmpty() else "with windows that begin before the year 1"


def state_properties(config: Config, rule: Rule) -> dict[str, str]:
    """The table properties of a state."""
    return {
        DEFINITION: definition_of(rule),
        FOLD: str(FOLDS),
        VECTORS: str(config.deletion_vectors and not databricks.here()).lower(),
        "delta.checkpointInterval": "50",
        "delta.dataSkippingStatsColumns": _skipping(rule, "event_time"),
        **({FEED: "true"} if rule.store.publish else {}),
        **({BUCKETS: str(rule.store.buckets)} if rule.store.buckets else {}),
    }


def tombstone_properties(rule: Rule) -> dict[str, str]:
    """The table properties of a state's tombstones."""
    return {"delta.dataSkippingStatsColumns": _skipping(rule, "log_time")}


def _skipping(rule: Rule, besides: str) -> str:
    """The columns of which Delta keeps the least and the greatest of a file: those of a key, but it refuses a BOOLEAN; and one more."""
    return ",".join([*(quoted(name) for name, kind in rule.keys.items() if kind != "BOOLEAN"), besides])


def remove(spark: SparkSession, path: str) -> None:
    """Delete a folder with all that is in it, wherever Spark can reach it; nothing where there is none."""
    files(spark, path).delete(hadoop_path(spark, path), True)


def hadoop_path(spark: SparkSession, path: str) -> Any:
    """A path as Hadoop has it."""
    return spark._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]


def files(spark: SparkSession, path: str) -> Any:
    """Hadoop's file system of a path."""
    return hadoop_path(spark, path).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def replace(rows: DataFrame, path: str, properties: dict[str, str]) -> None:
    """Make these the table's rows, columns and properties, all in one commit; partitioned where the rows have a bucket."""
    writer = rows.writeTo(f"delta.`{path}`").using("delta")
    if BUCKET in rows.columns:
        writer = writer.partitionedBy(F.col(BUCKET))
    for name, value in properties.items():
        writer = writer.tableProperty(name, value)
    writer.createOrReplace()


def draft_of(config: Config, store: str) -> str:
    """The folder where recover folds a store's next state."""
    return f"{config.root}/_recover/{store}"


def finish_swap(spark: SparkSession, config: Config, store: str) -> None:
    """Finish a recovery that was interrupted after it had replaced the state (steps 4 and 5 of :mod:`jobs.recover`): replace the
    tombstones, where their generation is not the state's."""
    state, tombstones = opened(table(config, "state", store)), opened(table(config, "tombstones", store))
    rule = stored_rule(state, store)
    if state is None or rule is None or generation(state) == (generation(tombstones) if tombstones else 0):
        return
    properties = {**tombstone_properties(rule), GENERATION: str(generation(state))}
    rows = spark.read.format("delta").load(f"{draft_of(config, store)}/tombstones")
    replace(rows, table(config, "tombstones", store), properties)
    remove(spark, draft_of(config, store))
