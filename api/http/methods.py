"""Which paths there are, and which methods a path has, as ``Allow`` says: with 405, and to OPTIONS.

Routing alone says too much: a window cannot be set, and what is below a key, its history and its reports, is only read. And it
takes ``//healthz`` for ``/healthz`` and ``/stores/a%2Fkeys/k`` for a key of the store a, which rules of a proxy by path do not.
So what comes before a key, or a task's id, is written in one way.
"""

from __future__ import annotations

from flask import Flask, Response, request
from flask.globals import request_ctx
from werkzeug.exceptions import NotFound

from api.errors import Problem
from api.http import paths
from api.http.context import service

BELOW = ("history", "reports")
FREE = {"stores": 3, "tasks": 1}  # segments before a key or an id, which is written as it needs to be
READ = ("GET", "HEAD", "OPTIONS")


def install(app: Flask) -> None:
    """From here on a path is written in one way, nothing is written below a key, and ``Allow`` is right."""

    @app.before_request
    def miss() -> None:
        raw = paths.raw_path(request.environ)
        if raw is not None and raw != "/" and not _plain(raw):
            raise NotFound(f"found {raw[:100]!r}, expected a path without '//' and '%' before the key")

    @app.before_request
    def refuse() -> None:
        if request.method in ("PUT", "DELETE") and (below := _below()):
            detail = f"found a {request.method}, expected GET: a key that ends in /{below} is written by POST …/keys"
            raise Problem(405, "read-only", detail, allowed=list(READ))

    @app.after_request
    def say(response: Response) -> Response:
        if response.status_code == 405 or (request.method == "OPTIONS" and "Allow" in response.headers):
            response.headers["Allow"] = ", ".join(_allowed())
        return response


def _plain(raw: str) -> bool:
    """Whether a path as it was sent has no empty and no percent-encoded segment before what may have such ones."""
    segments = raw.split("/")[1:]
    fixed = FREE.get(segments[0], len(segments))
    return all(segment and "%" not in segment for segment in segments[:fixed])


def _allowed() -> list[str]:
    allowed = set(request_ctx.url_adapter.allowed_methods() if request_ctx.url_adapter else ())
    if _below():
        return [*READ]
    config, segments = service().config, request.path.split("/", 4)
    store = config.stores.get(segments[2]) if len(segments) > 3 and segments[1::2][:2] == ["stores", "keys"] else None
    if store and not config.writable(store.name):
        return sorted(allowed & {"OPTIONS", *READ})
    if _key() is not None:
        allowed -= {"PUT"} if store and store.windows else set()
    return sorted(allowed)


def _key() -> str | None:
    """The key that the path names, as it is there."""
    named = paths.store_and_key(request.path)
    return named[1] if named else None


def _below() -> str | None:
    """What is asked for of a key, where it is not the key that ends so."""
    key = _key() or ""
    below = next((name for name in BELOW if key.endswith(f"/{name}")), None)
    return below if below and paths.without(request.environ, below) is not None else None
