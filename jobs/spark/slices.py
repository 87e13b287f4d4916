"""What is new in a changelog, read once for all of the stream's stores."""

from __future__ import annotations

import json
import threading
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from jobs.spark import change_feed
from jobs.spark.session import observed
from statehouse.config.models import Config, Stream
from statehouse.tables import opened, rows_and_bytes, rows_since, table

OTHERS = "others"
MOST = 1_000_000  # rows: of more each store reads what it needs, and has the cores and the memory to itself
# What few stores name: a column of these that none does is not kept.
SELDOM = ("_payload", "_topic", "_topic_partition", "_log_time", "_headers", "_timestamp_type")


class Slices:
    """The changelogs' rows between two versions; of each stream the last that was asked for is kept. May be used by several threads."""

    def __init__(self, spark: SparkSession, config: Config, patience: float = 0.0) -> None:
        """``patience``: for how many seconds a changelog's newest version is taken to be that, so that stores have the same slice."""
        self._spark, self._config, self._patience = spark, config, patience
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.alone = threading.Lock()  # held while a store does much
        self._heads: dict[str, tuple[float, int]] = {}
        self._slices: dict[str, tuple[int | None, int, bool]] = {}
        self._many: dict[tuple[str, int | None], bool] = {}

    def head(self, path: str) -> int | None:
        """A changelog's newest version; None where there is none yet."""
        with self._lock:
            looked, version = self._heads.get(path, (0.0, 0))
            now = time.monotonic()
            if path not in self._heads or now - looked > self._patience:
                delta = opened(path)
                if delta is None:
                    return None
                version = delta.version()
                self._heads[path] = now, version
            return version

    def read(self, spark: SparkSession, stream: Stream, start: int | None, head: int) -> tuple[DataFrame, bool]:
        """The rows of (start, head] that a stream's stores fold, in a session, and whether all of them are reports; all up to head where
        start is None. Raises what Delta raises where the changelog no longer has them (:func:`jobs.spark.change_feed.is_gone`)."""
        if self.are_many(stream, start):
            rows = change_feed.events(spark, self._config, stream, start, head)
            return rows, rows.where("_op <> 'report'").isEmpty()
        with self._reading:
            last = self._slices.pop(stream.name, None)
            if last is None or last[:2] != (start, head):
                last = start, head, self._keep(stream, start, head)
            self._slices[stream.name] = last
            # Sessions share nothing else by name.
            return spark.table(f"global_temp.{self._name(stream)}"), last[2]

    def are_many(self, stream: Stream, start: int | None) -> bool:
        """Whether a changelog has got more than :data:`MOST` rows since a version, or has them at all where that is None."""
        asked, path = (stream.name, start), table(self._config, "changelog", stream.name)
        if asked not in self._many:
            count = rows_since(path, start) if start is not None else rows_and_bytes(path)[0]
            self._many[asked] = count > MOST
        return self._many[asked]

    def forget(self) -> None:
        """Keep nothing."""
        with self._lock, self._reading:
            self._heads.clear()
            self._many.clear()
            for name in self._slices:
                self._spark.catalog.dropGlobalTempView(self._name(self._config.streams[name]))
            self._slices.clear()

    def _keep(self, stream: Stream, start: int | None, head: int) -> bool:
        stores = [store.definition for store in self._config.stores.values() if store.stream == stream.name]
        named = json.dumps(stores).lower()
        unnamed = () if "*" in named else [name for name in SELDOM if name not in named]
        rows = change_feed.events(self._spark, self._config, stream, start, head)
        rows = rows.drop(*unnamed, "_change_type", "_commit_version", "_commit_timestamp")
        watched = rows.observe(OTHERS, F.count_if(F.col("_op") != "report").alias("count"))
        checkpoint = watched.localCheckpoint()
        checkpoint.createOrReplaceGlobalTempView(self._name(stream))
        metrics = observed(watched, OTHERS)
        return not metrics.getAs("count") if metrics else checkpoint.where("_op <> 'report'").isEmpty()

    def _name(self, stream: Stream) -> str:
        return f"slice_{id(self)}_{[*self._config.streams].index(stream.name)}"
