"""One shape for every error: RFC 9457 problem documents. The one place where errors become statuses."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from api.exact import dumps
from statehouse.errors import KafkaUnavailable, LakeBusy, StatehouseError

RETRY_AFTER = "5"  # seconds
# What is not here is a fault of ours, or of the configuration: 500.
STATUSES: dict[type[StatehouseError], int] = {KafkaUnavailable: 503, LakeBusy: 503}
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

log = logging.getLogger("statehouse.api")


class Problem(Exception):
    """An error for the caller; ``kind`` is for programs, ``detail`` says what was found and expected, ``more`` are
    further members of the document."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.headers, self.more = status, kind, detail, headers or {}, more


def refused(kind: str, found: str, expected: str, at: str = "", advice: str = "") -> Problem:
    """What a caller sent and is wrong, 400: ``at`` is where in it, ``advice`` what else may be meant."""
    detail = f"{at}{': ' if at else ''}found {found}, expected {expected}{advice}"
    return Problem(400, kind, detail, found=found, expected=expected)


def document(status: int, title: str, detail: str, kind: str | None = None, **more: Any) -> Response:
    """A problem document as a response; without a ``kind`` the status says it all (``about:blank``)."""
    name = f"urn:statehouse:{kind}" if kind else "about:blank"
    body = {"type": name, "title": title, "status": status, "detail": detail, **more}
    response = Response(dumps(body) + "\n", status, content_type="application/problem+json")
    if "allowed" in more:
        response.headers["Allow"] = ", ".join(more["allowed"])
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER
    return response


def install(app: Flask) -> None:
    """Every error that leaves the app is a problem document from here on."""

    @app.errorhandler(Problem)
    def problem(error: Problem) -> Response:
        response = document(error.status, TITLES[error.kind], error.detail, error.kind, **error.more)
        response.headers.update(error.headers)
        return response

    @app.errorhandler(StatehouseError)
    def on_purpose(error: StatehouseError) -> Response:
        status = next((s for kind, s in STATUSES.items() if isinstance(error, kind)), 500)
        if status == 500:
            log.error("%s: %s", type(error).__name__, error)
        known = "kafka-unavailable" if isinstance(error, KafkaUnavailable) else None
        return document(status, TITLES.get(known or "", type(error).__name__), str(error), known)

    @app.errorhandler(HTTPException)
    def http(error: HTTPException) -> Response | HTTPException:
        if error.code is None or error.code < 400:
            return error  # a redirect
        response = document(error.code, error.name, error.description or error.name)
        for name, value in error.get_headers():
            if name != "Content-Type":  # such as Allow with 405
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    def unforeseen(error: Exception) -> Response:
        log.exception("an error that nobody foresaw")
        return document(500, "Internal Server Error", f"{type(error).__name__}: the server's log has more")
