"""What goes wrong for a caller: a problem with a status, a kind that programs know, and what was found and expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TITLES = {
    "unknown-store": "There is no such store",
    "unknown-key": "The store does not have this key",
    "bad-key": "This is not a key of the store",
    "bad-parameter": "A query parameter is wrong",
    "unknown-version": "The store has no such version",
    "unknown-table": "There is no such table",
    "unknown-stream": "There is no such stream",
    "no-reports": "The store is not over agents",
    "not-computed": "What the store computes, only Spark does",
    "not-followed": "What changes in the store is not known",
    "unknown-position": "The changelog has no such position",
    "no-tasks": "There are no tasks",
    "unknown-task": "There is no such task",
    "topic-not-allowed": "Tasks may not be asked to send to this topic",
    "not-waiting": "The task does not wait any more",
    "changes-gone": "The changes since then are gone",
    "not-yet": "The write is not visible yet",
    "topic-recreated": "The topic is another one of the same name",
    "bad-header": "A header is wrong",
    "bad-body": "The request's body is wrong",
    "bad-value": "The store does not take this value",
    "bad-sql": "The statement cannot be answered",
    "bad-lines": "Lines of the request's body are wrong",
    "length-required": "The request does not say how long it is",
    "windowed-store": "A window cannot be set",
    "no-topic": "A store takes no writes where its stream's topics are a pattern",
    "ordered-store": "A store takes no writes where payloads tell the order",
    "read-only": "This can only be read",
    "too-large": "The request is too large",
    "key-too-long": "The key is too long",
    "idempotency-key-reused": "Another request had this Idempotency-Key",
    "unauthorized": "The request has no valid token",
    "forbidden": "The token does not allow this",
    "too-many-requests": "Too many requests",
    "busy": "Too many requests wait already",
    "too-slow": "The lake was not read in time",
    "kafka-unavailable": "Kafka does not answer",
    "elsewhere": "Another instance has this",
    "shards-missing": "No instance has this now",
    "not-ready": "Not every store can be served as it should be",
}


class Problem(Exception):
    """An error for the caller; ``kind`` is for programs, ``detail`` says what was found and expected, ``more`` are
    further members of the document."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.headers, self.more = status, kind, detail, headers or {}, more


def bad_parameter(name: str, text: str, expected: object) -> Problem:
    """A parameter of the query is wrong, 400; ``expected`` may be the ValueError that says what was expected."""
    return Problem(400, "bad-parameter", f"{name}: found {text[:100]!r}, expected {_without_prefix(expected)}")


def unknown(what: str, name: str, known: Iterable[str]) -> Problem:
    """There is no store, stream or table of a name, 404; the problem lists those that there are."""
    names = list(known)
    expected = f"one of {', '.join(names)}" if names else f"none: the configuration has no {what}s"
    return Problem(404, f"unknown-{what}", f"found {name[:100]!r}, expected {expected}", None, **{f"{what}s": names})


def refused(kind: str, found: str, expected: object, at: str = "", advice: str = "") -> Problem:
    """What a caller sent and is wrong, 400: ``at`` is where in it, ``advice`` what else may be meant; ``expected`` as above."""
    expected = _without_prefix(expected)
    detail = f"{at}{': ' if at else ''}found {found}, expected {expected}{advice}"
    return Problem(400, kind, detail, found=found, expected=expected)


def _without_prefix(expected: object) -> str:
    return str(expected).removeprefix("expected ")
