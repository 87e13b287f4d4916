"""Many sets and purges in one request: a line of NDJSON is an event. All lines are looked at before one is sent."""

from __future__ import annotations

from typing import Any

from api.engine import keys
from api.engine.exact_json import decoded, dumps
from api.engine.types import whole
from api.errors import Problem, refused
from api.writes import events
from api.writes.producer import Record
from statehouse.config.models import Store
from statehouse.fold import Rule

MOST_LINES = 10_000
SHOWN = 20  # wrong lines in one answer
SUCH_AS = '{"key": "k", "value": 1} or {"key": "k", "delete": true}'


def records(body: bytes, store: Store, rule: Rule | None, max_key: int) -> list[Record]:
    """The events that the lines of a body say, or one problem with the first lines that are wrong. ``max_key`` is in
    bytes."""
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if not lines:
        raise refused("bad-body", "no line", f"one for each event, such as {SUCH_AS}")
    if len(lines) > MOST_LINES:
        raise Problem(413, "too-large", f"found {len(lines)} lines, expected at most {MOST_LINES}")
    accepted: list[Record] = []
    wrong: list[dict[str, Any]] = []
    for number, line in lines:
        try:
            accepted.append(_record(line, store, rule, max_key))
        except Problem as problem:
            wrong.append({"line": number, "detail": problem.detail, **problem.more})
            if len(wrong) == SHOWN:
                break
    if wrong:
        raise Problem(400, "bad-lines", f"line {wrong[0]['line']}: {wrong[0]['detail']}; nothing was sent", lines=wrong)
    return accepted


def _record(line: bytes, store: Store, rule: Rule | None, max_key: int) -> Record:
    document = decoded(line, SUCH_AS)
    if "key" not in document:
        raise refused("bad-key", "no key", f"one, such as {SUCH_AS}")
    key = parts(document.pop("key"), store, rule)
    if (size := keys.size(key)) > max_key:
        raise refused("key-too-long", f"{size} bytes", f"at most {max_key}", at="key")
    if "delete" not in document:
        if store.windows:
            advice = f": {store.name} has windows, and a set names none"
            raise refused("windowed-store", "a set", "a delete", advice=advice)
        return events.set_to(key, document, store, rule)
    if document.pop("delete") is not True:
        raise refused("bad-body", "another value", "true", at="delete")
    if document:
        raise refused("bad-body", f"the field {next(iter(document))[:100]!r}", "only key beside delete")
    return events.purge(key, store)


def parts(key: Any, store: Store, rule: Rule | None) -> list[str]:
    """The parts of a key in a body: as its text in Kafka, or a list of them; a problem where they are not of its types."""
    given = keys.of_text(key, store) if isinstance(key, str) else key if isinstance(key, list) else [key]
    texts = []
    for part in map(whole, given):
        # A whole number has one text; of a fraction's several only the caller knows which.
        if type(part) not in (str, int):
            raise refused("bad-key", dumps(part)[:100], "a string or an integer, or a list of them", at="key")
        texts.append(str(part))
    return keys.typed(texts, store, keys.kinds(store, rule))
