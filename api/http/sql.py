"""``/sql``: a SELECT over the lake's tables, for analysts and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from flask import Blueprint, Response, request

from api.engine.columns import Columns, lines
from api.engine.exact_json import dumps
from api.engine.media_types import ARROW, CSV, JSON, NDJSON
from api.engine.types import whole
from api.errors import Problem, refused
from api.http import formats
from api.http.context import answer, body_of, limit_asked, listed, service, the_deadline
from api.http.openapi import answers, schemas
from api.http.openapi.contract import Answer, Body, Parameter, Scope, declared, of
from api.http.openapi.schemas import Schema
from api.reads.sql import tables
from api.reads.sql_process import Failure, Result, Statement, shown
from statehouse.config.models import Config
from statehouse.tables import opened

DEFAULT_LIMIT = 1000
MOST_STREAMED = 1_000_000  # rows
LONGEST = 20_000  # characters of a statement
PAGE = 5000  # rows that are written at once
VERSIONS = "Statehouse-Versions"  # of the tables, as JSON

sql = Blueprint("sql", __name__)

LIMIT = answers.limit(DEFAULT_LIMIT)


STATEMENT = {"type": "string", "minLength": 1, "maxLength": LONGEST, "examples": ["SELECT 1 AS one"]}


def _body(scope: Scope) -> Schema:
    return answers.record({"sql": STATEMENT, "limit": of(LIMIT.schema, scope) or {}}, optional=("limit",))


QUERY = Parameter("q", "the statement", STATEMENT)
COLUMN = answers.record({"name": schemas.TEXT, "type": schemas.TEXT})
ROWS = answers.record(
    {
        "rows": answers.listed({"type": "object"}),
        "columns": answers.listed(COLUMN),
        "more": {"type": "boolean", "description": "the statement has more rows than are here"},
        "versions": answers.counts("of the tables that it names"),
    }
)
FORMATS = {JSON: ROWS, NDJSON: {}, CSV: {}, ARROW: {}}
ANSWERS = {200: Answer("the rows", FORMATS, {VERSIONS: "of the tables that it names, as JSON"})}
PROBLEMS = {503: "it took longer than `max_time`, or too many wait"}


@sql.get("/sql")
@declared(QUERY, LIMIT, answers=ANSWERS, problems=PROBLEMS)
def get_sql() -> Response:
    """The rows of one SELECT in DuckDB's SQL over `state.<store>`, `changelog.<stream>`, `quarantine.<stream>`, `routes.<table>` and
    `tasks`; all tables as of one version each, which the answer names.

    Without ``q`` the tables that there are, a row for each column. As JSON at most ``limit`` rows; as NDJSON, CSV or Arrow all of them, or a problem (413) where they are larger than ``api: max_answer``.
    """
    limit = limit_asked(DEFAULT_LIMIT)
    return _answered(request.args["q"], limit) if "q" in request.args else _columns(service().config)


@sql.post("/sql")
@declared(body=Body("the statement", JSON, _body), answers=ANSWERS, problems=PROBLEMS)
def post_sql() -> Response:
    """The same for a statement in a body."""
    body, most = body_of(request), service().config.api.max_rows
    for name in body:
        if name not in ("sql", "limit"):
            raise refused("bad-body", f"the field {name[:100]!r}", "sql or limit")
    limit = whole(body.get("limit", min(DEFAULT_LIMIT, most)))
    if not isinstance(body.get("sql"), str):
        raise refused("bad-body", "no statement", 'one, such as {"sql": "SELECT 1"}', at="sql")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= most:
        raise refused("bad-body", str(limit)[:100], f"1 to {most}", at="limit")
    return _answered(body["sql"], limit)


def _type(kind: Any) -> str:
    """A type of Delta's as text, also what is in it."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_type(kind['keyType'])}, {_type(kind['valueType'])}>"
    fields = (f"{field['name']}: {_type(field['type'])}" for field in kind["fields"])
    return f"struct<{', '.join(fields)}>"


def _columns(config: Config) -> Response:
    """The columns of the tables that there are, as rows, with their types in Delta."""
    there = [(name, delta) for name, path in tables(config).items() if (delta := opened(path))]
    rows = [
        {"table": name, "column": field["name"], "type": _type(field["type"])}
        for name, delta in there
        for field in json.loads(delta.schema().to_json())["fields"]
        if shown(name, field["name"])
    ]
    columns = [{"name": name, "type": "string"} for name in ("table", "column", "type")]
    versions = {name: delta.version() for name, delta in there}
    return answer({"rows": rows, "columns": columns, "more": False, "versions": versions})


def _answered(text: str, limit: int) -> Response:
    config = service().config
    if len(text) > LONGEST:
        raise Problem(400, "bad-sql", f"found {len(text)} characters, expected at most {LONGEST}")
    kind = formats.wanted(request)
    named = kind in (None, NDJSON)
    asked = Statement(text, tables(config), MOST_STREAMED if kind else limit, config.api.max_answer, named)
    answer = service().sql.ask(asked, the_deadline())
    if isinstance(answer, Failure):
        raise Problem(400, "bad-sql", answer.reason.replace(config.root, "…"))
    rows = _shown(pa.ipc.open_stream(answer.rows).read_all())
    try:
        response = _written(rows, answer, kind, config.api.max_answer)
    except (TypeError, pa.ArrowException) as error:  # a map whose keys are lists, say
        raise Problem(400, "bad-sql", f"found a value that cannot be written as {kind or JSON}: {error}") from None
    response.headers[VERSIONS] = dumps(answer.versions)
    return response


def _written(rows: pa.Table, answer: Result, kind: str | None, most: int) -> Response:
    if kind:
        if answer.more:
            detail = f"found more than {most} bytes or {MOST_STREAMED} rows, expected no more: add a LIMIT"
            raise Problem(413, "too-large", detail)
        return formats.whole(_pages(rows), kind, rows.schema)
    columns = [{"name": field.name, "type": str(field.type)} for field in rows.schema]
    more: dict[str, Any] = {"columns": columns, "more": answer.more, "versions": answer.versions}
    return listed([line for page in _pages(rows) for line in lines(page)], more)


def _shown(rows: pa.Table) -> pa.Table:
    """A result as other answers are: times in plain UTC, and each column with a name of its own."""
    names: dict[str, None] = {}
    known: dict[str, int] = {}  # how many columns had a name so far
    for name in rows.column_names:
        unique, number = name, known.get(name, 1)
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names[unique], known[name] = None, number
    fields = [f.with_type(pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(fields), safe=False).rename_columns(list(names))  # of nanoseconds it has microseconds


def _pages(rows: pa.Table) -> Iterator[Columns]:
    for batch in rows.to_batches(PAGE):
        yield dict(zip(batch.schema.names, batch.columns, strict=True))
