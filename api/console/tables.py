"""The lake's tables, and what each of their versions did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import render_template

from api.console import charts
from api.console.format import stamp
from api.console.screens import ask, screen

COMMITS = 200


@screen("tables.list_tables")
def all_tables() -> str:
    return render_template("tables.html", tables=ask("/tables")["tables"])


@screen("tables.show_table")
def page(table: str) -> str:
    log = ask(f"/tables/{table}", {"limit": COMMITS})
    return render_template("table.html", table=log, **{name: _over_time(log, name) for name in ("bytes", "files")})


def _over_time(table: Mapping[str, Any], name: str) -> Any:
    """How the bytes or the files went; None where there is nothing to see."""
    known = [commit for commit in reversed(table["commits"]) if commit[name] is not None]
    points = [(stamp(c["at"]), c[name], f"version {c['version']}: {c[name]:,} {name}") for c in known]
    return charts.steps(points, f"{name.capitalize()} over time") if len(known) > 2 else None
