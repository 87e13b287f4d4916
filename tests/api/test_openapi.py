"""``/openapi.json``: true to OpenAPI 3.1, to the configuration and to the routes; and the page that shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from api import create_app
from tests.support.api_lake import State, configured
from tests.support.calls import READER, bearing, problem, with_tokens
from tests.support.depth import FULL, sized
from tests.support.services import TOKENS, Service

UNMERGED = ("alarm", "names")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    config = configured(tmp_path_factory.mktemp("openapi"))
    for store in set(config.stores) - set(UNMERGED):
        State(config, store).write(3)
    app = create_app(config)
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def made(app: Flask) -> dict[str, Any]:
    return app.test_client().get("/openapi.json").get_json()


def test_it_is_openapi(made: dict[str, Any]) -> None:
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(made)] == []
    names = [o["operationId"] for _, o in operations(made)]
    assert len(set(names)) == len(names)


def operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in made["paths"].items():
        yield from ((f"{method.upper()} {path}", o) for method, o in item.items() if method != "parameters")


def test_every_route_is_declared(app: Flask) -> None:
    rules = [rule for rule in app.url_map.iter_rules() if not rule.endpoint.startswith("console.")]  # a browser's only
    routes = [r for r in rules if not hasattr(app.view_functions[r.endpoint], "operation")]
    assert routes == [], "put @declared(...) on these"


def test_every_route_is_in_the_reference(app: Flask) -> None:
    reference = (Path(__file__).parents[2] / "docs/reference.md").read_text()
    for route in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.rule)
        short = path.replace("/stores/{store}/keys/{key}/", "…/keys/{key}/")
        assert f" {short}" in reference or path == "/" or route.endpoint.startswith("console."), path


def test_stores_have_their_own_routes(made: dict[str, Any]) -> None:
    found = {name for name, _ in operations(made)}
    assert {"GET /stores", "GET /stores/last", "PUT /stores/last/keys/{key}"} <= found
    assert "PUT /stores/pairs/keys/{customer}/{till}" in found
    assert {"GET /stores/hours/keys/{key}", "DELETE /stores/hours/keys/{key}"} <= found
    assert "PUT /stores/hours/keys/{key}" not in found
    reports = {name for name in found if name.endswith("/reports")}
    assert reports == {"GET /stores/alarm/keys/{key}/reports", "GET /stores/status/keys/{key}/reports"}
    assert {"GET /streams/reports/quarantine", "GET /streams/sales/quarantine"} <= found


@pytest.mark.parametrize(
    ("store", "key", "value"),
    [
        ("last", [{"type": "string"}], {"type": ["number", "null"]}),
        ("by_till", [{"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}], {"type": "integer"}),
        ("days", [{"$ref": "#/components/schemas/Date"}], {"type": "number", "multipleOf": 0.01}),
        ("pairs", [{"type": "string"}, {"type": "integer"}], {"exclusiveMaximum": 10**36}),
        ("names", [{"pattern": "^(?:[^/]*)$"}] * 2, {"not": {"type": "null"}}),
        ("tagged", [{"type": "string"}], {"type": ["array", "null"]}),
    ],
)
def test_keys_and_values_have_their_types(made: dict[str, Any], store: str, key: list, value: dict) -> None:
    ((_, item),) = [(p, i) for p, i in made["paths"].items() if "put" in i and p.startswith(f"/stores/{store}/")]
    parts = [p["schema"] for p in item["parameters"]]
    assert [{n: found.get(n) for n in expected} for found, expected in zip(parts, key, strict=True)] == key
    body = item["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert value.items() <= body["properties"]["value"].items()
    assert body["required"] == ["value"] and "agent" not in body["properties"]


def test_a_parameter_that_is_not_declared_is_refused(app: Flask, made: dict[str, Any]) -> None:
    client = app.test_client()
    for name, operation in operations(made):
        method, path = name.split(" ")
        if "400" not in operation["responses"] or "lookup" in path:
            continue
        path = path.replace("{key}", "1").replace("{customer}/{till}", "a/1").replace("{customer}/{tag}", "a/b")
        wrong = client.open(path, method=method, query_string={"nope": "1"})
        assert "'nope'" in problem(wrong, 400, "bad-parameter")["detail"], name
    for query in ("limit=1&limit=1", "prefix=%FF"):
        problem(client.get(f"/stores/last/keys?{query}"), 400, "bad-parameter")
    assert client.get("/healthz?probe=1").status_code == 200


def test_the_page(app: Flask, made: dict[str, Any]) -> None:
    answer = app.test_client().get("/docs")
    assert answer.content_type.startswith("text/html")
    for name, operation in operations(made):
        assert f'id="{operation["operationId"]}"' in answer.text, name
    assert not re.search(r"(?:src|href)=\"?(?:https?:)?//", answer.text), "nothing is loaded from elsewhere"
    assert "curl -X PUT http://localhost/stores/last/keys/KEY" in answer.text
    assert 'href="/docs"' in app.test_client().get("/").text


def test_behind_a_prefix(app: Flask) -> None:
    client = app.test_client()
    assert client.get("/openapi.json", base_url="http://x/prefix").get_json()["servers"] == [{"url": "/prefix"}]
    assert 'href="/prefix/openapi.json"' in client.get("/docs", base_url="http://x/prefix").text


def test_tokens(tmp_path: Path) -> None:
    app = create_app(with_tokens(configured(tmp_path)))
    try:
        client = app.test_client()
        for path in ("/openapi.json", "/docs"):
            problem(client.get(path), 401, "unauthorized")
            assert client.get(path, headers=bearing(READER)).status_code == 200
        made = client.get("/openapi.json", headers=bearing(READER)).get_json()
        assert made["security"] == [{"bearer": []}]
        for name, operation in operations(made):
            is_open = name in ("GET /healthz", "GET /readyz", "GET /processors")
            assert operation.get("security") == ([] if is_open else None), name
            assert ("401" in operation["responses"]) is not is_open, name
        assert "Authorization: Bearer TOKEN" in client.get("/docs", headers=bearing(READER)).text
    finally:
        app.extensions["statehouse"].replica.stop()


TOP = Path(__file__).parents[2]
# Not at full depth a few examples of some stores: one of each kind of route.
EXAMPLES = sized(3, 300)
SOME = "^/[^/]*$|^/streams/|^/tasks|^/stores/(votes|money|hours)"


@pytest.mark.slow
def test_a_fuzzer_finds_nothing(tried: Service, tmp_path: Path) -> None:
    """All of schemathesis' checks on a service that runs; see schemathesis.toml and schemathesis_hooks.py."""
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(TOP / "tests/support/schemathesis.toml"),
        "run",
    ]
    command += [f"{tried.url}/openapi.json", "-H", f"Authorization: Bearer {TOKENS['all']}", "--no-color"]
    command += ["--continue-on-failure", "--request-timeout", "120", "--checks", "all", "--max-examples", str(EXAMPLES)]
    command += [] if FULL else ["--include-path-regex", SOME, "--seed", "1"]  # CI is no lottery
    hooks = {"SCHEMATHESIS_HOOKS": "tests.support.schemathesis_hooks", "PYTHONPATH": str(TOP)}
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **hooks}, capture_output=True, text=True)
    found = [line[:2000] for line in done.stdout.splitlines()]
    assert done.returncode == 0, "\n".join(found[:400]) + done.stderr[-2000:]
