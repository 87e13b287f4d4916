"""``/docs``: ``/openapi.json`` as a page for people. Nothing in it is loaded from elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import Blueprint, current_app, render_template_string, request

from api import exact
from api.declared import JSON, Answer, declared
from api.openapi import document

docs = Blueprint("docs", __name__)

STYLE = """\
  :root { color-scheme: light dark; --line: #8884; --soft: #8881; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; padding: 0 1.5rem; }
  h1 { font-weight: 600; margin-bottom: 0; }
  h2 { font-size: 1.1rem; margin-top: 2.5rem; }
  h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
  details { border-bottom: 1px solid var(--line); padding: .35rem 0; }
  details > div { padding: 0 0 1rem 1.2rem; }
  summary { cursor: pointer; }
  summary b { display: inline-block; min-width: 4.5rem; font: 600 .85em ui-monospace, monospace; }
  summary span { opacity: .75; }
  .wide { overflow-x: auto; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); }
  td code { overflow-wrap: anywhere; }
  pre { background: var(--soft); padding: 1rem; border-radius: .4rem; overflow-x: auto; }
  code { font-size: .9em; }
"""

TEMPLATE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>statehouse: the API</title>
<style>
{{ style|safe }}</style>
<h1>The API</h1>
<p>The same for programs: <a href="{{ base }}/openapi.json">openapi.json</a>. Back to <a href="{{ base }}/">the stores</a>.
Every error is a problem document (RFC 9457){% if tokens %}; every request but those for health needs a token{% endif %}.</p>
{%- for name, routes in groups.items() %}
<h2>{{ name }}</h2>
{%- for r in routes %}
<details id="{{ r.id }}">
<summary><b>{{ r.method }}</b> <code>{{ r.path }}</code> <span>{{ r.summary }}</span></summary>
<div>
{%- if r.about %}
<p>{{ r.about }}</p>
{%- endif %}
{%- if r.parameters %}
<div class="wide"><table>
<tr><th>parameter<th>in<th>is<th>schema</tr>
{%- for p in r.parameters %}
<tr><td><code>{{ p.name }}</code><td>{{ p.in }}<td>{{ p.description }}<td><code>{{ p.schema }}</code></tr>
{%- endfor %}
</table></div>
{%- endif %}
{%- if r.body %}
<h3>Body: {{ r.body.about }}, {{ r.body.mimetype }}</h3>
<pre><code>{{ r.body.schema }}</code></pre>
{%- endif %}
<pre><code>{{ r.curl }}</code></pre>
<div class="wide"><table>
<tr><th>answer<th>is</tr>
{%- for a in r.answers %}
<tr><td>{{ a.status }}<td>{{ a.description }}
{%- if a.schema %}
<details><summary>{{ a.kinds }}</summary><pre><code>{{ a.schema }}</code></pre></details>
{%- endif %}</tr>
{%- endfor %}
</table></div>
</div>
</details>
{%- endfor %}
{%- endfor %}
</html>
"""


@docs.get("/docs")
@declared(answers={200: Answer("the page", {"text/html": {}})}, closed=False)
def page() -> str:
    """The API as a page for people: every route with its parameters, its schemas and an example."""
    made = json.loads(exact.dumps(document(current_app, request.script_root)))
    groups: dict[str, list[dict[str, Any]]] = {}
    for route in _routes(made, request.url_root.rstrip("/")):
        groups.setdefault(route["group"], []).append(route)
    tokens = "security" in made
    return render_template_string(TEMPLATE, groups=groups, base=request.script_root, style=STYLE, tokens=tokens)


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
            path = path.replace(
                f"{{{parameter['name']}}}", quote(str(_example(parameter["schema"], parameter["name"])))
            )
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
