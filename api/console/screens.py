"""What all screens share: when one is shown, how it asks the API, and how it says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Flask, Response, abort, current_app, g, render_template, request

from api.console import format
from api.console.kept import Kept
from api.engine import exact_json
from api.engine.media_types import HTML, JSON, PROBLEM
from api.errors import TITLES, Problem
from api.http.access import COOKIE, WITHIN, csrf_token
from api.http.context import GONE, service

PASSED = ("REMOTE_ADDR", "HTTP_AUTHORIZATION", "HTTP_COOKIE", GONE)  # of the request: whoever looks asks
# Nothing is loaded from another host, nothing in a page is run, and no other page frames this one.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KEPT = "statehouse.console"  # what the screens of an app keep
Screen = Callable[..., str]
SCREENS: dict[str, Screen] = {}  # by the endpoint whose data they show

console = Blueprint(
    "console", __name__, template_folder="templates", static_folder="static", static_url_path="/console/static"
)


def screen(*endpoints: str) -> Callable[[Screen], Screen]:
    """Show a function's HTML to those who ask one of the endpoints for HTML. It gets the arguments of the route's view."""

    def register(function: Screen) -> Screen:
        SCREENS.update(dict.fromkeys(endpoints, function))
        return function

    return register


def install(app: Flask) -> None:
    """Show the screens from here on, and problems as pages to who wants pages."""
    app.register_blueprint(console)
    app.extensions[KEPT] = Kept()
    app.jinja_env.filters.update(format.FILTERS)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True

    @app.context_processor
    def shared() -> dict[str, Any]:
        return {
            "base": request.script_root,
            "origin": request.url_root.rstrip("/"),
            "stores": list(service().config.stores),
            "streams": list(service().config.streams),
            "has_tasks": service().config.tasks is not None,
            "signed_in": COOKIE in request.cookies,
            "may_write": g.get("may_write", False),
            "csrf": csrf_token(request.cookies.get(COOKIE, "")),
        }

    @app.before_request
    def show() -> Response | None:
        show_screen = SCREENS.get(request.endpoint or "") if wants_html() else None
        return page_of(show_screen(**(request.view_args or {}))) if show_screen else None

    @app.after_request
    def show_problem(response: Response) -> Response:
        if response.mimetype != PROBLEM or not wants_html():
            return response
        problem = exact_json.loads(response.get_data(as_text=True))
        page = page_of(render_template("problem.html", problem=problem), response.status_code)
        for name in ("Retry-After", "Allow"):  # a browser would ask for a password itself, told by WWW-Authenticate
            if name in response.headers:
                page.headers[name] = response.headers[name]
        return page


def wants_html() -> bool:
    """Whether the request at hand is a browser's, or another one that would rather have HTML than JSON."""
    accepted = request.accept_mimetypes
    return request.method in ("GET", "HEAD") and HTML in accepted.values() and accepted[HTML] > accepted[JSON]


def ask(path: str, query: Mapping[str, Any] | None = None) -> Any:
    """The JSON that a GET of a path answers; parameters that are None are left out. Raises the problem that it answers instead."""
    given = {name: str(value) for name, value in (query or {}).items() if value is not None}
    target = f"{path}?{urlencode(given)}" if given else path
    environ = {WITHIN: True, **{name: request.environ[name] for name in PASSED if name in request.environ}}
    app = current_app._get_current_object()  # type: ignore[attr-defined]
    # A context of its own: what the layers around the routes note of a request is of that request.
    with app.app_context(), app.test_request_context(target, headers={"Accept": JSON}, environ_base=environ):
        response = app.full_dispatch_request()
        document = exact_json.loads(response.get_data(as_text=True))
    if response.status_code < 400:
        return document
    status, kind = document.pop("status"), document.pop("type").removeprefix("urn:statehouse:")
    title, detail = document.pop("title"), document.pop("detail")
    if kind in TITLES:
        raise Problem(status, kind, detail, **document)
    abort(status, detail or title)


def asked() -> dict[str, str]:
    """The parameters of the page at hand that say something."""
    return {name: value for name, value in request.args.items() if value}


def page_of(text: str, status: int = 200) -> Response:
    """HTML as a response."""
    response = Response(text, status, HEADERS, content_type="text/html; charset=utf-8")
    response.vary.add("Accept")
    return response
