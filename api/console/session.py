"""Signing in with a token, which the browser keeps in a cookie that no script reads; and out."""

from __future__ import annotations

from flask import redirect, render_template, request
from werkzeug.wrappers import Response as Answer

from api.console.screens import console, page_of
from api.http.access import COOKIE
from api.http.context import service

DAYS = 30


@console.post("/console/session")
def sign_in() -> Answer:
    """Keep a token that is known; then go on to where one came from."""
    if not _same_origin():
        return _form("this form was sent by another site", 403)
    token, gate = request.form.get("token", ""), service().gate
    if gate.wait(("address", request.remote_addr)):
        return _form("too many requests: try again in a second", 429)
    if gate.holder(token) is None:
        return _form("this token is not known", 401)
    response = redirect(_within(request.form.get("next", "")), 303)
    response.set_cookie(COOKIE, token, DAYS * 86_400, httponly=True, samesite="Strict", secure=request.is_secure)
    return response


@console.post("/console/session/end")
def sign_out() -> Answer:
    """Forget the token."""
    response = redirect(f"{request.script_root}/", 303)
    if _same_origin():
        response.delete_cookie(COOKIE, httponly=True, samesite="Strict", secure=request.is_secure)
    return response


def _form(wrong: str, status: int) -> Answer:
    problem = {"status": 401, "title": "Sign in", "detail": wrong}
    target = _within(request.form.get("next", ""))
    return page_of(render_template("problem.html", problem=problem, target=target), status)


def _same_origin() -> bool:
    """Whether a form is this site's: browsers say where it came from."""
    origin = request.headers.get("Origin")
    return origin in (None, request.host_url.rstrip("/"))


def _within(target: str) -> str:
    """A path of this site; the first page instead of any other address."""
    inside = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if inside else f"{request.script_root}/"
