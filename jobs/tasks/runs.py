"""What the states were: the runs that rules are about, and whether a value that somebody waits for is still there."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.spark import change_feed
from jobs.spark.guard import TRY
from jobs.spark.steps import PLACE, STEP, Steps
from jobs.tasks.messages import MESSAGE, with_key
from jobs.tasks.table import TaskTable, shape_rows
from statehouse.config.models import Store, Task
from statehouse.fold import Rule
from statehouse.spark_sql import literal, quoted, value_of
from statehouse.tables import folded, generation, opened
from statehouse.tables import table as path_of
from statehouse.values import next_time, safe

NOTHING = "none yet"


def mark(task: Task) -> str:
    """A hash of a rule's settings: it tells whether the rule was changed."""
    return hashlib.sha256(repr(sorted(task.model_dump().items())).encode()).hexdigest()[:16]


class Runs:
    """Puts into the table the runs that began and ended. ``rules`` are those of all stores, ``messages`` by task as
    :func:`jobs.tasks.messages.message_of` has them."""

    def __init__(self, table: TaskTable, rules: Mapping[str, Rule], messages: Mapping[str, dict[str, str]]) -> None:
        self.table, self.rules, self.messages = table, rules, messages
        self.spark, self.config, self.tasks = table.spark, table.config, table.tasks

    def watch(self, store: Store) -> None:
        """The runs of a store that began and ended since its position."""
        delta, stores = opened(path_of(self.config, "state", store.name)), self.table.positions["stores"]
        head = folded(delta) if delta else None
        marks = {n: mark(t) for n, t in self.tasks.items() if t.store == store.name}
        if delta is None or head is None:
            if marks and store.name not in stores:  # all that comes is news
                stores[store.name] = {"position": 0, "version": 0, "table": NOTHING, "rules": marks}
                self.table.put([self._daily(self.tasks[n]) for n in marks if self.tasks[n].at])
            return
        known_position, version = stores.get(store.name, {}), delta.version()
        which = f"{delta.metadata().id}/{generation(delta)}"
        stores[store.name] = {"position": head, "version": version, "table": which, "rules": marks}
        asked = store.name in self.table.awaited_stores
        if not marks and not asked:
            return
        known = known_position.get("table") == which or (
            known_position.get("table") == NOTHING and not generation(delta)
        )
        going = [n for n in marks if known and known_position["rules"].get(n) == marks[n]]
        if known and known_position["position"] == head and len(going) == len(marks):
            return
        steps = Steps(self.spark, self.config, self.rules[store.name])
        frames: list[DataFrame] = []
        if known:
            try:
                frames = self._since(steps, known_position["position"], known_position["version"], head, going, asked)
            except Exception as error:
                if not change_feed.is_gone(error):
                    raise
                known, going = False, []
        state = with_key(steps.state_at(version), steps.rule)
        for name in marks.keys() - set(going):
            task = self.tasks[name]
            frames.append(self._daily(task) if task.at else self._begin_anew(task, state))
        if asked and not known:
            frames.append(self._end_broken(steps.rule, None, state))
        self.table.put(frames)

    def _since(
        self, steps: Steps, position: int, version: int, head: int, names: Sequence[str], asked: bool
    ) -> list[DataFrame]:
        """What the events in (position, head] of the changelog have begun and ended."""
        runs, rule = [self.tasks[name] for name in names if not self.tasks[name].at], steps.rule
        states = steps.between(position, version, head) if position != head and (runs or asked) else None
        after = with_key(states, rule).withColumn("_over", F.col("_at")) if states else None
        frames = [self._runs(task, after) for task in runs] if after else []
        if asked:
            frames.append(self._end_broken(rule, after, with_key(steps.state_at(version), rule)))
        return frames

    def _runs(self, task: Task, steps: DataFrame) -> DataFrame:
        """Rows for the table: the runs of a rule that some steps began, ended or went on with. Where the rule's ``when`` holds after a
        step, it does so since ``_at``; where it no longer does, since ``_over``."""
        rule = self.rules[task.store]
        last = self.table.read(f"task = {literal(task.name)} AND key IS NOT NULL AND ended IS NULL").selectExpr(
            "key AS _key", "id AS _id", "since AS _since", "due AS _due", "status AS _status", "sent AS _sent",
            "struct(message_key, message) AS _was",
        )  # fmt: skip
        holds = F.expr(f"coalesce(_present AND {TRY.format(safe(task.when or 'TRUE'))}, FALSE)")
        steps.withColumn("_holds", holds).join(last, "_key", "left").createOrReplaceTempView("steps")
        row = ", ".join(map(quoted, rule.state_columns))
        runs = self.spark.sql(f"""
            SELECT _key, _run, any_value(_id) AS _id, any_value(_due) AS _due, any_value(_status) AS _status,
              any_value(_sent) AS _sent, any_value(_was) AS _was,
              CASE WHEN _run = 0 THEN any_value(_since) ELSE min_by(_at, {STEP}) FILTER (WHERE _holds) END AS _since,
              min_by(_place, {STEP}) FILTER (WHERE _holds) AS _place,
              min_by(_over, {STEP}) FILTER (WHERE NOT _holds) AS _ended,
              max_by(struct({row}), {STEP}) FILTER (WHERE _holds) AS _row
            FROM (SELECT *, sum(CASE WHEN _holds AND NOT _held THEN 1 ELSE 0 END) OVER (PARTITION BY _key ORDER BY {STEP}) AS _run
              FROM (SELECT *, coalesce(lag(_holds) OVER (PARTITION BY _key ORDER BY {STEP}), _id IS NOT NULL) AS _held FROM steps))
            GROUP BY _key, _run HAVING _run > 0 OR any_value(_id) IS NOT NULL""")
        after = F.expr(f"timestampadd(MILLISECOND, {task.after}L, _since)")
        named = {"since": F.col("_since"), "due": F.col("_at")}
        rows = runs.withColumn("_at", after).select("*", "_row.*")
        rows = rows.withColumns({n: c for n, c in named.items() if n not in rule.state_columns})
        # A run that ends with its first step here has no row: its message stays what it was.
        message = {c: F.expr(e) for c, e in self.messages[task.name].items()}
        for column in ("message_key", "message"):
            message[column] = F.when(F.col("_row").isNull(), F.col(f"_was.{column}")).otherwise(message[column])
        rows = rows.select("_key", "_run", "_id", "_due", "_status", "_sent", "_was", "_since", "_place", "_ended", "_at",
                           *(c.alias(f"_m_{n}") for n, c in message.items()))  # fmt: skip
        news = (
            "_ended IS NOT NULL OR (_status = 'waiting' AND (NOT (_was <=> struct(_m_message_key, _m_message)) "
            "OR (_sent = 0 AND _due <> _at)))"
        )
        lasted = "_ended IS NULL OR _ended >= _at"
        return shape_rows(
            rows.where(f"CASE WHEN _run = 0 THEN {news} ELSE {lasted} END"),
            id=f"CASE WHEN _run = 0 THEN _id ELSE concat({literal(task.name + '/')}, _key, '@', _place) END",
            task=literal(task.name),
            stream=literal(rule.store.stream),
            store=literal(rule.store.name),
            key="_key",
            since="_since",
            due="_at",
            ended="_ended",
            reason="CASE WHEN _run = 0 AND _ended IS NOT NULL THEN 'the state has changed' END",
            **{column: f"_m_{column}" for column in MESSAGE},
        )

    def _begin_anew(self, task: Task, state: DataFrame) -> DataFrame:
        """Rows for the table: the runs of a rule that is new, or whose position is not known, by what the state is now and since when.
        A task that waits stays where the rule's ``when`` still holds."""
        now = f"timestamp_micros({int(self.table.now() * 1_000_000)})"
        place = f"CAST(unix_micros({now}) AS STRING) AS _place"
        rows = state.selectExpr(
            "*", "TRUE AS _present", f"1 AS {STEP}", "changed_at AS _at", "event_time AS _over", place
        )
        last = self.table.read(f"task = {literal(task.name)} AND key IS NOT NULL AND ended IS NULL").selectExpr(
            "key AS _key"
        )
        absent = last.join(rows, "_key", "anti").selectExpr(
            "_key", "FALSE AS _present", f"1 AS {STEP}", f"{now} AS _over", place
        )
        return self._runs(task, rows.unionByName(absent, allowMissingColumns=True))

    def _daily(self, task: Task) -> DataFrame:
        """The one row of a rule that is for a time of the day."""
        assert task.at
        due = next_time(task.at, dt.datetime.fromtimestamp(self.table.now(), dt.timezone.utc))
        return shape_rows(
            self.spark.range(1).toDF("_one"),
            id=literal(task.name),
            task=literal(task.name),
            stream=literal(self.rules[task.store].store.stream),
            store=literal(task.store),
            since=f"timestamp_micros({int(self.table.now() * 1_000_000)})",
            due=f"timestamp_micros({int(due.timestamp() * 1_000_000)})",
            topic=self.messages[task.name]["topic"],
            set=self.messages[task.name]["set"],
        )

    def _end_broken(self, rule: Rule, steps: DataFrame | None, state: DataFrame) -> DataFrame:
        """Rows for the table: the end of tasks that wait for a value of a store, as somebody asked, where the key has another value by now.
        ``state`` tells the value when the task was asked for or before, ``steps`` those since."""
        waits = self.table.read(
            f"task IS NULL AND value IS NOT NULL AND ended IS NULL AND status = 'waiting' AND store = {literal(rule.store.name)}"
        ).selectExpr(
            "id AS _id", "key AS _key", "value AS _value", "since AS _since",
            "struct(position, CAST(split(id, ':')[1] AS INT), CAST(split(id, ':')[2] AS BIGINT)) AS _asked",
        )  # fmt: skip
        same = f"{rule.same('value', value_of('_value', rule.value_type))} AS _same"
        compared = waits.join(state.select("_key", "value"), "_key", "left").selectExpr(
            "_id", "_since", f"0 AS {STEP}", "_since AS _at", "TRUE AS _before", same
        )
        if steps:
            place = f"struct(CAST({PLACE[0]} AS BIGINT), CAST({PLACE[1]} AS INT), CAST({PLACE[2]} AS BIGINT))"
            later = steps.withColumn("value", F.expr("CASE WHEN _present THEN value END"))
            columns = ["_id", "_since", STEP, "_at", f"{place} <= _asked AS _before", same]
            compared = compared.unionByName(waits.join(later, "_key").selectExpr(*columns))
        compared.createOrReplaceTempView("found")
        rows = self.spark.sql(f"""
            SELECT _id, min_by(CASE WHEN _before THEN _since ELSE _at END, {STEP}) AS _ended
            FROM (SELECT *, max(CASE WHEN _before THEN {STEP} END) OVER (PARTITION BY _id) AS _first FROM found)
            WHERE {STEP} >= _first AND NOT _same GROUP BY _id""")
        return shape_rows(rows, id="_id", ended="_ended", reason="'the state has changed'")
