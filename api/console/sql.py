"""SQL: an editor, the tables beside it, and the result as a table and, where it has a number, a chart."""

from __future__ import annotations

from typing import Any

from flask import render_template

from api.console import charts
from api.console.format import is_number, plain
from api.console.screens import ask, asked, screen
from api.errors import Problem
from api.http.context import service
from statehouse.config.models import Config
from statehouse.transpile import to_duckdb

ROWS = 500
BARS = 30  # rows that make a chart
MOST = 10**15  # a number beyond is most likely none that is measured, such as a `reset`


@screen("sql.get_sql")
def page() -> str:
    """The screen; ``q`` is the statement."""
    given = asked()
    statement, result, wrong = given.get("q", ""), None, None
    if statement:
        try:
            result = ask("/sql", {"q": statement, "limit": ROWS})
        except Problem as problem:
            wrong = problem.detail
    columns: dict[str, list[dict[str, Any]]] = {}
    for row in ask("/sql")["rows"]:
        columns.setdefault(row["table"], []).append(row)
    return render_template(
        "sql.html",
        statement=statement,
        found=result,
        wrong=wrong,
        tables=columns,
        examples=examples(service().config, set(columns)),
        chart=_chart(result),
    )


def examples(config: Config, there: set[str]) -> dict[str, str]:
    """Statements that fit this lake."""
    statements: dict[str, str] = {}
    for store in config.stores.values():
        if f"state.{store.name}" in there and len(statements) < 3:
            if store.reducer.additive:
                statements[f"How large are the values of {store.name}?"] = (
                    f'SELECT min(value) AS least, median(value) AS median, max(value) AS most, sum(value) AS total\nFROM state."{store.name}"'
                )
            else:
                statements[f"How many keys of {store.name} have which value?"] = (
                    f'SELECT value, count(*) AS keys\nFROM state."{store.name}"\nGROUP BY ALL\nORDER BY keys DESC\nLIMIT 20'
                )
    for store in config.stores.values():
        if store.reducer.name == "sum" and store.value and f"changelog.{store.stream}" in there:
            statements[f"How much came into {store.name} by hour?"] = (
                f"SELECT date_trunc('hour', _event_time) AS hour, sum({to_duckdb(store.value)}) AS total\n"
                f"FROM changelog.\"{store.stream}\"\nWHERE _op = 'report'"
                + (f" AND ({to_duckdb(store.where)})" if store.where else "")
                + "\nGROUP BY ALL\nORDER BY hour"
            )
    for name in config.streams:
        if f"changelog.{name}" in there:
            statements[f"How many events had {name} by minute?"] = (
                f"FROM (SELECT date_trunc('minute', _event_time) AS minute, count(*) AS events\n  FROM changelog.\"{name}\" GROUP BY ALL ORDER BY minute DESC LIMIT 30)\nORDER BY minute"
            )
        if f"quarantine.{name}" in there:
            statements[f"What of {name} was refused, and why?"] = (
                f'SELECT reason, count(*) AS records\nFROM quarantine."{name}"\nGROUP BY ALL\nORDER BY records DESC'
            )
    return statements


def _chart(found: dict[str, Any] | None) -> Any:
    """Bars, where a result has a column of numbers and another one that names them."""
    rows = found["rows"] if found else []
    if not 2 <= len(rows) <= BARS:
        return None
    numbers = [n for n in rows[0] if all(is_number(row[n]) and 0 <= row[n] < MOST for row in rows)]
    names = [n for n in rows[0] if all(row[n] is None or isinstance(row[n], str) for row in rows)]
    if not numbers or not names:
        return None
    counts = {plain(row[names[0]] or ""): float(row[numbers[-1]]) for row in rows}
    return charts.columns(counts, f"{numbers[-1]} by {names[0]}") if len(counts) == len(rows) else None
