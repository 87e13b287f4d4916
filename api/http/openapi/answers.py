"""The answers as JSON Schema, by what is known of a store's types; and the parameters that several routes share."""

from __future__ import annotations

from typing import Any

from api.http.openapi.contract import Of, Parameter, Scope
from api.http.openapi.schemas import ANY, COUNT, TEXT, Schema, cursor_pattern, integer, matching, nullable, shown
from api.reads.lake import CHANGES
from api.replica.topic import State

POSITION: Schema = {**nullable(COUNT), "description": "the changelog's version that is reflected"}
NAMES = {"type": "array", "items": TEXT}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
LAG = nullable(COUNT)  # milliseconds


def counts(about: str) -> Schema:
    """Numbers by name."""
    return {"type": "object", "additionalProperties": COUNT, "description": about}


OFFSETS = counts("the next offset, by partition")
# Of an answer that is ahead of its position.
AHEAD: dict[str, Schema] = {"provisional": {"const": True}, "offsets": OFFSETS}
REFLECTED = {"position": POSITION, **AHEAD}


def record(properties: dict[str, Schema], optional: tuple[str, ...] = (), more: bool = False) -> Schema:
    """An object with these fields, all there but the optional ones; with ``more`` there may be others."""
    required = [name for name in properties if name not in optional]
    closed = {} if more else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": required, **closed}


def listed(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def paged(row: Schema) -> Schema:
    """Some rows, and the cursor of the next ones."""
    return record({"rows": listed(row), "cursor": nullable(TEXT)})


def cursor(schema: Of) -> Parameter:
    """Where the next rows begin."""
    return Parameter("cursor", "where the page before ended: its `cursor`", schema)


def limit(default: int) -> Parameter:
    """How many rows; never more than ``api: max_rows``."""

    def schema(scope: Scope) -> Schema:
        most = scope.config.api.max_rows
        return {"type": "integer", "minimum": 1, "maximum": most, "default": min(default, most)}

    return Parameter("limit", "how many rows at most", schema)


def scan_cursor(scope: Scope) -> Schema:
    """The cursor of a scan."""
    if scope.rule is None:
        return TEXT
    return matching(cursor_pattern(list(scope.rule.keys.values())))


def components(scope: Scope) -> dict[str, Schema]:
    """A store's own schemas, by the name that the others refer to them by. They have names that tell stores apart: where
    two stores' keys looked like the same thing, a fuzzer would take one store's keys for the other's."""
    assert scope.store is not None
    state = record({**_fields(scope), **REFLECTED}, tuple(AHEAD), more=scope.rule is None)
    return {f"row_{scope.store.name}": _row(scope), f"state_{scope.store.name}": state}


def row(scope: Scope) -> Schema:
    """A row of a store's state as callers see it: a key, or a key and a window."""
    return _named("row", scope)


def state(scope: Scope) -> Schema:
    """The state of a key."""
    return _named("state", scope)


def _named(kind: str, scope: Scope) -> Schema:
    assert scope.store is not None
    return {"$ref": f"#/components/schemas/{kind}_{scope.store.name}"}


def _row(scope: Scope) -> Schema:
    if scope.rule is None:
        return {"type": "object"}
    columns = {n: shown(t) for n, t in scope.columns.items()}
    if "reset" in columns:  # a time that no calendar has is given as microseconds
        columns["reset"] = {**columns["reset"], "type": ["string", "integer", "null"]}
    return record(columns)


def entry(scope: Scope) -> Schema:
    """What a lookup has of a key: its row; or, in a windowed store, the key and its windows."""
    if scope.rule is None or not scope.rule.store.windows:
        return row(scope)
    whole = _row(scope)
    keys = {n: whole["properties"][n] for n in scope.rule.key_columns}
    windows = record({n: s for n, s in whole["properties"].items() if n not in keys})
    return record({**keys, "windows": listed(windows, minItems=1)})


def _fields(scope: Scope) -> dict[str, Schema]:
    schema = entry(scope) if scope.store and scope.store.windows else _row(scope)
    return schema.get("properties", {})


def page(scope: Scope) -> Schema:
    """A page of a scan."""
    return record({"rows": listed(row(scope)), "cursor": nullable(TEXT), **REFLECTED}, tuple(AHEAD))


def found(scope: Scope) -> Schema:
    """What a lookup answers."""
    return record({"rows": listed(entry(scope)), "missing": listed(ANY), **REFLECTED}, tuple(AHEAD))


def history(scope: Scope) -> Schema:
    """Events of a key."""
    event = {
        "event_time": shown("TIMESTAMP"),
        "op": {"type": "string", "enum": ["report", "set", "purge"]},
        "agent": nullable(TEXT),
        "value": shown(scope.rule.event_type) if scope.rule else ANY,
        **{"topic": TEXT, "topic_partition": INTEGER, "partition": INTEGER, "offset": INTEGER},
        "provisional": AHEAD["provisional"],
    }
    events = listed(record(event, ("provisional", "topic", "topic_partition")))
    return record({"events": events, "cursor": nullable(TEXT), **REFLECTED}, tuple(AHEAD))


def diff(scope: Scope) -> Schema:
    """What differs between two versions of a store's table."""
    value = shown(scope.rule.value_type) if scope.rule else ANY
    change = {"type": "string", "enum": list(CHANGES)}
    row = record({"key": {"type": "object"}, "change": change, "before": value, "after": value})
    counts = {name: COUNT for name in ("from", "to", *CHANGES)}
    return record({**counts, "rows": listed(row), "more": BOOLEAN})


def reports(scope: Scope) -> Schema:
    """The standing reports of a key."""
    fields = {n: s for n, s in _fields(scope).items() if n in ("value", "reports", "windows")}
    return record({**fields, **REFLECTED}, tuple(AHEAD), more=scope.rule is None)


def status(scope: Scope) -> Schema:
    """A store: its definition, and how far it is."""
    text = nullable(TEXT)
    own = record({"fold": {"type": "object"}, "combine": {"type": "object"}, "result": TEXT})
    properties: dict[str, Schema] = {
        "name": TEXT if scope.store is None else {"const": scope.store.name},
        "stream": TEXT,
        "key": {"anyOf": [TEXT, NAMES]},
        **{name: TEXT for name in ("agent", "where", "value", "window", "retention")},
        "reduce": {"anyOf": [TEXT, own]},
        "columns": {"type": "object", "additionalProperties": TEXT},
        "keys": COUNT,
        "shards": {**nullable(listed(COUNT)), "description": "those whose keys are here; null: every key is"},
        "position": POSITION,
        "version": {**POSITION, "description": "the state table's version that is served"},
        "head": {**POSITION, "description": "the changelog's newest version"},
        "lag_ms": LAG,
        "freshness": {"type": "string", "enum": ["live", "changelog", "state"]},
        "live": record(
            {
                "state": {"type": "string", "enum": [state.value for state in State]},
                "offsets": OFFSETS,
                "pending": {**COUNT, "description": "events that are shown and not in the changelog yet"},
                "behind": {**nullable(COUNT), "description": "offsets of the topic that are not shown"},
                "lag_ms": LAG,
            }
        ),
        "error": text,
    }
    return record(properties, optional=("agent", "where", "value", "window", "retention"))


def stores(scope: Scope) -> Schema:
    return record({"stores": listed(status(scope))})


def processors(scope: Scope) -> Schema:
    """The instances, and who has which shards."""
    instance = {"address": TEXT, "up": BOOLEAN, "owns": listed(COUNT), "holds": listed(COUNT), "error": TEXT}
    return record(
        {
            "shards": COUNT,
            "copies": COUNT,
            "partitioner": {"const": "murmur2"},
            "address": nullable(TEXT),
            "settled": BOOLEAN,
            "instances": listed(record(instance, optional=("error",))),
            "map": listed(NAMES),
        }
    )


def written(scope: Scope) -> Schema:
    """A write that Kafka has acknowledged."""
    return record({"token": token(scope), "position": POSITION})


def written_in_bulk(scope: Scope) -> Schema:
    """Many of them."""
    return record({"events": COUNT, "tokens": listed(token(scope)), "position": POSITION})


def token(scope: Scope) -> Schema:
    """Where an event is in Kafka."""
    assert scope.store is not None
    topic = scope.config.streams[scope.store.stream].topic.replace(".", r"\.")
    return matching(f"{topic}:[0-9]{{1,18}}:[0-9]{{1,18}}")


PROBLEM: Schema = record(
    {
        "type": {"type": "string", "description": "for programs: urn:statehouse:…, or about:blank"},
        "title": TEXT,
        "status": integer("SMALLINT") | {"minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "what was found, and what was expected"},
        "found": TEXT,
        "expected": TEXT,
    },
    optional=("found", "expected"),
    more=True,
)
