"""Rows by numbers that they keep, whatever comes and goes."""

from __future__ import annotations

import random

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.replica.overlay import ABSENT, NUMBER, SPARE, Overlay, RowRef, RowRefs, Rows
from api.replica.sorted_version import MANY, SEARCHED
from api.replica.storage import of_table
from statehouse.fold import Rule
from tests.support.lakes import written


def some(values: list[int]) -> dict[str, pa.Array]:
    """Rows of two columns."""
    return {"n": pa.array(values, pa.int64()), "text": pa.array([f"row {value}" for value in values])}


@given(st.lists(st.one_of(st.integers(0, 20), st.sets(st.integers(0, 60)))), st.randoms())
def test_rows_are_found_by_their_numbers(steps, dice):
    """A number: so many more rows; a set: only the rows with these numbers are kept."""
    rows, right = Rows(), {}
    for step in steps:
        if isinstance(step, int):
            right |= {number: dice.randrange(1000) for number in range(rows.end, rows.end + step)}
            rows = rows.added(some([right[number] for number in range(rows.end, rows.end + step)]))
        else:
            before, numbers = rows, list(right)
            values = list(right.values())
            rows, right = rows.kept(np.array([*step, ABSENT])), {n: v for n, v in right.items() if n in step}
            if numbers:
                assert before.take(numbers, ["n"])["n"].to_pylist() == values, "what somebody holds stays as it is"
        assert len(rows) == len(right)
        every = rows.numbered().to_pydict() or {NUMBER: [], "n": []}
        assert list(zip(every[NUMBER], every["n"], strict=True)) == sorted(right.items())
        asked = dice.sample(sorted(right), len(right))
        if asked:
            found = rows.take(asked, ["text", "n"])
            assert list(found) == ["text", "n"]
            assert found["n"].to_pylist() == [right[number] for number in asked]
            assert found["text"].to_pylist() == [f"row {right[number]}" for number in asked]
        for number in asked:
            columns, place = rows.row(number)
            assert columns["n"][place].as_py() == right[number]


def test_rows_that_nobody_refers_to_are_dropped():
    overlay = Overlay()
    for value in range(SPARE // 100 + 10):
        first = overlay.rows.end
        overlay.rows = overlay.rows.added(some([value] * 100))
        overlay.refs["key",] = RowRef(0, False, first)
        overlay.under["other",] = RowRef(0, False, first + 1)
        overlay.refs["gone",] = overlay.refs["other",] = RowRef(0, False, ABSENT)
        overlay.tidy()
        assert len(overlay.rows) <= SPARE + 2 * 4
        for ref in (overlay.refs["key",], overlay.truth(("other",))):
            columns, place = overlay.rows.row(ref.row)
            assert columns["n"][place].as_py() == value


@pytest.mark.parametrize(
    ("spark", "duck"), [("STRING", "VARCHAR"), ("BIGINT", "BIGINT"), ("DECIMAL(9,2)", "DECIMAL(9,2)")]
)
@given(st.sets(st.integers(0, 300)), st.lists(st.integers(0, 300), min_size=MANY))
def test_many_keys_are_where_each_is_by_itself(lake, spark, duck, there, asked):
    """In the version, before its first row, between two, after its last; of keys that Arrow searches for, and of others."""

    def keys(numbers):  # texts of one to four bytes a letter, in DuckDB's order
        text = "CAST(['a', 'é', '€', '😀'][1 + n % 4] || n AS VARCHAR)" if duck == "VARCHAR" else f"CAST(n AS {duck})"
        return duckdb.sql(f"SELECT {text} AS key FROM (SELECT unnest({list(numbers)}::INT[]) AS n)")

    rule = Rule(written(lake).stores["total"], (spark,), "BIGINT")
    version = of_table(keys(there).order("key").to_arrow_table(), rule, {"key": duck})
    wanted = [(value,) for (value,) in keys(asked).fetchall()]
    known = [RowRef(0, False, 7) if number % 5 == 0 else None for number in asked]
    assert version._refs(wanted, known) == [ref or version._ref(key) for key, ref in zip(wanted, known, strict=True)]
    assert any(kind(version.columns["key"].type) for kind in SEARCHED) == (duck != "DECIMAL(9,2)")


def test_refs_are_gone_through_in_the_order_of_their_keys():
    """Against a plain dictionary that is sorted each time, whatever came between."""
    for dice in map(random.Random, range(20)):
        refs, right = RowRefs(), {}
        for number in range(300):
            some = {
                (dice.choice("abc"), dice.randrange(40)): RowRef(number, False, number)
                for _ in range(dice.choice((1, 9)))
            }
            if dice.random() < 0.7:
                refs.update(some)
                right.update(some)
            elif gone := [key for key in some if key in right]:
                del refs[gone[0]], right[gone[0]]
            if dice.random() < 0.2:
                least, most = sorted(dice.sample([("a",), ("b", 7), ("b", 20), ("c",)], 2))
                open_at = dice.random() < 0.5
                wanted = [k for k in sorted(right) if (least < k if open_at else least <= k) and k <= most]
                assert list(refs.irange(least, most, (not open_at, True))) == wanted
        assert refs == right and list(refs.irange()) == sorted(right)
