"""The jobs of one lake in one Spark application, side by side, until told to stop: ingest, merge, route, publish, tasks and maintain.

``once`` is for schedulers: what is in Kafka now is ingested, then merged, routed and published, what is due is sent, then it ends;
maintain is a command of its own there. Without it, each stream has its query, and one thread each goes round the stores, which
are merged side by side, the routes, the stores that are published, the tasks, and the tables to keep.

A stream, store or route that fails is tried again by itself (:mod:`jobs.attempts`), and keeps no other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from jobs import metrics
from jobs.attempts import Attempts
from jobs.idle import Idle
from jobs.ingest import Ingest
from jobs.maintain import Maintain
from jobs.merge import Merge, Round
from jobs.publish import Publisher
from jobs.recover import begin_fold, recover
from jobs.spark.kafka_sink import Sender, Sent
from jobs.spark.session import brief, lock, session
from jobs.spark.slices import Slices
from jobs.store_route import router
from jobs.tasks.job import Tasks
from statehouse.config.models import Config, Stream
from statehouse.errors import ConfigError, FoldAnew, LakeBusy, StatehouseError
from statehouse.progress import SILENT, Progress

log = logging.getLogger("statehouse")
PARTS = ("ingest", "merge", "route", "publish", "tasks", "maintain")
IDLE = 0.2  # seconds between two looks for something new
MOST_TOGETHER = 4  # merges: each has the keys of its batch in memory
LONGEST_PAUSE = 5.0  # seconds between two rounds of merges


class Jobs:
    """What ``statehouse run`` and the commands of its parts run. ``stop`` may be called from a signal handler."""

    def __init__(
        self, config: Config, parts: tuple[str, ...] = PARTS, spark_log: Path | None = None, little: bool = False
    ) -> None:
        """``little``: there is so little to do that Spark had better not compile it."""
        self.config, self.parts = config, parts
        self.stopping = threading.Event()
        self.at_work = False  # until then there is nothing to finish
        self.failure: BaseException | None = None
        self.ingests: dict[str, Ingest] = {}  # by stream
        self.progress = SILENT
        began = time.monotonic()
        self.unserve = metrics.serve(config)
        log.info(
            "starting Spark; its log is %s (the first time it fetches 23 MB of jars)",
            spark_log or "on the console",
        )
        self.spark: SparkSession = session("statehouse", spark_log, config.root, **(brief() if little else {}))
        log.info("Spark %s is up after %.0f s", self.spark.version, time.monotonic() - began)

    def stop(self) -> None:
        """Finish the batches and the merge in hand, then end."""
        self.stopping.set()
        for ingest in list(self.ingests.values()):
            ingest.stopping.set()

    def run(self, once: bool = False, progress: Progress = SILENT) -> None:
        """Run the parts until stopped, or ``once``; raises what made a part give up. ``progress`` is told of what ends: of backfills, of
        rounds of upkeep, and of what ingests ``once``."""
        self.progress = progress
        with ExitStack() as held:
            held.callback(self.unserve)
            if self.config.jobs.metrics and "ingest" in self.parts:
                listener = metrics.Progress()
                self.spark.streams.addListener(listener)
                held.callback(self.spark.streams.removeListener, listener)
            for part in self.parts:
                held.enter_context(lock(self.spark, self.config, part))
            self._run(once)

    def _run(self, once: bool) -> None:
        if self.parts == ("maintain",):
            self.at_work = True
            self._maintain(once)
            return
        attempts = {part: Attempts(self.config, part) for part in self.parts if part != "maintain"}
        slices, stores = Slices(self.spark, self.config, self.config.merge_every / 1000), self.config.stores.values()
        merges = [Merge(self.spark, self.config, s, slices=slices) for s in stores if "merge" in self.parts]
        senders = self._senders(0 if once else self.config.merge_every / 1000)
        self.at_work = True
        if self.stopping.is_set():
            return
        if once:
            self._run_once(attempts, merges, senders)
            return
        streams = self.config.streams.values() if "ingest" in self.parts else ()
        workers = [self._worker(f"ingest {s.name}", self._keep_ingesting, attempts["ingest"], s) for s in streams]
        maintain = Maintain(self.spark, self.config)
        if merges:
            given = merges, attempts["merge"], self.stopping, self.config, maintain.store, self.progress
            workers.append(self._worker("merge", run_merges, *given))
        if "maintain" in self.parts:
            workers.append(self._worker("maintain", self._keep_logs, maintain))
        for kind, group in senders.items():
            if group:
                workers.append(self._worker(kind, follow, group, attempts[kind], self.stopping))
        for worker in workers:
            worker.start()
        log.info("running: %s. Ctrl-C stops", ", ".join(self.parts))
        for worker in workers:
            while worker.is_alive():  # a join with a limit lets signals through
                worker.join(0.5)
        if self.failure:
            raise self.failure

    def _senders(self, every: float) -> dict[str, list[Sender]]:
        """What sends, by part; tasks look at the states ``every`` so many seconds."""
        spark, config = self.spark, self.config
        every_sender: dict[str, list[Sender]] = {
            "route": [router(spark, config, r) for r in config.routes.values() if "route" in self.parts],
            "publish": [
                Publisher(spark, config, s) for s in config.stores.values() if s.publish and "publish" in self.parts
            ],
            "tasks": [Tasks(spark, config, every=every)] if config.tasks is not None and "tasks" in self.parts else [],
        }
        return {part: senders for part, senders in every_sender.items() if senders}

    def _run_once(self, attempts: dict[str, Attempts], merges: list[Merge], senders: dict[str, list[Sender]]) -> None:
        """Ingest, then merge, then do the rest side by side, and of each part all that it has; raises what failed, after the others."""
        if "ingest" in self.parts:
            with side_by_side() as threads:
                each = map if self.progress.is_shown else threads.map  # what is shown is one step at a time
                list(each(lambda s: self._ingest_once(attempts["ingest"], s), self.config.streams.values()))
            self.progress.end()
        idle = Idle(self.config, self.parts)
        ingested = idle.changelogs()
        if merges:
            with side_by_side() as threads:
                catch_up(merges, attempts["merge"], self.stopping, self.progress, threads)
            for merge in merges:
                if merge.store.name not in attempts["merge"].errors:
                    attempts["merge"].run(merge.store.name, merge.expire)
        with side_by_side() as threads:
            # Tasks first, which take the longest.
            every = [(sender, attempts[part]) for part in reversed(senders) for sender in senders[part]]
            list(threads.map(lambda one: send_on([one[0]], one[1], self.stopping), every))
        if errors := [error for tried in attempts.values() for error in tried.errors.values()]:
            failed = [f"{part} {name}" for part, tried in attempts.items() for name in tried.errors]
            kind = ConfigError if any(isinstance(error, ConfigError) for error in errors) else StatehouseError
            raise kind(f"failed: {', '.join(failed)}; the lines above say why")
        if not self.stopping.is_set():
            due = [sender.next_due for sender in senders.get("tasks", ()) if isinstance(sender, Tasks)]
            idle.note(ingested, next((at.timestamp() for at in due if at), None))

    def _worker(self, name: str, work: Callable[..., None], *given: Any) -> threading.Thread:
        return threading.Thread(target=self._guard, args=(work, *given), name=name)

    def _ingest_once(self, attempts: Attempts, stream: Stream) -> None:
        if not self.stopping.is_set():
            attempts.run(stream.name, lambda: self._ingest(attempts, stream, once=True))

    def _ingest(self, attempts: Attempts, stream: Stream, once: bool = False) -> None:
        """Ingest a stream until it is stopped, or what there is now."""
        progress = self.progress if once else SILENT
        ingest = Ingest(self.spark, self.config, stream, lambda: attempts.succeed(stream.name), progress)
        self.ingests[stream.name] = ingest
        if self.stopping.is_set():
            return
        ingest.run(once)
        if once:
            log.info("%s: %d events, %d refused", stream.name, ingest.events, ingest.refused)

    def _keep_ingesting(self, attempts: Attempts, stream: Stream) -> None:
        while not self.stopping.wait(attempts.wait(stream.name)):
            attempts.run(stream.name, lambda: self._ingest(attempts, stream))

    def _keep_logs(self, maintain: Maintain) -> None:
        while not self.stopping.wait(self.config.maintain_every / 1000):
            maintain.logs(self.stopping)

    def _maintain(self, once: bool) -> None:
        """The upkeep alone, as a job of its own: of the states too, unless a merge is running, which keeps them itself."""
        maintain = Maintain(self.spark, self.config, self.progress)
        while not self.stopping.is_set():
            self.progress.begin("maintaining", lambda: maintain.tables, "tables")
            maintain.logs(self.stopping)
            try:
                with lock(self.spark, self.config, "merge", patience=0):
                    for store in self.config.stores.values():
                        if not self.stopping.is_set():
                            maintain.store(Merge(self.spark, self.config, store))
            except LakeBusy:
                log.info("the states are kept by the merge that is running")
            self.progress.end()
            if once:
                break
            self.stopping.wait(self.config.maintain_every / 1000)
        if once and maintain.failed:
            raise StatehouseError(f"{maintain.failed} tables could not be maintained; the lines above say why")

    def _guard(self, work, *args) -> None:  # type: ignore[no-untyped-def]
        try:
            work(*args)
        except BaseException as error:
            self.failure = self.failure or error
            self.stop()


def side_by_side() -> Executor:
    """Threads for what is one by one: a plan is made by one thread, and with few events takes longer than what it does."""
    return ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_TOGETHER))


def _record_merge(done: Round) -> None:
    metrics.MERGED.labels(done.store).inc(done.events)
    metrics.MERGE_SECONDS.labels(done.store).observe(done.seconds)
    log.info(
        "%s: %d events into %d keys, version %s → %d, %.1f s",
        done.store,
        done.events,
        done.keys,
        done.start,
        done.head,
        done.seconds,
    )


def run_merges(
    merges: list[Merge],
    attempts: Attempts,
    stopping: threading.Event,
    config: Config,
    keep: Callable[[Merge], None],
    progress: Progress = SILENT,
) -> None:
    """Merge every store that has something new, round after round, until told to stop; the round in hand is finished. Every
    ``maintain_every`` ``keep`` the tables of each: in the pauses between two rounds, so that no table waits for the upkeep of all."""
    every, upkeep = config.merge_every / 1000, config.maintain_every / 1000
    warm, due = False, deque((time.monotonic() + upkeep, merge) for merge in merges)
    stopping.wait(every)  # the first batches are on their way: one round for them, not one for nothing
    with side_by_side() as threads:  # the same in all rounds: each has a thread of the JVM's
        while not stopping.is_set():
            began = time.monotonic()
            worked = catch_up(merges, attempts, stopping, progress, threads)
            took = time.monotonic() - began
            # Half of the time is left to the others; but a table waits for a round and a pause, and with many stores a round is long. The first
            # one is spent on compiling as much as on merging, and measures nothing.
            pause = min(max(IDLE, took), LONGEST_PAUSE) if warm else every
            warm = warm or worked > 0
            until = time.monotonic() + (pause if worked else IDLE)
            while due and due[0][0] < (now := time.monotonic()) < until and not stopping.is_set():
                _, merge = due.popleft()
                keep(merge)
                due.append((now + upkeep, merge))
            stopping.wait(max(0.0, until - time.monotonic()))


def catch_up(
    merges: Sequence[Merge],
    attempts: Attempts,
    stopping: threading.Event,
    progress: Progress = SILENT,
    threads: Executor | None = None,
) -> int:
    """One round of every store; the number of those that had something new. Backfills are one after the other, the rest side by side in
    the ``threads``. One that fails is tried again from its position by a later round, as nothing is committed by halves."""

    def merge_one(merge: Merge) -> bool:
        if stopping.is_set():
            return False
        return attempts.run(merge.store.name, lambda: merge_once(merge)) or False

    worked, others = 0, []
    for merge in merges:
        if merge.checked or attempts.wait(merge.store.name) or not merge.is_backfill():
            others.append(merge)
            continue
        begin_fold(progress, merge)
        worked += merge_one(merge)
        progress.end()
    worked += sum((threads.map if threads else map)(merge_one, others))
    for merge in merges:
        merge.slices.forget()
    return worked


def merge_once(merge: Merge) -> bool:
    """One round of a store; whether there was something new. A state that cannot be gone on from, such as one whose changelog no longer
    reaches back to its position, is folded anew."""
    try:
        done = merge.round()
    except FoldAnew as error:
        log.warning("%s; folding all of it anew", error)
        with merge.slices.alone:
            recover(merge.spark, merge.config, merge.store)
        return True
    if done:
        _record_merge(done)
    return done is not None


def follow(senders: Sequence[Sender], attempts: Attempts, stopping: threading.Event) -> None:
    """Send what is new of each in turn until told to stop; the round in hand is finished. One that fails goes on from its position."""
    while not stopping.is_set():
        began = time.monotonic()
        worked = send_on(senders, attempts, stopping)
        # As long as it took: half of the time is left to the others.
        stopping.wait(max(IDLE, time.monotonic() - began) if worked else IDLE)


def send_on(senders: Sequence[Sender], attempts: Attempts, stopping: threading.Event) -> int:
    """One round of each; the number of those that had something new."""
    worked = 0
    for sender in senders:
        if stopping.is_set():
            break
        worked += _record_sent(attempts.run(sender.name, sender.round))
    return worked


def _record_sent(done: Sent | None) -> bool:
    if done is None:
        return False
    metrics.SENT.labels(done.kind, done.name).inc(done.count)
    if done.count:
        start = "the beginning" if done.start is None else f"version {done.start}"
        log.info("%s %s: %d, %s → %d, %.1f s", done.kind, done.name, done.count, start, done.head, done.seconds)
    return True
