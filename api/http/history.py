"""Why a value is what it is: a key's events and standing reports."""

from __future__ import annotations

import functools
from collections.abc import Callable

import duckdb
from deltalake.exceptions import DeltaError
from flask import Blueprint, Response, request

from api.engine.media_types import JSON
from api.errors import Problem
from api.fleet import routing
from api.http import paths
from api.http.context import answer, cursor_asked, elsewhere, limit_asked, service, the_snapshot, version_of
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Parameter, declared
from api.http.stores import FRESH, UNREAD, VERSION, freshness, get_key, provisional
from api.replica.snapshot import Snapshot
from statehouse.config.models import Store
from statehouse.tables import opened, table

DEFAULT_LIMIT = 100
LIMIT = answers.limit(DEFAULT_LIMIT)
ORDER = "-?[0-9]{1,38}"  # an event's place among those of its key, see statehouse.reducers.ORDER
BEFORE = answers.cursor(schemas.matching(ORDER))
SLOW = "the state cannot be read just now; the lake was not read within `max_time`, or too many wait for it"

UNCOMPUTED = "what the store computes of an event is not known to be the same here as in Spark"

past = Blueprint("past", __name__)


def below_a_key(suffix: str) -> Callable[[Callable[..., Response]], Callable[..., Response]]:
    """A view of paths that end in ``/suffix``; where that '/' is encoded it is the key's, and the state is asked for."""

    def wrap(view: Callable[..., Response]) -> Callable[..., Response]:
        @functools.wraps(view)
        def chosen(store: str, key: str) -> Response:
            if paths.without(request.environ, suffix) is None:
                return get_key(store=store, key=f"{key}/{suffix}")
            return view(store=store, key=key)

        return chosen

    return wrap


@past.get("/stores/<store>/keys/<key:key>/history")
@below_a_key("history")
@declared(
    *(LIMIT, BEFORE, FRESH),
    answers={200: Answer("the events", {JSON: answers.history})},
    problems={404: "the key has no event", 501: UNCOMPUTED, 503: SLOW},
)
def history(store: str, key: str) -> Response:
    """Every event behind a key's state, newest first, as the store sees it; ``limit``, and the ``cursor`` of the next page. One that
    the changelog does not have yet is ``provisional``."""
    _, snapshot, parts = _named(store, "history")
    limit, cursor = limit_asked(DEFAULT_LIMIT), cursor_asked(ORDER)
    if snapshot.rule is None:  # nothing has been merged yet
        raise Problem(404, "unknown-key", f"found no {key[:100]!r} in {store}", position=None)
    if reply := elsewhere(snapshot, parts, "/history"):
        return reply
    (events, more), position, offsets = service().lake.history(snapshot, parts, int(cursor) if cursor else None, limit)
    orders = [event.pop("_order") for event in events]
    if not events and cursor is None:
        raise Problem(404, "unknown-key", f"found no event of {key[:100]!r} in {store}", position=position)
    following = str(orders[-1]) if more else None
    ahead = provisional(offsets) if any("provisional" in event for event in events) else {}
    return answer({"events": events, "cursor": following, "position": position, **ahead})


@past.get("/stores/<store>/keys/<key:key>/reports")
@below_a_key("reports")
@declared(
    FRESH,
    answers={200: Answer("the value and the reports", {JSON: answers.reports})},
    problems={404: "the key is not there", 503: UNREAD},
    only=lambda scope: scope.store is not None and scope.store.reducer.per_agent,
)
def reports(store: str, key: str) -> Response:
    """Each agent's standing report of a key, where the store's reducer is over agents."""
    defined, snapshot, parts = _named(store, "reports")
    if not defined.reducer.per_agent:
        detail = f"found {defined.reducer.name}, expected a reducer over agents: {store} has no reports"
        raise Problem(404, "no-reports", detail)
    if reply := elsewhere(snapshot, parts, "/reports"):
        return reply
    if not snapshot.has(parts):
        raise routing.no_holder([routing.shard_of(snapshot, parts)])
    position = snapshot.position
    row, offsets = snapshot.get(parts), snapshot.offsets(parts)
    if row is None:
        raise Problem(404, "unknown-key", f"found no {key[:100]!r} in {store}", position=position)
    shown = {name: row[name] for name in ("value", "reports", "windows") if name in row}
    return answer({**shown, "position": position, **provisional(offsets)})


@past.get("/stores/<store>/diff")
@declared(
    Parameter("from", "the version of the state's table before", VERSION.schema),
    Parameter("to", "the version after; default: the newest", VERSION.schema),
    LIMIT,
    answers={200: Answer("the keys whose values differ", {JSON: answers.diff})},
    problems={404: "there is no such version, or it is not kept any more", 503: SLOW},
)
def diff(store: str) -> Response:
    """What differs between two versions of a store's table: keys that were added, are gone, or have another value, in the order
    of the key; whether there are ``more``, and how many there are of each in all. Without ``from`` it is the version before ``to``."""
    defined, snapshot = the_snapshot(store)
    limit = limit_asked(DEFAULT_LIMIT)
    delta = opened(table(service().config, "state", defined.name))
    if snapshot.rule is None or delta is None:
        raise Problem(404, "unknown-version", f"nothing of {store} has been merged yet: it has no versions")
    new = _version("to", delta.version(), delta.version())
    old = _version("from", max(0, new - 1), delta.version())
    try:
        (rows, more), counts = service().lake.diff(snapshot, old, new, limit)
    except (duckdb.IOException, DeltaError) as error:
        detail = f"found no versions {old} and {new} of state/{defined.name} any more, expected two that are kept"
        raise Problem(404, "unknown-version", detail) from error
    return answer({"from": old, "to": new, **counts, "rows": rows, "more": more})


def _version(name: str, default: int, newest: int) -> int:
    """The version that a parameter names, up to the newest one; a problem where it is none."""
    if name not in request.args:
        return default
    version = version_of(name, request.args[name])
    if version > newest:
        raise Problem(404, "unknown-version", f"{name}: found {version}, expected a version up to {newest}")
    return version


def _named(store: str, suffix: str) -> tuple[Store, Snapshot, list[str]]:
    """The store, its state of the freshness that is asked for, and the key of a path that ends in a suffix."""
    defined, snapshot = the_snapshot(store)
    environ = paths.without(request.environ, suffix)
    assert environ is not None
    return defined, freshness(request.args)(snapshot), paths.of_request(environ, defined, snapshot.rule)
