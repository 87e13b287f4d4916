"""The app: what the routes work with, and the layers around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from flask import Flask
from werkzeug.routing import BaseConverter

from api.engine.deadline import Turns
from api.engine.places import Places
from api.fleet.membership import Fleet
from api.http import access, audit, compress, cors, methods, metrics, problems
from api.http.changes import follows
from api.http.context import caller_gone, check_shards
from api.http.health import health
from api.http.history import past
from api.http.openapi.document import openapi
from api.http.point_reads import Fast
from api.http.processors import processors
from api.http.quarantine import refusals
from api.http.sql import sql
from api.http.stores import reads
from api.http.tables import lake_tables
from api.http.tasks import tasks
from api.http.writes import writes
from api.reads.changes import STREAMS
from api.reads.lake import Lake
from api.reads.sql import SqlProcess
from api.reads.tables import Logs
from api.replica.replica import Replica
from api.writes.idempotency import Idempotency
from api.writes.producer import Producer
from statehouse.config.models import Config

LOOKS = 16  # into Kafka at once, for a task that is not known
BUSY = "found too many requests that wait {}, expected fewer"
BUSY_STREAMS = f"found {STREAMS} streams of changes, expected fewer: each of them holds a thread"
WAITS = 64  # as many writes a second as are seen within a second or two


@dataclass
class Api:
    """What the routes work with: ``current_app.extensions["statehouse"]``."""

    config: Config
    replica: Replica
    producer: Producer
    lake: Lake
    fleet: Fleet | None  # the other instances; None: this one has every key
    idempotency: Idempotency = field(default_factory=Idempotency)
    streams: Places = field(default_factory=partial(Places, STREAMS, BUSY_STREAMS))
    looks: Places = field(default_factory=partial(Places, LOOKS, BUSY.format("for Kafka")))
    waits: Places = field(default_factory=partial(Places, WAITS, BUSY.format("with after")))
    turns: Turns = field(default_factory=Turns)  # of those who scan
    sql: SqlProcess = field(default_factory=SqlProcess)
    logs: Logs = field(init=False)
    gate: access.Gate = field(init=False)

    def stop(self) -> None:
        """End what goes on in the background; reads go on as of now."""
        self.replica.stop()
        self.sql.stop()
        if self.fleet:
            self.fleet.stop()


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
    app.extensions["statehouse"] = api = Api(config, replica, Producer(config.kafka), Lake(config, caller_gone), fleet)
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
