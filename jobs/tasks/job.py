"""Tasks: what is done when a key's state has been so for a while, by rules of the file or as somebody asked for it.

A *run* is the time in which a key's state is as a rule's ``when`` says, in the order of the log: it begins with the event that made
it so, and ends with the first one after which it is not. A task is a row of the table ``tasks``, one for each run that lasts as long as
``after``. What somebody asks for comes with the events, by the topic, and is a row too.

A round, in three steps; what a crash after each leaves behind:

1. Register what was asked for, by the changelogs, stream by stream: a MERGE each.
2. Watch the states, store by store, as they were after each event since the position (:mod:`jobs.spark.steps`): MERGE the runs that began,
   and what has ended. *The commits of both hold all the positions: the next round goes on from there.*
3. Send what is due, in due order. *It is sent again, with the same header* ``task-id``. Commit that it was sent. *Done.*

A task is sent when the states know all that was in the topic when it was due: what ended it in time counts, however late the jobs are.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark import change_feed, kafka_sink
from jobs.spark.expressions import key_text, rule_of, visible
from jobs.spark.guard import TRY, install
from jobs.spark.kafka_sink import JSON_OPTIONS, Sent
from jobs.spark.session import fresh
from jobs.spark.steps import PLACE, STEP, Steps
from jobs.spark.tables import create, next_offsets
from jobs.tasks.deliver import PATIENCE, Message, deliver
from statehouse import kafka, topics
from statehouse.config import Config, Store, Task
from statehouse.errors import KafkaUnavailable, StatehouseError, TopicRefused, TopicUnavailable, first_line
from statehouse.fold import Rule, literal, quoted, value_of
from statehouse.headers import OP_HEADER, STORE_HEADER, TASK_HEADER, TASK_OPERATIONS
from statehouse.tables import (
    LOADED,
    TASK_COLUMNS,
    folded,
    generation,
    metadata,
    offsets_at,
    opened,
    select,
    table,
    tasks_table,
)
from statehouse.values import next_time, safe

log = logging.getLogger("statehouse")
Row = dict[str, Any]
AT_ONCE = 1000  # messages that are sent between two commits
FEW = 10_000  # messages of a daily rule that are sent one by one, each once; Spark sends more at once
MOST_REST = 120.0  # seconds until what could not be sent is tried again
AGAIN = 1.0  # seconds until Kafka is asked again how far it is
MESSAGE = ("topic", "message_key", "message", "set")  # what is sent, of the table's columns
NOTHING = "none yet"
SAID = "spark.databricks.delta.commitInfo.userMetadata"
MICROSECONDS = (
    "statehouse.microseconds"  # a table that has it has no times of INT96, which deltalake would take for nanoseconds
)
PROPERTIES = {"delta.dataSkippingStatsColumns": "status,due", "delta.checkpointInterval": "50", MICROSECONDS: "true"}


def mark(task: Task) -> str:
    """What tells a rule from the same one as it was before."""
    return hashlib.sha256(repr(sorted(task.model_dump().items())).encode()).hexdigest()[:16]


def message_of(spark: SparkSession, config: Config, task: Task, rule: Rule) -> dict[str, str]:
    """SQL: the columns :data:`MESSAGE`, over what is :func:`jobs.spark.expressions.visible` and ``_key``, the state's key as text; of an expression
    that throws, null. Raises Spark's AnalysisException or ParseException."""
    schema = ", ".join(f"{quoted(c)} {t}" for c, t in {**visible(rule), "_key": "STRING"}.items())
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


def keyed(rows: DataFrame, rule: Rule) -> DataFrame:
    """Rows of a state with ``_key``, their key as text."""
    return rows.withColumn("_key", F.expr(key_text(rule)))


class Rest(NamedTuple):
    """What could not be sent is left alone ``until`` a time of the monotonic clock, after so many ``failures`` on end."""

    until: float
    failures: int


class Tasks:
    """The tasks of a lake. ``now`` gives seconds since 1970; ``every`` is how many there are between two looks at the states."""

    kind, name = "tasks", "tasks"

    def __init__(
        self, spark: SparkSession, config: Config, now: Callable[[], float] = time.time, every: float = 0.0
    ) -> None:
        assert config.tasks is not None
        self.spark, self.config, self.now, self.every = fresh(spark), config, now, every
        self.path, self.tasks = tasks_table(config), config.tasks
        install(self.spark)
        self.rules = {name: rule_of(self.spark, config, store) for name, store in config.stores.items()}
        self.messages = {n: message_of(self.spark, config, t, self.rules[t.store]) for n, t in self.tasks.items()}
        self.said: dict[str, Any] | None = None  # the positions
        self.next_due: dt.datetime | None = None
        self.asked: set[str] = set()  # the stores that somebody's tasks wait for
        self.topics: dict[str, int] = {}  # that are known to be there, and the most bytes that a message may have
        self.rests: dict[tuple[str, str], Rest] = {}  # of ("topic", its name) and ("task", its id)
        self.tidied = self.looked = self.tried = float("-inf")

    def round(self) -> Sent | None:
        """Register, watch and send; None where nothing was sent. Raises KafkaUnavailable."""
        began = time.monotonic()
        try:
            before = self._begin()
            if time.monotonic() - self.looked >= self.every:
                for stream in self.config.streams:
                    self._register(stream)
                for store in self.config.stores.values():
                    self._watch(store)
                self.looked = time.monotonic()
            count = self._send_due()
        except BaseException:
            self.said = None  # the table tells
            raise
        if not count:
            return None
        return Sent(self.kind, self.name, before, DeltaTable(self.path).version(), count, time.monotonic() - began)

    # The table.

    def _begin(self) -> int:
        """Read the positions, if they are not known; the table's version."""
        unknown = self.said is None
        if unknown:
            create(self.spark, self.path, TASK_COLUMNS, PROPERTIES)
            kept = (metadata(self.path, self.name) or {}).get(self.name, {})
            self.said = {"streams": {}, "offsets": {}, "stores": {}, **kept}
            if MICROSECONDS not in DeltaTable(self.path).metadata().configuration:
                self._rewrite()
        if time.monotonic() - self.tidied >= self.config.maintain_every / 1000:
            self._tidy()
            self.tidied = time.monotonic()
        elif unknown:
            self._await()
        return DeltaTable(self.path).version()

    def _rewrite(self) -> None:
        """Write the rows of a table that is of an earlier version anew: by Spark, which reads its times rightly."""
        done = json.dumps({self.name: self.said})
        self._read("TRUE").write.format("delta").mode("overwrite").option("userMetadata", done).save(self.path)
        self.spark.sql(f"ALTER TABLE delta.`{self.path}` SET TBLPROPERTIES ('{MICROSECONDS}' = 'true')")

    def _done(self) -> CommitProperties:
        return CommitProperties(custom_metadata={"userMetadata": json.dumps({self.name: self.said})})

    def _move(self) -> None:
        """Commit the positions alone."""
        schema = pa.schema(DeltaTable(self.path).schema().to_arrow())
        write_deltalake(self.path, schema.empty_table(), mode="append", commit_properties=self._done())

    def _merge(self, rows: DataFrame) -> None:
        """Put rows of the table's columns and ``cancelled`` into the table, with the positions, in one commit. What waits is over
        where it is ``cancelled``, or has ``ended`` before it was due."""
        daily = "(t.task IS NOT NULL AND t.key IS NULL)"
        due = f"CASE WHEN t.sent = 0 OR {daily} THEN s.due ELSE t.due END"
        ended = "coalesce(s.ended, t.ended)"
        self.spark.conf.set(SAID, json.dumps({self.name: self.said}))
        try:
            (
                SparkTable.forPath(self.spark, self.path)
                .alias("t")
                .merge(rows.alias("s"), "t.id = s.id")
                .whenMatchedUpdate(
                    "t.status = 'waiting' AND (s.cancelled OR s.ended < t.due)",
                    {"status": "'cancelled'", "reason": "s.reason", "ended": ended},
                )
                .whenMatchedUpdate(
                    f"s.topic IS NOT NULL AND (t.status = 'waiting' OR {daily})",
                    {"status": "'waiting'", "ended": "s.ended", "due": due, **{f"`{c}`": f"s.`{c}`" for c in MESSAGE}},
                )
                .whenMatchedUpdate("s.ended IS NOT NULL", {"ended": ended})
                .whenNotMatchedInsert("s.due IS NOT NULL", {f"`{c}`": f"s.`{c}`" for c in TASK_COLUMNS})
                .execute()
            )
        finally:
            self.spark.conf.unset(SAID)
        self._await()

    def _put(self, found: Sequence[DataFrame]) -> None:
        """All of these in one commit, which moves the positions also where there is nothing."""
        rows = reduce(DataFrame.unionByName, found).localCheckpoint() if found else None
        if rows and not rows.isEmpty():
            self._merge(rows)
        else:
            self._move()

    def _rows(self, rows: DataFrame, **given: str) -> DataFrame:
        """Rows for :meth:`_merge`: columns by expressions, the others null."""
        made = {"status": "CASE WHEN cancelled THEN 'cancelled' ELSE 'waiting' END", "sent": "0", **given}
        columns = [f"CAST({made.get(c, 'NULL')} AS {t}) AS `{c}`" for c, t in TASK_COLUMNS.items()]
        if "cancelled" not in rows.columns:
            rows = rows.withColumn("cancelled", F.lit(False))
        return rows.selectExpr(*columns, "cancelled")

    def _read(self, where: str) -> DataFrame:
        return self.spark.read.format("delta").load(self.path).where(where)

    def _tidy(self) -> None:
        """End what is of rules that are no more, forget what has been over for as long as tombstones are kept, and keep the table
        as :mod:`jobs.maintain` does the others."""
        delta, now = DeltaTable(self.path), int(self.now() * 1_000_000)
        for daily in (True, False):
            names = ", ".join(f"'{name}'" for name, task in self.tasks.items() if bool(task.at) == daily) or "''"
            delta.update(
                predicate=f"task IS NOT NULL AND (key IS NULL) = {daily} AND task NOT IN ({names}) AND ended IS NULL",
                updates={
                    "status": "CASE WHEN status = 'waiting' THEN 'cancelled' ELSE status END",
                    "reason": "CASE WHEN status = 'waiting' THEN 'there is no such rule any more' ELSE reason END",
                    "ended": f"to_timestamp_micros({now})",
                },
                commit_properties=self._done(),
            )
        over = "status <> 'waiting' AND (ended IS NOT NULL OR task IS NULL)"
        old = f"to_timestamp_micros({now - self.config.tombstones * 1000})"
        delta.delete(f"{over} AND coalesce(sent_at, ended, due) < {old}", commit_properties=self._done())
        delta.optimize.compact(commit_properties=self._done())
        delta.vacuum(self.config.version_hours, False, False, commit_properties=self._done())
        self._await()

    def _await(self) -> None:
        """Find out what is waited for."""
        self.next_due = select(DeltaTable(self.path), "SELECT min(due) AS due FROM found WHERE status = 'waiting'")[0][
            "due"
        ]
        asked = "status = 'waiting' AND task IS NULL AND value IS NOT NULL AND ended IS NULL"
        self.asked = {
            row["store"] for row in select(DeltaTable(self.path), f"SELECT DISTINCT store FROM found WHERE {asked}")
        }

    # What somebody asks for.

    def _register(self, name: str) -> None:
        """The tasks, and the ends of tasks, that a stream's changelog has since the position."""
        assert self.said
        path, start = table(self.config, "changelog", name), self.said["streams"].get(name, 0)
        changelog = opened(path)
        head = changelog.version() if changelog else 0
        if head == start:
            return
        known = self.said["offsets"].get(name, {})
        try:
            found = self._asked_in(name, start, head).localCheckpoint()
        except Exception as error:
            if not change_feed.gone(error):
                raise
            # All of it, without what was known: it may have been sent and forgotten since.
            left = change_feed.new({int(partition): offset for partition, offset in known.items()}, "_")
            found = self._asked_in(name, 0, head).where(left).localCheckpoint()
        self.said["streams"][name] = head
        self.said["offsets"][name] = known | {str(p): offset for p, offset in (offsets_at(path, head) or {}).items()}
        if not found.isEmpty():
            self._merge(self._requests(found, name))

    def _asked_in(self, stream: str, start: int, head: int) -> DataFrame:
        rows = change_feed.events(self.spark, self.config, self.config.streams[stream], start or None, head)
        if PLACE[0] not in rows.columns:  # it is not known with which version each came
            rows = rows.withColumn(PLACE[0], F.lit(head))
        found = rows.where(f"_op IN {TASK_OPERATIONS}")
        return found.select("_op", "_store", "_key", "_value", "_event_time", "_topic", *PLACE)

    def _requests(self, found: DataFrame, stream: str) -> DataFrame:
        def of(path: str) -> str:
            return f"get_json_object(_value, '$.{path}')"

        rules = [r for r in self.rules.values() if r.store.stream == stream and not r.store.windows]
        keys = [f"WHEN _store = {literal(r.store.name)} THEN {key_text(r, r.control_keys())}" for r in rules]
        topics = " ".join(
            f"WHEN {of('set.store')} = {literal(s.name)} THEN {literal(self.config.streams[s.stream].topic)}"
            for s in self.config.stores.values()
        )
        made = {
            "id": "concat_ws(':', _topic, _partition, _offset)",
            "store": "_store",
            "key": f"CASE {' '.join(keys)} END" if keys else "NULL",
            "value": of("value"),
            "since": "_event_time",
            "due": f"CAST({of('due')} AS TIMESTAMP)",
            "topic": f"coalesce({of('send.topic')}, {f'CASE {topics} END' if topics else 'NULL'})",
            "message_key": f"coalesce({of('send.key')}, {of('set.key')})",
            "message": f"coalesce({of('send.value')}, {of('set')})",  # of a set: an object with the value in it
            "set": of("set.store"),
            "position": PLACE[0],
        }
        tasks = found.where("_op = 'task'").selectExpr(
            *(f"{expression} AS `{column}`" for column, expression in made.items())
        )
        ends = found.where("_op = 'cancel'").selectExpr(f"{of('id')} AS id", "TRUE AS _end").distinct()
        rows = tasks.join(ends, "id", "full").withColumn("cancelled", F.expr("coalesce(_end, FALSE)"))
        given = {column: f"`{column}`" for column in made}
        return self._rows(rows, **given, stream=literal(stream), reason="CASE WHEN cancelled THEN 'as asked for' END")

    # What the states were.

    def _watch(self, store: Store) -> None:
        """The runs of a store that began and ended since its position."""
        assert self.said
        delta = opened(table(self.config, "state", store.name))
        head = folded(delta) if delta else None
        marks = {n: mark(t) for n, t in self.tasks.items() if t.store == store.name}
        if delta is None or head is None:
            if marks and store.name not in self.said["stores"]:  # all that comes is news
                self.said["stores"][store.name] = {"position": 0, "version": 0, "table": NOTHING, "rules": marks}
                self._put([self._daily(self.tasks[n]) for n in marks if self.tasks[n].at])
            return
        kept, version = self.said["stores"].get(store.name, {}), delta.version()
        which = f"{delta.metadata().id}/{generation(delta)}"
        self.said["stores"][store.name] = {"position": head, "version": version, "table": which, "rules": marks}
        asked = store.name in self.asked
        if not marks and not asked:
            return
        known = kept.get("table") == which or (kept.get("table") == NOTHING and not generation(delta))
        going = [n for n in marks if known and kept["rules"].get(n) == marks[n]]
        if known and kept["position"] == head and len(going) == len(marks):
            return
        steps = Steps(self.spark, self.config, self.rules[store.name])
        found: list[DataFrame] = []
        if known:
            try:
                found = self._since(steps, kept["position"], kept["version"], head, going, asked)
            except Exception as error:
                if not change_feed.gone(error):
                    raise
                known, going = False, []
        state = keyed(steps.state_at(version), steps.rule)
        for name in marks.keys() - set(going):
            task = self.tasks[name]
            found.append(self._daily(task) if task.at else self._anew(task, state))
        if asked and not known:
            found.append(self._broken(steps.rule, None, state))
        self._put(found)

    def _since(
        self, steps: Steps, position: int, version: int, head: int, names: Sequence[str], asked: bool
    ) -> list[DataFrame]:
        """What the events in (position, head] of the changelog have begun and ended."""
        runs, rule = [self.tasks[name] for name in names if not self.tasks[name].at], steps.rule
        made = steps.between(position, version, head) if position != head and (runs or asked) else None
        after = keyed(made, rule).withColumn("_over", F.col("_at")) if made else None
        found = [self._runs(task, after) for task in runs] if after else []
        if asked:
            found.append(self._broken(rule, after, keyed(steps.state_at(version), rule)))
        return found

    def _runs(self, task: Task, steps: DataFrame) -> DataFrame:
        """The runs of a rule that some steps began, ended or went on with: where a step is so, since ``_at``; where it is not any
        more, since ``_over``."""
        rule = self.rules[task.store]
        last = self._read(f"task = {literal(task.name)} AND key IS NOT NULL AND ended IS NULL").selectExpr(
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
        made = runs.withColumn("_at", after).select("*", "_row.*")
        made = made.withColumns({n: c for n, c in named.items() if n not in rule.state_columns})
        # A run that ends with its first step here has no row: its message stays what it was.
        told = {c: F.expr(e) for c, e in self.messages[task.name].items()}
        for column in ("message_key", "message"):
            told[column] = F.when(F.col("_row").isNull(), F.col(f"_was.{column}")).otherwise(told[column])
        made = made.select("_key", "_run", "_id", "_due", "_status", "_sent", "_was", "_since", "_place", "_ended", "_at",
                           *(c.alias(f"_m_{n}") for n, c in told.items()))  # fmt: skip
        news = (
            "_ended IS NOT NULL OR (_status = 'waiting' AND (NOT (_was <=> struct(_m_message_key, _m_message)) "
            "OR (_sent = 0 AND _due <> _at)))"
        )
        lasted = "_ended IS NULL OR _ended >= _at"
        return self._rows(
            made.where(f"CASE WHEN _run = 0 THEN {news} ELSE {lasted} END"),
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

    def _anew(self, task: Task, state: DataFrame) -> DataFrame:
        """The runs of a rule that is new, or whose position is not known: what the state is, and since when. What waits stays, as
        far as it is so still."""
        now = f"timestamp_micros({int(self.now() * 1_000_000)})"
        place = f"CAST(unix_micros({now}) AS STRING) AS _place"
        rows = state.selectExpr(
            "*", "TRUE AS _present", f"1 AS {STEP}", "changed_at AS _at", "event_time AS _over", place
        )
        last = self._read(f"task = {literal(task.name)} AND key IS NOT NULL AND ended IS NULL").selectExpr(
            "key AS _key"
        )
        absent = last.join(rows, "_key", "anti").selectExpr(
            "_key", "FALSE AS _present", f"1 AS {STEP}", f"{now} AS _over", place
        )
        return self._runs(task, rows.unionByName(absent, allowMissingColumns=True))

    def _daily(self, task: Task) -> DataFrame:
        """The one row of a rule that is for a time of the day."""
        assert task.at
        due = next_time(task.at, dt.datetime.fromtimestamp(self.now(), dt.timezone.utc))
        return self._rows(
            self.spark.range(1).toDF("_one"),
            id=literal(task.name),
            task=literal(task.name),
            stream=literal(self.rules[task.store].store.stream),
            store=literal(task.store),
            since=f"timestamp_micros({int(self.now() * 1_000_000)})",
            due=f"timestamp_micros({int(due.timestamp() * 1_000_000)})",
            topic=self.messages[task.name]["topic"],
            set=self.messages[task.name]["set"],
        )

    def _broken(self, rule: Rule, steps: DataFrame | None, state: DataFrame) -> DataFrame:
        """What waits for a value of a store, as somebody asked, and whose key got another one: by the ``state`` when it was asked
        for or before, and the ``steps`` since."""
        waits = self._read(
            f"task IS NULL AND value IS NOT NULL AND ended IS NULL AND status = 'waiting' AND store = {literal(rule.store.name)}"
        ).selectExpr(
            "id AS _id", "key AS _key", "value AS _value", "since AS _since",
            "struct(position, CAST(split(id, ':')[1] AS INT), CAST(split(id, ':')[2] AS BIGINT)) AS _asked",
        )  # fmt: skip
        same = f"{rule.same('value', value_of('_value', rule.value_type))} AS _same"
        found = waits.join(state.select("_key", "value"), "_key", "left").selectExpr(
            "_id", "_since", f"0 AS {STEP}", "_since AS _at", "TRUE AS _before", same
        )
        if steps:
            place = f"struct(CAST({PLACE[0]} AS BIGINT), CAST({PLACE[1]} AS INT), CAST({PLACE[2]} AS BIGINT))"
            later = steps.withColumn("value", F.expr("CASE WHEN _present THEN value END"))
            columns = ["_id", "_since", STEP, "_at", f"{place} <= _asked AS _before", same]
            found = found.unionByName(waits.join(later, "_key").selectExpr(*columns))
        found.createOrReplaceTempView("found")
        rows = self.spark.sql(f"""
            SELECT _id, min_by(CASE WHEN _before THEN _since ELSE _at END, {STEP}) AS _ended
            FROM (SELECT *, max(CASE WHEN _before THEN {STEP} END) OVER (PARTITION BY _id) AS _first FROM found)
            WHERE {STEP} >= _first AND NOT _same GROUP BY _id""")
        return self._rows(rows, id="_id", ended="_ended", reason="'the state has changed'")

    # What is due.

    def _send_due(self) -> int:
        """Send what is due; how many messages."""
        now = self.now()
        at = dt.datetime.fromtimestamp(now, dt.timezone.utc)
        if self.next_due is None or self.next_due > at or time.monotonic() - self.tried < AGAIN:
            return 0
        self.tried = time.monotonic()
        waiting = f"status = 'waiting' AND due <= to_timestamp_micros({int(now * 1_000_000)})"
        due = select(DeltaTable(self.path), f"SELECT * FROM found WHERE {waiting} ORDER BY due, id")
        until = {stream: self._known_until(stream) for stream in {row["stream"] for row in due}}
        ready = [row for row in due if row["due"].timestamp() < until[row["stream"]] and not self._rests(row)]
        self.tried = float("-inf") if len(ready) == len(due) else self.tried
        count: int = 0
        failed: list[StatehouseError] = []
        while ready:
            length = next((i for i, row in enumerate(ready) if self._is_daily(row)), len(ready))
            part, ready = ready[: max(1, min(length, AT_ONCE))], ready[max(1, min(length, AT_ONCE)) :]
            if length:
                sent, delays = self._send_rows(part, at)
            else:
                sent, delays = self._try_daily(part[0], at)
            count, failed = count + sent, [*failed, *delays]
            ready = [row for row in ready if not self._rests(row)] if delays else ready
        if failed:
            raise failed[0]
        return count

    def _rests(self, row: Row) -> bool:
        found = (self.rests.get(place) for place in (("topic", row["topic"]), ("task", row["id"])))
        return any(rest is not None and time.monotonic() < rest.until for rest in found)

    def _delay(self, kind: str, name: str) -> None:
        """Leave a topic or a task alone for a while, as it cannot be sent to, or sent: the others do not wait for it in each round."""
        failures = self.rests[kind, name].failures + 1 if (kind, name) in self.rests else 1
        self.rests[kind, name] = Rest(time.monotonic() + min(2.0**failures, MOST_REST), failures)
        if kind == "topic":
            self.topics.pop(name, None)  # perhaps it is not there any more

    def _is_daily(self, row: Row) -> bool:
        return row["task"] is not None and row["key"] is None

    def _known_until(self, name: str) -> float:
        """The time, in seconds since 1970, up to which the states know what is in a stream's topic."""
        assert self.said
        stream, positions = self.config.streams[name], [self.said["streams"].get(name, 0)]
        for store in self.config.stores_of(name):
            if store.name in self.asked or any(t.store == store.name for t in self.tasks.values()):
                positions.append(self.said["stores"].get(store.name, {}).get("position", 0))
        path = table(self.config, "changelog", name)
        offsets = offsets_at(path, min(positions))
        if offsets is None:  # the log no longer says
            offsets = next_offsets(self.spark, path, f"> {LOADED}")
        return kafka.first_time(self.config.kafka, stream.topic, offsets, PATIENCE)

    def _largest(self, topic: str) -> int:
        """The most bytes that a message of a topic may have; the topic is made where it is not there. Raises KafkaUnavailable, as one
        of its kinds where it is about this topic alone."""
        if topic not in self.topics:
            if not kafka.partitions(self.config.kafka, topic):  # who may send to it need not be allowed to make it
                kafka.create_topic(self.config.kafka, topic)
            self.topics[topic] = int(kafka.topic_settings(self.config.kafka, topic)["max.message.bytes"])
        return self.topics[topic]

    def _refusal(self, row: Row) -> str | None:
        """Why a task cannot be sent whatever Kafka says: it was asked for when the file allowed it."""
        if row["topic"] is None:
            return "found no topic: the store that it sets is not in the file any more"
        if row["task"] is not None or row["set"] is not None:
            return None
        expected = topics.expected_instead(row["topic"], self.config.askable_topics)
        return expected and f"{row['topic']}: expected {expected}"

    def _send_rows(self, rows: Sequence[Row], at: dt.datetime) -> tuple[int, list[StatehouseError]]:
        """Send the messages of some tasks, and commit what became of each; how many were sent, and why a topic took none for now:
        what was for it waits. Raises KafkaUnavailable."""
        refused = {row["id"]: reason for row in rows if (reason := self._refusal(row))}
        delays: dict[str, str] = {}  # by topic
        for topic in dict.fromkeys(row["topic"] for row in rows if row["id"] not in refused):
            try:
                self._largest(topic)
            except TopicRefused as error:
                refused |= {row["id"]: str(error) for row in rows if row["topic"] == topic}
            except TopicUnavailable as error:
                delays[topic] = str(error)
        sent = [row for row in rows if row["id"] not in refused and row["topic"] not in delays]
        if sent:
            largest = min(self.topics[row["topic"]] for row in sent)
            outcomes = deliver(self.config.kafka, [self._message(row) for row in sent], largest)
            refused |= {row["id"]: o.refused for row, o in zip(sent, outcomes, strict=True) if o.refused}
            delays |= {row["topic"]: o.delayed for row, o in zip(sent, outcomes, strict=True) if o.delayed}
            sent = [row for row, o in zip(sent, outcomes, strict=True) if not o.delayed]
        taken = {row["id"] for row in sent}
        done = [row for row in rows if row["id"] in taken or row["id"] in refused]
        if done:
            self._commit([self._sent(row, at, refused.get(row["id"])) for row in done])
        for row in done:
            if row["topic"] not in delays:
                self.rests.pop(("topic", row["topic"]), None)
        count = sum(row["id"] not in refused for row in done)
        for topic in delays:
            self._delay("topic", topic)
        return count, [TopicUnavailable(reason) for reason in delays.values()]

    def _message(self, row: Row) -> Message:
        number = f"#{row['sent']}" if row["sent"] else ""
        headers: dict[str, str | bytes | None] = {TASK_HEADER: f"{row['id']}{number}"}
        if row["set"]:
            headers |= {OP_HEADER: "set", STORE_HEADER: row["set"]}
        return Message(row["topic"], row["message_key"], row["message"], headers)

    def _sent(self, row: Row, at: dt.datetime, refused: str | None = None) -> Row:
        """A row after it was sent: it is over, or waits for the next time."""
        task, due = self.tasks.get(row["task"] or ""), row["due"]
        following = None
        if task and task.every:
            step = dt.timedelta(milliseconds=task.every)
            following = due + step * (max(0, (at - due) // step) + 1)  # the first that is still to come
        elif task and task.at:
            following = next_time(task.at, max(at, due))
        goes_on = following is not None and (row["ended"] is None or following <= row["ended"])
        status = "waiting" if goes_on else "failed" if refused else "sent"
        sent = row["sent"] + (refused is None)
        return {"id": row["id"], "status": status, "due": following if goes_on else due, "sent": sent, "sent_at": at,
                "reason": refused}  # fmt: skip

    def _commit(self, rows: list[Row]) -> None:
        time_type = pa.timestamp("us", "UTC")
        types = {"id": pa.string(), "status": pa.string(), "due": time_type, "sent": pa.int64(), "sent_at": time_type}
        source = pa.Table.from_pylist(rows, pa.schema({**types, "reason": pa.string()}))
        merge = DeltaTable(self.path).merge(
            source, "t.id = s.id", source_alias="s", target_alias="t", commit_properties=self._done()
        )
        merge.when_matched_update({c: f"s.{c}" for c in source.column_names if c != "id"}).execute()
        self._await()

    def _try_daily(self, row: Row, at: dt.datetime) -> tuple[int, list[StatehouseError]]:
        """Send a message for each key that is so now; how many, and why it could not be done for now."""
        try:
            count = self._send_daily(row, at)
        except TopicRefused as error:
            self._commit([self._sent(row, at, str(error))])
            return 0, []
        except TopicUnavailable as error:
            self._delay("topic", row["topic"])
            return 0, [error]
        except KafkaUnavailable:
            raise
        except Exception as error:  # what Spark says of the rule's expressions
            self._delay("task", row["id"])
            return 0, [StatehouseError(f"{row['task']}: {first_line(error)}")]
        for place in (("topic", row["topic"]), ("task", row["id"])):
            self.rests.pop(place, None)
        return count, []

    def _send_daily(self, row: Row, at: dt.datetime) -> int:
        assert self.said
        task = self.tasks[row["task"]]
        rule, version = self.rules[task.store], self.said["stores"][task.store]["version"]
        state = keyed(Steps(self.spark, self.config, rule).state_at(version), rule).where(
            TRY.format(safe(task.when or "TRUE"))
        )
        due = f"timestamp_micros({int(row['due'].timestamp() * 1_000_000)})"
        named = {n: e for n, e in {"since": "changed_at", "due": due}.items() if n not in rule.state_columns}
        told, name = self.messages[task.name], f"{task.name}@{row['due'].isoformat()}/"
        heads = {TASK_HEADER: F.concat(F.lit(name), "_key")}
        if task.set_:
            heads |= {OP_HEADER: F.lit("set"), STORE_HEADER: F.expr(told["set"])}
        rows = state.selectExpr("*", *(f"{e} AS {n}" for n, e in named.items()))
        messages = rows.select(
            F.expr(told["message_key"]).alias("key"),
            F.expr(told["message"]).alias("value"),
            kafka_sink.headers(heads).alias("headers"),
        ).persist()
        try:
            largest = self._largest(row["topic"])
            count, long = messages.select(F.count("*"), F.count_if(kafka_sink.size() > largest)).collect()[0]
            short = messages.where(kafka_sink.size() <= largest)
            refused: list[str] = []
            try:
                if count - long > FEW:
                    kafka_sink.send(short, self.config, row["topic"], largest)
                elif count > long:
                    refused = self._deliver(short, row["topic"], largest)
            except TopicUnavailable:
                raise
            except Exception:  # of one message, or of all: one by one it is told which; some are sent again
                refused = self._deliver(short, row["topic"], largest)
        finally:
            messages.unpersist()
        reasons = [f"{long} messages are longer than the {largest} bytes that {row['topic']} takes"] if long else []
        reasons += [f"{len(refused)} messages were refused: {refused[0]}"] if refused else []
        self._commit([{**self._sent(row, at), "reason": "; ".join(reasons) or None}])
        return int(count - long - len(refused))

    def _deliver(self, messages: DataFrame, topic: str, largest: int) -> list[str]:
        """Send rows of key, value and headers one by one; why some were refused. Raises TopicUnavailable."""
        refused: list[str] = []
        rows = messages.toLocalIterator()
        while part := list(itertools.islice(rows, AT_ONCE)):
            made = [
                Message(topic, r["key"], r["value"], {h["key"]: bytes(h["value"]) for h in r["headers"]}) for r in part
            ]
            outcomes = deliver(self.config.kafka, made, largest)
            if delayed := [o.delayed for o in outcomes if o.delayed]:
                raise TopicUnavailable(delayed[0])
            refused += [o.refused for o in outcomes if o.refused]
        return refused
