"""Calls of the API in this process: keys of every kind, lines, tokens; and the one shape of all errors."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from statehouse.config.models import Api, Config

STRANGE = [
    "",
    "a/b",
    "/",
    "//x/",
    "a%2Fb",
    "%",
    "+",
    " ",
    "Jürgen 🙂",
    "tab\tline\n",
    "nul\0",
    "q?x=1#f",
    "..",
    "k" * 20_000,
]


def problem(response: TestResponse, status: int, kind: str = "about:blank") -> dict:
    """The one shape of all errors."""
    assert response.status_code == status, response.text
    assert response.content_type == "application/problem+json"
    document = response.get_json()
    assert document["status"] == status and document["title"] and document["detail"]
    assert document["type"] == (kind if kind == "about:blank" else f"urn:statehouse:{kind}")
    return document


def at(key: str) -> str:
    return quote(key, safe="")


def post(client: FlaskClient, store: str, *lines: Any, **more: Any) -> TestResponse:
    body = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return client.post(f"/stores/{store}/keys", data=body, content_type="application/x-ndjson", **more)


READER, WRITER, BOTH = "reader-reader", "writer-writer", "both+both/both=="
SHA = "sha256:" + hashlib.sha256(READER.encode()).hexdigest()
FILE = f"""\
reader: {{token: "{SHA}", scopes: [read]}}
writer: {{token: {WRITER}, scopes: [write]}}
both: {{token: {BOTH}, scopes: [read, write]}}
"""


def with_tokens(config: Config, text: str = FILE) -> Config:
    file = Path(config.root).parent / "tokens.yaml"
    file.write_text(text)
    return config.model_copy(update={"api": Api(tokens=str(file))})


def bearing(token: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {token}"}
