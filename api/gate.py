"""Who may pass, how often, and with how long a key: asked of every request before anything else is done."""

from __future__ import annotations

import math

from flask import Flask, g, request

from api.problems import Problem
from api.rate import Rate
from api.tokens import Holder, Tokens
from statehouse.config import Api

OPEN = "health"  # the blueprint that anyone may ask
CHALLENGE = 'Bearer realm="statehouse"'


def install(app: Flask, limits: Api) -> None:
    """Every request has to pass the gate from here on. ``g.caller`` is the name of its token, if there are tokens.

    Raises ConfigError where the tokens file is wrong.
    """
    tokens = Tokens(limits.tokens) if limits.tokens else None
    rate = Rate(limits.rate_limit) if limits.rate_limit else None

    @app.before_request
    def gate() -> None:
        if request.blueprint == OPEN:
            return
        holder = tokens.find(_bearer()) if tokens else None
        g.caller = holder.name if holder else None
        # Before it is said that a token is wrong, so that nobody can try many.
        if rate and (seconds := rate.wait(("token", holder.name) if holder else ("address", request.remote_addr))):
            detail = f"found more than {limits.rate_limit:g} requests per second, expected no more"
            raise Problem(429, "too-many-requests", detail, {"Retry-After": str(math.ceil(seconds))})
        if tokens:
            _authorize(holder)
        key = (request.view_args or {}).get("key", "")
        if (size := len(key.encode("utf-8", "replace"))) > limits.max_key:
            raise Problem(414, "key-too-long", f"found a key of {size} bytes, expected at most {limits.max_key}")


def _bearer() -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _authorize(holder: Holder | None) -> None:
    if holder is None:
        sent = bool(_bearer())
        found = "a token that is not known" if sent else "no token"
        challenge = CHALLENGE + (', error="invalid_token"' if sent else "")
        detail = f"found {found}, expected the header 'Authorization: Bearer TOKEN'"
        raise Problem(401, "unauthorized", detail, {"WWW-Authenticate": challenge})
    needed = "write" if request.blueprint == "writes" else "read"
    if needed not in holder.scopes:
        challenge = f'{CHALLENGE}, error="insufficient_scope", scope="{needed}"'
        detail = f"found a token for {', '.join(holder.scopes)}, expected one for {needed}"
        raise Problem(403, "forbidden", detail, {"WWW-Authenticate": challenge})
