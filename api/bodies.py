"""A request's body: whole, and as JSON, or a problem."""

from __future__ import annotations

from typing import Any

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

from api.errors import Problem, refused
from api.exact import decoded


def raw_of(request: Request, mimetype: str) -> bytes:
    """The bytes that a request brings, all of them: a part of a body is never taken for the whole."""
    if request.mimetype != mimetype:
        found = request.mimetype or "none"
        raise Problem(415, "bad-body", f"found the content type {found[:100]}, expected {mimetype}")
    body, length, limit = request.get_data(cache=False), request.content_length, request.max_content_length
    # Werkzeug gives the beginning of a body that is sent in chunks and goes on beyond the limit.
    if limit is not None and length != len(body) >= limit:
        raise RequestEntityTooLarge
    if length is not None and len(body) < length:
        raise refused("bad-body", f"{len(body)} bytes", f"{length}, as the header Content-Length says")
    return body


def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings."""
    return decoded(raw_of(request, "application/json"), '{"value": 1}')
