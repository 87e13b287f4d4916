"""``/openapi.json``: the API as an OpenAPI 3.1 document, made of the routes, their docstrings and what is declared of them.

A route of stores is one path for each store of the configuration, with that store's types; one of streams likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.routing import Rule as Route

from api.engine.media_types import JSON, PROBLEM
from api.http.access import OPEN
from api.http.context import answer, service
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Operation, Parameter, Scope, declared, of, scope_of

openapi = Blueprint("openapi", __name__)
EVERYONES = ("HEAD", "OPTIONS")  # methods that every route has
ABOUT = {  # problems that many routes have
    400: "something in the request is wrong: found and expected",
    401: "there is no valid token",
    403: "the token does not allow this",
    413: "the body is too large",
    414: "the key is too long",
    415: "the body is of another content type",
    429: "too many requests",
}


@openapi.get("/openapi.json")
@declared(answers={200: Answer("this document", {JSON: {"type": "object"}})})
def openapi_json() -> Response:
    """This document: OpenAPI 3.1, with the stores of the configuration and their types."""
    return answer(document(current_app, request.script_root))


def document(app: Flask, base: str = "") -> dict[str, Any]:
    """The document of an app whose paths begin with ``base``; in a request, or another context of the app."""
    config = app.extensions["statehouse"].config
    paths: dict[str, dict[str, Any]] = {}
    for route in app.url_map.iter_rules():
        operation: Operation | None = getattr(app.view_functions[route.endpoint], "operation", None)
        if operation is None:
            continue
        for where in _places(route):
            if operation.only and where.store and not operation.only(where):
                continue
            path, parameters = _path(route, where)
            for method in sorted((route.methods or set()) - set(EVERYONES)):
                described = _operation(app, route, operation, where, method)
                paths.setdefault(path, _given(parameters=parameters))[method.lower()] = described
    rows: dict[str, Any] = {}
    for name in config.stores:
        rows |= answers.components(scope_of(store=name))
    secured = {"bearer": {"type": "http", "scheme": "bearer", "description": "a token of the file `api: tokens`"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "statehouse",
            "version": _version(),
            "description": "The current state of every key, from streams of events.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base or "/"}],
        "tags": [{"name": name, "description": f"the store `{name}`"} for name in config.stores],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Problem": answers.PROBLEM, **schemas.COMPONENTS, **rows},
            **_given(securitySchemes=secured if config.api.tokens else {}),
        },
        **_given(security=[{"bearer": []}] if config.api.tokens else []),
    }


def _version() -> str:
    try:
        return version("statehouse")
    except PackageNotFoundError:
        return "0"


def _places(route: Route) -> Iterator[Scope]:
    config = service().config
    if "store" in route.arguments:
        yield from (scope_of(store=name) for name in config.stores)
    elif "stream" in route.arguments:
        yield from (scope_of(stream=name) for name in config.streams)
    else:
        yield scope_of()


def _path(route: Route, where: Scope) -> tuple[str, list[dict[str, Any]]]:
    """A route's path in a place, and its parameters: the parts of the key."""
    parts: list[dict[str, Any]] = []
    text = route.rule.replace("<store>", where.store.name if where.store else "")
    text = text.replace("<stream>", where.stream or "")
    if "key" in route.arguments and where.store:
        parts = list(_parts(where))
        text = text.replace("<key:key>", "/".join(f"{{{part['name']}}}" for part in parts))
    for _, name in re.findall(r"<(?:(\w+):)?(\w+)>", text):
        parts.append(_parameter(Parameter(name, "", schemas.TEXT), "path", where))
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", text), parts


def _parts(where: Scope) -> Iterator[dict[str, Any]]:
    assert where.store is not None
    kinds = where.kinds or ["STRING"] * len(where.store.keys)
    for key, kind in zip(where.store.keys, kinds, strict=True):
        schema = schemas.part(kind)
        if _texts(where) > 1 and kind.upper() == "STRING":
            schema = schemas.matching("[^/]*")
        about = f"{key.expression}, percent-encoded; of at most {where.config.api.max_key} bytes"
        yield _parameter(Parameter(re.sub(r"[^\w.-]", "_", key.name), about, schema), "path", where)


def _texts(where: Scope) -> int:
    """How many parts of the key are text: where more than one is, none can have a '/' in a path, see api.http.paths."""
    assert where.store is not None
    return len(where.store.keys) if where.kinds is None else [k.upper() for k in where.kinds].count("STRING")


def _operation(app: Flask, route: Route, operation: Operation, where: Scope, method: str) -> dict[str, Any]:
    summary, _, description = _prose(app.view_functions[route.endpoint].__doc__ or "").partition("\n\n")
    parameters = [_parameter(p, "query", where) for p in operation.parameters if of(p.schema, where) is not None]
    parameters += [_parameter(p, "header", where) for p in operation.headers]
    names = [route.endpoint.rpartition(".")[2], where.store.name if where.store else "", where.stream or ""]
    shown: dict[str, Any] = {
        "operationId": "_".join(filter(None, names)),
        "summary": summary,
        **_given(description=description, parameters=parameters, tags=[where.store.name] if where.store else []),
    }
    if operation.body:
        content = {operation.body.mimetype: {"schema": of(operation.body.schema, where)}}
        shown["requestBody"] = {"description": operation.body.about, "required": True, "content": content}
    shown["responses"] = {str(status): _answer(found, where) for status, found in sorted(operation.answers.items())}
    for status, about in sorted(_problems(app, route, operation, where).items()):
        shown["responses"][str(status)] = {
            "description": about,
            **_given(headers={"Retry-After": _header("seconds")} if status in (429, 503) else {}),
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    if where.config.api.tokens and _blueprint(route) in OPEN:
        shown["security"] = []
    return shown


def _problems(app: Flask, route: Route, operation: Operation, where: Scope) -> Mapping[int, str]:
    limits, found = where.config.api, set()
    if operation.closed:
        found |= {400}
    if "key" in route.arguments:
        found |= {400, 414}
    if operation.body:
        found |= {400, 413, 415}
    if _blueprint(route) not in OPEN:
        found |= {401, 403} if limits.tokens else set()
        found |= {429} if limits.rate_limit else set()
    return {**{status: ABOUT[status] for status in found}, **operation.problems}


def _blueprint(route: Route) -> str:
    return route.endpoint.rpartition(".")[0]


def _parameter(parameter: Parameter, location: str, where: Scope) -> dict[str, Any]:
    optional = _given(description=parameter.about, required=location == "path")
    return {"name": parameter.name, "in": location, **optional, "schema": of(parameter.schema, where)}


def _answer(answer: Answer, where: Scope) -> dict[str, Any]:
    schemas_of = {kind: of(given, where) for kind, given in answer.content.items()}
    content = {kind: {"schema": schema} if schema else {} for kind, schema in schemas_of.items()}
    headers = {name: _header(about) for name, about in answer.headers.items()}
    return {"description": answer.about, **_given(headers=headers, content=content)}


def _given(**parts: Any) -> dict[str, Any]:
    """Those that say something."""
    return {name: part for name, part in parts.items() if part}


def _header(about: str) -> dict[str, Any]:
    return {"description": about, "schema": schemas.TEXT}


def _prose(text: str) -> str:
    """A docstring as Markdown: paragraphs of one line."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return "\n\n".join(" ".join(p.split()) for p in paragraphs).replace("``", "`")
