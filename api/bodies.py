"""A request's body as JSON, or a problem."""

from __future__ import annotations

from typing import Any

from flask import Request

from api.exact import dumps, loads
from api.problems import Problem


def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings."""
    if request.mimetype != "application/json":
        found = request.mimetype or "none"
        raise Problem(415, "bad-body", f"found the content type {found[:100]}, expected application/json")
    try:
        body = loads(request.get_data(cache=False).decode("utf-8"))
        dumps(body).encode()  # half of a surrogate pair is JSON, but no text
    except ValueError as error:
        raise Problem(
            400, "bad-body", f"found a body that is not JSON in UTF-8 ({error}), expected an object"
        ) from None
    if not isinstance(body, dict):
        raise Problem(400, "bad-body", f'found {dumps(body)[:100]}, expected an object such as {{"value": 1}}')
    return body
