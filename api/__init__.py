"""The serving half: Flask over a replica of the lake in DuckDB. Imports neither Spark nor the jobs.

It has rooms, each on top of those before it: ``engine``, ``replica``, ``reads``, ``fleet``, ``http``, ``console``, ``server``; and
``writes`` beside them. ``errors`` is below all. ``create_app`` puts the API and its pages together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flask import Flask

    from statehouse.config.models import Config


def create_app(config: Config) -> Flask:
    """The API and its pages as a WSGI app. Raises ConfigError where the file of tokens is wrong."""
    # Not before it is wanted: the process that starts the workers has no use for what takes them a second to import.
    from api.console import pages
    from api.http import app

    return app.create_app(config, pages.install)
