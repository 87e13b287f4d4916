"""The app: what the routes work with, and the layers around them."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask
from werkzeug.routing import BaseConverter

from api.fleet.membership import Fleet
from api.http import access, audit, compress, cors, methods, metrics, problems
from api.http.changes import follows
from api.http.context import Service, caller_gone, check_shards
from api.http.history import past
from api.http.openapi.document import openapi
from api.http.operations import health, processors
from api.http.point_reads import Fast
from api.http.quarantine import refusals
from api.http.sql import sql
from api.http.stores import reads
from api.http.tables import lake_tables
from api.http.tasks import tasks
from api.http.writes import writes
from api.reads.lake import Lake
from api.reads.tables import Logs
from api.replica.replica import Replica
from api.writes.producer import Producer
from statehouse.config.models import Config


class KeyConverter(BaseConverter):
    """All the rest of a path, also nothing, also slashes at its ends."""

    regex = r"[\s\S]*"
    part_isolating = False


def create_app(config: Config, *above: Callable[[Flask], None]) -> Flask:
    """The API as a WSGI app, with what rooms above this one install. Loads what the lake has, then follows it in a background thread.

    Raises ConfigError where the file of tokens is wrong.
    """
    app = Flask("api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = config.api.max_body
    app.url_map.converters["key"] = KeyConverter
    app.url_map.merge_slashes = False  # "a//b" is a key
    replica = Replica(config)
    fleet = Fleet(config.api, replica.held, replica.hold) if config.api.shards else None
    lake = Lake(config, caller_gone)
    app.extensions["statehouse"] = api = Service(config, replica, Producer(config.kafka), lake, fleet)
    problems.install(app)
    # In this order on the way in; on the way out the other way round.
    counted = metrics.install(app, api.replica)
    compress.install(app)
    cors.install(app, config.api.cors)
    audit.install(app)
    api.gate = passing = access.install(app, config.api)
    api.logs = Logs(config)
    methods.install(app)
    app.before_request(check_shards)
    for blueprint in (health, openapi, processors, reads, past, refusals, follows, tasks, sql, lake_tables, writes):
        app.register_blueprint(blueprint)
    for install in above:
        install(app)
    app.wsgi_app = Fast(app.wsgi_app, api.replica, passing, counted)  # type: ignore[method-assign]
    if fleet:  # before the replica reads what it should have
        fleet.start()
    api.replica.start()
    return app
