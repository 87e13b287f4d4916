"""``/docs``: ``/openapi.json`` as a page for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, current_app, render_template, request

from api.console.screens import page_of
from api.engine import exact_json
from api.engine.media_types import JSON
from api.http.openapi.contract import Answer, declared
from api.http.openapi.document import document

docs = Blueprint("docs", __name__)


@docs.get("/docs")
@declared(answers={200: Answer("the page", {"text/html": {}})}, closed=False)
def page() -> Response:
    """The API as a page for people: every route with its parameters, its schemas and an example."""
    described = json.loads(exact_json.dumps(document(current_app, request.script_root)))
    groups: dict[str, list[dict[str, Any]]] = {}
    for route in _routes(described, request.url_root.rstrip("/")):
        groups.setdefault(route["group"], []).append(route)
    return page_of(render_template("api.html", groups=groups, tokens="security" in described))


def _routes(made: Mapping[str, Any], url: str) -> Iterator[dict[str, Any]]:
    for path, item in made["paths"].items():
        for method, operation in item.items():
            if method == "parameters":
                continue
            parameters = [*item.get("parameters", []), *operation.get("parameters", [])]
            body = operation.get("requestBody")
            yield {
                "group": operation.get("tags", ["The service"])[0],
                "id": operation["operationId"],
                "method": method.upper(),
                "path": path,
                "summary": operation["summary"].replace("`", ""),
                "about": operation.get("description", "").replace("`", ""),
                "parameters": [{**p, "schema": _brief(p["schema"])} for p in parameters],
                "body": body and {"about": body["description"], **_content(body["content"])},
                "answers": [_answer(status, found) for status, found in operation["responses"].items()],
                "curl": _curl(url, path, method.upper(), parameters, body, "security" in made),
            }


def _answer(status: str, found: Mapping[str, Any]) -> dict[str, Any]:
    content = found.get("content", {})
    shown = _content(content) if status < "400" and any("schema" in c for c in content.values()) else {}
    description = found["description"].replace("`", "")
    return {"status": f"{status} {HTTPStatus(int(status)).phrase}", "description": description, **shown}


def _content(content: Mapping[str, Any]) -> dict[str, str]:
    mimetype, found = next(iter(content.items()))
    schema = json.dumps(found.get("schema", {}), indent=2, ensure_ascii=False)
    return {"mimetype": mimetype, "kinds": ", ".join(content), "schema": schema}


def _brief(schema: Mapping[str, Any]) -> str:
    """A parameter's schema in a line."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2].lower()
    kind = schema.get("type", "any")
    words = [f"{name} {schema[name]}" for name in ("minimum", "maximum", "default", "pattern") if name in schema]
    return ", ".join([str(kind), *words])


def _curl(url: str, path: str, method: str, parameters: list[Any], body: Mapping[str, Any] | None, token: bool) -> str:
    for parameter in parameters:
        if parameter["in"] == "path":
            example = quote(str(_example(parameter["schema"], parameter["name"])))
            path = path.replace(f"{{{parameter['name']}}}", example)
    words = ["curl", *([] if method == "GET" else ["-X", method]), f"{url}{path}"]
    words += ["-H", "Authorization: Bearer TOKEN"] if token else []
    if body:
        mimetype, found = next(iter(body["content"].items()))
        example = _example(found["schema"], "value")
        lines = example if mimetype != JSON else [example]
        text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
        words += ["-H", f"Content-Type: {mimetype}", "--data-binary", text]
    return shlex.join(words)


def _example(schema: Mapping[str, Any], name: str) -> Any:
    """Something that a schema allows, for people to replace."""
    if "examples" in schema:
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if "$ref" in schema:
        return {"Time": "2026-01-31T12:00:00Z", "Date": "2026-01-31"}[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], name)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return {n: _example(s, n) for n, s in schema.get("properties", {}).items() if n in schema.get("required", [])}
    if kind == "array":
        inner = schema.get("prefixItems") or ([schema["items"]] if "items" in schema else [])
        return [_example(s, name) for s in inner]
    return {"integer": 1, "number": 1, "boolean": True}.get(kind, name.upper())
