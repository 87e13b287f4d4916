"""Parts of a store, and all of it in every format, against plain Python's idea of the same."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.csv
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from api.http.formats import streamed
from tests.support.calls import STRANGE, problem
from tests.support.shapes import app, client, config  # noqa: F401 (fixtures)

PAIRS = sorted([("a/b", 1), ("a", 1), ("a", 2), ("a", 10), ("", 0), ("b", -1)])
NDJSON, CSV, ARROW = "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"


def exact(text: str) -> dict:
    """JSON with all digits."""
    return json.loads(text, parse_float=Decimal)


def scanned(client: FlaskClient, store: str, **query: object) -> list[dict]:  # noqa: F811
    """All rows of a scan, in pages of two."""
    rows, cursor = [], None
    while True:
        asked = {"limit": 2, **query, **({"cursor": cursor} if cursor else {})}
        page = exact(client.get(f"/stores/{store}/keys", query_string=asked).text)
        rows, cursor = rows + page["rows"], page["cursor"]
        if cursor is None:
            return rows


@given(st.sampled_from([*STRANGE, "k", "inf", "z"]), st.sampled_from([*STRANGE, "k", "inf", "z"]), st.sampled_from(["", "a", "k", "n", "a/"]))  # fmt: skip
def test_a_range_and_a_prefix(client: FlaskClient, least: str, most: str, prefix: str) -> None:  # noqa: F811
    right = [k for k in sorted([*STRANGE, "inf"]) if least <= k < most and k.startswith(prefix)]
    found = scanned(client, "last", **{"from": least, "to": most, "prefix": prefix})
    assert [row["key"] for row in found] == right


def test_ranges_over_composite_and_typed_keys(client: FlaskClient) -> None:  # noqa: F811
    def pairs(**query: object) -> list[tuple]:
        return [(r["customer"], r["till"]) for r in scanned(client, "pairs", **query)]

    assert pairs() == PAIRS
    assert pairs(**{"from": "a"}) == [p for p in PAIRS if p[0] >= "a"]
    assert pairs(**{"from": "a/2", "to": "b"}) == [p for p in PAIRS if p >= ("a", 2) and p[0] < "b"]
    assert pairs(**{"to": "a"}) == [("", 0)]
    assert pairs(prefix="a") == [p for p in PAIRS if p[0].startswith("a")]
    tills = client.get("/stores/by_till/keys", query_string={"from": "-2", "to": "10"}).get_json()["rows"]
    assert [row["key"] for row in tills] == list(range(-2, 10))
    for query, says in (
        ({"from": "x"}, "by_till"),
        ({"prefix": "1"}, "by_till"),
        ({"from": "a/1/2"}, "pairs"),
        ({"prefix": "a/1"}, "pairs"),
        ({"nope": "1"}, "pairs"),
    ):
        problem(client.get(f"/stores/{says}/keys", query_string=query), 400, "bad-parameter")


@pytest.mark.parametrize("store", ["last", "pairs", "by_till", "days", "status", "rewards", "tagged", "hours", "names"])
def test_every_format_has_the_same_rows(client: FlaskClient, store: str) -> None:  # noqa: F811
    pages = scanned(client, store, limit=1000)
    plain = client.get(f"/stores/{store}/keys", headers={"Accept": NDJSON})
    assert plain.content_type == NDJSON and [exact(line) for line in plain.text.splitlines()] == pages
    limited = client.get(f"/stores/{store}/keys?limit=1", headers={"Accept": NDJSON})
    assert [exact(line) for line in limited.text.splitlines()] == pages[:1]
    text = client.get(f"/stores/{store}/keys", headers={"Accept": CSV})
    rows = list(csv.DictReader(io.StringIO(text.text, newline="")))
    assert text.content_type == f"{CSV}; charset=utf-8" and len(rows) == len(pages)
    for row, right in zip(rows, pages, strict=True):
        for name, value in right.items():
            assert row[name] == ("" if value is None else value if isinstance(value, str) else row[name])
    table = pa.ipc.open_stream(client.get(f"/stores/{store}/keys", headers={"Accept": ARROW}).data).read_all()
    assert table.num_rows == len(pages)
    names = [n for n in table.column_names if n in ("key", "customer", "till", "tag")]
    keys = [[str(v) for v in row.values()] for row in table.select(names).to_pylist()]
    assert keys == [[str(row[n]) for n in names] for row in pages]
    if pages and store not in ("last", "tagged"):
        assert [Decimal(str(v)) if not isinstance(v, str) else v for v in table["value"].to_pylist()] == [
            Decimal(row["value"]) if not isinstance(row["value"], str) else row["value"] for row in pages
        ]


def test_a_store_that_was_never_merged_has_no_rows_in_any_format(client: FlaskClient) -> None:  # noqa: F811
    assert client.get("/stores/alarm/keys", headers={"Accept": NDJSON}).data == b""
    empty = client.get("/stores/alarm/keys", headers={"Accept": ARROW}).data
    assert pa.ipc.open_stream(empty).read_all().num_rows == 0


def rows_of(body: bytes, kind: str) -> int:
    """How many rows a common reader finds; it raises where it does not understand them."""
    if kind == NDJSON:
        return len([json.loads(line) for line in body.splitlines()])
    if kind == ARROW:
        return pa.ipc.open_stream(body).read_all().num_rows
    return pa.csv.read_csv(io.BytesIO(body)).num_rows


@pytest.mark.parametrize("kind", [NDJSON, CSV, ARROW])
def test_a_stream_that_cannot_be_finished_does_not_look_like_one_that_is(kind: str) -> None:
    page = {"key": pa.array(["a", "b"]), "value": pa.array([1, 2])}
    schema = pa.schema({"key": pa.string(), "value": pa.int64()})

    def pages(whole: int, fails: bool) -> Iterator[dict[str, pa.Array]]:
        for _ in range(whole):
            yield page
        if fails:
            raise RuntimeError("the lake is gone")

    assert rows_of(streamed(pages(2, fails=False), kind, schema).data, kind) == 4
    with pytest.raises(RuntimeError):  # a problem, as nothing has been sent
        streamed(pages(0, fails=True), kind, schema)
    for whole in (1, 2):
        body = streamed(pages(whole, fails=True), kind, schema).data
        with pytest.raises((ValueError, pa.ArrowInvalid)):
            rows_of(body, kind)


def test_a_lookup(client: FlaskClient) -> None:  # noqa: F811
    asked = [*STRANGE, "nope", "inf"]
    found = client.post("/stores/last/lookup", json={"keys": asked}).get_json()
    assert [row["key"] for row in found["rows"]] == [*STRANGE, "inf"] and found["missing"] == ["nope"]
    assert found["position"] == 3
    found = client.post("/stores/pairs/lookup", json={"keys": [["a/b", 1], ["a", "2"], ["x", 1]]}).get_json()
    assert [(r["customer"], r["till"]) for r in found["rows"]] == [("a/b", 1), ("a", 2)]
    assert found["missing"] == [["x", 1]]
    assert client.post("/stores/alarm/lookup", json={"keys": ["a"]}).get_json()["missing"] == ["a"]
    problem(client.post("/stores/last/lookup", json={"keys": "a"}), 400, "bad-body")
    problem(client.post("/stores/last/lookup", json={"keys": ["a"] * 10_001}), 400, "bad-body")
    problem(client.post("/stores/by_till/lookup", json={"keys": ["x"]}), 400, "bad-key")
    for part in (None, {}, [["a"]], [None]):
        problem(client.post("/stores/last/lookup", json={"keys": [part]}), 400, "bad-key")
    for body in ('{"keys":[7.0]}', '{"keys":[7e0]}', '{"keys":["7"]}'):
        found = client.post("/stores/by_till/lookup", data=body, content_type="application/json")
        assert found.status_code == 200
    endless = client.post(
        "/stores/last/lookup", data='{"keys":[1e9999999999999999999]}', content_type="application/json"
    )
    problem(endless, 400, "bad-body")


def test_windows_in_a_range(client: FlaskClient) -> None:  # noqa: F811
    def starts(**query: str) -> list[str]:
        found = client.get("/stores/hours/keys/a", query_string=query).get_json()
        return [w["window_start"][11:16] for w in found["windows"]]

    assert starts() == ["12:00", "13:00"]
    assert starts(**{"from": "2026-03-01T12:00:01Z"}) == ["13:00"]
    assert starts(**{"from": "2026-03-01T12:00:00Z", "to": "2026-03-01T13:00:00Z"}) == ["12:00"]
    problem(client.get("/stores/hours/keys/a?from=2027-01-01"), 404, "unknown-key")
    problem(client.get("/stores/hours/keys/a?from=yesterday"), 400, "bad-parameter")
    problem(client.get("/stores/last/keys/inf?from=2027-01-01"), 400, "bad-parameter")


def test_the_reports_behind_a_value(client: FlaskClient) -> None:  # noqa: F811
    found = client.get("/stores/status/keys/d1/reports").get_json()
    assert found["value"] == "ok" and found["reports"].keys() == {"b", "_a"}
    problem(client.get("/stores/status/keys/nope/reports"), 404, "unknown-key")
    problem(client.get("/stores/last/keys/inf/reports"), 404, "no-reports")
