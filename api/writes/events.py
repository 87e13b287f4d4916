"""The events that a caller may send, a set or a purge of a key, as records for the stream's topic.

What would only end in the quarantine is refused here, before it is sent: a value that is not of the store's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.engine import keys
from api.engine.exact_json import dumps
from api.engine.types import conforming
from api.errors import refused
from api.writes.producer import Record
from statehouse.config.models import Store
from statehouse.fold import Rule
from statehouse.headers import OP_HEADER, STORE_HEADER

DEFAULT_AGENT = "api"


def purge(parts: Sequence[str], store: Store) -> Record:
    """The event that purges a key."""
    return _record("purge", parts, None, store)


def set_to(parts: Sequence[str], body: dict[str, Any], store: Store, rule: Rule | None) -> Record:
    """The event that sets a key as ``{"value": …, "agent": …}`` says. Raises a problem where it is wrong; a value is
    checked where the store's types are known."""
    return _record("set", parts, dumps(_payload(body, store, rule)), store)


def checked(value: Any, kind: str, at: str) -> Any:
    """A value (not null) as it is sent to the topic, or a problem, ``at`` a place in the body, where it is not of a type."""
    try:
        return conforming(value, kind)
    except ValueError as error:
        raise refused("bad-value", dumps(value)[:100], error, at=at) from None


def _record(op: str, parts: Sequence[str], payload: str | None, store: Store) -> Record:
    headers = ((OP_HEADER, op), (STORE_HEADER, store.name))
    return Record(keys.kafka_key(parts, store), payload, headers)


def _payload(body: dict[str, Any], store: Store, rule: Rule | None) -> dict[str, Any]:
    for name in body:
        if name not in ("value", "agent"):
            raise refused("bad-body", f"the field {name[:100]!r}", "value or agent")
    if "value" not in body:
        raise refused("bad-body", "no value", 'one, such as {"value": 1}')
    reducer, value = store.reducer, body["value"]
    if value is None and reducer.additive:
        raise refused("bad-value", "null", "a value", advice=f": to clear a key of a {reducer.name}, use DELETE")
    if value is not None and rule is not None:
        value = checked(value, rule.event_type, "value")
    agent = body.get("agent", DEFAULT_AGENT)
    if "agent" in body and not reducer.per_agent:
        raise refused("bad-body", "an agent", "none", advice=f": {reducer.name} does not tell agents apart")
    if not isinstance(agent, str):
        raise refused("bad-body", dumps(agent)[:100], "a string", at="agent")
    return {"value": value, "agent": agent} if reducer.per_agent else {"value": value}
