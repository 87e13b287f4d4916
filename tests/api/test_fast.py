"""Point reads in front of Flask give what Flask gives, byte for byte, whoever asks for whatever."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import example, given
from hypothesis import strategies as st

from api.http.compress import LEAST
from api.http.point_reads import Fast
from tests.support.calls import STRANGE
from tests.support.shapes import app, client, config  # noqa: F401 (fixtures)

STORES = ("status", "last", "by_till", "pairs", "names", "days", "hours", "tagged", "rewards", "nobody")


@pytest.fixture
def slow(app: Flask) -> FlaskClient:
    """The same app, asked behind the fast path."""
    behind = Flask("behind")
    behind.wsgi_app = app.wsgi_app.slow  # type: ignore[method-assign, attr-defined]
    return behind.test_client()


def told(fast: Fast, path: str, packed: bool) -> tuple[bytes, str] | None:
    """What it says in an event loop."""

    async def ask() -> tuple[bytes, str] | None:
        return fast.answer(path, "", "127.0.0.1", packed)

    return asyncio.run(ask())


def both(client: FlaskClient, slow: FlaskClient, path: str, **words: object) -> bool:
    """Ask both; whether the key was there."""
    quick, right = (who.get(path, **words) for who in (client, slow))  # type: ignore[arg-type]
    assert (quick.status_code, quick.data) == (right.status_code, right.data), path
    headers = [sorted((k, v) for k, v in found.headers if k != "Date") for found in (quick, right)]  # a second may pass
    assert headers[0] == headers[1], path
    return quick.status_code == 200


@given(
    st.sampled_from(STORES),
    st.one_of(
        st.sampled_from([*STRANGE, "1", "a/1", "a%2Fb/1", "2026-03-01", "k/history", "x/reports"]), st.text(max_size=5)
    ),
    st.sampled_from([{}, {"Accept-Encoding": "gzip"}, {"Origin": "http://x"}, {"If-None-Match": "*"}]),
)
@example("pairs", "a/1", {})
@example("by_till", "+1", {})
def test_the_same_bytes_and_headers(
    client: FlaskClient, slow: FlaskClient, store: str, key: str, headers: dict
) -> None:
    both(client, slow, f"/stores/{store}/keys/{quote(key, safe='/%')}", headers=headers)


@given(
    st.sampled_from(STORES),
    st.one_of(st.sampled_from([*STRANGE, "1", "a/1", "a%2Fb/1", "2026-03-01", "k%2Fhistory"]), st.text(max_size=5)),
    st.booleans(),
)
@example("names", "a%2Fb/x%252Fy", False)
@example("last", "x%2Freports", True)
def test_what_the_event_loop_is_told(
    client: FlaskClient, slow: FlaskClient, store: str, key: str, packed: bool
) -> None:
    """What Flask says; or nothing, for Flask to say it."""
    fast, path = client.application.wsgi_app, f"/stores/{store}/keys/{quote(key, safe='/%')}"
    assert isinstance(fast, Fast)
    found, right = told(fast, path, packed), slow.get(path)
    if found is not None:
        assert (found[0], f'W/"{found[1]}"') == (right.data, right.headers["ETag"])
        assert not packed or len(found[0]) <= LEAST
    elif client.application.extensions["statehouse"].config.api.replica != "none":
        assert right.status_code != 200 or packed or path.endswith(("history", "reports")) or len(right.data) > 4000


def test_the_event_loop_waits_for_nobody(client: FlaskClient) -> None:
    fast, path = client.application.wsgi_app, "/stores/last/keys/a%2Fb"
    assert isinstance(fast, Fast)
    if client.application.extensions["statehouse"].config.api.replica == "none":
        assert told(fast, path, False) is None
        return
    assert told(fast, path, False)
    snapshot = client.application.extensions["statehouse"].replica.snapshot("last")
    with snapshot.lock:
        assert told(fast, path, False) is None
    snapshot.stale[("a/b",)] = None
    assert told(fast, path, False) is None
    assert fast.answer(path, "", "127.0.0.1", False, waits=True), "nobody folds here, so nobody is waited for"
    snapshot.stale.clear()


def test_those_that_are_there_are_answered_without_flask(
    client: FlaskClient, slow: FlaskClient, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"/stores/last/keys/{quote(key, safe='')}" for key in STRANGE if key] + ["/stores/pairs/keys/a/1"]
    for path in paths:
        assert both(client, slow, path)
    right = [client.get(path).data for path in paths]
    assert isinstance(app.wsgi_app, Fast)
    monkeypatch.setattr(app.wsgi_app, "slow", None)
    assert [client.get(path).data for path in paths] == right
