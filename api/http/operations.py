"""For who runs the service, open to anyone: whether this process answers and has what it should serve, and which instances there are."""

from __future__ import annotations

from flask import Blueprint, Response

from api.engine.media_types import JSON
from api.errors import Problem
from api.http.context import answer, service
from api.http.openapi import answers
from api.http.openapi.contract import Answer, declared

health = Blueprint("health", __name__)
processors = Blueprint("processors", __name__)
OK = Answer("it is so", {JSON: answers.record({"status": {"const": "ok"}})})
ALONE = {
    "shards": 0,
    "copies": 1,
    "partitioner": "murmur2",
    "address": None,
    "settled": True,
    "instances": [],
    "map": [],
}


@health.get("/healthz")
@declared(answers={200: OK}, closed=False)
def healthz() -> Response:
    """Whether this process answers; it does so without the lake and without Kafka."""
    return answer({"status": "ok"})


@health.get("/readyz")
@declared(answers={200: OK}, problems={503: "a store is not, and which"}, closed=False)
def readyz() -> Response:
    """Whether every store is loaded, and no further behind than ``api: max_lag``; else 503 and those that are not.

    A store that has never been merged has nothing to load. Of a lag that is not known, more cannot be promised; nor of one whose
    topic was deleted and made again.
    """
    replica = service().replica
    most = replica.config.api.max_lag
    waiting = []
    for name in replica.config.stores:
        status = replica.status(name)
        lag = status["lag_ms"]
        if replica.unread(name) or (most is not None and (lag is None or lag > most)):
            waiting.append({"name": name, "lag_ms": lag, "error": status["error"]})
    if waiting:
        expected = "loaded" if most is None else f"loaded and at most {most} ms behind"
        detail = f"expected every store {expected}, but not so: {', '.join(w['name'] for w in waiting)}"
        raise Problem(503, "not-ready", detail, stores=waiting)
    return answer({"status": "ok"})


@processors.get("/processors")
@declared(answers={200: Answer("the instances", {JSON: answers.processors})}, closed=False)
def show() -> Response:
    """The instances as this one sees them; ``map`` has for each shard those that have it, best first.

    A key is in the shard ``murmur2(key) mod shards`` of Kafka's own partitioner. Any instance answers for every key; one that
    has the key does so without asking another. ``shards`` is 0 where an instance has every key.
    """
    fleet = service().fleet
    return answer(fleet.processors() if fleet else ALONE)
