"""What differs between two versions of a store's table."""

from __future__ import annotations

from flask import render_template

from api.console.screens import ask, asked, screen

ROWS = 500


@screen("past.diff")
def page(store: str) -> str:
    given = asked()
    difference = ask(f"/stores/{store}/diff", {"limit": ROWS, "from": given.get("from"), "to": given.get("to")})
    return render_template("diff.html", store=store, diff=difference)
