"""Who may pass, how often, and with how long a key: asked of every request before anything else is done."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Hashable

from flask import Flask, g, request

from api.errors import Problem
from api.http.rate import Rate
from api.http.tokens import Holder, Tokens
from statehouse.config.models import Api

OPEN = ("health", "processors", "console")  # the blueprints that anyone may ask
COOKIE = "statehouse"  # has the token of who signed in to the console
CSRF = "Statehouse-CSRF"  # the header of what a page of the console writes: no other site's page can send it
SAFE = ("GET", "HEAD", "OPTIONS")
WITHIN = "statehouse.within"  # of a request that the console makes for the one at hand, which was counted
CHALLENGE = 'Bearer realm="statehouse"'


class Gate:
    """Who may pass, by ``api`` of the configuration. Raises ConfigError where the tokens file is wrong."""

    def __init__(self, limits: Api) -> None:
        self.limits = limits
        self._tokens = Tokens(limits.tokens) if limits.tokens else None
        self._rate = Rate(limits.rate_limit) if limits.rate_limit else None

    def holder(self, token: str) -> Holder | None:
        """Whose token this is; None also where no tokens are needed."""
        return self._tokens.find(token) if self._tokens else None

    def reader(self, authorization: str, address: str | None) -> Hashable | None:
        """As whom a caller may read; None: :meth:`check` says why not."""
        if self._tokens is None:
            return "address", address
        holder = self._tokens.find(_token(authorization))
        return ("token", holder.name) if holder and "read" in holder.scopes else None

    def wait(self, caller: Hashable) -> float:
        """0: the caller's request may pass, and is counted. Else how many seconds to wait before the next one may."""
        return self._rate.wait(caller) if self._rate else 0.0

    def check(self) -> None:
        """Raises a problem where the request at hand may not pass. ``g.caller`` is the name of its token, if any."""
        if request.blueprint in OPEN:
            return
        token = _token(request.headers.get("Authorization", "")) or _of_cookie()
        holder = self._tokens.find(token) if self._tokens else None
        g.caller = holder.name if holder else None
        g.may_write = "write" in holder.scopes if holder else self._tokens is None
        # Before it is said that a token is wrong, so that nobody can try many.
        caller: Hashable = ("token", holder.name) if holder else ("address", request.remote_addr)
        if WITHIN not in request.environ and (seconds := self.wait(caller)):
            detail = f"found more than {self.limits.rate_limit:g} requests per second, expected no more"
            raise Problem(429, "too-many-requests", detail, {"Retry-After": str(math.ceil(seconds))})
        if self._tokens:
            _authorize(holder, bool(token))
        key = (request.view_args or {}).get("key", "")
        if (size := len(key.encode("utf-8", "replace"))) > self.limits.max_key:
            raise Problem(414, "key-too-long", f"found a key of {size} bytes, expected at most {self.limits.max_key}")


def install(app: Flask, limits: Api) -> Gate:
    """Every request has to pass the gate from here on."""
    gate = Gate(limits)
    app.before_request(gate.check)
    return gate


def csrf_token(token: str) -> str:
    """What a page has to send with what it writes, where its reader signed in with a token."""
    return hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=16, person=b"statehouse csrf").hexdigest()


def _of_cookie() -> str:
    """The token of who signed in. Another site's page could have a browser send the cookie, so that alone allows no write."""
    token = request.cookies.get(COOKIE, "")
    proof = request.headers.get(CSRF, "").encode()
    return token if request.method in SAFE or hmac.compare_digest(proof, csrf_token(token).encode()) else ""


def _token(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _authorize(holder: Holder | None, sent: bool) -> None:
    if holder is None:
        token = "a token that is not known" if sent else "no token"
        challenge = CHALLENGE + (', error="invalid_token"' if sent else "")
        detail = f"found {token}, expected the header 'Authorization: Bearer TOKEN'"
        raise Problem(401, "unauthorized", detail, {"WWW-Authenticate": challenge})
    needed = "write" if request.blueprint == "writes" else "read"
    if needed not in holder.scopes:
        challenge = f'{CHALLENGE}, error="insufficient_scope", scope="{needed}"'
        detail = f"found a token for {', '.join(holder.scopes)}, expected one for {needed}"
        raise Problem(403, "forbidden", detail, {"WWW-Authenticate": challenge})
