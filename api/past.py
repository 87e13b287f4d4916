"""Why a value is what it is: a key's events and standing reports; and what was refused of a stream."""

from __future__ import annotations

import base64
from typing import Any

from flask import Blueprint, Response, request

from api import keys
from api.exact import answer
from api.problems import Problem
from api.snapshot import Snapshot
from api.stores import get_key, parameters, the_lake, the_replica, the_store
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
    limit, cursor = _limit(asked), asked.get("cursor")
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
    limit = _limit(asked)
    before = _place(asked["cursor"]) if "cursor" in asked else None
    rows = the_lake().quarantine(stream, before, limit + 1)
    last = rows[limit - 1] if len(rows) > limit else None
    return answer({"rows": rows[:limit], "cursor": _cursor(last) if last else None})


def _named(store: str, suffix: str) -> tuple[Store, Snapshot, list[str]] | None:
    """The store, its snapshot and the key of a path that ends in a suffix; None where that belongs to the key."""
    replica = the_replica()
    defined = the_store(replica.config, store)
    environ = keys.without(request.environ, suffix)
    if environ is None:
        return None
    snapshot = replica.snapshot(store)
    rule = snapshot.rule
    return (rule.store if rule else defined), snapshot, keys.of_request(environ, rule.store if rule else defined, rule)


def _limit(asked: dict[str, str]) -> int:
    text = asked.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MAX_LIMIT):
        raise Problem(400, "bad-parameter", f"limit: found {text[:100]!r}, expected 1 to {MAX_LIMIT}")
    return int(text)


def _cursor(row: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(f"{row['partition']}:{row['offset']}".encode()).decode().rstrip("=")


def _place(text: str) -> tuple[int, int]:
    try:
        partition, offset = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode().split(":")
        return int(partition), int(offset)
    except ValueError:
        raise keys.bad_cursor(text) from None
