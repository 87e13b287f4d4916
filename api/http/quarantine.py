"""What was refused of a stream, and sending it again: back to its topic, once each (:mod:`statehouse.requeue`)."""

from __future__ import annotations

import re

from flask import Blueprint, Response, request

from api.engine import exact_json, keys
from api.engine.media_types import JSON
from api.errors import refused, unknown
from api.http import audit
from api.http.context import answer, body_of, cursor_asked, limit_asked, service
from api.http.history import DEFAULT_LIMIT, LIMIT, SLOW
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Body, Parameter, declared
from api.http.writes import writes
from statehouse.config.models import Stream
from statehouse.requeue import MOST, requeue
from statehouse.requeue import Place as Refused

CURSOR = r"\.-?[0-9]{1,18}\.-?[0-9]{1,18}"  # a partition and an offset, see keys.cursor
REASON = Parameter(
    "reason", "only what was refused for it: one of a record, or that without what was found", schemas.TEXT
)
BEFORE = answers.cursor(schemas.matching(CURSOR))
REFUSED = {
    **{"topic": schemas.TEXT, "partition": answers.INTEGER, "offset": answers.INTEGER, "reason": schemas.TEXT},
    **dict.fromkeys(("timestamp", "log_time"), schemas.shown("TIMESTAMP")),
    **dict.fromkeys(("key", "payload", "requeued"), schemas.nullable(schemas.TEXT)),
    "payload_bytes": schemas.shown("BINARY"),
}
PLACE = "-?[0-9]{1,9}:[0-9]{1,18}"

refusals = Blueprint("refusals", __name__)


@refusals.get("/streams/<stream>/quarantine")
@declared(
    *(LIMIT, BEFORE, REASON),
    answers={200: Answer("a page of it", {JSON: answers.paged(answers.record(REFUSED))})},
    problems={503: SLOW},
)
def quarantine(stream: str) -> Response:
    """What was refused of a stream and why, newest first by partition and offset; ``requeued`` where it was sent again: as which
    event it came back."""
    _named(stream)
    limit, cursor, place = limit_asked(DEFAULT_LIMIT), cursor_asked(CURSOR), None
    if cursor is not None:
        partition, offset = keys.of_cursor(cursor, 2)
        place = int(partition), int(offset)
    rows, more = service().lake.quarantine(stream, place, request.args.get("reason"), limit)
    following = keys.cursor([str(rows[-1][name]) for name in ("partition", "offset")]) if more else None
    return answer({"rows": rows, "cursor": following})


PLACES = answers.listed(schemas.matching(PLACE), minItems=1, maxItems=MOST)
# Which records: those of a reason, or some by their partition and offset.
WANTED = {"anyOf": [answers.record({"reason": schemas.TEXT}), answers.record({"records": PLACES})]}
COUNTS = {"sent": schemas.COUNT, "before": schemas.COUNT}
SENT = answers.record({**COUNTS, "more": answers.BOOLEAN, "tokens": answers.NAMES})


@writes.post("/streams/<stream>/requeue")
@declared(
    body=Body('which: {"reason": "not JSON: found …"}, or {"records": ["0:17"]}', JSON, WANTED),
    answers={202: Answer("Kafka has acknowledged them", {JSON: SENT})},
    problems={
        503: "Kafka is away, or another one sends refused records of the stream again; asked once more, none is sent twice"
    },
)
def post_requeue(stream: str) -> Response:
    """Send refused records to their topic again, once each: how many were ``sent``, how many were sent ``before``, whether there are
    ``more`` (10,000 at a time), and the last token of each partition. A reason is one of a record, or that without what was
    found: ``n: found …, expected INT``."""
    known = _named(stream)
    reason, places = _asked()
    audit.note(stream=stream)
    with service().looks:
        done = requeue(service().config, known, reason, places)
    tokens = [f"{topic}:{partition}:{offset}" for (topic, partition), offset in sorted(done.ends.items())]
    audit.note(keys=done.sent, tokens=tokens)
    return answer({"sent": done.sent, "before": done.before, "more": done.more, "tokens": tokens}, 202)


def _named(stream: str) -> Stream:
    known = service().config.streams
    if stream not in known:
        raise unknown("stream", stream, known)
    return known[stream]


def _asked() -> tuple[str | None, set[Refused] | None]:
    """The reason, or the places of the records, that the request is for."""
    body = body_of(request)
    if set(body) not in ({"reason"}, {"records"}):
        raise refused("bad-body", exact_json.dumps(sorted(body))[:100], "one of reason and records")
    if "reason" in body:
        if not isinstance(body["reason"], str):
            raise refused("bad-body", exact_json.dumps(body["reason"])[:100], "a text", at="reason")
        return body["reason"], None
    texts = body["records"]
    if not isinstance(texts, list) or not 1 <= len(texts) <= MOST:
        raise refused("bad-body", exact_json.dumps(texts)[:100], f"a list of 1 to {MOST} places", at="records")
    places = set()
    for number, text in enumerate(texts):
        if not isinstance(text, str) or not re.fullmatch(PLACE, text):
            raise refused("bad-body", exact_json.dumps(text)[:100], 'a place such as "0:17"', at=f"records.{number}")
        partition, _, offset = text.partition(":")
        places.add((int(partition), int(offset)))
    return None, places
