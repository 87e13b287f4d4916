"""Which web pages of other origins may use the API: those that ``api: cors`` lists; by default none."""

from __future__ import annotations

from collections.abc import Sequence

from flask import Flask, Response, current_app, request

MAX_AGE = "600"  # seconds for which a browser may remember the answer
ALLOWED = "Authorization, Content-Type, Idempotency-Key, If-None-Match, Last-Event-ID"
EXPOSED = "ETag, Retry-After, Statehouse-Position, WWW-Authenticate"


def install(app: Flask, origins: Sequence[str]) -> None:
    """Answer a browser's questions for the origins; without any nothing is added."""
    if not origins:
        return

    def allowed() -> str | None:
        origin = request.headers.get("Origin")
        return "*" if "*" in origins else origin if origin in origins else None

    @app.before_request
    def preflight() -> Response | None:
        # It comes without a token, so it is answered before the gate.
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers or not allowed():
            return None
        methods = current_app.make_default_options_response().headers.get("Allow", "")
        headers = {"Allow-Methods": methods, "Allow-Headers": ALLOWED, "Max-Age": MAX_AGE}
        return Response(status=204, headers={f"Access-Control-{name}": text for name, text in headers.items()})

    @app.after_request
    def shared(response: Response) -> Response:
        if "*" not in origins:
            response.vary.add("Origin")
        if origin := allowed():
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = EXPOSED
        return response
