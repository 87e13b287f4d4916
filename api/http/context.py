"""What a view works with, and what it has of the request at hand: its body, its store, how long it may work; and an answer in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flask import Request, Response, current_app, has_request_context, request
from werkzeug.exceptions import RequestEntityTooLarge

from api.engine.deadline import Deadline, Turns
from api.engine.exact_json import decoded, dumps
from api.engine.keys import bad_cursor
from api.engine.media_types import JSON
from api.engine.places import Places
from api.engine.shards import listed as numbers
from api.errors import Problem, bad_parameter, refused, unknown
from api.fleet import routing
from api.fleet.client import SHARDS, WITH, FleetRequest
from api.fleet.membership import Fleet
from api.http.access import Gate
from api.reads.changes import STREAMS
from api.reads.lake import Lake
from api.reads.sql import SqlProcess
from api.reads.tables import Logs
from api.replica.replica import Replica
from api.replica.snapshot import Snapshot
from api.writes.idempotency import Idempotency
from api.writes.producer import Producer
from statehouse.config.models import Config, Store
from statehouse.fold import Rule

# An extension of ASGI: "now" says, to any thread, whether the caller is gone, and is in WSGI's environment too; "ready" is to be
# awaited, until the caller has taken most of what was sent; "next" is told how many bytes are sent next.
GONE = "statehouse.gone"
LOOKS = 16  # into Kafka at once, for a task that is not known
BUSY = "found too many requests that wait {}, expected fewer"
BUSY_STREAMS = f"found {STREAMS} streams of changes, expected fewer: each of them holds a thread"
WAITS = 64  # as many writes a second as are seen within a second or two


@dataclass
class Service:
    """What the views of an app work with: its ``extensions["statehouse"]``."""

    config: Config
    replica: Replica
    producer: Producer
    lake: Lake
    fleet: Fleet | None  # the other instances; None: this one has every key
    idempotency: Idempotency = field(default_factory=Idempotency)
    streams: Places = field(default_factory=partial(Places, STREAMS, BUSY_STREAMS))
    looks: Places = field(default_factory=partial(Places, LOOKS, BUSY.format("for Kafka")))
    waits: Places = field(default_factory=partial(Places, WAITS, BUSY.format("with after")))
    turns: Turns = field(default_factory=Turns)  # of those who scan
    sql: SqlProcess = field(default_factory=SqlProcess)
    logs: Logs = field(init=False)
    gate: Gate = field(init=False)

    def stop(self) -> None:
        """End what goes on in the background; reads go on as of now."""
        self.replica.stop()
        self.sql.stop()
        if self.fleet:
            self.fleet.stop()


def service() -> Service:
    """What the app that serves the request at hand works with."""
    return current_app.extensions["statehouse"]


def raw_of(request: Request, mimetype: str) -> bytes:
    """The bytes that a request brings, all of them: a part of a body is never taken for the whole."""
    if request.mimetype != mimetype:
        sent = request.mimetype or "none"
        raise Problem(415, "bad-body", f"found the content type {sent[:100]}, expected {mimetype}")
    body, length, limit = request.get_data(cache=False), request.content_length, request.max_content_length
    # Werkzeug gives the beginning of a body that is sent in chunks and goes on beyond the limit.
    if limit is not None and length != len(body) >= limit:
        raise RequestEntityTooLarge
    if length is not None and len(body) < length:
        raise refused("bad-body", f"{len(body)} bytes", f"{length}, as the header Content-Length says")
    return body


def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings."""
    return decoded(raw_of(request, JSON), '{"value": 1}')


def the_store(config: Config, name: str) -> Store:
    """The store of that name, or a problem that lists those there are."""
    if name not in config.stores:
        raise unknown("store", name, config.stores)
    return config.stores[name]


def the_snapshot(name: str) -> tuple[Store, Snapshot]:
    """What is known of a store: by the rule that its state is folded by, where there is one, and its state; or a problem, also where
    there is a state that could not be read so far."""
    replica = service().replica
    defined, trouble = the_store(replica.config, name), replica.unread(name)
    snapshot = replica.snapshot(name)  # after the trouble, or it might have been read in between
    if snapshot.rule is None and trouble:
        raise Problem(503, "not-ready", trouble)
    return (snapshot.rule.store if snapshot.rule else defined), snapshot


def the_rule(name: str) -> tuple[Store, Rule | None]:
    """The same without the state, for who writes: that goes on whether it can be read or not."""
    replica = service().replica
    defined, rule = the_store(replica.config, name), replica.snapshot(name).rule
    return (rule.store if rule else defined), rule


def limit_of(asked: Mapping[str, str], default: int, most: int) -> int:
    """The parameter ``limit``, 1 to ``most``, or a problem."""
    text = asked.get("limit")
    if text is None:
        return default
    digits = max(8, len(str(most)))
    if not (text.isascii() and text.isdecimal() and len(text) <= digits and 1 <= int(text) <= most):
        raise bad_parameter("limit", text, f"1 to {most}")
    return int(text)


def limit_asked(default: int) -> int:
    """How many rows the request at hand asks for, up to ``api: max_rows``."""
    most = service().config.api.max_rows
    return limit_of(request.args, min(default, most), most)


def cursor_asked(pattern: str) -> str | None:
    """The cursor that the request at hand has; a problem where it is not of that pattern."""
    cursor = request.args.get("cursor")
    if cursor is not None and not re.fullmatch(pattern, cursor):
        raise bad_cursor(cursor)
    return cursor


def version_of(name: str, text: str) -> int:
    """A version of a state's table, as a parameter names it; a problem where it is none."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise bad_parameter(name, text, "a version of the state's table")
    return int(text)


def answer(document: Any, status: int = 200) -> Response:
    """A document as Flask's response."""
    return Response(dumps(document) + "\n", status, content_type=JSON)


def listed(rows: Sequence[str] | bytes, besides: dict[str, Any]) -> Response:
    """A document whose ``rows`` are JSON text already: each by itself, or all with the commas between them."""
    text = rows if isinstance(rows, bytes) else ",".join(rows).encode()
    return Response(b'{"rows":[%b],%b\n' % (text, dumps(besides)[1:].encode()), content_type=JSON)


def caller_gone() -> Callable[[], bool]:
    """What tells, to any thread, whether the caller of the request at hand is gone, where the server knows."""
    gone: Callable[[], bool] | None = request.environ.get(GONE) if has_request_context() else None
    return gone or (lambda: False)


def the_deadline() -> Deadline:
    """The deadline of the request at hand."""
    api = service()
    return Deadline(api.config.api.max_time / 1000, caller_gone(), api.turns)


def fleet_request() -> FleetRequest:
    """The request at hand as other instances are asked it."""
    api = service()
    headers = {name: request.headers[name] for name in WITH if name in request.headers}
    query, parameters = request.query_string.decode("latin-1"), request.args.to_dict()
    return FleetRequest(api.fleet, headers, request.headers.get(SHARDS), query, parameters, api.config.api.max_answer)


def elsewhere(snapshot: Snapshot, parts: Sequence[str], below: str = "") -> Response | None:
    """Another instance's answer to the request at hand, about a key; None: it is to be answered here, as no other one can."""
    if service().fleet is None:
        return None
    reply = routing.forward(fleet_request(), snapshot, parts, below)
    return Response(*reply) if reply else None


def check_shards() -> None:
    """A problem where the request at hand says wrongly of which shards it is."""
    text = request.headers.get(SHARDS, "0")
    if numbers(text) is None:
        raise Problem(400, "bad-header", f"{SHARDS}: found {text[:100]!r}, expected numbers separated by commas")
