"""``/tables`` and ``/streams``: the lake as its Delta logs tell it (:mod:`api.reads.tables`)."""

from __future__ import annotations

import datetime as dt
from itertools import islice
from typing import Any

from flask import Blueprint, Response

from api.engine.media_types import JSON
from api.http.context import answer, limit_asked, service
from api.http.history import DEFAULT_LIMIT
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, declared
from api.reads.tables import Log, per_minute

lake_tables = Blueprint("tables", __name__)

COMMIT = answers.record(
    {
        **{"at": schemas.shown("TIMESTAMP"), "operation": schemas.TEXT},
        **dict.fromkeys(("version", "added", "changed", "removed"), schemas.COUNT),
        **dict.fromkeys(("ms", "files", "bytes"), schemas.nullable(schemas.COUNT)),
    }
)
SIZES = {name: schemas.nullable(schemas.COUNT) for name in ("version", "rows", "bytes", "files")}
TABLE = {"name": schemas.TEXT, **SIZES}
NOW = answers.record({**TABLE, "last": schemas.nullable(COMMIT)})
MINUTE = answers.listed(schemas.COUNT, description="in each of the last 15 minutes, the oldest first")
STREAM = answers.record(
    {
        **dict.fromkeys(("name", "topic", "schema"), schemas.TEXT),
        "time": schemas.nullable(schemas.TEXT),
        **dict.fromkeys(("events", "quarantined"), schemas.COUNT),
        **dict.fromkeys(("events_per_minute", "quarantined_per_minute"), MINUTE),
        "version": schemas.nullable(schemas.COUNT),
        "changed_at": schemas.shown("TIMESTAMP"),
        "live": {"type": ["object", "null"]},
    }
)


@lake_tables.get("/tables")
@declared(answers={200: Answer("the tables", {JSON: answers.record({"tables": answers.listed(NOW)})})})
def list_tables() -> Response:
    """Every table of the lake: version, rows, bytes, files, and what the last commit did."""
    logs = ((name, service().logs.of(name)) for name in service().logs)
    return answer({"tables": [{**_sizes(name, log), "last": next(log.sized_commits(), None)} for name, log in logs]})


@lake_tables.get("/tables/<table>")
@declared(
    answers.limit(100),
    answers={200: Answer("the table", {JSON: answers.record({**TABLE, "commits": answers.listed(COMMIT)})})},
    problems={404: "there is no such table"},
)
def show_table(table: str) -> Response:
    """One table, as SQL names it: what each of its commits did, newest first, and how large it was after each."""
    log = service().logs.of(table)
    return answer({**_sizes(table, log), "commits": list(islice(log.sized_commits(), limit_asked(DEFAULT_LIMIT)))})


@lake_tables.get("/streams")
@declared(answers={200: Answer("the streams", {JSON: answers.record({"streams": answers.listed(STREAM)})})})
def list_streams() -> Response:
    """Every stream: its topic, events and refused records, how many in each of the last 15 minutes, and how far the API is with it."""
    replica, logs = service().replica, service().logs
    now = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None)
    shown = []
    for name, stream in replica.config.streams.items():
        events, refused = logs.of(f"changelog.{name}"), logs.of(f"quarantine.{name}")
        followed = next((store for store in replica.config.stores.values() if store.stream == name), None)
        shown.append(
            {
                "name": name,
                "topic": stream.topic_text,
                "schema": stream.schema_,
                "time": stream.time,
                "events": events.size.rows if events.size else 0,
                "quarantined": refused.size.rows if refused.size else 0,
                "events_per_minute": per_minute(events.commits, ("added",), now),
                "quarantined_per_minute": per_minute(refused.commits, ("added",), now),
                "version": events.size.version if events.size else None,
                "changed_at": events.commits[0]["at"] if events.commits else None,
                "live": replica.status(followed.name)["live"] if followed else None,
            }
        )
    return answer({"streams": shown})


def _sizes(name: str, log: Log) -> dict[str, Any]:
    size = log.size
    numbers = dict(zip(("version", "rows", "bytes", "files"), size, strict=True)) if size else dict.fromkeys(SIZES)
    return {"name": name, **numbers}
