"""``/stores/{store}/changes``: server-sent events of what changes, here or anywhere in a fleet (:mod:`api.reads.changes`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from flask import Blueprint, Response, request

from api.engine.media_types import EVENTS
from api.engine.shards import Shards
from api.errors import Problem, bad_parameter, refused
from api.fleet import routing
from api.fleet.changes import Gathered
from api.http.context import fleet_request, service, the_snapshot
from api.http.openapi.contract import Answer, Parameter, declared
from api.http.openapi.schemas import Schema
from api.reads.changes import Changes, Held, StreamPosition
from api.replica.replica import Replica

DAY = 86_400
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # the latter tells nginx to pass each event on

follows = Blueprint("changes", __name__)

PLACE: Schema = {"type": "string", "pattern": "^[0-9]{1,18}(-[!-~]{1,100})?$"}
SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": DAY}
POSITION = Parameter("position", "a scan's position, or an event's id: go on after it", PLACE)
TIMEOUT = Parameter("timeout", "seconds after which the stream ends; without it, it does not", SECONDS)
LAST = Parameter("Last-Event-ID", "an event's id: go on after it", PLACE)


@follows.get("/stores/<store>/changes")
@declared(
    POSITION,
    TIMEOUT,
    headers=[LAST],
    answers={200: Answer("the events, without an end", {EVENTS: {}})},
    problems={
        409: "what changes in this store is not known: it follows the versions of its table, or was never merged",
        404: "there is no such position",
        410: "the changelog no longer has what came after that: read the whole store again",
        503: "too many streams, or the store is being read anew",
    },
)
def follow(store: str) -> Response:
    """Server-sent events: of each key that changes its state (``state``), or its key where it has none (``purge``).

    The header ``Last-Event-ID`` goes on after an event's id, ``position`` after a scan's position; without them it begins
    now. The first event says where (``position``); ``reset`` says that all may have changed: read the store again.
    """
    replica, (_, snapshot) = service().replica, the_snapshot(store)
    place, seconds = _place(request.args.get("position")), _seconds(request.args.get("timeout"))
    if snapshot.rule is None:
        raise Problem(409, "not-followed", f"nothing of {store} has been merged yet: there is nothing to follow")
    if not replica.follows(store):
        detail = (
            f"{store} follows the versions of its table, which do not say which keys changed: read it again instead"
        )
        raise Problem(409, "not-followed", detail)
    held = Held(service().streams)
    try:
        held.events = _events(replica, store, place, seconds)
    except BaseException:
        held.close()
        raise
    if request.method == "HEAD":
        held.close()
    return Response(held, 200, HEADERS, content_type=EVENTS)


def _events(replica: Replica, store: str, place: StreamPosition | None, seconds: float) -> Iterator[bytes]:
    """What is here; where a caller asks one of a fleet, what is anywhere in it."""
    lake, snapshot, fleet = service().lake, replica.snapshot(store), service().fleet
    asking = fleet_request()
    wanted = routing.shards_asked_for(asking, snapshot)
    if fleet is None or snapshot.shards is None:
        return Changes(replica, lake, store, place).events(seconds)
    if wanted is not None:
        return Changes(replica, lake, store, place, Shards(fleet.count, wanted)).events(seconds)

    def begin(shards: Sequence[int]) -> Iterator[bytes]:
        return Changes(replica, lake, store, place, Shards(fleet.count, frozenset(shards))).events(seconds)

    said = None if place is None else "-".join(str(part) for part in place if part is not None)
    return Gathered(store, sorted(snapshot.shards.numbers), begin, said, fleet, asking.token).events(seconds)


def _seconds(text: str | None) -> float:
    if text is None:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= DAY:
        raise bad_parameter("timeout", text, f"seconds, 0 to {DAY}")
    return seconds


def _place(parameter: str | None) -> StreamPosition | None:
    """Where to go on from, as the header or else the parameter says; each of them has to be right."""
    start = _parsed("bad-parameter", "position", parameter)
    return _parsed("bad-header", "Last-Event-ID", request.headers.get("Last-Event-ID")) or start


def _parsed(kind: str, name: str, text: str | None) -> StreamPosition | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,18})(?:-([!-~]{1,100}))?", text, re.ASCII)
    if not match:
        raise refused(kind, repr(text[:100]), "a position, or an event's id", at=name)
    return StreamPosition(int(match[1]), match[2])
