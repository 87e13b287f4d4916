"""Upkeep of the tables: few files, and none that nobody may ask for any more.

Of a table, in two steps; a crash between them, or in them, leaves a table that is right:

1. OPTIMIZE: small files into larger ones, in a commit that changes no row; those of a changelog with ``cluster_by`` in that order
   (Delta's liquid clustering). *Who reads an older version has its files still.*
2. VACUUM: delete the files of versions that are older than ``versions``, and what crashes have left.

To changelogs, quarantines and the tables of routes rows are only ever appended, so they are compacted at any time: an append and a
compaction never are in each other's way. A state is compacted by the merge's own process, between two of its rounds, or while there
is none: one of the two would lose its work otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.merge import Merge
from jobs.spark import databricks
from jobs.spark.session import new_session
from jobs.spark.tables import retention
from statehouse.config.models import Config
from statehouse.errors import first_line
from statehouse.progress import SILENT, Progress
from statehouse.tables import CLUSTERED, deleted_rows, files, opened, table

log = logging.getLogger("statehouse")
# A key that is looked for, or changed, is in one file; one of Delta's default of 1 GiB would be read, or written, for it.
FILE_BYTES = 128 * 1024 * 1024
# What is clustered came together, and is put together until it is so much: a key's events are in one file of eight or more, and
# what is finished is not written again.
TOGETHER_BYTES, PART_BYTES = 256 * 1024 * 1024, 32 * 1024 * 1024
SETTINGS = {
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(TOGETHER_BYTES),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize": str(TOGETHER_BYTES),
    "spark.databricks.io.skipping.mdc.sortWithinFiles": "true",
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # two versions each time, of no rows
}


def maintenance_session(spark: SparkSession, file_bytes: int = FILE_BYTES) -> SparkSession:
    """A session of its own, with the settings of OPTIMIZE, to files of at most so many bytes, and of VACUUM."""
    fresh_session = new_session(spark)
    sizes = {
        "spark.databricks.delta.optimize.maxFileSize": str(file_bytes),
        "spark.databricks.delta.optimize.minFileSize": str(file_bytes // 2),  # larger ones stay as they are
    }
    for name, value in {**SETTINGS, **sizes}.items():
        fresh_session.conf.set(name, value)
    return fresh_session


class Maintain:
    """The upkeep of a lake. An error is logged, and the other tables are still maintained; ``failed`` counts the errors."""

    def __init__(self, spark: SparkSession, config: Config, progress: Progress = SILENT) -> None:
        self.config, self.failed, self.progress = config, 0, progress
        self._plain, self._clustered = maintenance_session(spark), maintenance_session(spark, PART_BYTES)

    @property
    def tables(self) -> int:
        """How many tables there are to keep: those that are only appended to, and two of each store."""
        return len(self._logs()) + 2 * len(self.config.stores)

    def _logs(self) -> list[str]:
        kinds = ("changelog", "quarantine", "requeued")
        paths = [table(self.config, kind, name) for name in self.config.streams for kind in kinds]
        targets = [route.to.table for route in self.config.routes.values() if route.to.table]
        return paths + [table(self.config, "routes", name) for name in dict.fromkeys(targets)]

    def logs(self, stopping: Event) -> None:
        """Keep what is only appended to."""
        for path in self._logs():
            if stopping.is_set():
                return
            self._try(path, self.keep, path)
            self.progress.advance()

    def store(self, merge: Merge) -> None:
        """Keep a store's tables; between two rounds of its merge."""
        self._try(merge.state, merge.expire)
        for path in (merge.state, merge.tombstones):
            self._try(path, self.keep, path)
            self.progress.advance()

    def keep(self, path: str) -> None:
        """Compact a table, and delete what is too old; nothing where there is none. Raises what Spark raises."""
        delta = opened(path)
        if delta is None or not delta.version():
            return
        self._remember(path, delta)
        began = time.monotonic()
        clustered = bool(delta.metadata().configuration.get(CLUSTERED))
        spark = self._clustered if clustered else self._plain
        if clustered or files(delta).num_rows > 1 or deleted_rows(delta):
            done = spark.sql(f"OPTIMIZE delta.`{path}`").collect()[0]["metrics"]
            if done["numFilesRemoved"]:
                name = path.removeprefix(f"{self.config.root}/")
                counts = done["numFilesRemoved"], done["numFilesAdded"]
                log.info("%s: %d files → %d, %.1f s", name, *counts, time.monotonic() - began)
        if _has_old_files(path):
            spark.sql(f"VACUUM delta.`{path}`")

    def _remember(self, path: str, delta: DeltaTable) -> None:
        """Set the table's retention in its own properties, where other tools read it too. (VACUUM's ``RETAIN`` takes whole hours only, and
        none for less than half of one.)"""
        wanted, known = retention(self.config), delta.metadata().configuration
        if any(known.get(name) != value for name, value in wanted.items()):
            # All at once: Delta refuses to keep removed files for longer than commits.
            assignments = ", ".join(f"'{name}' = '{value}'" for name, value in wanted.items())
            self._plain.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({assignments})")

    def _try(self, path: str, work: Callable[..., None], *given: str) -> None:
        try:
            work(*given)
        except Exception as error:
            self.failed += 1
            log.error("maintain %s: %s; trying again the next time", path, first_line(error))


def _has_old_files(path: str) -> bool:
    """Whether there may be files to delete. deltalake tells that in no time, and takes the files of marks for such as well; Spark knows
    better, but needs a second of both cores to find none."""
    if databricks.here():
        return True
    with suppress(Exception):  # then Spark says what is wrong
        return bool(DeltaTable(path).vacuum(dry_run=True, enforce_retention_duration=False, full=True))
    return True
