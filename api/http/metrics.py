"""``/metrics`` for Prometheus: requests, replicas, the process.

With several workers the requests are summed over all of them, by prometheus-client's files in
``$PROMETHEUS_MULTIPROC_DIR``, which :mod:`api.server.supervisor` sets. Replicas and process are of the worker that answers: each
worker follows the whole lake.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from api.http.openapi.contract import Answer, declared
from api.replica.replica import Replica

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
POINT_READ = "/stores/<store>/keys/<key:key>"  # as Flask's routes are written
METHODS = {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"}
GAUGES = {  # by the name in replica.status: the metric, what it is, and how many of it are one
    "keys": ("statehouse_store_keys", "Keys in the state", 1),
    "position": ("statehouse_store_position", "The changelog's version that the state has", 1),
    "version": ("statehouse_store_version", "The state table's version that is served", 1),
    "lag_ms": ("statehouse_store_lag_seconds", "How old the first event is that the state does not have", 1000),
}
LIVE_GAUGES = {  # the same, of its field `live`
    "pending": ("statehouse_live_pending", "Events that are shown and not in the changelog yet", 1),
    "behind": ("statehouse_live_behind", "Events that are in the topic and not shown", 1),
    "lag_ms": (
        "statehouse_live_lag_seconds",
        "How old the newest event is that is shown, if there are newer ones",
        1000,
    ),
}


class Replicas(Collector):
    """What ``GET /stores`` says in numbers, at the time it is asked for. What is not known is left out."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def collect(self) -> Iterator[Metric]:
        """A gauge for each number, with a sample for each store; and which worker says so."""
        about = "The worker that answers, by its process id"
        yield _gauge("statehouse_worker", about, ["worker"], {(str(os.getpid()),): 1})
        statuses = {name: self._replica.status(name) for name in self._replica.config.stores}
        yield from _gauges(GAUGES, statuses)
        failing = {(name,): status["error"] is not None for name, status in statuses.items()}
        yield _gauge("statehouse_store_failing", "1 while something is wrong with a store", ["store"], failing)
        lives = {name: status["live"] for name, status in statuses.items()}
        yield from _gauges(LIVE_GAUGES, lives)
        following = {(name, live["state"]): 1 for name, live in lives.items()}
        yield _gauge("statehouse_live", "What is done with the topic", ["store", "state"], following)


def _gauges(gauges: dict[str, tuple[str, str, int]], statuses: dict[str, dict[str, Any]]) -> Iterator[Metric]:
    for field, (name, about, unit) in gauges.items():
        known = {(store,): status[field] / unit for store, status in statuses.items() if status[field] is not None}
        yield _gauge(name, about, ["store"], known)


def _gauge(name: str, about: str, labels: list[str], samples: Mapping[Any, float]) -> Metric:
    """A gauge with its samples, by the values of its labels."""
    gauge = GaugeMetricFamily(name, about, labels=labels)
    for values, number in samples.items():
        gauge.add_metric(values, number)
    return gauge


class Reads:
    """Point reads that were answered without Flask. Each is only noted: to count it takes a tenth of the read's own time, and a
    hundredth where it is done for many at once."""

    def __init__(self, seconds: Histogram) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._noted: deque[float] = deque()
        self.took = self._noted.append  # seconds; of any thread

    def count(self) -> None:
        """Count those that were noted."""
        with self._lock:
            found = np.array([self._noted.popleft() for _ in range(len(self._noted))])
            # What Histogram.observe does for each.
            self._seconds._sum.inc(float(found.sum()))
            counts = np.bincount(np.searchsorted(self._seconds._upper_bounds, found))
            for bucket in np.flatnonzero(counts):
                self._seconds._buckets[bucket].inc(int(counts[bucket]))


def install(app: Flask, replica: Replica) -> Reads:
    """Count every request from here on, and serve ``/metrics``."""
    counted = CollectorRegistry()
    labels = ("route", "method", "status")
    # A histogram counts too: statehouse_http_request_seconds_count.
    seconds = Histogram("statehouse_http_request_seconds", "Time to the answer's head", labels, registry=counted)
    reads = Reads(seconds.labels(POINT_READ, "GET", "200"))

    @app.before_request
    def begin() -> None:
        g.begun = time.perf_counter()

    @app.after_request
    def count(response: Response) -> Response:
        route = request.url_rule.rule if request.url_rule else "none"
        method = request.method if request.method in METHODS else "other"  # or a caller could make up many
        seconds.labels(route, method, str(response.status_code)).observe(time.perf_counter() - g.begun)
        return response

    @app.get("/metrics")
    @declared(
        answers={200: Answer("the metrics", {"text/plain": {}, "application/openmetrics-text": {}})}, closed=False
    )
    def metrics() -> Response:
        """Every number, in the format that the caller reads. Of point reads, what other workers had counted a second ago."""
        reads.count()
        shown = CollectorRegistry()
        ProcessCollector(registry=shown)
        shown.register(Replicas(replica))
        if FOLDER in os.environ:
            MultiProcessCollector(shown)
        else:
            shown.register(counted)
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return Response(encode(shown), content_type=content_type)

    return reads
