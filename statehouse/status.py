"""Positions, lags, counts and sizes, as ``statehouse status`` prints them and ``GET /stores`` gives them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable

from statehouse import kafka
from statehouse.config.models import Config, Stream
from statehouse.errors import KafkaUnavailable
from statehouse.failures import PARTS, failing
from statehouse.numbering import Numbering, topic_names
from statehouse.tables import (
    commit_time,
    folded,
    metadata,
    opened,
    position,
    publish_position,
    route_position,
    rows_and_bytes,
    select,
    table,
    tasks_table,
)


def lag_ms(changelog: str, folded: int | None, head: int | None) -> int:
    """How long the oldest commit that is not folded yet has been there, in milliseconds; 0: nothing is waiting."""
    if head is None or head == (folded or 0):
        return 0
    since = commit_time(changelog, (folded or 0) + 1)
    return max(0, int(time.time() * 1000) - since) if since is not None else 0


def offsets_behind(config: Config, stream: Stream, known: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """How many records Kafka has of a stream's topics beyond those that are ``known``, by the changelog's metadata, and what is wrong
    with the topics; None of what is not known, as where Kafka does not answer."""
    done = {int(p): o for p, o in known.get("offsets", {}).items()}
    numbering = Numbering.of(stream, known).without_ids_of_unread(done)
    try:
        topics = kafka.find_topics(config.kafka, topic_names(config.kafka, stream))
        if (error := numbering.recreated(topics)) and not stream.several:
            return None, error
        topics = numbering.same(topics)
        ends = kafka.ends_of(config.kafka, topics)
    except KafkaUnavailable:
        return None, None
    numbering = numbering.seen(topics)
    read = {place: done.get(number, 0) for place in ends if (number := numbering.number(*place)) is not None}
    return sum(max(0, high - max(read[place], low)) for place, (low, high) in ends.items()), error


def stream_status(config: Config, name: str) -> dict[str, Any]:
    """One stream: events and refused events in its tables, and how many records Kafka has that are not ingested yet
    (``behind``; None: Kafka does not answer, or has another topic of that name, which ``error`` says)."""
    path = table(config, "changelog", name)
    known = metadata(path, "offsets") or {}
    delta = opened(path)
    behind, error = offsets_behind(config, config.streams[name], known)
    events, size = rows_and_bytes(path)
    return {
        "name": name,
        "topic": config.streams[name].topic_text,
        "events": events,
        "quarantined": rows_and_bytes(table(config, "quarantine", name))[0],
        "offsets": known.get("offsets", {}),
        "version": delta.version() if delta else None,
        "behind": behind,
        "bytes": size,
        "error": error,
    }


def failing_status(config: Config) -> list[dict[str, Any]]:
    """What the jobs fail at just now: the ``job`` (such as ``merge``), the ``name`` of the stream, store or route, the ``error``, and
    ``since`` when."""
    return [{"job": part, "name": name, **failure} for part in PARTS for name, failure in failing(config, part).items()]


def route_status(config: Config, name: str) -> dict[str, Any]:
    """One route: the changelog version that it has sent, and the newest, or of a store's the one that its state has."""
    route = config.routes[name]
    path, application = route_position(config, route)
    if route.store:
        state = opened(table(config, "state", route.store))
        sent = _sent_position(path, application, state) | {"head": folded(state) if state else None}
    else:
        sent = _sent_position(path, application, opened(table(config, "changelog", str(route.source))))
    return {
        "name": name,
        "from": route.store or route.source,
        "to": f"topic {route.to.topic}" if route.to.topic else f"table {route.to.table}",
        **sent,
    }


def published_status(config: Config, name: str) -> dict[str, Any]:
    """One published store: the version of its state that its topic has, and the newest."""
    store = config.stores[name]
    assert store.publish
    state = opened(table(config, "state", name))
    path, application = publish_position(config, store, state) if state else ("", "")
    return {
        "name": name,
        "from": name,
        "to": f"topic {store.publish.topic}",
        **_sent_position(path, application, state),
    }


def task_status(config: Config) -> list[dict[str, Any]]:
    """How many tasks wait, were sent, cancelled and refused by Kafka, and when the next one is due: by rule, and of those that were
    asked for, which have no name."""
    if config.tasks is None:
        return []
    delta, names = opened(tasks_table(config)), [*config.tasks, None]
    query = "SELECT task, status, count(*) AS count, min(due) AS due FROM found GROUP BY task, status"
    counts = {(r["task"], r["status"]): r for r in select(delta, query)} if delta else {}

    def of(name: str | None) -> dict[str, Any]:
        numbers = {s: counts.get((name, s), {}).get("count", 0) for s in ("waiting", "sent", "cancelled", "failed")}
        due = counts.get((name, "waiting"), {}).get("due")
        return {"name": name or "(asked for)", **numbers, "next": due and due.strftime("%Y-%m-%dT%H:%M:%SZ")}

    return [of(name) for name in names]


def _sent_position(path: str, application: str, source: DeltaTable | None) -> dict[str, Any]:
    delta = opened(path) if source else None
    position = delta.transaction_version(application) if delta else None
    return {"position": position, "head": source.version() if source else None}


def store_status(config: Config, name: str) -> dict[str, Any]:
    """One store: its keys, the changelog version it has folded, and how far that is behind."""
    store = config.stores[name]
    changelog, state = table(config, "changelog", store.stream), table(config, "state", name)
    log, delta, folded = opened(changelog), opened(state), position(state)
    head = log.version() if log else None
    counts = metadata(state, "unkeyed") or {}
    keys, size = rows_and_bytes(state)
    return {
        "name": name,
        "stream": store.stream,
        "reduce": store.reduce if isinstance(store.reduce, str) else store.reducer.name,
        "keys": keys,
        "position": folded,
        "version": delta.version() if delta else None,
        "head": head,
        "lag_ms": lag_ms(changelog, folded, head),
        "unkeyed": counts.get("unkeyed", 0),
        "late": counts.get("late", 0),
        "bytes": size,
    }
