"""Writing: a set or a purge of a key, or many of them, sent to the stream's topic as events like any other.

The state changes when an event comes back by way of the changelog. Nothing is answered with 202 that Kafka has not
acknowledged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from flask import Blueprint, Response, current_app, g, request

from api import audit, bulk, events, keys
from api.bodies import body_of, raw_of
from api.exact import answer
from api.idempotency import HEADER
from api.problems import Problem, refused
from api.producer import Record, Token
from api.stores import the_snapshot
from statehouse.config import Store
from statehouse.fold import Rule

writes = Blueprint("writes", __name__)


@writes.put("/stores/<store>/keys/<key:key>")
def put_key(store: str, key: str) -> Response:
    """Set a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _named(store)
    if defined.windows:
        detail = f"found a PUT, expected GET or DELETE: {store} has windows, and a set names none"
        raise Problem(405, "windowed-store", detail, allowed=["GET", "HEAD", "DELETE"])
    parts = keys.of_request(request.environ, defined, rule)
    return _one(defined, events.set_to(parts, body_of(request), defined, rule))


@writes.delete("/stores/<store>/keys/<key:key>")
def delete_key(store: str, key: str) -> Response:
    """Purge a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _named(store)
    return _one(defined, events.purge(keys.of_request(request.environ, defined, rule), defined))


@writes.post("/stores/<store>/keys")
def post_keys(store: str) -> Response:
    """Set and purge many keys: 202, how many, and the last token of each partition, once Kafka has them all."""
    defined, rule = _named(store)
    if request.content_length is None:
        # Of lines that come in chunks the last ones may be missing: a lost connection looks like their end.
        raise Problem(411, "length-required", "found no Content-Length, expected it: lines are not taken in chunks")
    limit = current_app.extensions["statehouse"].config.api.max_key
    records = bulk.records(raw_of(request, bulk.MIMETYPE), defined, rule, limit)
    audit.note(keys=len(records))

    def said(tokens: list[Token]) -> dict[str, Any]:
        last = {t.partition: t for t in sorted(tokens)}
        return {"events": len(tokens), "tokens": [str(t) for t in last.values()]}

    document = _sent(defined, records, said)
    audit.note(tokens=document["tokens"])
    return answer(document, 202)


def _named(name: str) -> tuple[Store, Rule | None]:
    known, snapshot = the_snapshot(name)
    return known, snapshot.rule


def _one(store: Store, record: Record) -> Response:
    audit.note(key=record.key)
    document = _sent(store, [record], lambda tokens: {"token": str(tokens[0])})
    audit.note(token=document["token"])
    return answer(document, 202)


def _sent(store: Store, records: Sequence[Record], said: Callable[[list[Token]], dict[str, Any]]) -> dict[str, Any]:
    """Send the events, once for an Idempotency-Key; what is answered."""
    api = current_app.extensions["statehouse"]
    topic = api.config.streams[store.stream].topic

    def send(sent: Sequence[Record]) -> dict[str, Any]:
        tokens = api.producer.send(topic, sent)
        return {**said(tokens), "position": api.replica.snapshot(store.name).position}

    key = request.headers.get("Idempotency-Key")
    if key is None:
        return send(records)
    if not re.fullmatch(r"[ -~]{1,255}", key):
        raise refused("bad-header", repr(key[:100]), "1 to 255 characters of ASCII", at="Idempotency-Key")
    # The method tells a request with one line from one without lines: their answers differ.
    same = hashlib.blake2b(repr((request.method, records)).encode()).digest()
    marks = [key] if request.method != "POST" else [f"{key}/{number}" for number in range(len(records))]
    marked = [r._replace(headers=(*r.headers, (HEADER, m))) for r, m in zip(records, marks, strict=True)]
    return api.idempotency.once((g.get("caller"), key), same, lambda: send(marked))
