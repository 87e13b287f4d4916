"""What the jobs of this process have done, in numbers, for Prometheus: ``jobs: {metrics: HOST:PORT}`` in the file.

What was committed is counted by the jobs themselves, once it is; a batch's time, and how far Kafka is ahead, is what Spark
reports of each streaming query (:class:`Progress`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from pyspark.sql.streaming.listener import StreamingQueryListener

from statehouse.config.models import Config
from statehouse.errors import StatehouseError
from statehouse.values import parse_address

log = logging.getLogger("statehouse")
REGISTRY = CollectorRegistry()
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
EVENTS = Counter("statehouse_events", "Events appended to the changelog", ["stream"], registry=REGISTRY)
QUARANTINED = Counter("statehouse_quarantined", "Records that were refused", ["stream"], registry=REGISTRY)
BATCH_SECONDS = Histogram(
    "statehouse_batch_seconds", "Time of a batch with records in it", ["stream"], buckets=SECONDS, registry=REGISTRY
)
BEHIND = Gauge("statehouse_offsets_behind", "Offsets in Kafka after the last batch", ["stream"], registry=REGISTRY)
PROGRESS = Gauge(
    "statehouse_progress_timestamp_seconds", "When a batch ended, or none was needed", ["stream"], registry=REGISTRY
)
MERGED = Counter("statehouse_merged_events", "Events folded into the state", ["store"], registry=REGISTRY)
MERGE_SECONDS = Histogram(
    "statehouse_merge_seconds", "Time of a merge with something new", ["store"], buckets=SECONDS, registry=REGISTRY
)
SENT = Counter(
    "statehouse_sent",
    "Events that a route has read, keys that a store has published, messages of tasks",
    ["job", "name"],
    registry=REGISTRY,
)
FAILING = Gauge(
    "statehouse_failing", "1 while the last try of a stream, store or route failed", ["job", "name"], registry=REGISTRY
)


def serve(config: Config) -> Callable[[], None]:
    """Serve ``GET /metrics`` in the background, if the configuration says where; what stops it. What has not happened
    yet is there as 0. Raises StatehouseError where the address cannot be had."""
    if config.jobs.metrics is None:
        return lambda: None
    host, port = parse_address(config.jobs.metrics)
    for stream in config.streams:
        FAILING.labels("ingest", stream)
        EVENTS.labels(stream), QUARANTINED.labels(stream), BATCH_SECONDS.labels(stream)
    for store in config.stores:
        FAILING.labels("merge", store)
        MERGED.labels(store), MERGE_SECONDS.labels(store)
        if config.stores[store].publish:
            SENT.labels("publish", store), FAILING.labels("publish", store)
    if config.tasks is not None:
        SENT.labels("tasks", "tasks"), FAILING.labels("tasks", "tasks")
    for route in config.routes:
        SENT.labels("route", route), FAILING.labels("route", route)
    try:
        server, thread = start_http_server(port, host, REGISTRY)
    except OSError as error:
        raise StatehouseError(
            f"jobs.metrics: found {config.jobs.metrics}, which cannot be listened on: {error.strerror}; "
            "stop what is there, or give another address"
        ) from None
    log.info("metrics are on http://%s:%d/metrics", host if ":" not in host else f"[{host}]", server.server_port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def behind(sources: Iterable[Any]) -> int | None:
    """The offsets that Kafka has and a batch had not, over all partitions; None where Spark does not say."""
    offsets = [(json.loads(s.endOffset), json.loads(s.latestOffset)) for s in sources if s.endOffset and s.latestOffset]
    ahead = (
        max(0, offset - ((ended or {}).get(topic) or {}).get(partition, 0))
        for ended, latest in offsets
        for topic, partitions in (latest or {}).items()
        for partition, offset in partitions.items()
    )
    return sum(ahead) if offsets else None


class Progress(StreamingQueryListener):
    """Takes from Spark's reports on the queries of ``jobs.ingest``, by their names, ``ingest <stream>``."""

    def __init__(self) -> None:
        self.streams: dict[str, str] = {}  # by the query's run

    def onQueryStarted(self, event: Any) -> None:
        """A query and its name."""
        self.streams[str(event.runId)] = str(event.name).removeprefix("ingest ")

    def onQueryProgress(self, event: Any) -> None:
        """A batch has ended; some are empty."""
        progress = event.progress
        stream = self.streams[str(progress.runId)]
        if progress.numInputRows:
            BATCH_SECONDS.labels(stream).observe(progress.batchDuration / 1000)
        if (ahead := behind(progress.sources)) is not None:
            BEHIND.labels(stream).set(ahead)
        PROGRESS.labels(stream).set_to_current_time()

    def onQueryIdle(self, event: Any) -> None:
        """There was nothing new."""
        PROGRESS.labels(self.streams[str(event.runId)]).set_to_current_time()

    def onQueryTerminated(self, event: Any) -> None:
        """It was stopped, or failed; a new one has another run."""
        self.streams.pop(str(event.runId), None)
