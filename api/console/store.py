"""A store: its rule, how its values are spread, and its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

import yaml
from flask import current_app, render_template, request

from api.console import charts, words
from api.console.format import plain
from api.console.screens import KEPT, ask, asked, screen
from api.engine.duck import literal
from api.errors import Problem
from api.http.context import service
from statehouse.tables import position, table
from statehouse.types import NUMBERS

PAGE = 50
FEW, WAIT = 50_000, 1.0  # keys whose values are counted while one waits, so many seconds
LEVELS = 12  # values that are shown with their counts
FILTERS = ("prefix", "from", "to", "where", "freshness")
RULE = ("stream", "where", "key", "agent", "value", "window", "retention", "reduce", "publish")


@screen("reads.show_store", "reads.scan")
def page(store: str) -> str:
    """The screen of a store, with one page of its keys."""
    document, spreads = ask(f"/stores/{store}"), current_app.extensions[KEPT]
    given = asked()
    wanted = {name: given[name] for name in (*FILTERS, "cursor") if name in given}
    wrong = None
    try:
        keys = ask(f"/stores/{store}/keys", {**wanted, "limit": given.get("limit", PAGE)})
    except Problem as problem:  # most often a condition that is not one yet
        wrong, keys = problem.detail, {"rows": [], "cursor": None, "position": None}
    # Of the table as it is now. The replica's version is that of when it was loaded: it follows the changelog.
    merged = position(table(service().config, "state", store))
    names = key_names(document)
    hidden = request.args.getlist("hide")
    columns = [name for name in document["columns"] if name not in hidden] or names
    return render_template(
        "store.html",
        store=document,
        sentence=words.sentence(document),
        rule=yaml.safe_dump(
            {name: document[name] for name in RULE if document.get(name) is not None},
            sort_keys=False,
            allow_unicode=True,
            width=100,
        ),
        fresh=words.freshness(document)[0],
        page=keys,
        wrong=wrong,
        all_of_it=_target(store, {name: given[name] for name in FILTERS if name in given}, []),
        names=names,
        columns=columns,
        hidden=hidden,
        given={name: given[name] for name in FILTERS if name in given},
        following=_target(store, {**given, "cursor": keys["cursor"]}, hidden) if keys["cursor"] else None,
        first=_target(store, {**given, "cursor": None}, hidden) if "cursor" in given else None,
        without={name: _target(store, {**given, name: None, "cursor": None}, hidden) for name in given},
        hide={name: _target(store, given, [*hidden, name]) for name in columns if name not in names},
        show={name: _target(store, given, [other for other in hidden if other != name]) for name in hidden},
        behind=document["head"] - merged if None not in (document["head"], merged) else 0,
        such_as="value > 10" if _numeric(document) else "value = 'alarm'",
        spread=spreads.get(store, merged, partial(_spread, document), WAIT if document["keys"] < FEW else 0),
        uses=_uses(document),
    )


def key_names(store: Mapping[str, Any]) -> list[str]:
    """The columns of a store's key, in its rows; without the window."""
    count = len(store["key"]) if isinstance(store["key"], list) else 1
    return list(store["columns"])[:count]


def _target(store: str, given: Mapping[str, str | None], hidden: Sequence[str]) -> str:
    parameters = [(name, value) for name, value in given.items() if value is not None and name != "hide"]
    query = urlencode([*parameters, *(("hide", name) for name in hidden)])
    return f"/stores/{store}/keys{'?' + query if query else ''}"


def _numeric(store: Mapping[str, Any]) -> bool:
    return bool(store["columns"].get("value", "").startswith(NUMBERS))


def _spread(store: Mapping[str, Any]) -> Any:
    """How many keys have which value, by the state as it was merged; None where that says nothing."""
    kind = store["columns"].get("value", "")
    if store["version"] is None or kind.startswith(("ARRAY", "MAP", "STRUCT", "BINARY")) or not kind:
        return None
    name, numeric = store["name"], _numeric(store)
    query = f'SELECT value::VARCHAR AS v, count(*) AS n FROM state."{name}" GROUP BY ALL ORDER BY n DESC, v LIMIT {LEVELS + 1}'
    rows = ask("/sql", {"q": query})["rows"]
    if len(rows) > LEVELS and numeric:
        return _histogram(name)
    shown = {plain(row["v"]): row["n"] for row in rows[:LEVELS] if row["v"] is not None}
    literals = {v: v if numeric or kind == "BOOLEAN" else literal(v) for v in shown}
    targets = {v: _target(name, {"where": f"value = {literals[v]}"}, []) + "#keys" for v in shown}
    return charts.bars(shown, targets) if shown and (len(rows) <= LEVELS or rows[0]["n"] > 1) else None


def _histogram(name: str) -> Any:
    query = f"""WITH bounds AS (SELECT min(value)::DOUBLE AS low, max(value)::DOUBLE AS high FROM state."{name}")
        SELECT least(floor((value::DOUBLE - low) / nullif(high - low, 0) * {LEVELS}), {LEVELS - 1})::INT AS step, count(*) AS n,
            min(value)::VARCHAR AS least, max(value)::VARCHAR AS most
        FROM state."{name}", bounds WHERE value IS NOT NULL GROUP BY ALL ORDER BY step"""
    rows = [row for row in ask("/sql", {"q": query})["rows"] if row["step"] is not None]
    labels = {f"{row['least']} to {row['most']}": row for row in rows}
    targets = {
        label: _target(name, {"where": f"value BETWEEN {row['least']} AND {row['most']}"}, []) + "#keys"
        for label, row in labels.items()
    }
    return charts.bars({label: row["n"] for label, row in labels.items()}, targets)


def _uses(store: Mapping[str, Any]) -> dict[str, str]:
    """The lines that read this store from elsewhere."""
    name, url = store["name"], request.url_root.rstrip("/")
    path = table(service().config, "state", name)
    return {
        "curl": f"curl '{url}/stores/{name}/keys?limit=10'\ncurl -H 'Accept: text/csv' {url}/stores/{name}/keys > {name}.csv\n"
        f"curl -X PUT {url}/stores/{name}/keys/KEY -H 'Content-Type: application/json' -d '{{\"value\": VALUE}}'",
        "DuckDB": f"INSTALL delta; LOAD delta;\nSELECT * FROM delta_scan('{path}') LIMIT 10;",
        "Spark SQL": f"SELECT * FROM delta.`{path}` LIMIT 10;",
        "pandas": f"import duckdb\n\ndf = duckdb.sql(\"FROM delta_scan('{path}')\").df()",
        "REST from Python": f'import requests\n\nrequests.get("{url}/stores/{name}/keys", {{"limit": 10}}).json()["rows"]',
    }
