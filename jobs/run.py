"""The jobs of one lake in one Spark application, side by side, until told to stop: ingest, merge, route, publish, tasks and maintain.

``once`` is for schedulers: what is in Kafka now is ingested, then merged, routed and published, what is due is sent, then it ends;
maintain is a command of its own there. Without it, each stream has its query, and one thread each goes round the stores, the
routes, the stores that are published, the tasks, and the tables to keep.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from jobs import metrics
from jobs.ingest import Ingest
from jobs.maintain import Maintain
from jobs.merge import Merge, Round
from jobs.publish import Publisher
from jobs.recover import recover
from jobs.route import Router
from jobs.send import Sender, Sent
from jobs.session import lock, session
from jobs.tasks import Tasks
from statehouse.config import Config
from statehouse.errors import ConfigError, DefinitionChanged, FoldAnew, LakeBusy, StatehouseError, first_line

log = logging.getLogger("statehouse")
PARTS = ("ingest", "merge", "route", "publish", "tasks", "maintain")
IDLE = 0.2  # seconds between two looks for something new


class Jobs:
    """What ``statehouse run`` and the commands of its parts run. ``stop`` may be called from a signal handler."""

    def __init__(self, config: Config, parts: tuple[str, ...] = PARTS, spark_log: Path | None = None) -> None:
        self.config, self.parts = config, parts
        self.stopping = threading.Event()
        self.at_work = False  # until then there is nothing to finish
        self.failure: BaseException | None = None
        self.ingests: list[Ingest] = []
        began = time.monotonic()
        self.unserve = metrics.serve(config)
        log.info(
            "starting Spark; its log is %s (the first time it fetches 23 MB of jars)",
            spark_log or "on the console",
        )
        self.spark: SparkSession = session("statehouse", spark_log, config.root)
        log.info("Spark %s is up after %.0f s", self.spark.version, time.monotonic() - began)

    def stop(self) -> None:
        """Finish the batches and the merge in hand, then end."""
        self.stopping.set()
        for ingest in self.ingests:
            ingest.stopping.set()

    def run(self, once: bool = False) -> None:
        """Run the parts until stopped, or ``once``; raises what made a part give up."""
        with ExitStack() as held:
            held.callback(self.unserve)
            if self.config.jobs.metrics and "ingest" in self.parts:
                progress = metrics.Progress()
                self.spark.streams.addListener(progress)
                held.callback(self.spark.streams.removeListener, progress)
            for part in self.parts:
                held.enter_context(lock(self.spark, self.config, part))
            self._run(once)

    def _run(self, once: bool) -> None:
        if self.parts == ("maintain",):
            self.at_work = True
            self._maintain(once)
            return
        self.ingests = (
            [Ingest(self.spark, self.config, s) for s in self.config.streams.values()] if "ingest" in self.parts else []
        )
        merges = (
            [Merge(self.spark, self.config, s) for s in self.config.stores.values()] if "merge" in self.parts else []
        )
        senders: dict[str, list[Sender]] = {
            "route": [Router(self.spark, self.config, r) for r in self.config.routes.values() if "route" in self.parts],
            "publish": [
                Publisher(self.spark, self.config, s)
                for s in self.config.stores.values()
                if s.publish and "publish" in self.parts
            ],
            "tasks": [Tasks(self.spark, self.config, every=0 if once else self.config.merge_every / 1000)]
            if self.config.tasks is not None and "tasks" in self.parts
            else [],
        }
        self.at_work = True
        if once:
            for ingest in self.ingests:
                ingest.run(once=True)
                log.info("%s: %d events, %d refused", ingest.stream.name, ingest.events, ingest.refused)
            catch_up(merges, _tell, self.stopping)
            for merge in merges:
                merge.expire()
            send_on([sender for found in senders.values() for sender in found], self.stopping)
            return
        workers = [
            threading.Thread(target=self._guard, args=(i.run,), name=f"ingest {i.stream.name}") for i in self.ingests
        ]
        maintain = Maintain(self.spark, self.config)
        if merges:
            given = (merges, self.stopping, self.config, _tell, maintain.store)
            workers.append(threading.Thread(target=self._guard, args=(run_merges, *given), name="merge"))
        if "maintain" in self.parts:
            workers.append(threading.Thread(target=self._guard, args=(self._keep_logs, maintain), name="maintain"))
        for kind, found in senders.items():
            if found:
                workers.append(threading.Thread(target=self._guard, args=(follow, found, self.stopping), name=kind))
        for worker in workers:
            worker.start()
        log.info("running: %s. Ctrl-C stops", ", ".join(self.parts))
        for worker in workers:
            while worker.is_alive():  # a join with a limit lets signals through
                worker.join(0.5)
        if self.failure:
            raise self.failure

    def _keep_logs(self, maintain: Maintain) -> None:
        while not self.stopping.wait(self.config.maintain_every / 1000):
            maintain.logs(self.stopping)

    def _maintain(self, once: bool) -> None:
        """The upkeep alone, as a job of its own: of the states too, unless a merge is running, which keeps them itself."""
        maintain = Maintain(self.spark, self.config)
        while not self.stopping.is_set():
            maintain.logs(self.stopping)
            try:
                with lock(self.spark, self.config, "merge", patience=0):
                    for store in self.config.stores.values():
                        if not self.stopping.is_set():
                            maintain.store(Merge(self.spark, self.config, store))
            except LakeBusy:
                log.info("the states are kept by the merge that is running")
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


def _tell(done: Round) -> None:
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


def pace(took: float, every: float) -> float:
    """Seconds to wait after a round: ``every`` from start to start, and never merging more than a quarter of the time."""
    return max(every - took, 3 * took)


def run_merges(
    merges: list[Merge],
    stopping: threading.Event,
    config: Config,
    tell: Callable[[Round], None],
    keep: Callable[[Merge], None],
) -> None:
    """Merge every store that has something new, round after round, until told to stop; the round in hand is finished. Every
    ``maintain_every``, between two rounds, ``keep`` their tables.

    A round that fails is said and tried again from its position: nothing is committed by halves.
    """
    every = config.merge_every / 1000
    failures, warm, kept = 0, False, time.monotonic()
    stopping.wait(every)  # the first batches are on their way: one round for them, not one for nothing
    while not stopping.is_set():
        began = time.monotonic()
        try:
            worked = catch_up(merges, tell, stopping)
            took = time.monotonic() - began  # the upkeep is not the merge's time
            if time.monotonic() - kept > config.maintain_every / 1000:
                for merge in merges:
                    if not stopping.is_set():
                        keep(merge)
                kept = time.monotonic()
            failures = 0
        except (ConfigError, DefinitionChanged):
            raise
        except Exception as error:  # a full disk, an object store that is away: the next round may do
            failures += 1
            worked, took = 0, time.monotonic() - began
            log.error("merge: %s; trying again", first_line(error))
        # The first round is spent on compiling as much as on merging, and measures nothing.
        pause = pace(took, every) if warm else every
        warm = warm or worked > 0
        stopping.wait(max(pause, min(2**failures, 30)) if worked or failures else IDLE)


def catch_up(merges: list[Merge], tell: Callable[[Round], None], stopping: threading.Event | None = None) -> int:
    """One round of every store; the number of those that had something new. A state that cannot be gone on from, such as one whose
    changelog no longer reaches back to its position, is folded anew."""
    worked = 0
    for merge in merges:
        if stopping and stopping.is_set():
            break
        try:
            done = merge.round()
        except FoldAnew as error:
            log.warning("%s; folding all of it anew", error)
            recover(merge.spark, merge.config, merge.store)
            worked += 1
            continue
        if done:
            tell(done)
            worked += 1
    return worked


def follow(senders: Sequence[Sender], stopping: threading.Event) -> None:
    """Send what is new of each in turn until told to stop; the round in hand is finished. One that fails is said and tried again
    from its position, and does not keep the others."""
    due, failures = {sender.name: 0.0 for sender in senders}, Counter[str]()
    while not stopping.is_set():
        began, worked = time.monotonic(), 0
        for sender in senders:
            if stopping.is_set() or time.monotonic() < due[sender.name]:
                continue
            try:
                worked += _told(sender.round())
                failures[sender.name] = 0
            except Exception as error:
                failures[sender.name] += 1
                due[sender.name] = time.monotonic() + min(2 ** failures[sender.name], 30)
                log.error("%s %s: %s; trying again", sender.kind, sender.name, _said(error))
        # As long as it took: half of the time is left to the others.
        stopping.wait(max(IDLE, time.monotonic() - began) if worked else IDLE)


def send_on(senders: Sequence[Sender], stopping: threading.Event) -> None:
    """One round of each; raises what kept the first that failed, after the others."""
    failed = []
    for sender in senders:
        if stopping.is_set():
            return
        try:
            _told(sender.round())
        except Exception as error:
            failed.append(StatehouseError(f"{sender.kind} {sender.name}: {_said(error)}"))
    if failed:
        raise failed[0]


def _told(done: Sent | None) -> bool:
    if done is None:
        return False
    metrics.SENT.labels(done.kind, done.name).inc(done.count)
    if done.count:
        start = "the beginning" if done.start is None else f"version {done.start}"
        log.info("%s %s: %d, %s → %d, %.1f s", done.kind, done.name, done.count, start, done.head, done.seconds)
    return True


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, StatehouseError) else first_line(error)
