"""Writing: a set or a purge of a key, or many of them, sent to the stream's topic as events like any other.

Answers change when an event comes back by way of the topic (:mod:`api.replica.provisional`), the state when it is merged. Nothing is answered with 202 that Kafka has not
acknowledged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from flask import Blueprint, Response, g, request

from api.engine.media_types import JSON, NDJSON
from api.errors import Problem, refused
from api.http import audit, paths
from api.http.context import answer, body_of, raw_of, service, the_rule
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Body, Parameter, Scope, declared
from api.http.openapi.schemas import Schema
from api.writes import bulk, events
from api.writes.idempotency import HEADER
from api.writes.producer import Record, Token
from statehouse.config.models import Store
from statehouse.fold import Rule

writes = Blueprint("writes", __name__)
LARGEST_KEY = 255  # characters of an Idempotency-Key
IDEMPOTENCY = Parameter(
    "Idempotency-Key",
    "the same for each repeat of a request: it stays one event",
    # A header's value neither begins nor ends with a space.
    schemas.matching(f"[!-~](?:[ -~]{{0,{LARGEST_KEY - 2}}}[!-~])?"),
)


def set_of(scope: Scope) -> Schema:
    """What a set of a key says."""
    assert scope.store is not None
    reducer = scope.store.reducer
    value = schemas.value(scope.rule.event_type) if scope.rule else schemas.ANY
    if not reducer.additive:
        value = schemas.nullable(value)
    elif not value:
        value = {"not": {"type": "null"}}
    agent = {"agent": {"type": "string", "default": events.DEFAULT_AGENT}} if reducer.per_agent else {}
    return answers.record({"value": value, **agent}, optional=("agent",))


def key_of(scope: Scope) -> Schema:
    """A key in a body: as its text in Kafka, or as a list of its parts."""
    assert scope.store is not None
    parts = [schemas.in_bulk(kind) for kind in scope.kinds or ["STRING"] * len(scope.store.keys)]
    listed = {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    text = schemas.matching(schemas.text_of(scope.kinds or ["STRING"] * len(parts))) if len(parts) > 1 else parts[0]
    return {"anyOf": [text, listed]}


def _lines(scope: Scope) -> Schema:
    assert scope.store is not None
    key = key_of(scope)
    delete = answers.record({"key": key, "delete": {"const": True}})
    properties = set_of(scope)["properties"]
    line = {"anyOf": [answers.record({"key": key, **properties}, optional=("agent",)), delete]}
    most = {"minItems": 1, "maxItems": bulk.MOST_LINES}
    return answers.listed(delete if scope.store.windows else line, **most, description="a line of NDJSON each")


def _is_writable(scope: Scope) -> bool:
    return scope.store is not None and scope.config.writable(scope.store.name)


def _writable(name: str) -> tuple[Store, Rule | None]:
    """A store and its rule; a problem where a set or a purge would have no place in the order of its events, or no topic to go to."""
    defined, rule = the_rule(name)
    stream = service().config.streams[defined.stream]
    if not stream.topic:
        detail = f"found a {request.method}, expected GET: {stream.name} has topics, and no topic that is written to"
        raise Problem(405, "no-topic", detail, allowed=["GET", "HEAD"])
    if stream.ranked:
        detail = (
            f"found a {request.method}, expected GET: the events of {name} are in the order that their payloads tell"
        )
        raise Problem(405, "ordered-store", detail, allowed=["GET", "HEAD"])
    return defined, rule


UNSENT = {
    422: "the Idempotency-Key was used for another request",
    503: "Kafka is away, or too many writes wait for it; it may have arrived or not",
}
SENT = Answer("Kafka has acknowledged it", {JSON: answers.written})


@writes.put("/stores/<store>/keys/<key:key>")
@declared(
    headers=[IDEMPOTENCY],
    body=Body("the value", JSON, set_of),
    answers={202: SENT},
    problems=UNSENT,
    only=lambda scope: scope.store is not None and scope.store.name in scope.config.settable,
)
def put_key(store: str, key: str) -> Response:
    """Set a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _writable(store)
    if defined.windows:
        detail = f"found a PUT, expected GET or DELETE: {store} has windows, and a set names none"
        raise Problem(405, "windowed-store", detail, allowed=["GET", "HEAD", "DELETE"])
    parts = paths.of_request(request.environ, defined, rule)
    return _one(defined, events.set_to(parts, body_of(request), defined, rule))


@writes.delete("/stores/<store>/keys/<key:key>")
@declared(headers=[IDEMPOTENCY], answers={202: SENT}, problems=UNSENT, only=_is_writable)
def delete_key(store: str, key: str) -> Response:
    """Purge a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _writable(store)
    return _one(defined, events.purge(paths.of_request(request.environ, defined, rule), defined))


@writes.post("/stores/<store>/keys")
@declared(
    headers=[IDEMPOTENCY],
    body=Body("the events", NDJSON, _lines),
    answers={202: Answer("Kafka has acknowledged all of them", {JSON: answers.written_in_bulk})},
    problems={**UNSENT, 411: "there is no Content-Length"},
    only=_is_writable,
)
def post_keys(store: str) -> Response:
    """Set and purge many keys: 202, how many, and the last token of each partition, once Kafka has them all."""
    defined, rule = _writable(store)
    if request.content_length is None:
        # Of lines that come in chunks the last ones may be missing: a lost connection looks like their end.
        raise Problem(411, "length-required", "found no Content-Length, expected it: lines are not taken in chunks")
    limit = service().config.api.max_key
    records = bulk.records(raw_of(request, NDJSON), defined, rule, limit)
    audit.note(keys=len(records))

    def said(tokens: list[Token]) -> dict[str, Any]:
        last = {t.partition: t for t in sorted(tokens)}
        return {"events": len(tokens), "tokens": [str(t) for t in last.values()]}

    document = _sent(defined, records, said)
    audit.note(tokens=document["tokens"])
    return answer(document, 202)


def _one(store: Store, record: Record) -> Response:
    audit.note(key=record.key)
    document = _sent(store, [record], lambda tokens: {"token": str(tokens[0])})
    audit.note(token=document["token"])
    return answer(document, 202)


def _sent(store: Store, records: Sequence[Record], said: Callable[[list[Token]], dict[str, Any]]) -> dict[str, Any]:
    api = service()

    def answered(tokens: list[Token]) -> dict[str, Any]:
        return {**said(tokens), "position": api.replica.snapshot(store.name).position}

    return written(api.config.streams[store.stream].topic, records, answered)


def written(
    topic: str,
    records: Sequence[Record],
    said: Callable[[list[Token]], dict[str, Any]],
    partition: int | None = None,
    asked: object = None,
) -> dict[str, Any]:
    """Send events, once for an Idempotency-Key; what is answered. ``asked`` tells the request from others, by default the events
    do."""
    api = service()

    def send(sent: Sequence[Record]) -> dict[str, Any]:
        return said(api.producer.send(topic, sent, partition))

    key = request.headers.get("Idempotency-Key")
    if key is None:
        return send(records)
    if not re.fullmatch(f"[ -~]{{1,{LARGEST_KEY}}}", key):
        raise refused("bad-header", repr(key[:100]), f"1 to {LARGEST_KEY} characters of ASCII", at="Idempotency-Key")
    # The method tells a request with one line from one without lines: their answers differ.
    same = hashlib.blake2b(repr((request.method, asked or records)).encode()).digest()
    marks = [key] if request.method != "POST" else [f"{key}/{number}" for number in range(len(records))]
    marked = [r._replace(headers=(*r.headers, (HEADER, m))) for r, m in zip(records, marks, strict=True)]
    return api.idempotency.once((g.get("caller"), key), same, lambda: send(marked))
