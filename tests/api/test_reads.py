"""Reads over lakes written here: every route, every type, every problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient

from api import create_app
from tests.support.api_lake import MOMENT_TEXT, State, configured, eventually
from tests.support.calls import STRANGE, at, problem
from tests.support.shapes import app, client, config

__all__ = ["app", "client", "config"]  # fixtures


def test_the_state_of_a_key(client: FlaskClient) -> None:
    response = client.get("/stores/status/keys/d1")
    report = {"event_time": MOMENT_TEXT}
    assert response.content_type == "application/json"
    assert response.get_json() == {
        "key": "d1",
        "value": "ok",
        "reports": {"b": {"value": "ok", **report}, "_a": {"value": "down", **report}},
        "event_time": MOMENT_TEXT,
        "changed_at": MOMENT_TEXT,
        "reset": MOMENT_TEXT,
        "position": 7,
    }


def test_numbers_lose_no_digit(client: FlaskClient) -> None:
    assert '"value":12345678901234567890123456.70,' in client.get("/stores/rewards/keys/c").text
    assert f'"value":{2**60 + 9},' in client.get("/stores/by_till/keys/9").text
    assert client.get("/stores/last/keys/inf").get_json()["value"] is None, "JSON has no infinity"


@pytest.mark.parametrize("raw", [True, False], ids=["raw path", "decoded path, as some servers give it"])
@pytest.mark.parametrize("key", STRANGE, ids=lambda k: ascii(k[:12]))
def test_strange_keys(client: FlaskClient, key: str, raw: bool) -> None:
    hidden = {} if raw else {"RAW_URI": "", "REQUEST_URI": ""}
    found = client.get(f"/stores/last/keys/{at(key)}", environ_overrides=hidden)
    assert found.get_json()["key"] == key
    assert found.get_json()["value"] == STRANGE.index(key)


def test_a_slash_that_is_not_encoded_is_part_of_a_single_key(client: FlaskClient) -> None:
    assert client.get("/stores/last/keys/a/b").get_json()["key"] == "a/b"


def test_composite_keys(client: FlaskClient) -> None:
    for customer, till in (("a", 10), ("a/b", 1), ("", 0), ("b", -1)):
        found = client.get(f"/stores/pairs/keys/{at(customer)}/{till}").get_json()
        assert (found["customer"], found["till"], found["value"]) == (customer, till, till)
    assert client.get(f"/stores/names/keys/{at('a/b')}/{at('x%2Fy')}").get_json()["value"] == 0.10
    assert "expected 2: customer/till" in problem(client.get("/stores/pairs/keys/a"), 400, "bad-key")["detail"]


def test_composite_keys_where_the_server_decodes_the_path(client: FlaskClient) -> None:
    hidden = {"RAW_URI": "", "REQUEST_URI": ""}
    found = client.get(f"/stores/pairs/keys/{at('a/b')}/1", environ_overrides=hidden).get_json()
    assert found["customer"] == "a/b", "the other part is a number, so it is clear"
    refused = client.get(f"/stores/names/keys/{at('a/b')}/x", environ_overrides=hidden)
    assert "decodes %2F" in problem(refused, 400, "bad-key")["detail"]


def test_a_raw_path_in_the_form_of_a_proxy(client: FlaskClient) -> None:
    raw = {"RAW_URI": "http://elsewhere/stores/pairs/keys/a%2Fb/1?x"}
    assert client.get("/stores/pairs/keys/a%2Fb/1", environ_overrides=raw).get_json()["customer"] == "a/b"
    foreign = {"RAW_URI": "/stores/pairs/keys/b/-1"}
    found = client.get("/stores/pairs/keys/a/2", environ_overrides=foreign).get_json()
    assert found["till"] == 2, "another path than the request's is not believed"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("by_till/keys/x", "an integer between -2147483648 and 2147483647 (INT)"),
        ("by_till/keys/1.5", "an integer"),
        ("by_till/keys/99999999999", "an integer"),
        ("by_till/keys/", "an integer"),
        ("days/keys/2026-02-30", "a date such as"),
        ("days/keys/yesterday", "a date such as"),
        ("pairs/keys/a/b", "an integer"),
    ],
)
def test_a_text_that_is_no_key(client: FlaskClient, path: str, expected: str) -> None:
    detail = problem(client.get(f"/stores/{path}"), 400, "bad-key")["detail"]
    assert "found" in detail and f"expected {expected}" in detail


def test_a_key_that_is_not_utf8(client: FlaskClient) -> None:
    # Werkzeug's client would mend it on the way.
    sent = {"PATH_INFO": "/stores/last/keys/\xff", "RAW_URI": "/stores/last/keys/%FF"}
    assert "expected UTF-8" in problem(client.get("/", environ_overrides=sent), 400, "bad-key")["detail"]


def test_typed_keys(client: FlaskClient) -> None:
    assert client.get("/stores/days/keys/2026-03-01").get_json()["key"] == "2026-03-01"
    assert client.get("/stores/by_till/keys/-3").get_json()["key"] == -3
    assert client.get("/stores/by_till/keys/+007").get_json()["key"] == 7


def test_absent_keys_and_stores(client: FlaskClient) -> None:
    assert problem(client.get("/stores/last/keys/none"), 404, "unknown-key")["position"] == 3
    assert problem(client.get("/stores/alarm/keys/none"), 404, "unknown-key")["position"] is None
    for path in ("nope", "nope/keys/x", "nope/keys"):
        assert "status" in problem(client.get(f"/stores/{path}"), 404, "unknown-store")["stores"]
    for path in ("/nope", "/stores/", "/stores/last/", "/stores/last/nope"):
        problem(client.get(path), 404)


def test_methods(client: FlaskClient) -> None:
    response = client.post("/stores/last/keys/x")
    problem(response, 405)
    assert {"GET", "PUT", "DELETE"} <= set(response.headers["Allow"].split(", "))
    assert client.head("/stores/last/keys/a").status_code == 404
    assert client.head("/stores/last/keys/+").status_code == 200


def test_etag(client: FlaskClient) -> None:
    first = client.get("/stores/rewards/keys/c")
    assert first.headers["ETag"].startswith('W/"')
    again = client.get("/stores/rewards/keys/c", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")


def test_the_scan(client: FlaskClient) -> None:
    keys: list[int] = []
    path = "/stores/by_till/keys?limit=1000"
    while path:
        page = client.get(path).get_json()
        keys += [row["key"] for row in page["rows"]]
        assert page["position"] == 3
        path = page["cursor"] and f"/stores/by_till/keys?limit=1000&cursor={page['cursor']}"
    assert keys == list(range(-5, 2500))
    assert len(client.get("/stores/by_till/keys").get_json()["rows"]) == 1000
    assert len(client.get("/stores/by_till/keys?limit=10000").get_json()["rows"]) == 2505


def test_the_scan_of_every_other_kind_of_key(client: FlaskClient) -> None:
    for store, names in (
        ("pairs", ["customer", "till"]),
        ("last", ["key"]),
        ("days", ["key"]),
        ("names", ["tag"]),
    ):
        whole = client.get(f"/stores/{store}/keys").get_json()
        assert whole["cursor"] is None
        found, cursor = [], ""
        while cursor is not None:
            page = client.get(f"/stores/{store}/keys", query_string={"limit": 1, "cursor": cursor}).get_json()
            found += page["rows"]
            cursor = page["cursor"]
        assert found == whole["rows"]
        assert found == sorted(found, key=lambda row: [row[n] for n in names])
    for store, position in (("alarm", None), ("tagged", 3)):
        empty = {"rows": [], "cursor": None, "position": position}
        assert client.get(f"/stores/{store}/keys").get_json() == empty


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "limit=x", "limit=", "limit=-1", "limit=1e3", "limt=5"])
def test_wrong_limits(client: FlaskClient, query: str) -> None:
    assert "expected" in problem(client.get(f"/stores/last/keys?{query}"), 400, "bad-parameter")["detail"]


@pytest.mark.parametrize("cursor", ["x", "é", "WyJhIiwiYiJd", "eyJhIjoxfQ", "WzFd", "WyJ4Il0", "[" * 5000])
def test_wrong_cursors(client: FlaskClient, cursor: str) -> None:
    response = client.get("/stores/by_till/keys", query_string={"cursor": cursor})
    assert "cursor" in problem(response, 400, "bad-parameter")["detail"]


def test_the_stores(client: FlaskClient) -> None:
    def just_refreshed() -> dict:  # a store that was not looked after for two seconds says so by its lag
        stores = {s["name"]: s for s in client.get("/stores").get_json()["stores"]}
        return stores if stores["pairs"]["lag_ms"] == stores["alarm"]["lag_ms"] == 0 else {}

    stores = eventually(just_refreshed)
    assert list(stores) == list(configured_names(client))
    pairs = stores["pairs"]
    one = client.get("/stores/pairs").get_json()
    assert {**one, "lag_ms": 0} == pairs
    assert (pairs["stream"], pairs["reduce"], pairs["key"]) == ("sales", "sum", ["customer", "till"])
    assert (pairs["keys"], pairs["position"], pairs["version"], pairs["head"]) == (6, 3, 1, 3)
    assert (pairs["lag_ms"], pairs["error"]) == (0, None)
    assert list(pairs["columns"]) == [
        "customer",
        "till",
        "value",
        "total",
        "event_time",
        "changed_at",
        "reset",
    ]
    assert pairs["columns"]["till"] == "INT"
    assert pairs["columns"]["reset"] == "TIMESTAMP"
    shown = stores["status"]["columns"]["reports"]
    assert shown == "MAP<STRING, STRUCT<value: STRING, event_time: TIMESTAMP>>"
    assert stores["rewards"]["lag_ms"] > 0, "version 3 of the changelog is not folded"
    unmerged = stores["alarm"]
    assert (unmerged["keys"], unmerged["position"], unmerged["version"], unmerged["head"]) == (
        0,
        None,
        None,
        None,
    )
    assert (unmerged["lag_ms"], unmerged["columns"]) == (0, {})


def configured_names(client: FlaskClient) -> list[str]:
    return list(client.application.extensions["statehouse"].config.stores)


def test_the_page_for_people(client: FlaskClient) -> None:
    response = client.get("/")
    assert response.content_type.startswith("text/html")
    for name in configured_names(client):
        assert f'href="/stores/{name}/keys"' in response.text
    assert "2,505" in response.text


def test_health(client: FlaskClient) -> None:
    assert client.get("/healthz").get_json() == {"status": "ok"}


def test_what_nobody_foresaw_is_a_problem_without_its_insides(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(store: str) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(app.extensions["statehouse"].replica, "snapshot", broken)
    response = app.test_client().get("/stores/last/keys/x")
    assert "secret" not in json.dumps(problem(response, 500))


def test_nested_values(tmp_path: Path) -> None:
    config = configured(tmp_path)
    State(config, "tagged").write(0, {"key": "a", "value": ['x"y', None, "é"]}, {"key": "b", "value": []})
    app = create_app(config)
    rows = app.test_client().get("/stores/tagged/keys").get_json()["rows"]
    app.extensions["statehouse"].replica.stop()
    assert [r["value"] for r in rows] == [['x"y', None, "é"], []]


def test_a_windowed_store_has_a_row_for_each_key_and_window(client: FlaskClient) -> None:
    found = client.get("/stores/hours/keys/a").get_json()
    assert found["key"] == "a" and found["position"] == 3
    starts = ["2026-03-01T12:30:00Z".replace("12:30", h) for h in ("12:00", "13:00")]
    assert [(w["window_start"][:19] + "Z", w["value"]) for w in found["windows"]] == [(starts[0], 12), (starts[1], 13)]
    problem(client.get("/stores/hours/keys/c"), 404, "unknown-key")
    rows, cursor = [], ""
    while cursor is not None:  # a page ends between two windows of a key
        page = client.get("/stores/hours/keys", query_string={"limit": 3, "cursor": cursor}).get_json()
        rows, cursor = rows + page["rows"], page["cursor"]
    assert [(r["key"], r["value"]) for r in rows] == [("a", 12), ("a", 13), ("b", 12), ("b", 13)]
    assert "window_start" in client.get("/stores/hours").get_json()["columns"]


def test_a_window_cannot_be_set(client: FlaskClient) -> None:
    refused = client.put("/stores/hours/keys/a", json={"value": 1})
    problem(refused, 405, "windowed-store")
    assert (
        refused.headers["Allow"]
        == client.options("/stores/hours/keys/a").headers["Allow"]
        == "DELETE, GET, HEAD, OPTIONS"
    )


def test_what_is_below_a_key_is_only_read(client: FlaskClient) -> None:
    for path in ("/stores/status/keys/d1/history", "/stores/status/keys/d1/reports"):
        for refused in (client.put(path, json={"value": 1}), client.delete(path)):
            problem(refused, 405, "read-only")
            assert refused.headers["Allow"] == "GET, HEAD, OPTIONS"
        assert client.options(path).headers["Allow"] == "GET, HEAD, OPTIONS"
        assert "PUT" in client.options(path.replace("d1/", "d1%2F")).headers["Allow"], "the key ends so"
