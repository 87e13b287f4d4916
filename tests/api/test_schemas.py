"""The schemas say what the API does: what they allow is taken, and what they do not allow is not."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, ValidationError, validators

from api.engine import exact_json, keys
from api.engine.types import canonical, conforming, whole
from api.http.openapi import schemas


def _matches(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[ValidationError]:
    """JSON Schema's ``$`` is the end; Python's search takes it for the place before a last line feed, too. All of ours are whole."""
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


Exact = validators.extend(Draft202012Validator, {"pattern": _matches})
KEYS = ["TINYINT", "INT", "BIGINT", "DECIMAL(5,2)", "DECIMAL(2,2)", "DECIMAL(38,0)", "BOOLEAN", "DATE", "TIMESTAMP"]
SMALL = st.text("0123456789-+.:TZ _eEtrufals", max_size=12)


def taken(text: str, kind: str) -> bool:
    try:
        canonical(text, kind)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", KEYS)
def test_the_pattern_of_a_key_is_what_is_taken(kind: str) -> None:
    pattern = re.compile(schemas.whole(schemas.key_pattern(kind) or ""), re.ASCII)

    @given(st.from_regex(pattern).map(lambda text: text.removesuffix("\n")))
    def allowed(text: str) -> None:
        assert taken(text, kind)

    @given(
        st.one_of(
            SMALL, st.integers(-300, 300).map(str), st.dates().map(str), st.decimals(-2000, 2000, places=3).map(str)
        )
    )
    @example("0" * 40 + "1")
    @example("-128")
    @example("-129")
    @example("128")
    @example("2023-02-29")
    @example("0000-01-01")
    @example("1900-02-29")
    @example("2000-02-29T24:00")
    def others(text: str) -> None:
        assert taken(text, kind) == bool(pattern.fullmatch(text))

    allowed()
    others()


@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=3), st.text("~._-aé20/", max_size=9))
@example(["", ""], "~~")
@example(["\U0010ffff", "~"], ".~d800~")
def test_a_cursor_is_what_its_pattern_says(parts: list[str], other: str) -> None:
    pattern = re.compile(schemas.whole(schemas.cursor_pattern(["STRING"] * len(parts))))
    made = keys.cursor(parts)
    assert keys.of_cursor(made, len(parts)) == parts and pattern.fullmatch(made)
    assert re.fullmatch("[A-Za-z0-9._~-]*", made), "nothing to percent-encode"
    try:
        keys.of_cursor(other, len(parts))
    except keys.Problem:
        assert not pattern.fullmatch(other) or not other
    else:
        assert pattern.fullmatch(other)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "INT",
            st.one_of(
                st.integers(), st.floats(-9, 9).map(lambda f: Decimal(repr(f))), st.sampled_from([2**31, -(2**31)])
            ),
        ),
        ("DECIMAL(5,2)", st.one_of(st.integers(-2000, 2000), st.decimals(-2000, 2000, places=3))),
        ("DECIMAL(38,2)", st.integers(-(10**40), 10**40)),
        (
            "DOUBLE",
            st.one_of(st.integers(-(10**310), 10**310), st.decimals(allow_nan=False, allow_infinity=False, places=3)),
        ),
        ("BOOLEAN", st.booleans()),
        ("DATE", st.one_of(st.dates().map(str), SMALL)),
        (
            "TIMESTAMP",
            st.one_of(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)).map(dt.datetime.isoformat), SMALL),
        ),
        ("BINARY", st.text("Aa0+/=", max_size=9)),
        ("STRING", st.text()),
        ("ARRAY<INT>", st.lists(st.integers())),
        ("MAP<STRING, INT>", st.dictionaries(st.text(), st.integers())),
        (
            "STRUCT<x: INT, Yy: ARRAY<STRUCT<z: BOOLEAN>>>",
            st.fixed_dictionaries(
                {},
                optional={
                    "x": st.none() | st.integers(),
                    "Yy": st.none() | st.lists(st.none() | st.fixed_dictionaries({"z": st.booleans() | st.text()})),
                    "yy": st.none(),
                },
            ),
        ),
    ],
)
def test_the_schema_of_a_value_is_what_is_taken(kind: str, values: st.SearchStrategy) -> None:
    schema = {**schemas.value(kind), "components": {"schemas": schemas.COMPONENTS}}
    # As a Decimal: a double has not all of the digits that the API looks at.
    exactly = {n: Decimal(repr(v)) if isinstance(v, float) else v for n, v in schema.items()}
    validator = Exact(exactly)

    @given(
        st.one_of(values, st.none(), st.text(max_size=3), st.integers(), st.booleans(), st.lists(st.none(), max_size=1))
    )
    def agree(value: object) -> None:
        if value is None:
            return  # what null means is the reducer's, see api.http.writes
        try:
            conforming(value, kind)
        except ValueError:
            right = False
        else:
            right = True
        with decimal.localcontext(decimal.Context(prec=100)):
            assert validator.is_valid(whole(value)) == right  # the validator does not know a Decimal as an integer

    agree()


@pytest.mark.parametrize(
    "kind",
    [
        "STRING",
        "TINYINT",
        "INT",
        "BIGINT",
        "DECIMAL(12,2)",
        "DECIMAL(4,4)",
        "DECIMAL(38,0)",
        "DOUBLE",
        "BOOLEAN",
        "DATE",
        "TIMESTAMP",
    ],
)
def test_the_schema_of_a_key_in_a_line_is_what_is_taken(kind: str) -> None:
    validator = Draft202012Validator(schemas.in_bulk(kind))

    @given(
        st.one_of(
            st.integers(-1000, 3000),
            st.integers(),
            st.text("0123456789.-+truefalse:TZ", max_size=12),
            st.from_regex(r"[-+]?[01]{0,2}(\.[01]{0,2})?(e[-+]?[019]{0,3})?", fullmatch=True),
            st.dates().map(str),
        )
    )
    def agree(part: object) -> None:
        try:
            canonical(str(part), kind)
        except ValueError:
            right = False
        else:
            right = True
        if re.search(r"e\+?0*[1-9]\d\d", str(part)):  # it may be infinite or not, which a pattern cannot say
            assert right or not validator.is_valid(part)
        else:
            assert validator.is_valid(part) == right

    agree()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (
            "MAP<STRING, STRUCT<value: INT, event_time: TIMESTAMP>>",
            {"a": {"value": None, "event_time": dt.datetime(1, 1, 1)}},
        ),
        ("ARRAY<DECIMAL(5,2)>", [Decimal("1.50"), None]),
        ("DATE", dt.date(1, 1, 1)),
        ("BINARY", b"\0"),
        ("DOUBLE", float("nan")),
        ("BOOLEAN", True),
        ("BIGINT", 2**63 - 1),
    ],
)
def test_answers_are_as_their_schemas_say(kind: str, value: object) -> None:
    shown = exact_json.loads(exact_json.dumps(value))
    assert Draft202012Validator(schemas.shown(kind)).is_valid(shown)
    assert Draft202012Validator(schemas.shown(kind)).is_valid(None)
    assert not Draft202012Validator(schemas.shown(kind)).is_valid({"a": 1} if isinstance(shown, list) else [1])
