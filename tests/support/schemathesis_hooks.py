"""What schemathesis has to be told, as OpenAPI has no words for it."""

from __future__ import annotations

import json
from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def ndjson(context: Any, value: Any) -> bytes:
    """A line for each item. What is no list has no lines: it is one that is no object."""
    return "\n".join(json.dumps(line) for line in (value if isinstance(value, list) else [[value]])).encode()


CONDITIONS = (
    "event_time IS NULL",
    "event_time > '2026-01-01'",
    "NOT (event_time < '2026-01-01T00:00:00Z' OR changed_at IS NULL)",
)
STATEMENTS = ("SELECT 1 AS one", "FROM range(3)", "SELECT 'é' AS x, NULL AS y")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A wait that nothing will end is a short one: a right ``timeout`` stays a right one."""
    query = case.query or {}
    if "where" in query and isinstance(
        query["where"], str
    ):  # a language of its own, which tests/api/test_where.py tries
        query["where"] = CONDITIONS[len(query["where"]) % len(CONDITIONS)]
    if isinstance(query.get("q"), str):  # likewise: tests/api/test_sql.py
        query["q"] = STATEMENTS[len(query["q"]) % len(STATEMENTS)]
    if (
        case.path.endswith("/sql")
        and isinstance(case.body, dict)
        and isinstance(case.body.get("sql"), str)
        and case.body["sql"]
    ):
        case.body["sql"] = STATEMENTS[len(case.body["sql"]) % len(STATEMENTS)]
    if case.path.endswith("/changes") and _number(query.get("timeout", 0)) <= 86_400:  # a stream that ends
        case.query = query = {**query, "timeout": 0.01}
    if "after" in query and _number(query.get("timeout", 0)) <= 2:
        query["timeout"] = 0.01


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and value >= 0 else float("inf")


@schemathesis.hook
def filter_case(context: Any, case: Any) -> bool:
    """``at`` and ``version`` exclude each other: 400, though each is right."""
    return not {"at", "version"} <= set(case.query or {})
