"""A store's events → a topic or a table of the user's, each with the state before it and the state that it made.

A round is :mod:`jobs.route`'s, over the events in (p, head] of the log, head being what the state has folded; the states in between
are those of :mod:`jobs.spark.steps`, from the state at p on. The version of the state that was at p is noted with the position; where it can
be read no more, the state at p is folded anew from the log.

An event that comes late makes a state that the later events of its key did not know. ``late: append`` leaves it at that: each event
is told once, with the states that it met and left. ``late: resend`` tells what each event means in the order of events: a late one has the
state as of its own time, and those later ones whose ``after`` is another now are told once more, with the next ``revision``. So the
newest revisions together are what would have been told had nothing been late.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from jobs.route import AFTER, BEFORE, RESEND, REVISION, STATE, Router, columns_of, shown_columns
from jobs.spark import change_feed
from jobs.spark.expressions import rule_of, schema_of
from jobs.spark.guard import TRY, install
from jobs.spark.session import sql
from jobs.spark.steps import PLACE, STEP, Steps
from statehouse.config.models import Config, Route
from statehouse.spark_sql import quoted
from statehouse.tables import TOPIC_PARTITION, changelog_columns, folded, generation, opened

EVENT, ARRIVAL, ARRIVED, ORDER = "_event", "_arrival", "_arrived", "_order"
# Of the log, also where it is not known with which commit each event came: a batch has one time.
LOG_ORDER = ("_log_time", "_partition", "_offset")
# Of an event, whatever is asked for: where it is, when and what it was, and what the quarantine has of it.
TOLD_OF_ALL = ("_topic", TOPIC_PARTITION, *LOG_ORDER, "_event_time", "_rank", "_op", "_key", "_payload")
OVER = re.compile(r"\bover\b", re.IGNORECASE)
ALL = re.compile(r"(^|[(,])\s*\*\s*($|[,)])")  # `*`, and `struct(*)`; no product


class StoreRouter(Router):
    """One route of a store's events."""

    def __init__(self, spark: SparkSession, config: Config, route: Route) -> None:
        super().__init__(spark, config, route)
        assert route.store
        install(self.spark)
        # Each column that is carried has another name too: what is known of n of them Spark would write down in 2^n ways.
        self.spark.conf.set("spark.sql.constraintPropagation.enabled", "false")
        self.rule = rule_of(self.spark, config, config.stores[route.store])
        known, self.everything = columns_of(self.stream, route, self.rule)
        # What of an event nobody asks for is not carried through the walk, each step of which is written.
        wanted = {*self.rule.keys, BEFORE, AFTER, REVISION, *TOLD_OF_ALL, *_columns_in(route, known, self.everything)}
        self.columns = {name: kind for name, kind in known.items() if name in wanted}
        self.event = {n: kind for n, kind in changelog_columns(self.stream).items() if n in wanted}
        more = [
            name for name in ("window_start", REVISION) if name in self.columns and name not in self.rule.key_columns
        ]
        self.order, self.several = (ARRIVED, ORDER, *more), bool(more)
        by_key = [route.to.key] == list(self.rule.keys) and route.to.key in [part.strip() for part in route.select]
        sorted_anew = route.multiplies or any(OVER.search(part) for part in route.select)
        self.in_order = by_key and not more and not sorted_anew
        self.carried = {name: f"_event{number}" for number, name in enumerate(self.event)}
        self.steps = Steps(self.spark, config, self.rule, list(self.carried.values()))
        self.keys = self.steps.keys
        self._state: tuple[str, int] = "", 0  # which table, and its version at the head

    def head(self) -> int | None:
        """The changelog's version that the state has folded."""
        delta = opened(self.steps.state)
        if delta is None or (head := folded(delta)) is None:
            return None
        self._state = f"{delta.metadata().id}/{generation(delta)}", delta.version()
        newest, start = super().head(), self.position.get()
        behind = start is not None and head < start <= (newest or 0)  # it was lost, and is folded anew
        return start if behind else head

    def more(self) -> dict[str, Any]:
        """The state that the position is of."""
        return {STATE: list(self._state)}

    def rows(self, log: DataFrame, start: int | None, head: int) -> DataFrame:
        """The store's events among some rows of the log, each with the states before and after it; of several windows a row each."""
        events = self._number_events(log, head)
        # All from the beginning, and in the order of the log: read once, and not kept on the way.
        once = start is None and self.route.late != RESEND and not self.rule.store.windows and self.steps.walks(events)
        events = events if once else events.localCheckpoint()
        state, tombstones = self._before(events, start)
        until = None if start is None else head
        states = self.steps.after(events, state, tombstones, until, once or None)
        with_states = self._with_states(self.steps, states, state)
        if self.route.late == RESEND:
            with_states = self._revise(with_states, events, start, head)
        if self.in_order:
            # As the walk has left them. The condition always holds; without it Spark leaves out windows whose columns nobody asks for.
            in_log = Window.partitionBy(*map(quoted, self.keys)).orderBy(STEP)
            with_states = with_states.withColumn("_number", F.row_number().over(in_log)).where("_number > 0")
        return self._select_named(with_states)

    def _number_events(self, log: DataFrame, head: int) -> DataFrame:
        if PLACE[0] not in log.columns:
            log = log.withColumn(PLACE[0], F.lit(head).cast("bigint"))
        event = {held: F.col(quoted(name)) for name, held in self.carried.items()}
        return self.steps.numbered(log.withColumns(event), LOG_ORDER)

    def _before(self, events: DataFrame, start: int | None) -> tuple[DataFrame | None, DataFrame | None]:
        """The state and the tombstones of the events' keys at the position; None where there are none."""
        if start is None:
            return None, None
        keys = events.select(self.keys).distinct()
        which, version = self.position.read_note().get(STATE, ["", 0])
        if which == self._state[0]:
            try:
                state = self.steps.state_at(version).join(keys, self.keys, "semi").localCheckpoint()
                return state, self.steps.tombstones_at(start)
            except Exception as error:
                if not change_feed.is_gone(error):
                    raise
        rule, log = self.rule, change_feed.events(self.spark, self.config, self.stream, None, start)
        earlier_events = sql(self.spark, f"SELECT * FROM {rule.events('log', TRY)}", log=log).join(
            keys, self.keys, "semi"
        )
        views = {
            "state": self.steps.no_state(),
            "placed": sql(self.spark, rule.placed("events"), events=earlier_events),
        }
        views["folded"] = sql(self.spark, rule.fold("placed"), **views)
        query = rule.combine(rule.spread("folded", "state", None), "state", None, again=True)
        folded_rows = sql(self.spark, query, **views).localCheckpoint()
        absent = sql(self.spark, f"SELECT {rule.remembered()} FROM absent", absent=folded_rows.where("NOT _present"))
        remembered = absent.selectExpr("*", f"CAST({start} AS BIGINT) AS position", "current_timestamp() AS log_time")
        return folded_rows.where("_present").select(*map(quoted, rule.state_columns)), remembered

    def _with_states(self, steps: Steps, states: DataFrame | None, state: DataFrame | None) -> DataFrame:
        """Each step with the states before and after it, as structs that are null where there is none."""
        keys = list(steps.rule.keys)
        if states is None:
            empty = {**steps.rule.keys, STEP: "INT", ORDER: "DECIMAL(38,0)"}
            rows = self.spark.createDataFrame([], schema_of(empty))
            event = F.lit(None).cast(schema_of(self.event)).alias(EVENT)
            kind = schema_of(self.columns)[BEFORE].dataType
            return rows.select("*", event, *(F.lit(None).cast(kind).alias(name) for name in (BEFORE, AFTER)))
        row = F.struct(*(F.expr(shown).alias(name) for name, (_, shown) in shown_columns(self.rule).items()))
        order = Window.partitionBy(*map(quoted, keys)).orderBy(STEP)
        shown = [*map(quoted, keys), STEP, ORDER]
        after = F.when(F.col("_present"), row).alias(AFTER)
        paired = states.select(*shown, *self.carried.values(), after)
        earlier = F.lag(AFTER).over(order)
        if state is not None:
            paired = paired.join(state.select(*map(quoted, keys), row.alias("_first")), keys, "left")
            earlier = F.when(F.row_number().over(order) == 1, F.col("_first")).otherwise(earlier)
        # One column only now: of a struct each window would keep all.
        event = F.struct(*(F.col(held).alias(name) for name, held in self.carried.items())).alias(EVENT)
        paired = paired.select(*shown, event, earlier.alias(BEFORE), AFTER)
        return paired.where(self._is_in_window()) if self.rule.store.windows else paired

    def _is_in_window(self) -> Column:
        """Whether a window is one of the event's: of a report those that it is in, of a purge those that there were."""
        assert self.rule.store.windows
        since = f"unix_micros({EVENT}._event_time) - unix_micros(window_start)"
        inside = f"{since} BETWEEN 0 AND {self.rule.store.windows[0] - 1}"
        return F.expr(f"CASE WHEN {EVENT}._op = 'report' THEN {inside} ELSE {BEFORE} IS NOT NULL END")

    def _comparable(self) -> list[Column]:
        """The columns of ``after``, so that equal ones are equal as text: the agents of a vote are in no order."""
        columns = {name: F.col(f"{AFTER}.{quoted(name)}") for name in shown_columns(self.rule)}
        entries = {n: F.array_sort(F.map_entries(c)) for n, c in columns.items() if n == "reports"}
        return [column.alias(name) for name, column in {**columns, **entries}.items()]

    def _select_named(self, rows: DataFrame) -> DataFrame:
        """The rows with what the route's expressions may name, and what they are ordered by."""
        own = {*self.rule.keys, BEFORE, AFTER, REVISION}
        shown = [
            F.col(quoted(name)) if name in own else F.col(f"{EVENT}.{quoted(name)}").alias(name)
            for name in self.columns
        ]
        arrived = F.col(ARRIVED) if ARRIVED in rows.columns else _arrival()
        ordered = [arrived.alias(ARRIVED), F.col(ORDER)]
        placed = ["_topic", *([TOPIC_PARTITION] if self.stream.several else []), *LOG_ORDER[1:]]
        lacking = [name for name in placed if name not in self.columns]
        return rows.select(*shown, *ordered, *(F.col(f"{EVENT}.{name}").alias(name) for name in lacking))

    # Late events.

    def _revise(self, rows: DataFrame, events: DataFrame, start: int | None, head: int) -> DataFrame:
        """The rows in the order of events: those of keys with a late event anew, with what it has changed of the others."""
        late = self._late(events, start)
        first_told = rows.withColumn(REVISION, F.lit(1)).withColumn(ARRIVED, _arrival())
        if late.isEmpty():
            return first_told
        log = change_feed.events(self.spark, self.config, self.stream, None, head)
        whole = self._number_events(log, head).join(late, self.keys, "semi").localCheckpoint()
        told_anew = self._revisions(whole)
        coordinates = events.select(F.struct(*(F.col(c) for c in LOG_ORDER)).alias(ARRIVED))
        new = told_anew.join(coordinates, ARRIVED, "semi")
        return first_told.join(late, self.keys, "anti").unionByName(new.select(*first_told.columns))

    def _late(self, events: DataFrame, start: int | None) -> DataFrame:
        """The keys that have a late event: one whose order is less than that of an event that came before it."""
        before = Window.partitionBy(*map(quoted, self.keys)).orderBy(STEP).rowsBetween(Window.unboundedPreceding, -1)
        compared = events.withColumn("_known", F.max(ORDER).over(before))
        first = self.carried["_rank"] if self.rule.ranked else "unix_micros(_event_time)"
        since = events.agg(F.min(F.expr(first))).collect()[0][0]
        if start is not None and since is not None:
            log = change_feed.events(self.spark, self.config, self.stream, None, start)
            # A value, so that older files are passed over.
            log = log.where(f"_rank >= {since}" if self.rule.ranked else f"_event_time >= timestamp_micros({since})")
            known = sql(self.spark, f"SELECT * FROM {self.rule.events('log', TRY)}", log=log)
            most = known.groupBy(*map(quoted, self.keys)).agg(F.max(ORDER).alias("_most"))
            compared = compared.join(most, self.keys, "left").withColumn("_known", F.greatest("_known", "_most"))
        return (
            compared.where(F.col("_known") > F.col(ORDER)).select(*map(quoted, self.keys)).distinct().localCheckpoint()
        )

    def _revisions(self, events: DataFrame) -> DataFrame:
        """Every revision of every event of some keys, those that were sent and those that are to be: an event's states as they were when it
        came, and again for each later event that came late and changed its ``after``."""
        keys = [*map(quoted, self.keys)]
        before = Window.partitionBy(*keys).orderBy(STEP).rowsBetween(Window.unboundedPreceding, -1)
        marked = events.withColumn("_late", F.coalesce(F.max(ORDER).over(before) > F.col(ORDER), F.lit(False)))
        by_log = self._with_states(self.steps, self.steps.after(events, None, None, None), None)
        in_time = by_log.join(marked.where("NOT _late").select(*keys, STEP), [*self.keys, STEP], "semi")
        in_time = in_time.withColumn(ARRIVED, _arrival()).drop(STEP)

        # What was there when a late event came, in the order of events: a key of its own for each.
        arrivals = marked.where("_late").select(
            *keys, F.col(STEP).alias(ARRIVAL), F.col(ORDER).alias("_from"), F.struct(*LOG_ORDER).alias(ARRIVED)
        )
        known = events.join(arrivals.select(*keys, ARRIVAL), self.keys).where(f"{STEP} <= {ARRIVAL}").drop(STEP)
        order = Window.partitionBy(*keys, ARRIVAL).orderBy(ORDER)
        known = known.withColumn(STEP, F.row_number().over(order)).localCheckpoint()
        rule = replace(self.rule, added=((ARRIVAL, "INT"),))
        steps = Steps(self.spark, self.config, rule, list(self.carried.values()))
        walked = self._with_states(steps, steps.after(known, None, None, None), None)
        revised = walked.join(arrivals, [*self.keys, ARRIVAL]).where(f"{ORDER} >= _from").drop("_from", ARRIVAL, STEP)

        every = in_time.unionByName(revised)
        after = F.to_json(F.struct(*self._comparable()))
        of = Window.partitionBy(*map(quoted, self.rule.keys), ORDER).orderBy(ARRIVED)
        itself = F.col(ARRIVED) == _arrival()
        changed = after != F.coalesce(F.lag(after).over(of), F.lit("{}"))  # of nothing but nulls
        every = every.withColumn("_said", itself | changed)
        number = F.sum(F.col("_said").cast("int")).over(of).cast("int")
        return every.withColumn(REVISION, number).where("_said").drop("_said").withColumn(STEP, F.lit(0))


def _columns_in(route: Route, known: Iterable[str], everything: Iterable[str]) -> set[str]:
    """The known columns whose names occur in a route's expressions, and so perhaps more than they use."""
    texts = [*route.select, route.where or "", route.to.key or ""]
    text = " ".join(texts).lower()
    all_of = everything if any(map(ALL.search, texts)) else ()
    return {name for name in known if name.lower() in text}.union(all_of)


def _arrival() -> Column:
    """When a row's event came: its place in the log."""
    return F.struct(*(F.col(f"{EVENT}.{name}").alias(name) for name in LOG_ORDER))


def router(spark: SparkSession, config: Config, route: Route) -> Router:
    """What sends a route's events."""
    return (StoreRouter if route.store else Router)(spark, config, route)
