"""What is said to mean the same in both engines does, over values at the edges of every type."""

from __future__ import annotations

import json
import logging
import math
import re
from decimal import Decimal

import pyarrow as pa
import pytest

from api.engine import duck
from api.engine.fold import GUARD
from jobs.spark.expressions import ddl
from jobs.spark.guard import TRY, install
from statehouse.alike import difference, kind_of, nulled
from statehouse.alike_reducers import own_given, own_parts
from statehouse.config.models import Own
from statehouse.decoder import Decoder
from statehouse.kinds import Differs
from statehouse.payload import Field
from statehouse.spark_sql import within_years
from statehouse.transpile import duckdb_type, to_duckdb
from statehouse.types import parse_type
from statehouse.values import safe
from tests.support.expressions import COLUMNS, EXPRESSIONS, rows

AT_ONCE = 25  # expressions of a query
# Of each kind of difference that is known, one; more are in the list.
DIFFERENT = (
    "CAST(dec AS INT)",
    "CAST(d AS INT)",
    "CAST(s AS INT)",
    "CAST(s AS TIMESTAMP)",
    "CAST(ts AS STRING)",
    "concat(s, '-', ts)",
    "concat(s, d)",
    "dayofweek(ts)",
    "from_utc_timestamp(ts, 'Europe/Berlin')",
    "nvl(i, 'none')",
    r"s LIKE 'a\\_%'",
    "substring(s, 0, 2)",
    "arr[i]",
    "element_at(arr, i)",
    "transform(arr, (x, i) -> x + i)",
    "array_distinct(arr)",
    "date_format(ts, 'SSS')",
    "regexp_replace(s, '(a)', '$1$1')",
    "t + 1",
    "2147483647 + 1",
    "abs(i)",
    "dec * dec",
    "dec * i",
    "CAST(d AS BIGINT)",
    "hash(s)",
    "sequence(i, 3)",
    "repeat(s, i)",
    "CAST(bin AS STRING)",
    "s = 1",
    "f = 1234567.9",
    "sqrt(d)",
    "rand()",
    "i % -1",
    "i % sm",
    "CAST(dec38 AS STRING)",
    "lower(upper(s))",
    "array_size(arr)",
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    decoder = Decoder([Field(name, parse_type(kind)) for name, kind in COLUMNS.items()])
    columns, reasons = decoder.decode([json.dumps(row) for row in rows()])
    assert not any(reasons)
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def plain(value: object) -> object:
    """A value so that NaN is itself and -0.0 is not 0.0, and 1.50 is 1.5."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, Decimal):
        return value.normalize() if value else Decimal(0)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def values(column: pa.ChunkedArray) -> list:
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    return [plain(value) for value in column.to_pylist()]


def test_what_is_known_to_differ_is_not_let_pass():
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    assert [expression for expression in DIFFERENT if difference(expression, COLUMNS) is None] == []


def test_what_is_let_pass_is_the_same_in_both_engines(spark, table):
    passed = {}
    for expression in EXPRESSIONS:
        try:
            passed[expression] = kind_of(expression, COLUMNS)
        except Differs:
            continue
        except ValueError:  # no expression
            continue
    assert len(passed) > 250
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("edges")
    install(spark)
    found = spark.sql(f"SELECT {', '.join(f'({e}) AS x{n}' for n, e in enumerate(passed))} FROM edges").schema
    kinds = {e: ddl(field.dataType) for e, field in zip(passed, found, strict=True)}
    db = duck.connect()
    db.register("given", table)
    casts = ", ".join(f"CAST({name} AS {duckdb_type(kind)}) AS {name}" for name, kind in COLUMNS.items())
    db.execute(f"CREATE TABLE edges AS SELECT {casts} FROM given")

    def computed(guard: str, some: list[str]) -> str:
        """As a fold has them: of the types that Spark finds, and null outside the years."""
        given = [safe(nulled(e, COLUMNS)) for e in some]
        types = [kinds[e] if kinds[e] != "VOID" else "STRING" for e in some]
        made = ", ".join(
            f"CAST({guard.format(e)} AS {t}) AS x{n}" for n, (e, t) in enumerate(zip(given, types, strict=True))
        )
        bounded = ", ".join(f"{within_years(f'x{n}', t)} AS x{n}" for n, t in enumerate(types))
        return f"SELECT {bounded} FROM (SELECT {made} FROM edges)"

    wrong = []
    for start in range(0, len(passed), AT_ONCE):
        some = list(passed)[start : start + AT_ONCE]
        ours = spark.sql(computed(TRY, some)).toArrow()
        theirs = db.execute(to_duckdb(computed(GUARD, some))).to_arrow_table()
        for number, expression in enumerate(some):
            for row, left, right in zip(rows(), values(ours[number]), values(theirs[number]), strict=True):
                if left != right:
                    given = {n: v for n, v in row.items() if re.search(rf"\b{n}\b", expression)}
                    wrong.append((expression, given, left, right))
                    break
    spark.conf.unset("spark.sql.subexpressionElimination.enabled")
    assert not wrong, "\n".join(map(str, wrong))


# Aggregates of a reducer of one's own, by the types of the values that they are of, and whether both engines have them.
NUMBERS = ("sm", "i", "b", "d", "dec")
AGGREGATES = {
    **{f"{name}(value)": (*NUMBERS, "s", "dt", "ts") for name in ("min", "max", "count")},
    "max_by(value, _order)": (*NUMBERS, "s", "bin", "arr"),
    "min_by(value, _order)": ("i", "s"),
    "max(value) - min(value)": ("d",),
    "sum(value)": ("sm", "i", "b", "dec"),
    "sum(value * 2)": ("i", "b"),
    "count_if(value > 0)": NUMBERS,
    "bool_or(value > 0) AND bool_and(value < 100)": NUMBERS,
}


def test_a_reducers_aggregates_are_the_same_in_both_engines(spark, table):
    order = pa.array([Decimal(n) for n in range(len(table))], pa.decimal128(38, 0))
    seen = table.append_column("_order", order)
    wrong, db = [], duck.connect()
    install(spark)
    for column, kind in COLUMNS.items():
        given = [aggregate for aggregate, of in AGGREGATES.items() if column in of]
        if not given:
            continue
        values_of = seen.select([column, "_order"]).rename_columns(["value", "_order"])
        spark.createDataFrame(values_of).coalesce(1).createOrReplaceTempView("given")
        db.register("given_", values_of)
        typed = f"(SELECT CAST(value AS {kind}) AS value, _order FROM given WHERE value IS NOT NULL)"
        schema = spark.sql(f"SELECT {', '.join(f'{a} AS x{n}' for n, a in enumerate(given))} FROM {typed}").schema
        types = [ddl(field.dataType) for field in schema]
        reduce = Own(
            fold={f"x{n}": a for n, a in enumerate(given)},
            combine={f"x{n}": "NULL" for n in range(len(given))},
            result="x0",
        )
        words = dict.fromkeys(given)
        for place, written, made in own_parts(reduce, kind, (*types, types[0])):
            if place[0] == "fold":
                assert not isinstance(made, Differs), (column, written, made)
                words[written] = f"CAST(({made}) AS {types[int(place[1][1:])]})"
        made = ", ".join(f"{text} AS x{n}" for n, text in enumerate(words.values()))
        # Of all rows, of each, and of two beside each other: the edges alone and together.
        query = (
            f"SELECT g, {made} FROM (SELECT *, CAST(_order AS BIGINT) DIV {{}} AS g FROM {typed}) GROUP BY g ORDER BY g"
        )
        for size in (1, 2, len(table)):
            ours = spark.sql(query.format(size)).toArrow()
            theirs = db.execute(to_duckdb(query.format(size)).replace("FROM given ", "FROM given_ ")).to_arrow_table()
            for number, written in enumerate(words, start=1):
                left, right = values(ours[number]), values(theirs[number])
                if left != right:
                    wrong.append((column, written, size, left, right))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(
    "fold",
    [
        "sum(d)",  # in the order of the rows
        "sum(value)",
        "avg(value)",
        "collect_set(value)",
        "count(DISTINCT value)",
        "max_by(value, event_time)",
        "count(value) FILTER (WHERE value > 1)",
        "max(dayofweek(event_time))",
    ],
)
def test_a_reducer_that_is_not_known_to_be_alike_is_not_folded_ahead(fold):
    reduce = Own(fold={"x": fold}, combine={"x": "greatest(a.x, b.x)"}, result="x")
    assert [place for place, _, made in own_parts(reduce, "DOUBLE", ("DOUBLE", "DOUBLE")) if isinstance(made, Differs)]
    with pytest.raises(Differs):
        own_given(reduce, "DOUBLE", ("DOUBLE", "DOUBLE"))
