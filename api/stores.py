"""Reading: the stores, the state of a key, and the scan."""

from __future__ import annotations

import hashlib

from flask import Blueprint, Response, current_app, request

from api import keys
from api.exact import answer, dumps
from api.problems import Problem
from api.replica import Replica
from statehouse.config import Config, Store

DEFAULT_LIMIT, MAX_LIMIT = 1000, 10_000

reads = Blueprint("reads", __name__)


def the_store(config: Config, name: str) -> Store:
    """The store of that name, or a problem that lists those there are."""
    if name not in config.stores:
        known = list(config.stores)
        expected = f"one of {', '.join(known)}" if known else "none: the configuration has no stores"
        detail = f"found {name[:100]!r}, expected {expected}"
        raise Problem(404, "unknown-store", detail, stores=known)
    return config.stores[name]


def the_replica() -> Replica:
    """The replica of the app that serves this request."""
    return current_app.extensions["statehouse"].replica


@reads.get("/stores")
def list_stores() -> Response:
    """Every store: definition, columns, number of keys, position and lag."""
    replica = the_replica()
    return answer({"stores": [replica.status(name) for name in replica.config.stores]})


@reads.get("/stores/<store>")
def show_store(store: str) -> Response:
    """One store: definition, columns, number of keys, position and lag."""
    replica = the_replica()
    return answer(replica.status(the_store(replica.config, store).name))


@reads.get("/stores/<store>/keys/<key:key>")
def get_key(store: str, key: str) -> Response:
    """The state of a key, or 404. The ETag changes with the state, not with the position."""
    replica = the_replica()
    defined = the_store(replica.config, store)
    snapshot = replica.snapshot(store)
    parts = keys.of_request(request.environ, snapshot.rule.store if snapshot.rule else defined, snapshot.rule)
    position = snapshot.position  # before the row: it may be newer than it says, never older
    found = snapshot.get(parts)
    if found is None:
        named = "/".join(part[:100] for part in parts)
        raise Problem(404, "unknown-key", f"found no {named!r} in {store}", position=position)
    response = answer({**found, "position": position})
    response.set_etag(hashlib.blake2b(dumps(found).encode(), digest_size=12).hexdigest(), weak=True)
    response.make_conditional(request)
    return response


@reads.get("/stores/<store>/keys")
def scan(store: str) -> Response:
    """A page of the store's states in the order of their keys, and the cursor of the next page.

    A cursor is a place in that order: pages neither repeat nor skip a key, however the state changes.
    """
    replica = the_replica()
    the_store(replica.config, store)
    limit, text = _parameters()
    snapshot = replica.snapshot(store)
    if snapshot.rule is None:
        return answer({"rows": [], "cursor": None, "position": snapshot.position})
    try:
        after = keys.of_cursor(text, len(snapshot.rule.keys)) if text else None
        rows, position = snapshot.page(after, limit + 1)  # one more tells whether there is a next page
    except (ValueError, ArithmeticError, KeyError):
        raise keys.bad_cursor(text) from None
    more = len(rows) > limit
    rows = rows[:limit]
    following = keys.cursor(snapshot.texts(rows[-1])) if more else None
    return answer({"rows": rows, "cursor": following, "position": position})


def _parameters() -> tuple[int, str]:
    for name in request.args:
        if name not in ("limit", "cursor"):
            raise Problem(400, "bad-parameter", f"found {name[:100]!r}, expected limit or cursor")
    text = request.args.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= MAX_LIMIT):
        raise Problem(400, "bad-parameter", f"limit: found {text[:100]!r}, expected 1 to {MAX_LIMIT}")
    return int(text), request.args.get("cursor", "")
