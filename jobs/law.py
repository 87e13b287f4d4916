"""Whether a user's own reducer keeps the law: the same value for any order and any batches of the same events.

It is tried on generated events, by the very queries that a merge runs: folded at once, the other way round, and in three
batches that are combined in several orders. What passes is not proved, but what breaks the law is shown doing so.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from statehouse.config.models import Store
from statehouse.errors import ConfigError
from statehouse.fold import Rule
from statehouse.reducers import ORDER

KEYS, BATCHES = 60, 3
AT_ONCE = "folded at once"
START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)


def counterexample(spark: SparkSession, rule: Rule) -> str | None:
    """Events for which the reducer's value depends on their order or batches, in words; None: there were none among
    those that were tried (60 keys of 3 to 6 events, always the same). Floating-point values may differ in the last digits."""
    # The key and the windows do not matter to the law of a reducer: one plain key will do.
    plain = Store(name=rule.store.name, stream="s", key="key", value="value", reduce=rule.store.reduce)
    rule = Rule(plain, ("STRING",), rule.value_input, rule.own_types)
    trial = _Trial(spark, rule)
    values_by_variant = trial.values()
    right = values_by_variant.pop(AT_ONCE)
    broken = [
        (len(events), key, variant)
        for key, events in trial.events.items()
        for variant, values in values_by_variant.items()
        if not _alike(right[key], values[key])
    ]
    if not broken:
        return None
    _, key, variant = min(broken)  # the fewest events
    batches = [", ".join(str(e["_value"]) for e in trial.events[key] if e["batch"] == b) for b in range(BATCHES)]
    return (
        f"found a value that depends on order or batches: the batches {' | '.join(batches)} give {right[key]} {AT_ONCE} "
        f"and {values_by_variant[variant][key]} {variant}, expected the same"
    )


def keep_the_law(spark: SparkSession, rule: Rule) -> None:
    """Raise ConfigError where :func:`counterexample` finds one."""
    if shown := counterexample(spark, rule):
        raise ConfigError(f"stores.{rule.store.name}.reduce: {shown}")


class _Trial:
    def __init__(self, spark: SparkSession, rule: Rule) -> None:
        self.spark, self.rule = spark, rule
        dice = random.Random(0)
        kind = spark.createDataFrame([], f"x {rule.value_input}").schema[0].dataType
        self.events: dict[str, list[dict[str, Any]]] = {}
        for number in range(KEYS):
            batches = [*range(BATCHES), *(dice.randrange(BATCHES) for _ in range(dice.randrange(4)))]
            times = dice.sample(range(1000), len(batches))
            self.events[str(number)] = [
                {
                    "key": str(number),
                    "_order": Decimal(time * 10**20 + 10**15),
                    "_event_time": START + dt.timedelta(seconds=time),
                    "_agent": dice.choice("pqr"),
                    "_value": draw(dice, kind),
                    "_reset": False,
                    "batch": batch,
                }
                for batch, time in zip(batches, times, strict=True)
            ]
        self.schema = (
            f"key STRING, _order {ORDER}, _event_time TIMESTAMP, _agent STRING, _value {rule.value_input}, "
            "_reset BOOLEAN, batch INT"
        )

    def values(self) -> dict[str, dict[str, Any]]:
        """Each way's value of each key; the first way is all events at once."""
        events = [e for group in self.events.values() for e in group]
        one, two, three = (self._fold([e for e in events if e["batch"] == b]) for b in range(BATCHES))
        variants = {
            AT_ONCE: self._state(self._fold(events)),
            "in the reverse order": self._state(self._fold(events[::-1])),
            "in three batches": self._combine(three, self._combine(two, self._state(one))),
            "with the last batch first": self._combine(one, self._combine(two, self._state(three))),
            "with the last two batches combined before the first": self._combine(
                self._combine(three, self._state(two)), self._state(one)
            ),
        }
        return {variant: {r["key"]: r["value"] for r in rows.collect()} for variant, rows in variants.items()}

    def _fold(self, events: list[dict[str, Any]]) -> DataFrame:
        self.spark.createDataFrame(events, self.schema).coalesce(1).createOrReplaceTempView("law_events")
        return self.spark.sql(self.rule.fold("law_events", resets=False)).localCheckpoint()

    def _state(self, rows: DataFrame) -> DataFrame:
        nothing = ", ".join(f"`{c}` {t}" for c, t in self.rule.state_columns.items())
        return self._combine(rows, self.spark.createDataFrame([], nothing))

    def _combine(self, rows: DataFrame, state: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("law_rows")
        state.createOrReplaceTempView("law_state")
        return self.spark.sql(self.rule.combine("law_rows", "law_state", None)).localCheckpoint()


def draw(dice: random.Random, kind: T.DataType) -> Any:
    """A value of a type; small ones, so that they collide."""
    if isinstance(kind, T.BooleanType):
        return dice.random() < 0.5
    if isinstance(kind, T.IntegralType):
        return dice.randrange(-9, 10)
    if isinstance(kind, T.DecimalType):
        digits = min(kind.precision, 4)
        return Decimal(dice.randrange(1 - 10**digits, 10**digits)).scaleb(-kind.scale)
    if isinstance(kind, T.FractionalType):
        return dice.randrange(-40, 40) / 8
    if isinstance(kind, T.DateType):
        return START.date() + dt.timedelta(days=dice.randrange(9))
    if isinstance(kind, T.TimestampNTZType):
        return START.replace(tzinfo=None) + dt.timedelta(seconds=dice.randrange(9))
    if isinstance(kind, T.TimestampType):
        return START + dt.timedelta(seconds=dice.randrange(9))
    if isinstance(kind, T.BinaryType):
        return bytearray(dice.choice([b"a", b"b", b"c"]))
    if isinstance(kind, T.ArrayType):
        return [draw(dice, kind.elementType) for _ in range(dice.randrange(4))]
    if isinstance(kind, T.MapType):
        return {draw(dice, kind.keyType): draw(dice, kind.valueType) for _ in range(dice.randrange(4))}
    if isinstance(kind, T.StructType):
        return tuple(draw(dice, f.dataType) for f in kind.fields)
    return dice.choice(["", "a", "b", "c", "ü"])


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other
