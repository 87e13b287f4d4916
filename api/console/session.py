"""Signing in with a token, which the browser keeps in a cookie that no script reads; and out."""

from __future__ import annotations

from urllib.parse import urlsplit

from flask import redirect, render_template, request
from werkzeug.wrappers import Response as Answer

from api.console.screens import console, page_of
from api.http.access import COOKIE
from api.http.context import service


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
    secure = request.is_secure or request.headers.get("Origin", "").startswith("https:")
    response.set_cookie(COOKIE, token, 30 * 86_400, httponly=True, samesite="Lax", secure=secure)
    return response


@console.post("/console/session/end")
def sign_out() -> Answer:
    """Forget the token."""
    response = redirect(f"{request.script_root}/", 303)
    if _same_origin():
        response.delete_cookie(COOKIE)
    return response


def _form(wrong: str, status: int) -> Answer:
    problem, target = {"status": 401, "title": "Sign in", "detail": wrong}, _within(request.form.get("next", ""))
    return page_of(render_template("problem.html", problem=problem, target=target), status)


def _same_origin() -> bool:
    """Whether a form is this site's: browsers say where it came from. A proxy in front may speak TLS where this does not."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


def _within(target: str) -> str:
    """A path of this site; the first page instead of any other address."""
    elsewhere = ("//", "/\\", f"{request.script_root}/console/")  # of the last nothing can be opened
    inside = target.startswith("/") and not target.startswith(elsewhere) and target.isprintable()
    return target if inside else f"{request.script_root}/"
