"""Pages of a store, its version and what changed since, with a condition: against plain Python."""

# ruff: noqa: F811 (fixtures are imported)
from __future__ import annotations

import operator
import re
import threading
import time
from typing import Any

import pyarrow as pa
import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st

from api.engine import duck
from api.engine.columns import lines, size
from api.engine.deadline import Deadline
from api.engine.exact_json import dumps
from api.engine.where import Where
from api.errors import Problem
from api.replica.overlay import ABSENT
from api.replica.snapshot import Selection, Snapshot
from api.replica.storage import of_table
from tests.support.api_lake import configured, rule
from tests.support.calls import problem
from tests.support.shapes import app, client, config  # noqa: F401 (fixtures)

COMPARE = {"=": operator.eq, "<>": operator.ne, "!=": operator.ne, "<": operator.lt, "<=": operator.le}
COMPARE |= {">": operator.gt, ">=": operator.ge}
KINDS = {"key": pa.string(), "value": pa.float64(), "event_time": pa.timestamp("us"), "_order": pa.int64()}
TYPES = {"key": "VARCHAR", "value": "DOUBLE", "event_time": "TIMESTAMP", "_order": "BIGINT"}
SHOWN = {"key": "STRING", "value": "DOUBLE", "event_time": "TIMESTAMP"}
DB = duck.connect()

texts = st.text("ab'%_é\\", max_size=3)
numbers = st.integers(-3, 3).map(float)


def row(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": value, "event_time": None, "_order": 1}


@st.composite
def conditions(draw: st.DrawFn, depth: int = 2) -> tuple[str, Any]:
    """SQL, and what it says as a function of a row: True, False or None (unknown)."""
    kind = draw(st.sampled_from(["key", "value", "null", "in", "between", "like"] + ["and", "or", "not"] * (depth > 0)))
    if kind in ("and", "or"):
        (a, f), (b, g) = draw(conditions(depth - 1)), draw(conditions(depth - 1))
        decided = kind == "or"
        return (
            f"({a}) {kind} {b if draw(st.booleans()) and depth == 1 else f'({b})'}",
            lambda r: decided if decided in (f(r), g(r)) else None if None in (f(r), g(r)) else not decided,
        )
    if kind == "not":
        a, f = draw(conditions(depth - 1))
        return f"NOT ({a})", lambda r: None if f(r) is None else not f(r)
    if kind == "null":
        return "value IS NULL", lambda r: r["value"] is None
    if kind == "in":
        some = draw(st.lists(numbers, min_size=1, max_size=3))
        return (
            f"Value IN ({', '.join(f'{n:g}' for n in some)})",
            lambda r: None if r["value"] is None else r["value"] in some,
        )
    if kind == "between":
        a, b = draw(numbers), draw(numbers)
        return f"value BETWEEN {a:g} AND {b}", lambda r: None if r["value"] is None else a <= r["value"] <= b
    if kind == "like":
        parts = draw(st.lists(st.sampled_from([*"ab%_é.*", "\\%", "\\_", "\\\\"]), max_size=4))
        expression = re.compile("".join({"%": ".*", "_": "."}.get(p, re.escape(p[-1])) for p in parts), re.DOTALL)
        pattern = "".join(parts).replace("\\", "\\\\")
        return f"`key` LIKE '{pattern}'", lambda r: expression.fullmatch(r["key"]) is not None
    name, sign = draw(st.sampled_from(["key", "value"])), draw(st.sampled_from(sorted(COMPARE)))
    literal = draw(texts if name == "key" else numbers)
    said = "'" + literal.replace("\\", "\\\\").replace("'", "\\'") + "'" if name == "key" else f"{literal:g}"
    if draw(st.booleans()):
        return f"{name} {sign} {said}", lambda r: None if r[name] is None else COMPARE[sign](r[name], literal)
    return f"{said} {sign} {name}", lambda r: None if r[name] is None else COMPARE[sign](literal, r[name])


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return rule(configured(tmp_path_factory.mktemp("where")), "last")


def table(rows: Any) -> pa.Table:
    return pa.Table.from_pylist([row(k, v) for k, v in rows], pa.schema(KINDS)).combine_chunks()


def snapshot(last: Any, base: dict[str, float | None], *changes: dict[str, Any]) -> Snapshot:
    """A version and what was put on top, in batches: 'gone' is an absent key."""
    made = of_table(table(sorted(base.items())), last, TYPES)
    for position, changed in enumerate(changes):
        keys = [(k,) for k in changed]
        rows = table((k, v) for k, v in changed.items() if v != "gone")
        columns = {name: rows[name].combine_chunks() for name in KINDS}
        refs, before = made.present(keys)
        assert len(before["key"]) == sum(ref.row != ABSENT for ref in refs.values())
        made.change(keys, [v != "gone" for v in changed.values()], columns, refs, position)
    return made


values = st.one_of(st.none(), numbers)


@pytest.fixture(params=[0, 10_000])
def spare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon rows are let go of."""
    monkeypatch.setattr("api.replica.overlay.SPARE", request.param)
    for module in ("snapshot", "sorted_version"):
        monkeypatch.setattr(f"api.replica.{module}.MANY", 5)


@given(
    st.dictionaries(texts, values, max_size=30),
    st.lists(st.dictionaries(texts, st.one_of(values, st.just("gone")), max_size=10), max_size=5),
    st.one_of(st.none(), conditions()),
    st.one_of(st.none(), texts),
    st.integers(1, 12),
)
def test_a_page_is_what_plain_python_says(
    spare: None, last: Any, base: dict, changes: list, condition: Any, after: Any, limit: int
) -> None:
    made = snapshot(last, base, *changes)
    changed = {k: v for batch in changes for k, v in batch.items()}
    where = Where(condition[0], SHOWN, DB.cursor) if condition else None
    now = {k: v for k, v in {**base, **changed}.items() if v != "gone"}
    right = [{"key": k, "value": v, "event_time": None} for k, v in sorted(now.items()) if after is None or k > after]
    right = [r for r in right if condition is None or condition[1](r)][:limit]
    assert lines(made.page(None if after is None else [after], limit, Selection(where=where))[0]) == [
        dumps(r) for r in right
    ]
    assert made.keys == len(now)
    known = sorted({*base, *changed})
    states = [{"key": key, "value": now[key], "event_time": None} if key in now else None for key in known]
    assert [made.get([key]) for key in known] == states
    assert made.lookup([[key] for key in known]) == [s and dumps(s) for s in states]


@given(
    st.integers(0, 12_000),
    st.builds(range, st.integers(0, 6000), st.integers(6000, 12_000), st.integers(1, 7)),
    st.integers(0, 12_000),
    st.booleans(),
)
def test_long_scans_of_many_runs(last: Any, size: int, touched: range, start: int, every: bool) -> None:
    base = {f"{i:05}": float(i) for i in range(0, size, 2)}
    changed: dict[str, Any] = {f"{i:05}": "gone" if i % 3 else -1.0 for i in touched}
    made = snapshot(last, base, changed)
    where = None if every else Where("value < 5000", SHOWN, DB.cursor)
    now = {k: v for k, v in {**base, **changed}.items() if v != "gone" and k > f"{start:05}" and (every or v < 5000)}
    found = made.page([f"{start:05}"], 20_000, Selection(where=where))[0]
    assert list(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == sorted(now.items())


@pytest.mark.parametrize("pattern", ["%a_" * 9 + "%b", "%_" * 900 + "b", "_" * 1900, "%" * 900 + "_b", "_\n%"])
def test_a_pattern_takes_the_time_of_its_text(last: Any, pattern: str) -> None:
    """DuckDB's own LIKE takes 51 s for the first of these, and nobody could interrupt it."""
    made = snapshot(last, {"a" * 60: 1.0, "a\nb": 2.0, "a" * 10_000: 3.0, "é" * 1900: 4.0})
    where = Where(f"key LIKE '{pattern}'", SHOWN, DB.cursor)
    right = {"_" * 1900: [4.0], "_\n%": [2.0], "%" * 900 + "_b": [2.0]}
    assert made.page(None, 10, Selection(where=where))[0]["value"].to_pylist() == right.get(pattern, [])


ENDLESS = " OR ".join(f"key LIKE '%{n}_x%'" for n in range(80))  # some seconds


@pytest.mark.parametrize("leaves", [False, True])
def test_a_condition_has_its_time(last: Any, leaves: bool) -> None:
    """And none when its caller has left."""
    table = {f"{n:0300}": 2.0 for n in range(60_000)}
    made, gone = snapshot(last, table), threading.Event()
    deadline = Deadline(60.0 if leaves else 0.2, gone.is_set)
    threading.Timer(0.2, gone.set).start()
    begun = time.monotonic()
    with pytest.raises(Problem, match="found no answer within"):
        made.page(None, 60_000, Selection(where=Where(ENDLESS, SHOWN, DB.cursor)), deadline=deadline)
    assert time.monotonic() - begun < 30


def test_a_page_has_so_many_bytes(last: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.replica.snapshot.BYTES", 10_000)
    made = snapshot(last, {f"{n:05}" + "x" * (5000 if n % 7 == 0 else 5): float(n) for n in range(500)})
    for where in (None, Where("value >= 0", SHOWN, DB.cursor)):
        after, found, more = None, [], True
        while more:
            rows, more = made.page(after, 1000, Selection(where=where))
            found += rows["value"].to_pylist()
            assert 0 < size(rows) < 16_000
            after = made.last(rows)
        assert found == [float(n) for n in range(500)]


def test_over_http(client: FlaskClient) -> None:
    def keys(store: str, where: str, **query: Any) -> list[Any]:
        return [
            next(iter(r.values()))
            for r in client.get(f"/stores/{store}/keys", query_string={"where": where, **query}).get_json()["rows"]
        ]

    assert keys("by_till", f"value > {2**60 + 2495}") == [2496, 2497, 2498, 2499]
    assert keys("by_till", "`key` <= -4.5 or key = 7") == [-5, 7]
    assert keys("by_till", "key between 5 and 9", limit=3) == [5, 6, 7]
    assert keys("days", "key = '2026-03-01' and event_time >= '2026-03-01T12:30:00Z'") == ["2026-03-01"]
    assert keys("days", "event_time > '2026-03-01T12:30:00.250Z'") == []
    assert keys("rewards", "value = 12345678901234567890123456.70") == ["c"]
    assert keys("hours", "window_start < '2026-03-01T13:00:00+00:00'") == ["a", "b"]
    text = client.get(
        "/stores/by_till/keys", query_string={"where": "key < 0"}, headers={"Accept": "application/x-ndjson"}
    ).text
    assert len(text.splitlines()) == 5


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("1 = 1", "expected"),
        ("value > (SELECT 1)", "expected"),
        ("value > key", "expected a literal of value"),
        ("abs(value) > 1", "expected comparisons"),
        ("value > 'x'", "expected a literal of value, which is BIGINT"),
        ("key = '7'", "expected a literal of key, which is INT"),
        ("value IN (SELECT value FROM t)", "expected comparisons"),
        ("nothing = 1", "found the column 'nothing', expected key, value"),
        ("_first = 1", "found the column '_first'"),
        ("value > 1; DROP TABLE x", "expected comparisons"),
        ("value >", "expected comparisons"),
        ("", "expected comparisons"),
        ("(" * 1500 + "1", "expected comparisons"),
        ("STRUCT(" * 285, "expected comparisons"),  # which a parser takes 2 ** 285 steps for
        ("MAP(" * 20 + "1", "expected comparisons"),
        ("value = 1 AND STRUCT(" * 90, "expected comparisons"),
        ("value = " + "1" * 39, "at most 38 digits"),
        ("value = 1 or " * 300, "characters"),
        ("x.value = 1", "expected comparisons"),
        ("value like 'a%'", "expected a column that is text"),
        ("read_csv('/etc/passwd') IS NULL", "expected comparisons"),
    ],
)
def test_what_is_no_such_condition(client: FlaskClient, where: str, says: str) -> None:
    response = client.get("/stores/by_till/keys", query_string={"where": where})
    assert says in problem(response, 400, "bad-parameter")["detail"]
