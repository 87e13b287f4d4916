"""What an expression of the file cannot compute is null, and stops nothing.

Without ANSI mode Spark makes null of most of what it cannot compute, such as a division by zero. Some functions throw all the
same: ``timestamp_millis`` of a number that is too large, ``element_at(x, 0)``, ``decode`` of bytes that are no text. One such event
would stop its stream or its store for good. DuckDB has ``TRY`` for that, and the API writes it around every expression. Spark has the
same as an expression of its engine, ``TryEval``, without a name in SQL; here it gets one, and is used once something has thrown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from jobs.spark import change_feed
from statehouse.errors import first_line

T = TypeVar("T")
log = logging.getLogger("statehouse")
PLAIN, FUNCTION = "{}", "statehouse_try"
TRY = f"{FUNCTION}({{}})"
CATALYST = "org.apache.spark.sql.catalyst"


def install(spark: SparkSession) -> None:
    """Make ``statehouse_try(x)`` a function of a session: x, or null where computing it throws."""
    java: Any = spark._jvm
    load = java.java.lang.Class.forName
    registry = load(f"{CATALYST}.analysis.FunctionRegistryBase$").getField("MODULE$").get(None)
    tag = load("scala.reflect.ClassTag$").getField("MODULE$").get(None).apply(load(f"{CATALYST}.expressions.TryEval"))
    built = registry.build(FUNCTION, java.scala.Option.empty(), tag)
    name = java.org.apache.spark.sql.catalyst.FunctionIdentifier(FUNCTION)
    session: Any = spark._jsparkSession
    session.sessionState().functionRegistry().registerFunction(name, built._1(), built._2())
    # Spark computes what occurs twice once, before all else: out of the reach of what catches.
    spark.conf.set("spark.sql.subexpressionElimination.enabled", "false")


def error_of(rows: DataFrame, expression: str) -> str | None:
    """What the engine says where it cannot compute an expression of some rows; None where it can."""
    try:
        rows.selectExpr(expression).collect()
    except Exception as error:  # whatever a function throws
        return first_line(error)
    return None


class Guard:
    """Stands around the expressions of one job, which ``name`` says; as :attr:`text` it is nothing until one of them throws."""

    def __init__(self, name: str) -> None:
        self.name, self.text = name, PLAIN

    @property
    def up(self) -> bool:
        """Whether an expression has thrown."""
        return self.text == TRY

    def run(self, spark: SparkSession, work: Callable[[], T]) -> T:
        """Do ``work``, which writes :attr:`text` around its expressions. Where the engine fails in it, do it once more with what catches.
        Raises what it raises then, and what is no fault of an expression at once."""
        if self.up:
            install(spark)  # of a streaming query each batch may have another session
            return work()
        try:
            return work()
        except (PySparkException, Py4JJavaError) as error:
            if change_feed.is_gone(error) or "org.apache.kafka." in str(error):  # the table's, or Kafka's
                raise
            reason = first_line(error)
        try:
            install(spark)
            self.text = TRY
            result = work()
        except Exception:
            self.text = PLAIN  # it was something else
            raise
        log.warning("%s: %s; what an expression cannot compute is null from now on", self.name, reason)
        return result
