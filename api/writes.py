"""Writing: a set or a purge of a key, sent to the stream's topic as an event like any other.

The state changes when the event comes back by way of the changelog. What would only end in the quarantine is
refused here, before it is sent: a key or a value that is not of the store's types.
"""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, current_app, request

from api import keys
from api.bodies import body_of
from api.exact import answer, dumps
from api.problems import Problem
from api.stores import the_replica, the_store
from api.typed import conforming
from statehouse.config import Store
from statehouse.fold import Rule
from statehouse.kafka import OP_HEADER, STORE_HEADER

MAX_BODY = 1_000_000
DEFAULT_AGENT = "api"

writes = Blueprint("writes", __name__)


@writes.put("/stores/<store>/keys/<key:key>")
def put_key(store: str, key: str) -> Response:
    """Set a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _named(store)
    if defined.windows:
        detail = f"found a PUT, expected GET or DELETE: {store} has windows, and a set names none"
        raise Problem(405, "windowed-store", detail, allowed=["GET", "HEAD", "DELETE"])
    parts = keys.of_request(request.environ, defined, rule)
    return _send(defined, parts, "set", dumps(event(body_of(request), defined, rule)))


@writes.delete("/stores/<store>/keys/<key:key>")
def delete_key(store: str, key: str) -> Response:
    """Purge a key: 202 and the event's token once Kafka has acknowledged it."""
    defined, rule = _named(store)
    return _send(defined, keys.of_request(request.environ, defined, rule), "purge", None)


def event(body: dict[str, Any], store: Store, rule: Rule | None) -> dict[str, Any]:
    """The payload of a set, or a problem; a value is checked where the store's types are known."""
    for name in body:
        if name not in ("value", "agent"):
            raise Problem(400, "bad-body", f"found the field {name[:100]!r}, expected value or agent")
    if "value" not in body:
        raise Problem(400, "bad-body", 'found no value, expected one, such as {"value": 1}')
    reducer, value = store.reducer, body["value"]
    if value is None and reducer.additive:
        raise Problem(400, "bad-value", f"found null, expected a value: to clear a key of a {reducer.name}, use DELETE")
    if value is not None and rule is not None:
        try:
            value = conforming(value, rule.event_type)
        except ValueError as error:
            found = dumps(value)[:100]
            detail = f"value: found {found}, {error}"
            raise Problem(400, "bad-value", detail, found=found, expected=rule.event_type) from None
    agent = body.get("agent", DEFAULT_AGENT)
    if "agent" in body and not reducer.per_agent:
        raise Problem(400, "bad-body", f"found an agent, expected none: {reducer.name} does not tell agents apart")
    if not isinstance(agent, str):
        raise Problem(400, "bad-body", f"agent: found {dumps(agent)[:100]}, expected a string")
    return {"value": value, "agent": agent} if reducer.per_agent else {"value": value}


def _named(name: str) -> tuple[Store, Rule | None]:
    replica = the_replica()
    defined, rule = the_store(replica.config, name), replica.snapshot(name).rule
    return (rule.store if rule else defined), rule


def _send(store: Store, parts: list[str], op: str, payload: str | None) -> Response:
    api = current_app.extensions["statehouse"]
    topic = api.config.streams[store.stream].topic
    headers = {OP_HEADER: op, STORE_HEADER: store.name}
    token = api.producer.send(topic, keys.kafka_key(parts, store), payload, headers)
    return answer({"token": str(token), "position": api.replica.snapshot(store.name).position}, 202)
