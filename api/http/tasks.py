"""Tasks: what waits and what was sent; asking for one, and for the end of one.

What a caller asks for goes to a stream's topic, as a set does, and is in the table ``tasks`` when the job has seen it there.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from api.engine import exact_json, keys
from api.engine.media_types import JSON
from api.errors import Problem, bad_parameter, refused
from api.http import audit
from api.http.context import answer, body_of, cursor_asked, limit_asked, service, the_rule
from api.http.history import DEFAULT_LIMIT, SLOW
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Body, Parameter, Scope, declared, scope_of
from api.http.openapi.schemas import Schema
from api.http.writes import IDEMPOTENCY, UNSENT, key_of, set_of, writes, written
from api.writes import bulk, events
from api.writes.producer import Record, Token
from statehouse import kafka, topics
from statehouse.config.models import Config, Store
from statehouse.fold import Rule
from statehouse.headers import OP_HEADER, STORE_HEADER
from statehouse.numbering import parse_place
from statehouse.values import milliseconds

tasks = Blueprint("tasks", __name__)
STATUSES = ["waiting", "sent", "cancelled", "failed"]
DURATION = "[0-9]{1,5} (?:second|minute|hour|day|week)s?"
CURSOR = rf"\.-?[0-9]{{1,18}}\.{keys.ESCAPED}"  # due, and id: see keys.cursor
FILTERS = (
    Parameter("status", "only those", {"enum": STATUSES}),
    Parameter("task", "only those of a rule", schemas.TEXT),
    Parameter("store", "only those that wait for a store", schemas.TEXT),
    Parameter("key", "only those that wait for a key, as its text in Kafka", schemas.TEXT),
)
TEXTS = ("task", "store", "key", "value", "reason", "topic", "message_key", "message", "set")
ROW = {
    **{"id": schemas.TEXT, "stream": schemas.TEXT, "status": {"enum": STATUSES}, "sent": schemas.COUNT},
    **dict.fromkeys(("since", "due", "ended", "sent_at"), schemas.shown("TIMESTAMP")),
    **dict.fromkeys(TEXTS, schemas.nullable(schemas.TEXT)),
}
WORDS = ("due", "after", "while", "send", "set")


def _asked(here: Scope) -> Schema:
    """A task that is asked for: when, and what."""
    places = [scope_of(store=name) for name, store in here.config.stores.items() if not store.windows]
    # Of those whose types are known.
    stores = [(p, p.rule, {"store": {"const": p.rule.store.name}, "key": key_of(p)}) for p in places if p.rule]
    waits = [answers.record({**key, "value": schemas.value(rule.value_type)}) for _, rule, key in stores]
    sets = [
        answers.record({**key, "value": set_of(p)["properties"]["value"]})
        for p, rule, key in stores
        if rule.store.name in here.config.settable
    ]
    whole = {"key": schemas.TEXT, "value": schemas.ANY}
    names = topics.askable(here.config.askable_topics)
    sends = [schemas.matching(names, maxLength=topics.LONGEST)] if names else []
    when = [{"due": schemas.value("TIMESTAMP")}, {"after": schemas.matching(DURATION)}]
    what = [{"send": answers.record({"topic": topic, **whole}, optional=tuple(whole))} for topic in sends]
    what += [{"set": {"anyOf": sets}}] if sets else []
    wait: dict[str, Schema] = {"while": {"anyOf": waits}} if waits else {}
    either = [answers.record({**a, **b, **wait}, optional=("while",)) for a in when for b in what]
    return {"anyOf": either} if either else {"not": {}}


TAKEN = answers.record({"id": schemas.TEXT, "due": schemas.shown("TIMESTAMP")})
NO_TASKS = "the file has no `tasks`"


@tasks.get("/tasks")
@declared(
    *(answers.limit(DEFAULT_LIMIT), answers.cursor(schemas.matching(CURSOR)), *FILTERS),
    answers={200: Answer("a page of them", {JSON: answers.paged(answers.record(ROW))})},
    problems={404: NO_TASKS, 503: SLOW},
)
def list_tasks() -> Response:
    """The tasks, the first due first; those that were asked for a moment ago may not be there yet."""
    _config()
    limit, cursor, after = limit_asked(DEFAULT_LIMIT), cursor_asked(CURSOR), None
    if cursor is not None:
        due, name = keys.of_cursor(cursor, 2)
        after = int(due), name
    wanted = {p.name: request.args[p.name] for p in FILTERS if p.name in request.args}
    if (status := wanted.get("status")) is not None and status not in STATUSES:
        raise bad_parameter("status", status, ", ".join(STATUSES))
    rows, more = service().lake.tasks(wanted, after, limit)
    following = None
    if more:
        since = rows[-1]["due"] - dt.datetime(1970, 1, 1)
        following = keys.cursor([str(since // dt.timedelta(microseconds=1)), rows[-1]["id"]])
    return answer({"rows": rows, "cursor": following})


@writes.post("/tasks")
@declared(
    headers=[IDEMPOTENCY],
    body=Body('such as {"after": "5 minutes", "send": {"topic": "alerts", "value": "look"}}', JSON, _asked),
    answers={202: Answer("Kafka has acknowledged it", {JSON: TAKEN})},
    problems={
        403: "tasks may not be asked to send to this topic, or the token does not allow it",
        404: NO_TASKS,
        **UNSENT,
    },
)
def post_task() -> Response:
    """Ask for a task: a message to a topic, or a set, at a time or after one, where it is asked for only while a key has a value."""
    config, body = _config(), body_of(request)
    for name in body:
        if name not in WORDS:
            raise refused("bad-body", f"the field {name[:100]!r}", f"one of {', '.join(WORDS)}")
    task: dict[str, Any] = {"due": _due(body)}
    headers: tuple[tuple[str, str], ...] = ((OP_HEADER, "task"),)
    stream, key = next((stream for stream in config.streams.values() if stream.topic), None), ""
    if ("send" in body) == ("set" in body):
        raise refused("bad-body", "both" if "send" in body else "neither", "one of send and set")
    if "send" in body:
        task["send"] = _send(body["send"])
        key = task["send"].get("key", "")
    else:
        store, rule, parts = _key(body["set"], "set")
        given = {name: value for name, value in body["set"].items() if name in ("value", "agent")}
        record = events.set_to(parts, given, store, rule)
        payload = exact_json.loads(record.payload or "{}")
        task["set"] = {"store": store.name, "key": record.key, **payload}
        stream, key = config.streams[store.stream], record.key
    if "while" in body:
        store, rule, parts = _key(body["while"], "while")
        value = body["while"].get("value")
        if value is None:
            raise refused("bad-body", "no value" if "value" not in body["while"] else "null", "a value", at="while")
        task["value"] = events.checked(value, rule.value_type, "while.value") if rule else value
        stream, key = config.streams[store.stream], keys.kafka_key(parts, store)
        headers += ((STORE_HEADER, store.name),)
    audit.note(key=key)

    def answered(tokens: list[Token]) -> dict[str, Any]:
        return {"id": str(tokens[0]), "due": task["due"]}

    if stream is None or not stream.topic:
        raise refused("bad-body", "a stream without a topic", "one that is written to: name its topic beside topics")
    document = written(stream.topic, [Record(key, exact_json.dumps(task), headers)], answered, asked=body)
    audit.note(token=document["id"])
    return answer(document, 202)


@writes.delete("/tasks/<key:id>")
@declared(
    answers={202: Answer("Kafka has acknowledged it", {JSON: answers.record({"id": schemas.TEXT})})},
    problems={404: "there is no such task", 409: "it does not wait any more", **UNSENT},
)
def delete_task(id: str) -> Response:
    """Cancel a task by its id, percent-encoded."""
    config = _config()
    row, asked = service().lake.task(id), parse_place(id)
    partition = None
    if asked and any(stream.reads(asked[0]) for stream in config.streams.values()):
        (topic, partition, offset), key = asked, ""
        # It may not be in the table yet; after it in the same partition it is known.
        if row is None and not _asked_at(config, topic, partition, offset):
            raise _unknown(id)
    elif row:
        topic, key = config.streams[row["stream"]].topic, row["key"] or ""
    else:
        raise _unknown(id)
    if not topic:
        raise Problem(
            409, "no-topic", f"found no topic for the end of a task, expected one: name it beside topics: {id[:100]}"
        )
    if row and row["status"] != "waiting":
        raise Problem(409, "not-waiting", f"found {row['status']}, expected waiting: {id[:100]}")
    audit.note(key=id[:100])
    record = Record(key, exact_json.dumps({"id": id}), ((OP_HEADER, "cancel"),))
    document = written(topic, [record], lambda _: {"id": id}, partition)
    return answer(document, 202)


def _asked_at(config: Config, topic: str, partition: int, offset: int) -> bool:
    """Whether the record at a place asks for a task."""
    with service().looks:
        if partition not in kafka.partitions(config.kafka, topic):
            return False
        return (kafka.headers_at(config.kafka, topic, partition, offset) or {}).get(OP_HEADER) == b"task"


def _unknown(id: str) -> Problem:
    return Problem(404, "unknown-task", f"found {id[:100]!r}, expected the id of a task: GET /tasks lists them")


def _config() -> Config:
    config = service().config
    if config.tasks is None:
        raise Problem(404, "no-tasks", "found no tasks: in the file, expected them, or 'tasks: {}'")
    return config


def _due(body: Mapping[str, Any]) -> str:
    if ("due" in body) == ("after" in body):
        raise refused("bad-body", "both" if "due" in body else "neither", "one of due and after")
    if "due" in body:
        return str(events.checked(body["due"], "TIMESTAMP", "due"))
    if not isinstance(body["after"], str) or not re.fullmatch(DURATION, body["after"]):
        raise refused("bad-body", exact_json.dumps(body["after"])[:100], "a duration such as '5 minutes'", at="after")
    due = dt.datetime.now(dt.timezone.utc) + dt.timedelta(milliseconds=milliseconds(body["after"]))
    return exact_json.time(due.replace(tzinfo=None))


def _send(send: Any) -> dict[str, Any]:
    if not isinstance(send, dict) or not {"topic"} <= set(send) <= {"topic", "key", "value"}:
        raise refused("bad-body", exact_json.dumps(send)[:100], "a topic, with or without a key and a value", at="send")
    if not topics.is_possible(send["topic"]):
        raise refused("bad-body", exact_json.dumps(send["topic"])[:300], topics.POSSIBLE, at="send.topic")
    if expected := topics.expected_instead(send["topic"], _config().askable_topics):
        kind, status = ("bad-body", 400) if send["topic"].startswith(topics.INTERNAL) else ("topic-not-allowed", 403)
        raise Problem(status, kind, f"send.topic: found {exact_json.dumps(send['topic'])}, expected {expected}")
    if not isinstance(send.get("key", ""), str):
        raise refused("bad-body", exact_json.dumps(send["key"])[:100], "a string", at="send.key")
    return send


def _key(given: Any, at: str) -> tuple[Store, Rule | None, list[str]]:
    """The store and the key that a part of the body is about."""
    if not isinstance(given, dict) or not {"store", "key"} <= set(given) <= {"store", "key", "value"}:
        raise refused("bad-body", exact_json.dumps(given)[:100], "a store, a key and a value", at=at)
    config = _config()
    every = [name for name, store in config.stores.items() if not store.windows]
    known = config.settable if at == "set" else every
    if given["store"] not in known:
        shown = exact_json.dumps(given["store"])[:100]
        raise refused("bad-body", shown, f"one of {', '.join(known) or 'none'}", at=f"{at}.store")
    store, rule = the_rule(given["store"])
    return store, rule, bulk.parts(given["key"], store, rule)
