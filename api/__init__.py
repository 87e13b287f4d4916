"""The serving half: Flask over a replica of the lake in DuckDB. Imports neither Spark nor the jobs.

``create_app`` makes the app; each module is one concern: ``stores`` reads, ``writes`` writes, ``page`` is for
people, ``problems`` is what errors look like, ``replica`` follows the lake, ``server`` serves.
"""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, Response
from werkzeug.routing import BaseConverter

from api import problems
from api.exact import answer
from api.lake import Lake
from api.page import page
from api.past import past
from api.producer import Producer
from api.replica import Replica
from api.stores import reads
from api.writes import MAX_BODY, writes
from statehouse.config import Config


@dataclass
class Api:
    """What the routes work with: ``current_app.extensions["statehouse"]``."""

    config: Config
    replica: Replica
    producer: Producer
    lake: Lake


class KeyConverter(BaseConverter):
    """All the rest of a path, also nothing, also slashes at its ends."""

    regex = r"[\s\S]*"
    part_isolating = False


def create_app(config: Config) -> Flask:
    """The API as a WSGI app. Loads what the lake has, then follows it in a background thread."""
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY
    app.url_map.converters["key"] = KeyConverter
    app.url_map.merge_slashes = False  # "a//b" is a key
    app.extensions["statehouse"] = api = Api(config, Replica(config), Producer(config.kafka), Lake(config))
    problems.install(app)
    for blueprint in (page, reads, past, writes):
        app.register_blueprint(blueprint)

    @app.get("/healthz")
    def healthz() -> Response:
        """Whether this process answers; it does so without the lake and without Kafka."""
        return answer({"status": "ok"})

    api.replica.start()
    return app
