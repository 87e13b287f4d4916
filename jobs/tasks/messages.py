"""The message of a task, as SQL over the rows of a state."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark.expressions import key_text
from jobs.spark.guard import TRY
from jobs.spark.kafka_sink import JSON_OPTIONS
from statehouse.config.models import Config, Task
from statehouse.fold import Rule
from statehouse.spark_sql import literal, quoted
from statehouse.values import safe

MESSAGE = ("topic", "message_key", "message", "set")  # what is sent, of the table's columns


def visible_columns(rule: Rule) -> dict[str, str]:
    """What the expressions of a task's message may name, and the types: the state's columns, ``since`` and ``due``."""
    return {"since": "TIMESTAMP", "due": "TIMESTAMP", **rule.state_columns}


def message_of(spark: SparkSession, config: Config, task: Task, rule: Rule) -> dict[str, str]:
    """SQL: the columns :data:`MESSAGE`, over what is :func:`visible_columns` and ``_key``, the state's key as text; of an expression
    that throws, null. Raises Spark's AnalysisException or ParseException."""
    schema = ", ".join(f"{quoted(c)} {t}" for c, t in {**visible_columns(rule), "_key": "STRING"}.items())
    options = ", ".join(f"{literal(name)}, {literal(value)}" for name, value in JSON_OPTIONS.items())

    def text(expression: str) -> str:  # what is no text is as JSON has it
        kind = spark.createDataFrame([], schema).selectExpr(f"({expression}) AS x").schema[0].dataType.simpleString()
        caught = TRY.format(safe(expression))
        return caught if kind == "string" else f"get_json_object(to_json(struct({caught} AS x), map({options})), '$.x')"

    if task.send:
        shown = ", ".join(quoted(c) for c in (*rule.keys, "value", "event_time", "since", "due"))
        value = text(task.send.value or f"struct({literal(task.name)} AS task, {shown})")
        topic, key, store = task.send.topic, task.send.key, "NULL"
    else:
        assert task.set_
        target = config.stores[task.set_.store]
        agent = f", {literal(f'task:{task.name}')} AS agent" if target.reducer.per_agent else ""
        value = f"to_json(struct({TRY.format(safe(task.set_.value))} AS value{agent}), map({options}))"
        topic, key, store = config.streams[target.stream].topic, task.set_.key, literal(target.name)
    return {"topic": literal(topic), "message_key": text(key or "_key"), "message": value, "set": store}


def with_key(rows: DataFrame, rule: Rule) -> DataFrame:
    """Rows of a state with ``_key``, their key as text."""
    return rows.withColumn("_key", F.expr(key_text(rule)))
