"""The app: what the routes work with, and the layers around them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from flask import Flask
from werkzeug.routing import BaseConverter

from api import audit, compress, cors, gate, methods, metrics, problems
from api.changes import STREAMS, follows
from api.docs import docs
from api.fast import Fast
from api.health import health
from api.idempotency import Idempotency
from api.lake import Lake
from api.openapi import openapi
from api.page import page
from api.past import past
from api.producer import Producer
from api.replica import Replica
from api.stores import reads
from api.tasks import tasks
from api.writes import writes
from statehouse.config import Config

WAITS = 64  # as many writes a second as are seen within a second or two


@dataclass
class Api:
    """What the routes work with: ``current_app.extensions["statehouse"]``."""

    config: Config
    replica: Replica
    producer: Producer
    lake: Lake
    idempotency: Idempotency = field(default_factory=Idempotency)
    streams: threading.Semaphore = field(default_factory=lambda: threading.BoundedSemaphore(STREAMS))
    # Reads that wait with `after`.
    waits: threading.BoundedSemaphore = field(default_factory=lambda: threading.BoundedSemaphore(WAITS))


class KeyConverter(BaseConverter):
    """All the rest of a path, also nothing, also slashes at its ends."""

    regex = r"[\s\S]*"
    part_isolating = False


def create_app(config: Config) -> Flask:
    """The API as a WSGI app. Loads what the lake has, then follows it in a background thread.

    Raises ConfigError where the file of tokens is wrong.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = config.api.max_body
    app.url_map.converters["key"] = KeyConverter
    app.url_map.merge_slashes = False  # "a//b" is a key
    app.extensions["statehouse"] = api = Api(config, Replica(config), Producer(config.kafka), Lake(config))
    problems.install(app)
    # In this order on the way in; on the way out the other way round.
    count = metrics.install(app, api.replica)
    compress.install(app)
    cors.install(app, config.api.cors)
    audit.install(app)
    passing = gate.install(app, config.api)
    methods.install(app)
    for blueprint in (health, page, openapi, docs, reads, past, follows, tasks, writes):
        app.register_blueprint(blueprint)
    app.wsgi_app = Fast(app.wsgi_app, api.replica, passing, count)  # type: ignore[method-assign]
    api.replica.start()
    return app
