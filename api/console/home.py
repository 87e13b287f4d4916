"""The first page: what the system holds, how fresh it is, what was refused, and what will happen next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flask import Blueprint, Flask, Response, current_app, render_template, request

from api.console import charts, words
from api.console.screens import ask, page_of, screen
from api.engine.media_types import EVENTS, HTML
from api.errors import Problem
from api.http import changes
from api.http.context import service
from api.http.openapi.contract import Answer, declared
from api.reads.changes import Held
from api.replica.replica import Replica
from statehouse.config.models import Config, Store

NEXT_TASKS = 5
EVERY = 2.0  # seconds after which what the page shows is made anew

page = Blueprint("page", __name__)


@page.get("/")
@declared(
    answers={200: Answer("the first page", {HTML: {}, EVENTS: {}})},
    problems={503: "too many streams of events"},
    closed=False,
)
def index() -> Response:
    """The console: what is here, how far it is, what was refused, and what happens next. Every resource shows its screen to who accepts HTML.
    Who accepts `text/event-stream` alone gets the first page's changing part whenever it has changed, as HTML."""
    if request.accept_mimetypes.best_match((HTML, EVENTS)) != EVENTS:
        return page_of(home())
    api = service()
    held = Held(api.streams)
    if request.method == "HEAD":
        held.close()
    else:
        held.events = _follow(current_app._get_current_object(), request.environ, api.replica)  # type: ignore[attr-defined]
    response = Response(held, 200, changes.HEADERS, content_type=EVENTS)
    response.vary.add("Accept")
    return response


def _follow(app: Flask, environ: dict[str, Any], replica: Replica) -> Iterator[bytes]:
    """The changing part as server-sent events, until the service stops or the caller may no longer read."""
    before, ended = "", False
    while not ended:
        with app.request_context(environ):
            try:
                text = render_template("now.html", **_now())
            except Problem:
                return
        lines = "".join(f"data: {line}\n" for line in text.splitlines())
        yield (": \n\n" if text == before else f"{lines}\n").encode()  # the former shows whether the caller is there
        before, ended = text, replica.ends_within(EVERY)


@screen("reads.list_stores", "tables.list_streams")
def home() -> str:
    return render_template("home.html", flow=_flow(service().config), **_now())


def _now() -> dict[str, Any]:
    """What the changing part of the page shows."""
    config = service().config
    tables = {table["name"]: table for table in ask("/tables")["tables"]}
    stores = [shown(store, tables, config) for store in ask("/stores")["stores"]]
    streams = ask("/streams")["streams"]
    waiting = ask("/tasks", {"status": "waiting", "limit": NEXT_TASKS})["rows"] if config.tasks is not None else []
    fleet = ask("/processors") if config.api.shards else None
    return {"stores": stores, "streams": streams, "waiting": waiting, "fleet": fleet, "spark": charts.sparkline}


def shown(store: dict[str, Any], tables: dict[str, Any], config: Config) -> dict[str, Any]:
    """A store with what the page says of it."""
    fresh, lag = words.freshness(store)
    most = config.api.max_lag
    table = tables.get(f"state.{store['name']}", {})
    return {
        **store,
        "what": words.reduction(store),
        "fresh": fresh,
        "late": most is not None and (lag is None or lag > most),
        "last": table.get("last") if table.get("version") else None,  # version 0 is the empty table
    }


def _flow(config: Config) -> Any:
    """Streams and lookups, their stores, and where those lead."""
    nodes = [charts.Node(f"stream {n}", 0, "stream", n, f"/tables/changelog.{n}") for n in config.streams]
    edges: list[tuple[str, str]] = []
    for stream in config.streams.values():
        for lookup in stream.lookups:
            nodes.append(charts.Node(f"lookup {lookup.name}", 0, "lookup", lookup.name, None))
            joined = [store.name for store in config.stores.values() if _joined(store, lookup.name)]
            edges += [(f"lookup {lookup.name}", f"store {name}") for name in joined]
    for store in config.stores.values():
        nodes.append(charts.Node(f"store {store.name}", 1, "store", store.name, f"/stores/{store.name}/keys"))
        edges.append((f"stream {store.stream}", f"store {store.name}"))
        if store.publish:
            nodes.append(charts.Node(f"topic {store.name}", 2, "topic", store.publish.topic, None))
            edges.append((f"store {store.name}", f"topic {store.name}"))
    for route in config.routes.values():
        target = f"/tables/routes.{route.to.table}" if route.to.table else None
        layer = 2 if route.store else 1
        nodes.append(charts.Node(f"route {route.name}", layer, "route", route.name, target))
        end, kind = f"end of {route.name}", "table" if target else "topic"
        nodes.append(charts.Node(end, layer + 1, kind, route.to.table or route.to.topic or "", target))
        origin = f"store {route.store}" if route.store else f"stream {route.source}"
        edges += [(origin, f"route {route.name}"), (f"route {route.name}", end)]
    for name, task in (config.tasks or {}).items():
        nodes.append(charts.Node(f"task {name}", 2, "task", name, f"/tasks?task={name}"))
        if task.store:
            edges.append((f"store {task.store}", f"task {name}"))
    return charts.flow(nodes, edges)


def _joined(store: Store, lookup: str) -> bool:
    """Whether a store's rule names a lookup's columns."""
    expressions = [store.where, store.value, store.agent, *(key.expression for key in store.keys)]
    return any(re.search(rf"\b{re.escape(lookup)}\.", text or "") for text in expressions)
