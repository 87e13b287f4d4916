"""SQL over the lake's tables: what it answers, at which versions, and what it cannot get at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from flask.testing import FlaskClient

from api import create_app
from api.reads import sql_process
from statehouse.config.models import Config
from statehouse.tables import table
from tests.support.api_lake import MOMENT_TEXT, Sales, State, configured, eventually
from tests.support.calls import problem

SECRET = "for nobody's eyes"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = configured(tmp_path_factory.mktemp("it's sql, é"))
    State(config, "last").write(3, *({"key": f"{n:04}", "value": n / 2} for n in range(3000)))
    sales = Sales(config)
    sales.append({"customer": "a", "amount": Decimal("1.50"), "tags": ["x", "y"]}, {"customer": "b"})
    (Path(config.root).parent / "secret.csv").write_text(SECRET)
    return config


@pytest.fixture(scope="module")
def client(config: Config) -> FlaskClient:
    app = create_app(config)
    yield app.test_client()
    app.extensions["statehouse"].stop()


def asked(client: FlaskClient, sql: str, **more: object) -> dict:
    response = client.post("/sql", json={"sql": sql, **more})
    assert response.status_code == 200, response.text
    return response.get_json()


def test_rows_columns_and_versions(client: FlaskClient, config: Config) -> None:
    found = asked(client, "SELECT count(*) AS n, sum(value) AS total, max(changed_at) AS at FROM state.last")
    assert found["rows"] == [{"n": 3000, "total": 2249250.0, "at": MOMENT_TEXT}]
    assert [c["name"] for c in found["columns"]] == ["n", "total", "at"]
    assert found["versions"] == {"state.last": 1} and found["more"] is False
    joined = asked(
        client, "SELECT l.key, s.customer, tags[1] AS tag FROM State.LAST l, changelog.sales s ORDER BY ALL LIMIT 1"
    )
    assert joined["rows"] == [{"key": "0000", "customer": "a", "tag": "x"}]
    assert joined["versions"] == {"state.last": 1, "changelog.sales": 1}
    got = client.get("/sql", query_string={"q": "SELECT 1 AS one, 1 AS one, NULL AS nothing"})
    assert got.get_json()["rows"] == [{"one": 1, "one_2": 1, "nothing": None}]
    assert [c for c in asked(client, "SELECT * FROM state.last LIMIT 1")["rows"][0]] == [
        "key",
        "value",
        "event_time",
        "changed_at",
        "reset",
    ]


def test_limits(client: FlaskClient) -> None:
    found = asked(client, "FROM state.last ORDER BY key")
    assert len(found["rows"]) == 1000 and found["more"] is True
    found = asked(client, "FROM state.last ORDER BY key", limit=2)
    assert [row["key"] for row in found["rows"]] == ["0000", "0001"] and found["more"] is True
    large = "SELECT repeat('x', 1000000) AS x FROM range(9)"
    found = asked(client, large)
    assert 0 < len(found["rows"]) < 9 and found["more"] is True
    problem(client.post("/sql", json={"sql": large}, headers={"Accept": "text/csv"}), 413, "too-large")
    for body in (
        {"sql": "SELECT 1", "limit": 0},
        {"sql": "SELECT 1", "limit": True},
        {"sql": 1},
        {},
        {"sql": "SELECT 1", "x": 1},
    ):
        problem(client.post("/sql", json=body), 400, "bad-body")
    there = client.get("/sql").get_json()
    assert {"table": "state.last", "column": "value", "type": "double"} in there["rows"]
    assert {"table": "changelog.sales", "column": "tags", "type": "array<string>"} in there["rows"]
    assert there["versions"] == {"state.last": 1, "changelog.sales": 1} and "_last" not in str(there)
    problem(client.get("/sql", query_string={"q": "SELECT " + "1" * 20_000}), 400, "bad-sql")


def test_other_formats(client: FlaskClient) -> None:
    query = {"q": "SELECT key, value FROM state.last ORDER BY key"}
    text = client.get("/sql", query_string=query, headers={"Accept": "text/csv"}).text
    assert text.splitlines()[:2] == ["key,value", "0000,0.0"] and len(text.splitlines()) == 3001
    lines = client.get("/sql", query_string=query, headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert json.loads(lines[-1]) == {"key": "2999", "value": 1499.5} and len(lines) == 3000
    arrow = client.get("/sql", query_string=query, headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert pa.ipc.open_stream(arrow.data).read_all().num_rows == 3000
    assert json.loads(arrow.headers["Statehouse-Versions"]) == {"state.last": 1}
    nothing = client.get("/sql", query_string={"q": "SELECT 1 AS a WHERE false"}, headers={"Accept": "text/csv"})
    assert nothing.text == "a\r\n"


@pytest.mark.parametrize(
    "expression",
    [
        "DATE '0001-01-01'",
        "TIMESTAMP '9999-12-31 23:59:59.999999'",
        "TIMESTAMPTZ '2026-01-01 00:00:00+02'",
        "TIME '12:00:00'",
        "INTERVAL 1 MONTH",
        "uuid()",
        "'\\xAA'::BLOB",
        "1e400::DOUBLE",
        "170141183460469231731687303715884105727::HUGEINT",
        "18446744073709551615::UBIGINT",
        "0.00000000000000000000000000000000000001::DECIMAL(38,38)",
        "[1, NULL]",
        "[{'a': [1]}]",
        "MAP {'k': 1}",
        "{'a': 1, 'b': 'ü'}",
        "'a'::ENUM('a', 'b')",
        "'101'::BIT",
        "union_value(n := 1)",
        "[1, 2]::INT[2]",
        "'{\"a\": 1}'::JSON",
        "TIMESTAMP_NS '2026-01-01 00:00:00.123456789'",
        "NULL",
    ],
)
def test_every_type_is_an_answer_in_every_format(client: FlaskClient, expression: str) -> None:
    sql = f"SELECT {expression} AS x"
    assert list(asked(client, sql)["rows"][0]) == ["x"]
    for kind in ("text/csv", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
        answer = client.get("/sql", query_string={"q": sql}, headers={"Accept": kind})
        assert answer.status_code == 200 and b"cut off" not in answer.data


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM state.last, read_text('{secret}')",
        "SELECT (SELECT content FROM read_text('{secret}')) AS x",
        "FROM query('SELECT * FROM read_text(''{secret}'')')",
        "FROM query_table('state.last')",
        "FROM glob('{root}/**')",
        "SELECT * FROM read_parquet('{root}/state/last/*.parquet')",
        "SELECT * FROM parquet_scan('{root}/state/last/*.parquet')",
        "SELECT * FROM delta_scan('{root}/state/last')",
        "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        "COPY (SELECT 1) TO '{root}/../out.csv'",
        "ATTACH '{root}/../out.db'",
        "CREATE TABLE t AS SELECT 1",
        "INSERT INTO state.last SELECT * FROM state.last",
        "SET memory_limit = '10GB'",
        "PRAGMA database_list",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT 1; SELECT 2",
        "EXPLAIN ANALYZE SELECT 1",
        "",
        "SELEC 1",
        "SELECT nothing FROM state.last",
        "SELECT * FROM state.alarm",
        "SELECT * FROM tasks",
        "SELECT getenv('HOME')",
        "SELECT current_setting('nothing')",
        "SELECT current_setting('allowed_paths') FROM state.last",
        "SELECT * FROM pg_catalog.pg_settings",
        "SELECT sql FROM duckdb_views, state.last",
        "SELECT * FROM information_schema.tables",
        'SELECT v.* FROM "state.last@" v, (SELECT 1 FROM state.last LIMIT 1)',
        "SELECT * FROM memory.state.last",
        "WITH a AS (SELECT 1) SELECT * FROM b",
    ],
)
def test_what_it_cannot_get_at(client: FlaskClient, config: Config, sql: str) -> None:
    root = config.root.replace("'", "''")
    response = client.post("/sql", json={"sql": sql.format(root=root, secret=f"{root}/../secret.csv")})
    assert problem(response, 400, "bad-sql")
    assert SECRET not in response.text
    assert not list(Path(config.root).parent.glob("out.*"))


def test_one_that_takes_too_long_or_too_much_is_ended_and_the_next_is_answered(config: Config) -> None:
    short = config.model_copy(update={"api": config.api.model_copy(update={"max_time": 10_000})})
    app = create_app(short)
    client, process = app.test_client(), app.extensions["statehouse"].sql
    try:
        endless = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
        began = time.monotonic()
        problem(client.post("/sql", json={"sql": endless}), 503, "too-slow")
        assert time.monotonic() - began < 60
        wide = "SELECT list(a.range) OVER () AS x FROM range(100000000) a"
        assert client.post("/sql", json={"sql": wide}).status_code in (400, 503)
        assert asked(client, "SELECT 1 AS one")["rows"] == [{"one": 1}]
        os.kill(process._process.pid, 9)
        process._process.wait()
        assert asked(client, "SELECT 1 AS one")["rows"] == [{"one": 1}], "whoever ended it"
    finally:
        app.extensions["statehouse"].stop()
    assert process._process is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT len([range(1000000) FOR x IN range(1000)])",
        "SELECT len(range(300000000))",
        "SELECT repeat('x', 1500000000)",
        "SELECT lpad('x', 1500000000, 'y')",
        "SELECT count(*) FROM (SELECT repeat('x', 1000000) AS t FROM range(3000)) WHERE t > 'a' GROUP BY t || 'b'",
    ],
)
def test_memory_is_bounded_whatever_takes_it(client: FlaskClient, sql: str) -> None:
    """DuckDB counts what it sorts and groups by, and no lists and texts."""
    process = client.application.extensions["statehouse"].sql
    asked(client, "SELECT 1")
    pid, most, done = process._process.pid, 0, threading.Event()

    def look() -> None:
        nonlocal most
        with suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            most = max(most, int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10)

    def look_again() -> None:
        while not done.wait(0.02):
            look()

    look()  # a statement may be refused before the thread has looked once
    looks = threading.Thread(target=look_again)
    looks.start()
    response = client.post("/sql", json={"sql": sql})
    done.set()
    looks.join()
    assert response.status_code == 200 or "more memory" in problem(response, 400, "bad-sql")["detail"]
    assert 0 < most < 2000, "MiB"
    assert asked(client, "SELECT 1 AS one")["rows"] == [{"one": 1}]


def test_names_count_where_each_row_has_them(client: FlaskClient) -> None:
    name = "x" * 15_000
    wide = f'SELECT {", ".join(["t.*"] * 20)} FROM (SELECT 1::TINYINT AS "{name}" FROM range(2000)) t'
    for kind in ("application/json", "application/x-ndjson"):
        answer = client.post("/sql", json={"sql": wide, "limit": 2000}, headers={"Accept": kind})
        assert len(answer.data) < 9_000_000 and answer.status_code == (200 if kind == "application/json" else 413)
    same = asked(client, "SELECT " + ", ".join(["1 AS a"] * 2000))  # each has a name of its own, at once
    assert list(same["rows"][0])[:3] == ["a", "a_2", "a_3"] and len(same["rows"][0]) == 2000
    assert list(asked(client, "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a")["rows"][0]) == ["a", "a_2", "a_2_2", "a_3"]


def test_what_cannot_be_written_is_said_and_the_process_stays(client: FlaskClient) -> None:
    process = client.application.extensions["statehouse"].sql
    asked(client, "SELECT 1")
    before = process._process.pid
    for sql in ("SELECT MAP {[1]: 2} AS v", "SELECT '1'::VARIANT AS v"):
        for kind in ("application/json", "application/x-ndjson", "text/csv"):
            detail = problem(client.post("/sql", json={"sql": sql}, headers={"Accept": kind}), 400, "bad-sql")["detail"]
            assert "memory" not in detail
    assert process._process.pid == before


def test_it_ends_with_the_service(config: Config, tmp_path: Path) -> None:
    """Also where others wait for their turn."""
    app = create_app(config)
    process = app.extensions["statehouse"].sql
    endless = {"sql": "SELECT count(*) FROM range(1000000000000) a(i) WHERE i % 7 = 3"}
    threads = [threading.Thread(target=app.test_client().post, args=("/sql",), kwargs={"json": endless}) for _ in "abc"]
    for thread in threads:
        thread.start()
    eventually(lambda: process._process)
    app.extensions["statehouse"].stop()
    for thread in threads:
        thread.join()
    assert process._process is None


@pytest.mark.parametrize("seconds", [0.1, 1], ids=["while it starts", "amid a statement"])
def test_it_ends_with_who_asks_also_where_that_is_killed(seconds: float) -> None:
    program = """
import os, sys, threading
from api.engine.deadline import Deadline
from api.reads.sql import SqlProcess
from api.reads.sql_process import Statement
process = SqlProcess()
print(process._running().pid, flush=True)
process.ask(Statement("SELECT count(*) FROM range(1000000000000) a(i) WHERE i % 7 = 3", {}, 1, 1000), Deadline(600, lambda: False))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as killed:
        child = int(killed.stdout.readline())
        time.sleep(seconds)
        killed.kill()
    eventually(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])


def test_statements_wait_for_each_other_and_a_version_stays(client: FlaskClient, config: Config) -> None:
    answers: list[dict] = []
    threads = [
        threading.Thread(target=lambda: answers.append(asked(client, "SELECT count(*) AS n FROM state.last")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a["rows"] for a in answers] == [[{"n": 3000}]] * 8


def test_a_file_that_is_gone_is_an_error_and_no_crash(tmp_path: Path) -> None:
    config = configured(tmp_path)
    State(config, "last").write(3, {"key": "a", "value": 1.0})
    path = table(config, "state", "last")
    for file in Path(path).glob("*.parquet"):
        file.unlink()
    answer = sql_process.answer(sql_process.Statement("SELECT * FROM state.last", {"state.last": path}, 10, 1000))
    assert isinstance(answer, sql_process.Failure)
