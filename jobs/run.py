"""The jobs of one lake in one Spark application: ingest and merge side by side, until told to stop.

``once`` is for schedulers: what is in Kafka now is ingested, then merged, then it ends. Without it, each stream has
its query and one thread merges the stores in turn.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from jobs.ingest import Ingest
from jobs.merge import Merge, Round, catch_up
from jobs.merge import run as run_merge
from jobs.session import lock, session
from statehouse.config import Config

log = logging.getLogger("statehouse")


class Jobs:
    """What ``statehouse run``, ``ingest`` and ``merge`` run. ``stop`` may be called from a signal handler."""

    def __init__(
        self, config: Config, parts: tuple[str, ...] = ("ingest", "merge"), spark_log: Path | None = None
    ) -> None:
        self.config, self.parts = config, parts
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.ingests: list[Ingest] = []
        began = time.monotonic()
        log.info(
            "starting Spark; its log is %s (the first time it fetches 36 MB of jars)",
            spark_log or "on the console",
        )
        self.spark: SparkSession = session("statehouse", spark_log)
        log.info("Spark %s is up after %.0f s", self.spark.version, time.monotonic() - began)
        self.locks = [lock(self.spark, config, part) for part in parts]

    def stop(self) -> None:
        """Finish the batches and the merge in hand, then end."""
        self.stopping.set()
        for ingest in self.ingests:
            ingest.stopping.set()

    def run(self, once: bool = False) -> None:
        """Run the parts until stopped, or ``once``; raises what made a part give up."""
        self.ingests = (
            [Ingest(self.spark, self.config, s) for s in self.config.streams.values()] if "ingest" in self.parts else []
        )
        merges = (
            [Merge(self.spark, self.config, s) for s in self.config.stores.values()] if "merge" in self.parts else []
        )
        if self.stopping.is_set():
            return
        if once:
            for ingest in self.ingests:
                ingest.run(once=True)
                log.info("%s: %d events, %d refused", ingest.stream.name, ingest.events, ingest.refused)
            catch_up(merges, _tell, self.stopping)
            return
        workers = [
            threading.Thread(target=self._guard, args=(i.run,), name=f"ingest {i.stream.name}") for i in self.ingests
        ]
        if merges:
            every = self.config.merge_every / 1000
            workers.append(
                threading.Thread(
                    target=self._guard, args=(run_merge, merges, self.stopping, every, _tell), name="merge"
                )
            )
        for worker in workers:
            worker.start()
        log.info("running: %s. Ctrl-C stops", ", ".join(self.parts))
        for worker in workers:
            while worker.is_alive():  # a join with a limit lets signals through
                worker.join(0.5)
        if self.failure:
            raise self.failure

    def _guard(self, work, *args) -> None:  # type: ignore[no-untyped-def]
        try:
            work(*args)
        except BaseException as error:
            self.failure = self.failure or error
            self.stop()


def _tell(done: Round) -> None:
    log.info(
        "%s: %d events into %d keys, version %s → %d, %.1f s",
        done.store,
        done.events,
        done.keys,
        done.start,
        done.head,
        done.seconds,
    )
