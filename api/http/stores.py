"""Reading: the stores, the state of a key, and the scan."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from deltalake.exceptions import DeltaError
from flask import Blueprint, Response, request

from api.engine import columns, keys, where
from api.engine.columns import Columns, count, fitting, joined, size
from api.engine.exact_json import dumps
from api.engine.media_types import ARROW, CSV, JSON, NDJSON
from api.engine.types import moment, whole
from api.errors import Problem, bad_parameter, refused
from api.fleet import routing
from api.fleet.client import PLACE, position_headers
from api.fleet.scan import Scan
from api.http import formats, paths
from api.http.context import (
    answer,
    body_of,
    caller_gone,
    elsewhere,
    fleet_request,
    limit_asked,
    limit_of,
    listed,
    service,
    the_deadline,
    the_snapshot,
    the_store,
    version_of,
)
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Body, Parameter, Scope, declared
from api.http.openapi.schemas import Schema
from api.reads import scans
from api.reads.lake import Past
from api.reads.read_your_writes import Fresh, ReadYourWrites
from api.replica.snapshot import Snapshot
from api.replica.sorted_version import Row
from statehouse.config.models import Store
from statehouse.tables import opened, table

DEFAULT_LIMIT = 1000
MOST_STREAMED = 10**9  # rows
WAIT = 10.0  # seconds
LIVE, CHANGELOG = FRESHNESS = "live", "changelog"

reads = Blueprint("reads", __name__)


def _timeout(scope: Scope) -> Schema:
    most = scope.config.api.max_time / 1000
    return {"type": "number", "minimum": 0, "maximum": most, "default": min(WAIT, most)}


def _of_windows(scope: Scope) -> Schema | None:
    return schemas.TIME if scope.store and scope.store.windows else None


def _of_keys(scope: Scope) -> Schema:
    if scope.kinds is None or scope.store is None:
        return schemas.TEXT
    if scope.store.composite:
        return schemas.matching(schemas.keys_pattern(scope.kinds))
    return schemas.part(scope.kinds[0])


def _prefix(scope: Scope) -> Schema | None:
    if scope.kinds is None or scope.store is None:
        return schemas.TEXT
    if not scope.store.composite:
        return schemas.TEXT if scope.kinds[0].upper() == "STRING" else None
    pattern = schemas.prefix_pattern(scope.kinds)
    return None if pattern is None else schemas.matching(pattern)


def _wanted_keys(scope: Scope) -> Schema:
    kinds = scope.kinds or (["STRING"] * len(scope.store.keys) if scope.store else [])
    parts = [schemas.in_body(kind) for kind in kinds]
    listed = {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    one = listed if len(parts) != 1 else {"anyOf": [*parts, listed]}
    keys = {"type": "array", "items": one, "maxItems": scope.config.api.max_rows}
    return {"type": "object", "properties": {"keys": keys}, "required": ["keys"]}


AFTER = Parameter(
    "after", "a write's token: wait until that write is in the answer; 504 if it is not in time", answers.token
)
TIMEOUT = Parameter("timeout", "how many seconds to wait with `after`", _timeout)
AT = Parameter("at", "as the events up to this event time make it; not with `version`", schemas.TIME)
VERSION = Parameter(
    "version",
    "as this version of the state's table had it; not with `at`",
    {"type": "integer", "minimum": 0, "maximum": 10**9 - 1},
)
FROM_WINDOW = Parameter("from", "the windows that start then or later", _of_windows)
TO_WINDOW = Parameter("to", "the windows that start before", _of_windows)
FROM = Parameter("from", "a key, or first parts of one: begin there", _of_keys)
TO = Parameter("to", "a key, or first parts of one: end before it", _of_keys)
PREFIX = Parameter("prefix", "what the key, or the last part that is given of it, begins with", _prefix)
WHERE = Parameter(
    "where",
    "a condition on columns, compared with literals: `=`, `<>`, `<`, `LIKE`, `IN`, `BETWEEN`, `IS NULL`, `AND`, `OR`, `NOT`",
    {"type": "string", "minLength": 1, "maxLength": where.LONGEST, "examples": ["value IS NOT NULL"]},
)
FRESH = Parameter(
    "freshness",
    "`changelog`: without what is in the topic only; it matters where `api: freshness` is `live`",
    {"type": "string", "enum": list(FRESHNESS), "default": LIVE},
)
LIMIT = answers.limit(DEFAULT_LIMIT)
CURSOR = answers.cursor(answers.scan_cursor)
UNREAD = "the state cannot be read just now, or no instance has a part of it"
TAG = Parameter("If-None-Match", "the ETag of an answer: 304 if it still holds", schemas.TEXT)


@reads.get("/stores")
@declared(answers={200: Answer("the stores", {JSON: answers.stores})})
def list_stores() -> Response:
    """Every store: definition, columns, number of keys, position and lag."""
    replica = service().replica
    return answer({"stores": [replica.status(name) for name in replica.config.stores]})


@reads.get("/stores/<store>")
@declared(answers={200: Answer("the store", {JSON: answers.status})})
def show_store(store: str) -> Response:
    """One store: definition, columns, number of keys, position and lag."""
    replica = service().replica
    return answer(replica.status(the_store(replica.config, store).name))


@reads.get("/stores/<store>/keys/<key:key>")
@declared(
    *(AFTER, TIMEOUT, AT, VERSION, FROM_WINDOW, TO_WINDOW, FRESH),
    headers=[TAG],
    answers={
        200: Answer("the state", {JSON: answers.state}, {"ETag": "changes with the state"}),
        304: Answer("the state is the one that the caller has", {}, {"ETag": "the same"}),
    },
    problems={
        404: "the key is not there, or the version is not",
        409: "`after` is given, and its topic was deleted and made again",
        501: "`at`: what the store computes of an event is not known to be the same here as in Spark",
        503: "the state cannot be read just now; too many wait with `after`; or a question of the past took longer than `max_time`, "
        "or too many wait for it",
        504: "the write of `after` is not there in time",
    },
)
def get_key(store: str, key: str) -> Response:
    """The state of a key, or 404. The ETag changes with the state, not with the position.

    ``after`` (a write's token) and ``timeout`` wait until that write is in the answer; ``from`` and ``to`` bound the
    windows of a windowed store by their start; ``at`` gives the state as of an event time, ``version`` as of a version of the
    state's table.
    """
    replica = service().replica  # plain requests are answered before they come here, by `point_reads`
    defined = the_store(replica.config, store)
    asked = request.args.to_dict()
    fresh = freshness(asked)
    seconds = _seconds(asked.get("timeout"), replica.config.api.max_time / 1000)
    past = "version" in asked or "at" in asked
    if "version" not in asked and (reply := _elsewhere(store)):
        return reply
    # A version of the table has nothing of what is only ahead of the changelog.
    seen = Snapshot.truth if "version" in asked else fresh
    written = None
    if "after" in asked:
        waits = service().waits
        written = ReadYourWrites(replica, defined, asked["after"], seconds, seen, waits, caller_gone())
    while True:
        if written:
            written.wait()
        known, snapshot = the_snapshot(store)
        snapshot = fresh(snapshot)
        parts = paths.of_request(request.environ, known, snapshot.rule)
        position = snapshot.position  # before the row: it may be newer than it says, never older
        offsets: Mapping[str, int] | None = None
        if past:
            row, position, offsets = _past(defined, snapshot, parts, asked)
        elif not snapshot.has(parts):
            row, position = _by_table(defined, snapshot, parts)
        else:
            row, offsets = snapshot.get(parts), snapshot.offsets(parts)
        if written is None or written.inside(snapshot):
            break
    row = _windows(row, asked) if row and ("from" in asked or "to" in asked) else row
    if row is None:
        named = "/".join(part[:100] for part in parts)
        raise Problem(404, "unknown-key", f"found no {named!r} in {store}", position=position)
    body, tag = point(row, position, offsets)
    response = Response(body, content_type=JSON)
    response.set_etag(tag, weak=True)
    if "If-None-Match" in request.headers:
        response.make_conditional(request)
    return response


def _elsewhere(store: str) -> Response | None:
    """Another instance's answer, where this one does not have the key that is asked for."""
    if service().fleet is None:
        return None
    known, snapshot = the_snapshot(store)
    return elsewhere(snapshot, paths.of_request(request.environ, known, snapshot.rule))


def _by_table(store: Store, snapshot: Snapshot, parts: list[str]) -> tuple[Row | None, int | None]:
    """The state of a key that no instance has, by the newest version of the state's table."""
    newest = opened(table(service().config, "state", store.name))
    if newest is None or "after" in request.args:
        raise routing.no_holder([routing.shard_of(snapshot, parts)])
    return service().lake.version(store, parts, snapshot, newest.version())


def point(row: Row, position: int | None, offsets: Mapping[str, int] | None) -> tuple[bytes, str]:
    """A point read's body, and its tag, which does not change with the position. ``offsets``: the row is ahead of it."""
    text = dumps(row).encode()  # once, for both
    ahead = b',"provisional":true,"offsets":%s' % dumps(offsets).encode() if offsets else b""
    body = b'%s,"position":%s%s}\n' % (text[:-1], dumps(position).encode(), ahead)
    return body, hashlib.blake2b(text, digest_size=12).hexdigest()


def freshness(asked: Mapping[str, str]) -> Fresh:
    """What makes of a store's state that of the freshness that is asked for."""
    name = asked.get("freshness", LIVE)
    if name not in FRESHNESS:
        raise bad_parameter("freshness", name, " or ".join(FRESHNESS))
    return Snapshot.truth if name == CHANGELOG else lambda snapshot: snapshot


def provisional(offsets: Mapping[str, int] | None) -> dict[str, Any]:
    """What an answer says where something in it may be ahead of its position, up to some offsets."""
    return {"provisional": True, "offsets": offsets} if offsets else {}


def _seconds(text: str | None, most: float) -> float:
    if text is None:
        return min(WAIT, most)
    # By hand: float() also takes spaces, underscores and the digits of other scripts.
    seconds = float(text) if re.fullmatch(r"\d+(\.\d+)?([eE][-+]?\d+)?", text, re.ASCII) else -1.0
    if not 0 <= seconds <= most:
        raise bad_parameter("timeout", text, f"seconds, 0 to {most:g}")
    return seconds


def _past(store: Store, snapshot: Snapshot, parts: list[str], asked: dict[str, str]) -> Past[Row | None]:
    if snapshot.rule is None:  # nothing has been merged yet
        return None, None, {}
    if "version" in asked:
        if "at" in asked:
            raise Problem(400, "bad-parameter", "found at and version, expected one of them")
        text = asked["version"]
        try:
            return *service().lake.version(store, parts, snapshot, version_of("version", text)), {}
        except (duckdb.Error, DeltaError) as error:
            detail = f"found no version {text} of state/{store.name}, expected one up to {snapshot.version}"
            raise Problem(404, "unknown-version", detail) from error
    return service().lake.at(snapshot, parts, _moment("at", asked["at"]))


def _windows(row: Row, asked: dict[str, str]) -> Row | None:
    if "windows" not in row:
        raise Problem(400, "bad-parameter", "found from or to, expected neither: this store has no windows")
    least = _moment("from", asked["from"]) if "from" in asked else dt.datetime.min
    most = _moment("to", asked["to"]) if "to" in asked else dt.datetime.max
    windows = [window for window in row["windows"] if least <= window["window_start"] < most]
    return {**row, "windows": windows} if windows else None


def _moment(name: str, text: str) -> dt.datetime:
    try:
        return moment(text)
    except ValueError as error:
        raise bad_parameter(name, text, error) from None


@reads.post("/stores/<store>/lookup")
@declared(
    FRESH,
    body=Body("the keys: each as a text or a number, or a list of its parts", JSON, _wanted_keys),
    answers={200: Answer("the states that there are, and the keys that are not", {JSON: answers.found})},
    problems={503: UNREAD},
)
def lookup(store: str) -> Response:
    """Many keys in one request: the states of those that are there, and the keys that are not."""
    defined, snapshot = the_snapshot(store)
    snapshot = freshness(request.args.to_dict())(snapshot)
    asked = body_of(request).get("keys")
    most = service().config.api.max_rows
    if not isinstance(asked, list) or len(asked) > most:
        raise Problem(400, "bad-body", f'expected {{"keys": [...]}} with at most {most} keys')
    kinds = keys.kinds(defined, snapshot.rule)
    parts = [
        keys.typed([_text(part) for part in key], defined, kinds)
        for key in (key if isinstance(key, list) else [key] for key in asked)
    ]
    asking = fleet_request()
    states = routing.look_up(asking, snapshot, parts)
    if routing.shards_asked_for(asking, snapshot) is not None:
        text = "".join(f"{row or 'null'}\n" for row in states.rows)
        return Response(text, 200, position_headers(states.position, states.offsets), content_type=NDJSON)
    pairs = list(zip(asked, states.rows, strict=True))
    rows, missing = [row for _, row in pairs if row], [key for key, row in pairs if not row]
    return listed(rows, {"missing": missing, "position": states.position, **provisional(states.offsets)})


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, (bool, int, Decimal)):
        raise refused("bad-key", dumps(part)[:100], "a text, a number or a boolean, or a list of them", at="keys")
    return dumps(whole(part))


@reads.get("/stores/<store>/keys")
@declared(
    *(LIMIT, CURSOR, PREFIX, FROM, TO, WHERE, FRESH),
    answers={
        200: Answer(
            "a page as JSON; as one of the others all of the scan, streamed",
            {JSON: answers.page, NDJSON: {}, CSV: {}, ARROW: {}},
        )
    },
    problems={503: UNREAD},
)
def scan(store: str) -> Response:
    """The store's states in the order of their keys: a page as JSON with the cursor of the next one, or, where NDJSON, CSV
    or Arrow is accepted, all of them (up to ``limit``, where given), streamed.

    A cursor is a place in that order: pages neither repeat nor skip a key, however the state changes. ``prefix`` is of a
    key's last given part; ``from`` (included) and ``to`` (not) are keys, of a composite key some first parts separated by '/'.
    ``where`` compares columns with literals.
    """
    replica = service().replica
    the_store(replica.config, store)
    asked = request.args.to_dict()
    kind = formats.wanted(request)
    limit = limit_of(asked, sys.maxsize, MOST_STREAMED) if kind else limit_asked(DEFAULT_LIMIT)
    snapshot = freshness(asked)(the_snapshot(store)[1])
    if snapshot.rule is None:
        nothing: dict[str, Any] = {"rows": [], "cursor": None, "position": None}
        return formats.streamed(iter(()), kind, pa.schema([])) if kind else answer(nothing)
    text = asked.get("cursor", "")
    selection = scans.selection(snapshot, asked, replica.cursor, at_once=bool(kind))
    try:
        after = keys.of_cursor(text, len(snapshot.rule.keys)) if text else None
        if after is not None:
            snapshot.key(after)
    except (ValueError, ArithmeticError, KeyError):
        raise keys.bad_cursor(text) from None
    # In pages one more tells whether there is a next one.
    wanted_rows = limit if kind else limit + 1
    result = Scan(fleet_request(), snapshot, selection, after, wanted_rows, the_deadline())
    if kind:
        response = formats.streamed(result.pages(), kind, snapshot.schema())
        response.headers.update(position_headers(result.position, result.offsets))
    else:
        rows, whole = _in_room(result.pages(), replica.config.api.max_answer)
        more = count(rows) > limit or not whole
        rows = {name: column[:limit] for name, column in rows.items()}
        following = keys.cursor(snapshot.last(rows)) if more else None
        besides = {"cursor": following, "position": result.position, **provisional(result.offsets)}
        with service().turns.turns:  # meanwhile it takes several times its text
            response = listed(columns.listed(rows) if rows else b"", besides)
    response.headers[PLACE] = result.place
    return response


def _in_room(pages: Iterator[Columns], room: int) -> tuple[Columns, bool]:
    """The rows of some pages, as many as there is room for, and whether these are all."""
    parts: list[Columns] = []
    for rows in pages:
        fit = fitting(rows, count(rows), room, some=not parts)
        parts.append({name: column[:fit] for name, column in rows.items()})
        room -= size(parts[-1])
        if fit < count(rows) or room <= 0:
            return joined(parts), False
    return joined(parts or [{}]), True
