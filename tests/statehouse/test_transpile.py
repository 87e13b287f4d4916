"""The exceptions of the transpilation, each run in DuckDB, with what Spark gives."""

from __future__ import annotations

import duckdb
import pytest

from statehouse.transpile import to_duckdb

LEFT = "map('p', named_struct('v', 'a', 'o', 1), 'q', named_struct('v', CAST(NULL AS STRING), 'o', 5))"
RIGHT = "map('p', named_struct('v', 'z', 'o', 9), 's', named_struct('v', 'b', 'o', 2))"
NEWER = "(k, x, y) -> CASE WHEN y.o IS NULL OR x.o > y.o THEN x ELSE y END"
CASES = {
    f"map_keys(map_filter({LEFT}, (k, r) -> r.o > 2))": ["q"],
    f"map_keys(map_filter({LEFT}, (k, r) -> k = 'p' OR r.v IS NULL))": ["p", "q"],
    f"array_sort(map_keys(map_zip_with({LEFT}, {RIGHT}, {NEWER})))": ["p", "q", "s"],
    f"array_sort(transform(map_values(map_zip_with({LEFT}, {RIGHT}, {NEWER})), r -> r.o))": [2, 5, 9],
    f"exists(map_values({LEFT}), r -> r.v = 'a')": True,
    f"exists(map_values({RIGHT}), r -> r.v = 'q')": False,
    "try_url_decode('a%20b')": "a b",
    "try_url_decode(split('a%2Fb/c', '/')[0])": "a/b",
    "unix_micros(timestamp_millis(1700000000123))": 1_700_000_000_123_000,
    "unix_micros(timestamp_micros(-1700000000123456))": -1_700_000_000_123_456,
    "from_json('[\"a\", \"b\"]', 'ARRAY<STRING>')": ["a", "b"],
    "from_json('rubbish', 'a INT, b STRING').a": None,
    "1 DIV 0": None,
}


@pytest.mark.parametrize("sql", CASES)
def test_duckdb_gives_what_spark_gives(spark, sql):
    assert spark.sql(f"SELECT {sql}").collect()[0][0] == CASES[sql]
    assert duckdb.sql(f"SELECT {to_duckdb(sql)}").fetchone()[0] == CASES[sql]


def test_max_by_keeps_a_null_value(spark):
    rows = "(VALUES (1, 'a'), (2, CAST(NULL AS STRING))) AS t(o, v)"
    sql = f"SELECT max_by(v, o), min_by(v, o) FROM {rows}"
    assert tuple(spark.sql(sql).collect()[0]) == duckdb.sql(to_duckdb(sql)).fetchone() == (None, "a")
