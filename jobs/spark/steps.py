"""The states that keys went through: one for each of their events, in the order of the log.

A merge makes one row of many events; what waits for a state to stay as it is, and what sends each event with the state that it made,
must see each of them. The state after a key's n-th event is the fold of its first n, combined with the state before them, all by the
rule's own queries; the step is one more column of its key there.

Where no event is a reset, a window function goes through a key's events once. A vote, or what a reset has changed, has to be folded for each
step. So that a key with many events does not cost their square then, the steps are a tree with so many :func:`branches`: first come the states after
the first, the second, ... hundredth of a key's events, each folded from the beginning; then, from the state before each of these
parts, those after the parts of the part; in the end those after each event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import sqlglot
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from sqlglot import exp

from jobs.spark import change_feed, small
from jobs.spark.guard import TRY
from jobs.spark.session import sql
from statehouse.config.models import Config
from statehouse.fold import Rule
from statehouse.reducers import ORDER
from statehouse.spark_sql import quoted
from statehouse.tables import opened, table

STEP, LAST = "_step", "_until"
PASS = 500_000  # rows that could be folded in the time that one more level of the tree takes for itself
WINDOW, NO_RESET = "_so_far", f"CAST(NULL AS {ORDER})"
PLACE = ("_commit_version", "_partition", "_offset")


def branches(sizes: Mapping[int, int]) -> list[int]:
    """The number of events in a part, by level of the tree: from all events of a key down to 1. Of several trees it is the one that folds
    the fewest rows. ``sizes`` says how many keys there are by their number of events."""
    largest, costs = max(sizes), []
    for levels in range(1, 8):
        each = int(largest ** (1 / levels))
        each += each**levels < largest
        spans = [each**level for level in range(levels, -1, -1)]
        rows = sum(keys * size * min(-(-size // span), each) // 2 for size, keys in sizes.items() for span in spans[1:])
        costs.append((rows + levels * PASS, spans))
    return min(costs)[1]


def running(expression: str) -> str:
    """An expression of Spark SQL with aggregates, each of which is over the rows of :data:`WINDOW` then."""

    def over(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Filter):  # windows have none: what is null is passed over
            aggregate, condition = node.this.copy(), node.expression.this
            place = "expression" if isinstance(aggregate, exp.ArgMax | exp.ArgMin) else "this"
            aggregate.set(place, exp.Case().when(condition.copy(), aggregate.args[place]))
            return exp.Window(this=aggregate, alias=exp.to_identifier(WINDOW))
        aggregates = isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name == "try_sum")
        return exp.Window(this=node.copy(), alias=exp.to_identifier(WINDOW)) if aggregates else node

    return sqlglot.parse_one(expression, dialect="spark").transform(over).sql("spark")


class Steps:
    """Of one store. ``carried`` are columns of the changelog that each step has of its event, in the place of when and where it was."""

    def __init__(self, spark: SparkSession, config: Config, rule: Rule, carried: Sequence[str] = ()) -> None:
        self.spark, self.config, self.rule, self.carried = spark, config, rule, carried
        self.stream = config.streams[rule.store.stream]
        self.stepped = replace(rule, added=(*rule.added, (STEP, "INT")))
        self.keys = list(rule.key_columns)
        self.state, self.tombstones = (table(config, kind, rule.store.name) for kind in ("state", "tombstones"))

    def state_at(self, version: int) -> DataFrame:
        """The state as a version of its table has it."""
        return small.read(self.spark, self.state, version=version)

    def tombstones_at(self, position: int) -> DataFrame | None:
        """The tombstones that there were at a position; None: there has been none."""
        delta = opened(self.tombstones)
        if not delta or not delta.version():
            return None
        # One that a later merge left would make its key absent too early.
        return small.read(self.spark, self.tombstones, delta).where(F.col("position") <= position)

    def between(self, position: int, version: int, head: int) -> DataFrame | None:
        """The states after each event in (position, head] of the changelog, ``version`` being the state's at the position. None
        where there are no events.

        The columns of the state, ``_present``, and of the event: ``_step`` (1 for the key's first), ``_at`` (when it was so), and its place in
        the log, :data:`PLACE`, with ``_place`` as text. Raises what :func:`jobs.spark.change_feed.is_gone` knows where the log or the version is gone.
        """
        log = change_feed.events(self.spark, self.config, self.stream, position, head)
        events = self.numbered(log).localCheckpoint()
        state = self.state_at(version).join(events.select(self.keys).distinct(), self.keys, "semi")
        return self.after(events, state, self.tombstones_at(position), head)

    def numbered(self, log: DataFrame, order: Sequence[str] = PLACE) -> DataFrame:
        """The store's events out of rows of the changelog, each with its step; in another ``order`` than the log's where one is given. They are
        read when they are used, each time."""
        log.createOrReplaceTempView("log")
        more = [*PLACE, "_log_time", *self.carried]
        events = self.spark.sql(f"SELECT * FROM {self.rule.events('log', TRY, more=more)}").dropna(subset=self.keys)
        return events.withColumn(STEP, F.row_number().over(Window.partitionBy(self.keys).orderBy(*order)))

    def walks(self, events: DataFrame) -> bool:
        """Whether one walk over some events may do."""
        reducer = self.rule.store.reducer
        return not reducer.per_agent and not reducer.written and events.where("_reset").isEmpty()

    def after(
        self,
        events: DataFrame,
        state: DataFrame | None,
        tombstones: DataFrame | None,
        head: int | None,
        walks: bool | None = None,
    ) -> DataFrame | None:
        """The states after each of the :meth:`numbered` events, with the columns of :meth:`between`; None where there are no events.

        ``state`` and ``tombstones`` are those before the first event, None where there are none. ``head`` is the changelog's version that has the last one; None:
        the events are all that their keys have. ``walks`` is what :meth:`walks` says, where it is known. In a
        windowed store a step has the windows that changed, and perhaps others."""
        states = self._walk(events, state, tombstones) if walks or self.walks(events) else None
        if states is None:
            states = self._tree(events, state or self.no_state(), tombstones, head)
        if states is None:
            return None
        told = self._event_columns()
        if told.keys() <= {*states.columns}:
            return states
        event_columns = (column.alias(name) for name, column in told.items())
        return states.join(events.select(*map(quoted, self.keys), STEP, *event_columns), [*self.keys, STEP])

    def _event_columns(self) -> dict[str, Column]:
        """What each step has of its event: what is carried, or when and where it was."""
        known = {name: F.col(name) for name in ("_order", *(self.carried or PLACE))}
        if self.carried:
            return known
        at = F.least("_event_time", "_log_time")  # nobody tells of what is still to come
        return {"_at": at, "_place": F.concat_ws(":", "_partition", "_offset"), **known}

    def no_state(self) -> DataFrame:
        """A state without rows, which Spark leaves out of its plans."""
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in self.rule.state_columns.items())
        return self.spark.sql(f"SELECT {nulls} WHERE FALSE")

    def _walk(self, events: DataFrame, state: DataFrame | None, tombstones: DataFrame | None) -> DataFrame | None:
        """The states after each event where none of them is a reset: one walk over the events, with running aggregates. None where an
        earlier reset falls between values that are added up already: then they have to be folded anew."""
        # Where a key's purge is one of its windows, each step has a state of its own; else all of a key's meet the same, and keep what is
        # told of their events: to join that to them costs as much as the walk.
        told = {} if self.rule.store.windows else {name: f"_told_{name}" for name in self._event_columns()}
        rule, carried = (self.rule, (STEP, *told.values())) if told else (self.stepped, ())
        folds = {**{column: running(e) for column, e in rule.folds(NO_RESET).items()}, "reset": NO_RESET}
        aggregates = ", ".join(f"{expression} AS {quoted(column)}" for column, expression in folds.items())
        keys = ", ".join(map(quoted, self.rule.keys))
        window = f"PARTITION BY {keys} ORDER BY {STEP} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        columns = ", ".join([*map(quoted, rule.keys), *carried, aggregates])
        if told:
            events = events.withColumns({told[name]: column for name, column in self._event_columns().items()})
        query = f"SELECT {columns} FROM ({rule.placed('events', carried)}) WINDOW {WINDOW} AS ({window})"
        known = state or self.no_state()
        views = {"folded": sql(self.spark, query, events=events), "state": known}
        if tombstones is not None:
            views["tombstones"] = tombstones
        if not told:
            steps = views["folded"].select(*map(quoted, self.rule.keys), STEP)
            views["state"] = known.join(steps, list(self.rule.keys))
            if tombstones is not None:
                views["tombstones"] = tombstones.join(events.select(*map(quoted, self.keys), STEP), self.keys)
        named = "tombstones" if tombstones is not None else None
        rows = rule.spread("folded", "state", named)
        combined = sql(self.spark, rule.combine(rows, "state", named, of_rows=carried), **views).withColumnsRenamed(
            {name: column for column, name in told.items()}
        )
        if state is None and tombstones is None:  # there was no reset
            return combined
        combined = combined.localCheckpoint()
        return combined if combined.where("_conflict").isEmpty() else None

    def _tree(
        self, events: DataFrame, state: DataFrame, tombstones: DataFrame | None, head: int | None
    ) -> DataFrame | None:
        """The states after each event, also where some are resets, by the tree of :func:`branches`; None where there are no events."""
        sizes = {size: keys for size, keys in events.groupBy(self.keys).count().groupBy("count").count().collect()}
        if not sizes:
            return None
        spans = branches(sizes)
        ends = events.groupBy(self.keys).agg((F.max(STEP) - 1).alias(LAST))
        # Within, the first step and the first part are 0: of the highest level there is one part.
        counted = events.withColumn(STEP, F.col(STEP) - 1)
        begin = F.lit(0).alias(STEP)
        state, tombstones = state.select("*", begin), tombstones and tombstones.select("*", begin)
        for level, (parent, span) in enumerate(pairwise(spans)):
            known = self._spread(state, ends, f"{STEP} * {parent // span}", parent, span)
            absent = tombstones and self._spread(tombstones, ends, f"{STEP} * {parent // span}", parent, span)
            states = self._fold(self._spread(counted, ends, f"{STEP} div {span}", parent, span), known, absent)
            if self.rule.store.reducer.additive:
                states = self._fold_torn_anew(states, counted, known, span, head)
            if span > 1:
                state, tombstones = self._before(states, known, absent, parent // span, (head or 0) + level + 1)
        if self.rule.store.windows:
            states = self._add_ended_windows(states, counted, ends, spans[-2])
        return states.withColumn(STEP, F.col(STEP) + 1)

    def _spread(self, rows: DataFrame, ends: DataFrame, first: str, parent: int, span: int) -> DataFrame:
        """Rows of keys, each in every part of ``span`` events from its ``first`` to the last of the ``parent`` that this is in."""
        each = parent // span
        begin = F.expr(f"CAST({first} AS INT)")
        end = F.expr(f"CAST(least((({first}) div {each} + 1) * {each} - 1, {LAST} div {span}) AS INT)")
        placed = rows.join(ends, self.keys).where(begin <= end).withColumn("_each", F.explode(F.sequence(begin, end)))
        return placed.drop(STEP, LAST).withColumnRenamed("_each", STEP)

    def _fold(self, events: DataFrame, state: DataFrame, tombstones: DataFrame | None) -> DataFrame:
        rule, views = self.stepped, {"events": events, "state": state}
        if tombstones is not None:
            views["tombstones"] = tombstones
        named = "tombstones" if tombstones is not None else None
        folded = sql(self.spark, rule.fold("placed"), placed=sql(self.spark, rule.placed("events"), **views))
        rows = rule.spread("folded", "state", named)
        return sql(self.spark, rule.combine(rows, "state", named), folded=folded, **views).localCheckpoint()

    def _fold_torn_anew(
        self, states: DataFrame, events: DataFrame, state: DataFrame, span: int, head: int | None
    ) -> DataFrame:
        """The same rows, but those with a ``_conflict`` (a late reset falls between values that are added up) are folded again from the
        whole changelog."""
        torn = states.where("_conflict").select(*self.keys, STEP).distinct()
        if torn.isEmpty():
            return states
        rule, wanted = self.stepped, F.broadcast(torn.withColumnRenamed(STEP, "_torn"))
        if head is not None:
            load = change_feed.events(self.spark, self.config, self.stream, None, head)
            log = sql(self.spark, f"SELECT * FROM {self.rule.events('log', TRY)}", log=load)
            known = events.select(*self.keys, "_order", STEP)
            events = log.join(known, [*self.keys, "_order"], "left").fillna(-1, [STEP])  # the others are from before
        parts = events.join(wanted, self.keys).where(f"{STEP} < (_torn + 1) * {span}")  # with the last of its events
        views = {
            "events": parts.drop(STEP).withColumnRenamed("_torn", STEP),
            "state": state.join(torn, [*self.keys, STEP], "semi"),
        }
        folded = sql(self.spark, rule.fold("placed"), placed=sql(self.spark, rule.placed("events"), **views))
        query = rule.combine(rule.spread("folded", "state", None), "state", None, again=True)
        anew = sql(self.spark, query, folded=folded, **views)
        return states.join(torn, [*self.keys, STEP], "anti").unionByName(anew).localCheckpoint()

    def _before(
        self, states: DataFrame, state: DataFrame, tombstones: DataFrame | None, each: int, number: int
    ) -> tuple[DataFrame, DataFrame]:
        """State and tombstones before each part: the ``states`` that the part before it has made. The first of every ``each`` parts has
        the state and the tombstones that were given."""
        later = states.withColumn(STEP, F.col(STEP) + 1).where(f"{STEP} % {each} <> 0")
        unchanged = state.join(later, list(self.stepped.keys), "anti")
        state = unchanged.unionByName(later.where("_present").select(*map(quoted, self.rule.state_columns), STEP))
        absent = sql(self.spark, f"SELECT {self.stepped.remembered()} FROM absent", absent=later.where("NOT _present"))
        more = absent.selectExpr("*", f"CAST({number} AS BIGINT) AS position", "current_timestamp() AS log_time")
        # Each level's plan would hold those of all before it.
        known = tombstones.unionByName(more) if tombstones is not None else more
        return state.localCheckpoint(), known.localCheckpoint()

    def _add_ended_windows(self, steps: DataFrame, events: DataFrame, ends: DataFrame, each: int) -> DataFrame:
        """The same, with a row that is not present for each step after which a window is gone, or never was: a purge leaves no row of a sum,
        neither of what it met nor of an event from before it that comes later."""
        keys, part = list(self.rule.keys), F.expr(f"{STEP} div {each}").alias("_part")
        placed = sql(self.spark, self.stepped.placed("events"), events=events)
        known = steps.select(*keys, STEP).unionByName(placed.select(*keys, STEP)).dropna(subset=keys)
        begun = known.groupBy(*keys, part).agg(F.min(STEP).alias(STEP)).drop("_part")
        every = self._spread(begun, ends, STEP, each, 1)
        return every.join(steps, [*keys, STEP], "left").fillna(False, ["_present"])
