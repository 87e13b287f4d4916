"""All pages, and what puts them into an app."""

from __future__ import annotations

from flask import Flask

from api.console import diff, home, key, quarantine, screens, session, sql, store, tables, tasks
from api.console.docs import docs

# Each registers its screens.
MODULES = (diff, home, key, quarantine, session, sql, store, tables, tasks)


def install(app: Flask) -> None:
    """Show the pages from here on, and problems as pages to who wants pages."""
    app.register_blueprint(home.page)
    app.register_blueprint(docs)
    screens.install(app)
