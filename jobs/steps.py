"""The states that keys went through: one for each of their events, in the order of the log.

A merge makes one row of many events, and what waits for a state to stay as it is must see each of them: the fold of a key's first
event after a position, of its first two, and so on, combined with the state at that position, all by the rule's own queries. A
key's step is one more column of its key there.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from jobs import feed
from jobs.guard import TRY
from jobs.session import sql
from statehouse.config import Config
from statehouse.fold import Rule, quoted
from statehouse.tables import opened, table

STEP, LAST = "_step", "_until"
MOST = 2_000_000  # rows that are folded at once: of a key with n events n * (n + 1) / 2
PLACE = ("_commit_version", "_partition", "_offset")


class Steps:
    """Of one store."""

    def __init__(self, spark: SparkSession, config: Config, rule: Rule) -> None:
        self.spark, self.config, self.rule = spark, config, rule
        self.stream = config.streams[rule.store.stream]
        self.stepped = replace(rule, added=((STEP, "INT"),))
        self.keys = list(rule.key_columns)
        self.state, self.tombstones = (table(config, kind, rule.store.name) for kind in ("state", "tombstones"))

    def state_at(self, version: int) -> DataFrame:
        """The state as a version of its table has it."""
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.state)

    def _tombstones_at(self, position: int) -> DataFrame | None:
        kept = opened(self.tombstones)
        if not kept or not kept.version():
            return None
        # One that a later merge left would make its key absent too early.
        return self.spark.read.format("delta").load(self.tombstones).where(F.col("position") <= position)

    def between(self, position: int, version: int, head: int) -> DataFrame | None:
        """The states after each event in (position, head] of the changelog, ``version`` being the state's at the position. None
        where there are no events.

        The columns of the state, ``_present``, and of the event: ``_step`` (1 for the key's first), ``_at`` (when it was so), and its place in the log, :data:`PLACE`, with ``_place`` as text. Raises what :func:`jobs.feed.gone` knows where
        the log or the version is gone.
        """
        events = self._numbered(feed.events(self.spark, self.config, self.stream, position, head))
        largest, most = self._sizes(events)
        state = self.state_at(version).join(events.select(self.keys).distinct(), self.keys, "semi")
        tombstones = self._tombstones_at(position)
        found: list[DataFrame] = []
        for first in range(1, largest + 1, most):
            part = events.where(F.col(STEP).between(first, first + most - 1))
            ends = part.groupBy(self.keys).agg(F.max(STEP).alias(LAST))
            made = self._folded(part, ends, state, tombstones, first)
            torn = made.where("_conflict").select(self.keys).distinct()
            if self.rule.store.reducer.additive and not torn.isEmpty():
                made = self._again(made, torn, events, ends, state, first, head)
            found.append(self._filled(made, ends) if self.rule.store.windows else made)
            if first + most <= largest:
                state, tombstones = self._after(made, ends, state, tombstones, head + first)
        if not found:
            return None
        steps = found[0]
        for more in found[1:]:
            steps = steps.unionByName(more)
        at = F.least("_event_time", "_log_time").alias("_at")  # nobody tells of what is still to come
        place = F.concat_ws(":", "_partition", "_offset").alias("_place")
        return steps.join(events.select(*self.keys, STEP, at, place, *PLACE), [*self.keys, STEP])

    def _filled(self, steps: DataFrame, ends: DataFrame) -> DataFrame:
        """The same, with the steps at which a window that was there is none any more: of a sum that was purged no row is left."""
        keys = list(self.rule.keys)
        begun = steps.dropna(subset=keys).groupBy(keys).agg(F.min(STEP).alias(STEP))
        every = self._spread(begun, ends, STEP)
        return every.join(steps, [*keys, STEP], "left").fillna(False, ["_present"])

    def _numbered(self, log: DataFrame) -> DataFrame:
        log.createOrReplaceTempView("log")
        found = self.spark.sql(f"SELECT * FROM {self.rule.events('log', TRY, more=[*PLACE, '_log_time'])}").dropna(
            subset=self.keys
        )
        order = Window.partitionBy(self.keys).orderBy(*PLACE)
        return found.withColumn(STEP, F.row_number().over(order)).localCheckpoint()

    def _sizes(self, events: DataFrame) -> tuple[int, int]:
        """The most events that a key has, and how many steps of each key are folded at once."""
        sizes = events.groupBy(self.keys).count().groupBy("count").agg(F.count("*")).collect()
        largest = most = max((size for size, _ in sizes), default=0)
        while most > 1 and sum(keys * min(size, most) * (min(size, most) + 1) // 2 for size, keys in sizes) > MOST:
            most //= 2
        return largest, max(most, 1)

    def _spread(self, rows: DataFrame, ends: DataFrame, start: int | str) -> DataFrame:
        """Rows of keys, each at every step from its start to the key's last."""
        begin = F.expr(f"CAST({start} AS INT)")
        found = rows.join(ends, self.keys).where(begin <= F.col(LAST))
        made = found.withColumn("_each", F.explode(F.sequence(begin, F.col(LAST))))
        return made.drop(STEP, LAST).withColumnRenamed("_each", STEP)

    def _folded(
        self, events: DataFrame, ends: DataFrame, state: DataFrame, tombstones: DataFrame | None, first: int
    ) -> DataFrame:
        rule = self.stepped
        views = {"events": self._spread(events, ends, STEP), "state": self._spread(state, ends, first)}
        if tombstones is not None:
            views["tombstones"] = self._spread(tombstones, ends, first)
        named = "tombstones" if tombstones is not None else None
        folded = sql(self.spark, rule.fold("placed"), placed=sql(self.spark, rule.placed("events"), **views))
        rows = rule.spread("folded", "state", named)
        return sql(self.spark, rule.combine(rows, "state", named), folded=folded, **views).localCheckpoint()

    def _again(
        self,
        made: DataFrame,
        torn: DataFrame,
        events: DataFrame,
        ends: DataFrame,
        state: DataFrame,
        first: int,
        head: int,
    ) -> DataFrame:
        """The same rows; those of keys that a late reset tore, folded from the whole changelog."""
        rule, load = self.stepped, feed.events(self.spark, self.config, self.stream, None, head)
        log = sql(self.spark, f"SELECT * FROM {self.rule.events('log', TRY)}", log=load).join(
            F.broadcast(torn), self.keys, "semi"
        )
        placed = events.select(*self.keys, "_order", STEP)
        begun = log.join(placed, [*self.keys, "_order"], "left").fillna(first, [STEP])  # the others are from before
        from_here = begun.withColumn(STEP, F.greatest(STEP, F.lit(first)))
        views = {"events": self._spread(from_here, ends, STEP), "state": self._spread(state, ends, first)}
        folded = sql(self.spark, rule.fold("placed"), placed=sql(self.spark, rule.placed("events"), **views))
        query = rule.combine(rule.spread("folded", "state", None), "state", None, again=True)
        anew = sql(self.spark, query, folded=folded, **views)
        return made.join(torn, self.keys, "anti").unionByName(anew).localCheckpoint()

    def _after(
        self, made: DataFrame, ends: DataFrame, state: DataFrame, tombstones: DataFrame | None, number: int
    ) -> tuple[DataFrame, DataFrame | None]:
        """State and tombstones after each key's last step."""
        last = made.join(ends, self.keys).where(F.col(STEP) == F.col(LAST)).drop(STEP, LAST)
        rows = [*map(quoted, self.rule.state_columns)]
        kept = state.join(last, list(self.rule.keys), "anti").unionByName(last.where("_present").select(rows))
        absent = sql(self.spark, f"SELECT {self.rule.remembered()} FROM absent", absent=last.where("NOT _present"))
        more = absent.selectExpr("*", f"CAST({number} AS BIGINT) AS position", "current_timestamp() AS log_time")
        # Each part's plan would hold those of all before it.
        known = tombstones.unionByName(more) if tombstones is not None else more
        return kept.localCheckpoint(), known.localCheckpoint()
