"""The lake's tables, and what each of their versions did."""

from __future__ import annotations

from flask import render_template

from api.console.screens import ask, screen

COMMITS = 200


@screen("tables.list_tables")
def all_tables() -> str:
    """The screen of all tables."""
    return render_template("tables.html", tables=ask("/tables")["tables"])


@screen("tables.show_table")
def page(table: str) -> str:
    """The screen of one table."""
    return render_template("table.html", table=ask(f"/tables/{table}", {"limit": COMMITS}))
