"""Reading: the stores, the state of a key, and the scan."""

from __future__ import annotations

import datetime as dt
import hashlib
import sys

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError
from flask import Blueprint, Response, current_app, request

from api import formats, keys, scans
from api.bodies import body_of
from api.exact import answer, dumps
from api.lake import Lake
from api.problems import Problem
from api.replica import Replica
from api.snapshot import Row, Snapshot
from api.typed import canonical
from statehouse.config import Config, Store

DEFAULT_LIMIT, MAX_LIMIT = 1000, 10_000
MAX_WAIT = 60  # seconds that a read may wait for a write

reads = Blueprint("reads", __name__)


def the_store(config: Config, name: str) -> Store:
    """The store of that name, or a problem that lists those there are."""
    if name not in config.stores:
        known = list(config.stores)
        expected = f"one of {', '.join(known)}" if known else "none: the configuration has no stores"
        detail = f"found {name[:100]!r}, expected {expected}"
        raise Problem(404, "unknown-store", detail, stores=known)
    return config.stores[name]


def the_snapshot(name: str) -> tuple[Store, Snapshot]:
    """What is known of a store: by the rule that its state is folded by, where there is one, and its state; or a problem."""
    replica = the_replica()
    defined, snapshot = the_store(replica.config, name), replica.snapshot(name)
    return (snapshot.rule.store if snapshot.rule else defined), snapshot


def the_replica() -> Replica:
    """The replica of the app that serves this request."""
    return current_app.extensions["statehouse"].replica


def the_lake() -> Lake:
    """The direct reads of the app that serves this request."""
    return current_app.extensions["statehouse"].lake


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
    """The state of a key, or 404. The ETag changes with the state, not with the position.

    ``after`` (a write's token) and ``timeout`` wait until that write is in the answer; ``from`` and ``to`` bound the
    windows of a windowed store by their start; ``at`` gives the state as of an event time, ``version`` as of a version of the
    state's table.
    """
    replica = the_replica()
    defined = the_store(replica.config, store)
    asked = parameters("after", "timeout", "at", "version", "from", "to")
    if "after" in asked:
        _wait(replica, defined, asked)
    known, snapshot = the_snapshot(store)
    parts = keys.of_request(request.environ, known, snapshot.rule)
    position = snapshot.position  # before the row: it may be newer than it says, never older
    if "version" in asked or "at" in asked:
        found, position = _past(defined, snapshot, parts, asked)
    else:
        found = snapshot.get(parts)
    found = _windows(found, asked) if found and ("from" in asked or "to" in asked) else found
    if found is None:
        named = "/".join(part[:100] for part in parts)
        raise Problem(404, "unknown-key", f"found no {named!r} in {store}", position=position)
    body, tag = point(found, position)
    response = Response(body, content_type="application/json")
    response.set_etag(tag, weak=True)
    if "If-None-Match" in request.headers:
        response.make_conditional(request)
    return response


def point(row: Row, position: int | None) -> tuple[bytes, str]:
    """A point read's body, and its tag, which does not change with the position."""
    text = dumps(row).encode()  # once, for both
    return b'%s,"position":%s}\n' % (text[:-1], dumps(position).encode()), hashlib.blake2b(
        text, digest_size=12
    ).hexdigest()


def _wait(replica: Replica, store: Store, asked: dict[str, str]) -> None:
    """Wait until a write is in the answers; a problem where that takes too long."""
    topic, *place = asked["after"].rsplit(":", 2)
    expected = replica.config.streams[store.stream].topic
    if topic != expected or len(place) != 2 or not all(p.isascii() and p.isdecimal() and len(p) < 19 for p in place):
        found = asked["after"][:100]
        raise Problem(
            400, "bad-parameter", f"after: found {found!r}, expected a write's token, {expected}:PARTITION:OFFSET"
        )
    try:
        seconds = float(asked.get("timeout", "10"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT:
        raise Problem(
            400, "bad-parameter", f"timeout: found {asked['timeout'][:100]!r}, expected seconds, 0 to {MAX_WAIT}"
        )
    if not replica.wait(store.name, int(place[0]), int(place[1]), seconds):
        detail = f"found no {asked['after']!r} in {store.name} within {seconds} s"
        raise Problem(504, "not-yet", detail, position=replica.snapshot(store.name).position)


def _past(store: Store, snapshot: Snapshot, parts: list[str], asked: dict[str, str]) -> tuple[Row | None, int | None]:
    if snapshot.rule is None or snapshot.position is None:  # nothing has been merged yet
        return None, None
    if "version" in asked:
        if "at" in asked:
            raise Problem(400, "bad-parameter", "found at and version, expected one of them")
        text = asked["version"]
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise Problem(
                400, "bad-parameter", f"version: found {text[:100]!r}, expected a version of the state's table"
            )
        try:
            return the_lake().version(store, parts, snapshot, int(text))
        except (duckdb.Error, DeltaError) as error:
            detail = f"found no version {text} of state/{store.name}, expected one up to {snapshot.version}"
            raise Problem(404, "unknown-version", detail) from error
    return the_lake().at(snapshot, parts, _moment("at", asked["at"])), snapshot.position


def _windows(found: Row, asked: dict[str, str]) -> Row | None:
    if "windows" not in found:
        raise Problem(400, "bad-parameter", "found from or to, expected neither: this store has no windows")
    bounds = {name: _moment(name, asked[name]) for name in ("from", "to") if name in asked}
    kept = [
        w
        for w in found["windows"]
        if w["window_start"] >= bounds.get("from", dt.datetime.min)
        and w["window_start"] < bounds.get("to", dt.datetime.max)
    ]
    return {**found, "windows": kept} if kept else None


def _moment(name: str, text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(canonical(text, "TIMESTAMP").removesuffix("Z"))
    except ValueError as error:
        raise Problem(400, "bad-parameter", f"{name}: found {text[:100]!r}, {error}") from None


@reads.post("/stores/<store>/lookup")
def lookup(store: str) -> Response:
    """Many keys in one request: the states of those that are there, and the keys that are not."""
    defined, snapshot = the_snapshot(store)
    asked = body_of(request).get("keys")
    if not isinstance(asked, list) or len(asked) > MAX_LIMIT:
        raise Problem(400, "bad-body", f'expected {{"keys": [...]}} with at most {MAX_LIMIT} keys')
    kinds, position = keys.kinds(defined, snapshot.rule), snapshot.position
    parts = [
        keys.typed([p if isinstance(p, str) else dumps(p) for p in key], defined, kinds)
        for key in (key if isinstance(key, list) else [key] for key in asked)
    ]
    found = list(zip(asked, snapshot.lookup(parts), strict=True))
    rows, missing = [row for _, row in found if row], [key for key, row in found if not row]
    return answer({"rows": rows, "missing": missing, "position": position})


@reads.get("/stores/<store>/keys")
def scan(store: str) -> Response:
    """The store's states in the order of their keys: a page as JSON with the cursor of the next one, or, where NDJSON, CSV
    or Arrow is accepted, all of them (up to ``limit``, where given), streamed.

    A cursor is a place in that order: pages neither repeat nor skip a key, however the state changes. ``prefix`` is of a
    key's last given part; ``from`` (included) and ``to`` (not) are keys, of a composite key some first parts separated by '/'.
    ``where`` compares columns with literals, see :mod:`api.where`.
    """
    replica = the_replica()
    the_store(replica.config, store)
    asked = parameters("limit", "cursor", "prefix", "from", "to", "where")
    kind = formats.wanted(request)
    limit = limit_of(asked, sys.maxsize, 10**9) if kind else limit_of(asked, DEFAULT_LIMIT, MAX_LIMIT)
    snapshot = replica.snapshot(store)
    if snapshot.rule is None:
        return (
            formats.streamed(iter(()), kind, pa.schema([]))
            if kind
            else answer({"rows": [], "cursor": None, "position": None})
        )
    text = asked.get("cursor", "")
    bounds, where = scans.bounds(snapshot, asked), scans.condition(snapshot, asked, replica.cursor)
    try:
        after = keys.of_cursor(text, len(snapshot.rule.keys)) if text else None
        if after is not None:
            snapshot.key(after)
    except (ValueError, ArithmeticError, KeyError):
        raise keys.bad_cursor(text) from None
    if kind:
        return formats.streamed(scans.pages(snapshot, bounds, after, limit, where), kind, snapshot.schema())
    rows, position = snapshot.page(after, limit + 1, bounds, where)  # one more tells whether there is a next page
    more = len(rows) > limit
    rows = rows[:limit]
    following = keys.cursor(snapshot.texts(rows[-1])) if more else None
    return answer({"rows": rows, "cursor": following, "position": position})


def parameters(*known: str) -> dict[str, str]:
    """The request's parameters, or a problem where one is not known."""
    for name in request.args:
        if name not in known:
            raise Problem(400, "bad-parameter", f"found {name[:100]!r}, expected {' or '.join(known)}")
    return {name: request.args[name] for name in request.args}


def limit_of(asked: dict[str, str], default: int, most: int) -> int:
    """The parameter ``limit``, 1 to ``most``, or a problem."""
    text = asked.get("limit")
    if text is None:
        return default
    digits = max(8, len(str(most)))
    if not (text.isascii() and text.isdecimal() and len(text) <= digits and 1 <= int(text) <= most):
        raise Problem(400, "bad-parameter", f"limit: found {text[:100]!r}, expected 1 to {most}")
    return int(text)
