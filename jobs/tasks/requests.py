"""What somebody asks for, by the topic: tasks and the ends of tasks, as the changelogs have them."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.spark import change_feed
from jobs.spark.expressions import key_text
from jobs.spark.steps import PLACE
from jobs.tasks.table import TaskTable, shape_rows
from statehouse.fold import Rule
from statehouse.headers import TASK_OPERATIONS
from statehouse.spark_sql import literal
from statehouse.tables import TOPIC_PARTITION, coordinates, offsets_at, opened
from statehouse.tables import table as path_of


class Requests:
    """Puts into the table what is asked for. ``rules`` are those of all stores."""

    def __init__(self, table: TaskTable, rules: Mapping[str, Rule]) -> None:
        self.table, self.rules = table, rules
        self.spark, self.config = table.spark, table.config

    def register(self, name: str) -> None:
        """The tasks, and the ends of tasks, that a stream's changelog has since the position."""
        path, start = path_of(self.config, "changelog", name), self.table.positions["streams"].get(name, 0)
        changelog = opened(path)
        head = changelog.version() if changelog else 0
        if head == start:
            return
        known = self.table.positions["offsets"].get(name, {})
        try:
            requests = self._read_requests(name, start, head).localCheckpoint()
        except Exception as error:
            if not change_feed.is_gone(error):
                raise
            # All of it, without what was known: it may have been sent and forgotten since.
            left = change_feed.from_offsets({int(partition): offset for partition, offset in known.items()}, "_")
            requests = self._read_requests(name, 0, head).where(left).localCheckpoint()
        self.table.positions["streams"][name] = head
        self.table.positions["offsets"][name] = known | {
            str(p): offset for p, offset in (offsets_at(path, head) or {}).items()
        }
        if not requests.isEmpty():
            self.table.merge(self._task_rows(requests, name))

    def _read_requests(self, stream: str, start: int, head: int) -> DataFrame:
        rows = change_feed.events(self.spark, self.config, self.config.streams[stream], start or None, head)
        if PLACE[0] not in rows.columns:  # it is not known with which version each came
            rows = rows.withColumn(PLACE[0], F.lit(head))
        requests = rows.where(f"_op IN {TASK_OPERATIONS}")
        more = [TOPIC_PARTITION] if self.config.streams[stream].several else []
        return requests.select("_op", "_store", "_key", "_value", "_event_time", "_topic", *more, *PLACE)

    def _task_rows(self, requests: DataFrame, stream: str) -> DataFrame:
        def of(path: str) -> str:
            return f"get_json_object(_value, '$.{path}')"

        rules = [r for r in self.rules.values() if r.store.stream == stream and not r.store.windows]
        keys = [f"WHEN _store = {literal(r.store.name)} THEN {key_text(r, r.control_keys())}" for r in rules]
        topics = " ".join(
            f"WHEN {of('set.store')} = {literal(s.name)} THEN {literal(self.config.streams[s.stream].topic)}"
            for s in self.config.stores.values()
        )
        columns = {
            "id": f"concat_ws(':', {', '.join(coordinates(self.config.streams[stream]))})",
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
        tasks = requests.where("_op = 'task'").selectExpr(
            *(f"{expression} AS `{column}`" for column, expression in columns.items())
        )
        ends = requests.where("_op = 'cancel'").selectExpr(f"{of('id')} AS id", "TRUE AS _end").distinct()
        rows = tasks.join(ends, "id", "full").withColumn("cancelled", F.expr("coalesce(_end, FALSE)"))
        given = {column: f"`{column}`" for column in columns}
        return shape_rows(rows, **given, stream=literal(stream), reason="CASE WHEN cancelled THEN 'as asked for' END")
