"""One shape for every error: RFC 9457 problem documents. The one place where errors become statuses."""

from __future__ import annotations

import logging
from typing import Any

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from api.engine.exact_json import dumps
from api.engine.media_types import PROBLEM
from api.errors import TITLES, Problem
from statehouse.errors import KafkaUnavailable, LakeBusy, StatehouseError

RETRY_AFTER = "5"  # seconds, of each 503
# What is not here is a fault of ours, or of the configuration: 500.
STATUSES: dict[type[StatehouseError], int] = {KafkaUnavailable: 503, LakeBusy: 503}

log = logging.getLogger("statehouse.api")


def document(status: int, title: str, detail: str, kind: str | None = None, **more: Any) -> Response:
    """A problem document as a response; without a ``kind`` the status says it all (``about:blank``)."""
    name = f"urn:statehouse:{kind}" if kind else "about:blank"
    body = {"type": name, "title": title, "status": status, "detail": detail, **more}
    response = Response(dumps(body) + "\n", status, content_type=PROBLEM)
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
