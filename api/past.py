"""Why a value is what it is: a key's events and standing reports; and what was refused of a stream."""

from __future__ import annotations

from flask import Blueprint, Response, request

from api import keys
from api.exact import answer
from api.problems import Problem
from api.snapshot import Snapshot
from api.stores import get_key, limit_of, parameters, the_lake, the_replica, the_snapshot
from statehouse.config import Store

DEFAULT_LIMIT, MAX_LIMIT = 100, 10_000

past = Blueprint("past", __name__)


@past.get("/stores/<store>/keys/<key:key>/history")
def history(store: str, key: str) -> Response:
    """Every event behind a key's state, newest first, as the store sees it; ``limit``, and the ``cursor`` of the next page."""
    named = _named(store, "history")
    if named is None:
        return get_key(store, f"{key}/history")
    _, snapshot, parts = named
    asked = parameters("limit", "cursor")
    limit, cursor = limit_of(asked, DEFAULT_LIMIT, MAX_LIMIT), asked.get("cursor")
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 39):
        raise keys.bad_cursor(cursor)
    if snapshot.rule is None or snapshot.position is None:  # nothing has been merged yet
        raise Problem(404, "unknown-key", f"found no {key[:100]!r} in {store}", position=None)
    rows = the_lake().history(snapshot, parts, int(cursor) if cursor else None, limit + 1)
    orders = [row.pop("_order") for row in rows]
    if not rows and cursor is None:
        raise Problem(404, "unknown-key", f"found no event of {key[:100]!r} in {store}", position=snapshot.position)
    following = str(orders[limit - 1]) if len(rows) > limit else None
    return answer({"events": rows[:limit], "cursor": following, "position": snapshot.position})


@past.get("/stores/<store>/keys/<key:key>/reports")
def reports(store: str, key: str) -> Response:
    """Each agent's standing report of a key, where the store's reducer is over agents."""
    named = _named(store, "reports")
    if named is None:
        return get_key(store, f"{key}/reports")
    defined, snapshot, parts = named
    if not defined.reducer.per_agent:
        detail = f"found {defined.reducer.name}, expected a reducer over agents: {store} has no reports"
        raise Problem(404, "no-reports", detail)
    parameters()
    position = snapshot.position
    found = snapshot.get(parts) if snapshot.rule else None
    if found is None:
        raise Problem(404, "unknown-key", f"found no {key[:100]!r} in {store}", position=position)
    kept = {name: found[name] for name in ("value", "reports", "windows") if name in found}
    return answer({**kept, "position": position})


@past.get("/streams/<stream>/quarantine")
def quarantine(stream: str) -> Response:
    """What was refused of a stream and why, newest first by partition and offset."""
    replica = the_replica()
    if stream not in replica.config.streams:
        known = list(replica.config.streams)
        raise Problem(
            404, "unknown-stream", f"found {stream[:100]!r}, expected one of {', '.join(known)}", streams=known
        )
    asked = parameters("limit", "cursor")
    limit = limit_of(asked, DEFAULT_LIMIT, MAX_LIMIT)
    try:
        place = [int(part) for part in keys.of_cursor(asked["cursor"], 2)] if "cursor" in asked else []
    except ValueError:
        raise keys.bad_cursor(asked["cursor"]) from None
    rows = the_lake().quarantine(stream, (place[0], place[1]) if place else None, limit + 1)
    following = None
    if len(rows) > limit:
        following = keys.cursor([str(rows[limit - 1][name]) for name in ("partition", "offset")])
    return answer({"rows": rows[:limit], "cursor": following})


def _named(store: str, suffix: str) -> tuple[Store, Snapshot, list[str]] | None:
    """The store, its snapshot and the key of a path that ends in a suffix; None where that belongs to the key."""
    defined, snapshot = the_snapshot(store)
    environ = keys.without(request.environ, suffix)
    return (defined, snapshot, keys.of_request(environ, defined, snapshot.rule)) if environ is not None else None
