"""Who may pass: the tokens file, what a request without the right token gets, and where the API may be bound to."""

from __future__ import annotations

import itertools
import json
import logging
import os
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from api import create_app
from api.http.tokens import Tokens, read
from api.server.supervisor import serve
from statehouse.config.models import Api
from statehouse.errors import ConfigError
from tests.support.api_lake import made
from tests.support.calls import BOTH, FILE, READER, SHA, WRITER, bearing, problem, with_tokens
from tests.support.serving import serving, stopped


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    app = create_app(with_tokens(made(tmp_path_factory.mktemp("tokens"), "127.0.0.1:1")))
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.mark.parametrize("path", ["/stores", "/stores/last/keys/k", "/", "/metrics", "/nope", "/stores/nope"])
def test_without_a_token(client: FlaskClient, path: str) -> None:
    refused = client.get(path)
    problem(refused, 401, "unauthorized")
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="statehouse"'
    assert client.get(path, headers=bearing(READER)).status_code in (200, 404)


@pytest.mark.parametrize(
    "headers",
    [
        bearing("wrong"),
        bearing(READER[:-1]),
        bearing(READER + "x"),
        bearing(SHA),
        bearing(SHA.removeprefix("sha256:")),
        bearing("\xe9"),
        bearing(""),
        bearing(READER, "Basic"),
        {"Authorization": READER},
        {"Authorization": "Bearer"},
    ],
    ids=str,
)
def test_a_wrong_token(client: FlaskClient, headers: dict[str, str]) -> None:
    refused = client.get("/stores", headers=headers)
    problem(refused, 401, "unauthorized")
    sent = headers["Authorization"].startswith("Bearer ") and headers["Authorization"] != "Bearer "
    assert ("invalid_token" in refused.headers["WWW-Authenticate"]) == sent


def test_scopes(client: FlaskClient) -> None:
    for token in (READER, BOTH):
        assert client.get("/stores", headers=bearing(token, "bearer")).status_code == 200
    refused = client.get("/stores", headers=bearing(WRITER))
    problem(refused, 403, "forbidden")
    assert 'error="insufficient_scope", scope="read"' in refused.headers["WWW-Authenticate"]
    ndjson = {"data": "{}", "content_type": "application/x-ndjson"}
    for write in (
        lambda token: client.put("/stores/last/keys/k", json={}, headers=bearing(token)),
        lambda token: client.delete("/stores/by_till/keys/x", headers=bearing(token)),
        lambda token: client.post("/stores/last/keys", **ndjson, headers=bearing(token)),
    ):
        problem(write(READER), 403, "forbidden")
        for token in (WRITER, BOTH):
            assert write(token).status_code == 400, "it passes, and is wrong otherwise"
        assert write("wrong").status_code == 401


def test_health_is_open(client: FlaskClient) -> None:
    for path in ("/healthz", "/readyz"):
        assert client.get(path).status_code == 200


def test_the_file_is_read_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(FILE)
    tokens = Tokens(str(file))
    assert tokens.find(READER).name == "reader" and tokens.find("new-new-new") is None
    file.write_text("new: {token: new-new-new, scopes: [read]}\n")
    assert tokens.find(READER) is None and tokens.find("new-new-new").scopes == ("read",)
    for broken in (
        "new: {token: secret-secret, scopes: [all]}",
        "",
        "\0",
        "new: {token: 2026-13-45}",
        "new: {token: 2026-13-45, scopes: [read]}",
        "new: {token: !!int abc, scopes: [read]}",
        "new: &a {token: *a, scopes: [read]}",
        "new: {token: secret-secret, scopes: &a [*a]}",
        "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise(string.ascii_lowercase)),
        "new: {token: &a secret-secret, scopes: &b [[x, x]], *a : *b}",
        "[" * 3000,
        None,
    ):
        caplog.clear()
        file.unlink() if broken is None else file.write_text(broken)
        assert tokens.find("new-new-new").name == "new", "the last good one"
        assert tokens.find("secret-secret") is None
        assert [r.levelno for r in caplog.records] == [logging.ERROR], "said once"
        assert "secret-secret" not in caplog.text and "tokens.yaml" in caplog.text
    os.mkfifo(file)  # to open it would be to wait for who writes
    caplog.clear()
    assert tokens.find("new-new-new").name == "new" and "found no regular file" in caplog.text
    file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr("api.http.tokens.read_yaml", lambda *_, **__: 1 / 0)
        caplog.clear()
        file.write_text("new: {token: other-other, scopes: [read]}")
        assert tokens.find("new-new-new").name == "new"
        assert "tokens.yaml: ZeroDivisionError; the tokens of before stay valid" in caplog.text
    other = tmp_path / "other"
    other.write_text(FILE)
    os.replace(other, file)
    assert tokens.find(READER).name == "reader" and tokens.find("new-new-new") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ":1: found no tokens"),
        ("{}", ":1: found no tokens"),
        ("- a", ":1: found no tokens"),
        ("a: [", ":1: not YAML: expected a file of tokens"),
        ("a:\n  token: *seven77", ":2: not YAML: expected a file of tokens"),
        ("a: {token: !!int seven77}", ": not YAML: expected a file of tokens"),
        ("a: {token: 2026-13-45}", ": not YAML: expected a file of tokens"),
        ("a: &a {token: *a, scopes: [read]}", ":1: a.token: found dict, expected a text"),
        ("[" * 3000, ": not YAML: expected a file of tokens"),
        (FILE + "reader: {scopes: [write], token: x-x-x-x-x}", "found 'reader' twice, in lines 1 and"),
        ("a:\n  token: x-x-x-x-x", ":1: a: found token, expected token and scopes"),
        ("a: text", ":1: a: found something else"),
        ("a:\n  token: x-x-x-x-x\n  scopes: read", ":3: a.scopes: found 'read', expected a list"),
        ("a:\n  token: x-x-x-x-x\n  scopes: []", ":3: a.scopes"),
        ("a:\n  token: x-x-x-x-x\n  scopes: [[read]]", ":3: a.scopes"),
        ("a:\n  scopes: [read]\n  token: 123456789", ":3: a.token: found int, expected a text"),
        ("a:\n  scopes: [read]\n  token: seven77", ":3: a.token: found another text, expected 8 or more"),
        ("a:\n  scopes: [read]\n  token: 'with a space'", ":3: a.token"),
        ("a:\n  scopes: [read]\n  token: 'sha256:abc'", ":3: a.token: found no SHA-256"),
        (FILE + f"twin: {{scopes: [write], token: {READER}}}", ":1: reader.token: found one that another name has"),
    ],
)
def test_a_wrong_file_names_the_line_and_no_token(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read(str(file))
    assert says in str(error.value)
    assert not any(t in str(error.value) for t in ("x-x-x", "seven77", "123456", "with a space", READER))


def test_only_this_machine_without_tokens(tmp_path: Path) -> None:
    config = made(tmp_path, "127.0.0.1:1")
    with pytest.raises(ConfigError, match="without 'api: tokens'"):
        serve(config, "0.0.0.0")
    missing = config.model_copy(update={"api": Api(tokens=str(tmp_path / "none.yaml"))})
    with pytest.raises(ConfigError, match="none.yaml: No such file"):
        serve(missing, "0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="expected an IP address"):
        serve(with_tokens(config), "example.org")


def test_served_to_others_and_audited(tmp_path: Path) -> None:
    config = with_tokens(made(tmp_path, "127.0.0.1:1"))
    with (tmp_path / "statehouse.yaml").open("a") as file:
        file.write("api: {tokens: tokens.yaml}\n")
    with serving(config, host="0.0.0.0") as (process, connection):
        for token, status in ((WRITER, 400), ("wrong", 401)):
            body = b'{"value": "secret"}'
            connection.request(
                "PUT", "/stores/last/keys/k%0A", body, {**bearing(token), "Content-Type": "application/json"}
            )
            response = connection.getresponse()
            assert (response.status, json.loads(response.read())["status"]) == (status, status)
        connection.close()
        rest = stopped(process, 15)[1]
    lines = [json.loads(line) for line in rest.splitlines()]
    assert [(line["name"], line["key"], line["status"]) for line in lines] == [
        ("writer", "k\n", 400),
        (None, "k\n", 401),
    ]
    assert "secret" not in rest
