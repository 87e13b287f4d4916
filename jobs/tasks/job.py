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
import time
from collections.abc import Callable

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.spark.expressions import rule_of
from jobs.spark.guard import install
from jobs.spark.kafka_sink import Sent
from jobs.spark.session import new_session
from jobs.tasks.messages import message_of
from jobs.tasks.requests import Requests
from jobs.tasks.runs import Runs
from jobs.tasks.sending import Sending
from jobs.tasks.table import NAME, TaskTable
from statehouse.config.models import Config


class Tasks:
    """The tasks of a lake. ``now`` gives seconds since 1970; ``every`` is how many there are between two looks at the states."""

    kind, name = NAME, NAME

    def __init__(
        self, spark: SparkSession, config: Config, now: Callable[[], float] = time.time, every: float = 0.0
    ) -> None:
        self.config, self.every, self.table = config, every, TaskTable(new_session(spark), config, now)
        spark = self.table.spark
        install(spark)
        rules = {name: rule_of(spark, config, store) for name, store in config.stores.items()}
        messages = {n: message_of(spark, config, t, rules[t.store]) for n, t in self.table.tasks.items()}
        self.requests, self.runs = Requests(self.table, rules), Runs(self.table, rules, messages)
        self.sending = Sending(self.table, rules, messages)
        self._looked = float("-inf")

    @property
    def next_due(self) -> dt.datetime | None:
        """When the next task is due, as far as it is known; None: none waits."""
        return self.table.next_due

    def round(self) -> Sent | None:
        """Register, watch and send; None where nothing was sent. Raises KafkaUnavailable."""
        began = time.monotonic()
        try:
            before = self.table.begin()
            if time.monotonic() - self._looked >= self.every:
                for stream in self.config.streams:
                    self.requests.register(stream)
                for store in self.config.stores.values():
                    self.runs.watch(store)
                self._looked = time.monotonic()
            count = self.sending.send_due()
        except BaseException:
            self.table.forget()
            raise
        if not count:
            return None
        return Sent(
            self.kind, self.name, before, DeltaTable(self.table.path).version(), count, time.monotonic() - began
        )
