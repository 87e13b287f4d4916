"""``GET /processors``: the instances, the shards that each should have and has, and who to ask for which."""

from __future__ import annotations

from flask import Blueprint, Response

from api.engine.media_types import JSON
from api.http.context import answer, service
from api.http.openapi import answers
from api.http.openapi.contract import Answer, declared

processors = Blueprint("processors", __name__)
ALONE = {
    "shards": 0,
    "copies": 1,
    "partitioner": "murmur2",
    "address": None,
    "settled": True,
    "instances": [],
    "map": [],
}


@processors.get("/processors")
@declared(answers={200: Answer("the instances", {JSON: answers.processors})}, closed=False)
def show() -> Response:
    """The instances as this one sees them; ``map`` has for each shard those that have it, best first.

    A key is in the shard ``murmur2(key) mod shards`` of Kafka's own partitioner. Any instance answers for every key; one that
    has the key does so without asking another. ``shards`` is 0 where an instance has every key.
    """
    fleet = service().fleet
    return answer(fleet.processors() if fleet else ALONE)
