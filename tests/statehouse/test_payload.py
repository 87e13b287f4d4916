"""What a payload means: the decoder against an oracle, and against RFC 8259's own test files."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.decoder import Decoder
from statehouse.payload import DEEPEST, Field, Refused, canonical, convert, read
from statehouse.records import RecordDecoder, Target
from statehouse.types import parse_type
from tests.support.depth import sized
from tests.support.payloads import (
    SUITE,
    Raw,
    ddl,
    draw_payload,
    draw_schema,
    draw_type,
    draw_value,
    expected,
    wrapped,
    write,
)

SCHEMAS = sized(50, 2000)  # with a hundred payloads each


def fields(schema):
    return tuple(Field(name, parse_type(ddl(kind))) for name, kind in schema)


def same(left, right):
    """Equal, also where a double is negative zero."""
    if isinstance(left, float):
        return isinstance(right, float) and left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(v, right[n]) for n, v in left.items())
    return type(left) is type(right) and left == right


def plain(value, kind):
    """A value that Arrow gives as the oracle has it."""
    if value is None:
        return None
    if not isinstance(kind, str):
        name, inner = kind
        if name == "ARRAY":
            return [plain(v, inner) for v in value]
        if name == "MAP":
            return {n: plain(v, inner) for n, v in value}
        return {n: plain(value[n], k) for n, k in inner}
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_the_decoder_is_the_oracle(seed):
    dice = random.Random(seed)
    schema = draw_schema(dice)
    drawn = [draw_payload(dice, schema) for _ in range(100)]
    decoder, many = Decoder(fields(schema)), dice.choice((1, 100))  # alone each is read in the way of its own column
    rows, reasons = [], []
    for first in range(0, len(drawn), many):
        columns, some = decoder.decode([write(payload) for payload in drawn[first : first + many]])
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
        reasons += some
    for payload, row, reason in zip(drawn, rows, reasons, strict=True):
        right = expected(payload, schema)
        assert (reason is None) == (right is not None), (write(payload), reason, right)
        if right is not None:
            read_row = {name: plain(value, kind) for (name, kind), value in zip(schema, row, strict=True)}
            assert same(read_row, right), (write(payload), read_row, right)
        else:
            assert set(row) == {None} and any(reason.startswith(name) for name, _ in schema), reason


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_what_is_canonical_means_the_same(seed):
    """A set's value is kept as text, and read again by the engines: reading it here changes nothing."""
    dice = random.Random(seed)
    for _ in range(100):
        drawn = draw_type(dice)
        kind, value = parse_type(ddl(drawn)), draw_value(dice, drawn)
        try:
            first = convert(read(write(value)), kind, "value")
        except Refused:
            continue
        assert same(convert(read(msgspec.json.encode(canonical(first, kind))), kind, "value"), first)


@pytest.mark.skipif(not SUITE.is_dir(), reason="the suite is not beside the checkout")
def test_the_json_suite():
    from statehouse.records import RecordDecoder

    kinds = {"s": "STRING", "n": "DOUBLE", "a": "ARRAY<STRING>"}
    decoder = RecordDecoder(tuple(Field(name, parse_type(kind)) for name, kind in kinds.items()))
    files = sorted(SUITE.glob("*.json"))
    assert len(files) == 318
    for file in files:
        values = wrapped(file.read_bytes())
        batch = decoder.decode([None] * len(values), [None] * len(values), [None] * len(values), values)
        alone, text, unknown, *typed = batch.column("_reason").to_pylist()
        if file.name.startswith("y_"):
            assert text is unknown is None, (file.name, text)
            assert alone is None or "not a JSON object" in alone or "expected" in alone, (file.name, alone)
            assert all(reason is None or "expected" in reason for reason in typed), (file.name, typed)
        elif file.name.startswith("n_"):
            assert alone is not None and text is not None, file.name
            # What stands beside a brace that closes too early is another object: n_structure_object_with_trailing_garbage
            assert unknown is not None and None not in typed, file.name
        else:
            assert (text is None) == (unknown is None), (file.name, text, unknown)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('{"q": [{"q": "1"}]}', 'q[0].q: found "1", expected INT'),
        ('{"n": 1e1000000}', "n: found 1e1000000, expected DECIMAL(38, 2)"),
        ('{"n": NaN}', "not JSON"),
        ('{"t": "12:00"}', 't: found "12:00", expected a time such as 2026-01-31T12:00:00Z (TIMESTAMP)'),
        ('{"t": "9999-12-31T23:59:59-01:00"}', "t: found a time outside the years 1 to 9999"),
        ('{"t": 1714557600000}', "t: found a time outside the years 1 to 9999"),
        ('{"s": "lone\\ud83d"}', "not JSON: found half of a character, \\ud83d"),
        ('{"s": 1,}', "not JSON: trailing comma in object (byte 8)"),
        ('{"x": ' + "[" * 300 + "]" * 300 + "}", f"nested more than {DEEPEST} levels deep"),
        ('{"x": ' + "[" * 100_000, f"nested more than {DEEPEST} levels deep"),
        ('{"s": "a"} {"s": "b"}', "not JSON: found more after the object"),
    ],
)
def test_why_a_payload_is_refused(payload, reason):
    kinds = {"s": "STRING", "n": "DECIMAL(38,2)", "t": "TIMESTAMP", "q": "ARRAY<STRUCT<q: INT>>"}
    decoder = Decoder(tuple(Field(name, parse_type(kind)) for name, kind in kinds.items()))
    (found,) = decoder.decode([payload])[1]
    assert found is not None and found.startswith(reason), found


def test_of_equal_names_the_last_one_counts():
    kinds = {"n": "INT", "m": "MAP<STRING, INT>", "o": "STRUCT<a: DATE>", "s": "STRING"}
    decoder = Decoder(tuple(Field(name, parse_type(kind)) for name, kind in kinds.items()))
    text = '{"n": "x", "n": 2, "m": {"a": 1, "a": 3}, "o": {"a": 1, "a": "2024-01-01"}, "s": {"b": 1, "b": 2.50}}'
    columns, reasons = decoder.decode([text])
    assert reasons == [None]
    assert [c[0].as_py() for c in columns] == [2, [("a", 3)], {"a": dt.date(2024, 1, 1)}, '{"b":2.50}']


@pytest.mark.parametrize("name", ["ü", "é", "a-b", "select", "A"])
def test_a_name_is_found_however_it_is_written(name):
    kind = parse_type(f"STRUCT<`{name}`: INT>")
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in name)
    texts = [
        f'{{"{name}": {{"{name}": 1}}}}',
        f'{{"{escaped}": {{"{escaped}": 1}}}}',
        f'{{"{name}x": {{"{name}": 1}}}}',
    ]
    (column,), reasons = Decoder((Field(name, kind),)).decode(texts)
    assert reasons == [None] * 3 and column.to_pylist() == [{name: 1}, {name: 1}, None]


def test_deep_text_in_brackets_is_not_nested():
    decoder = Decoder((Field("s", parse_type("STRING")),))
    columns, reasons = decoder.decode(['{"s": "%s"}' % ("[" * 1000), '{"x": [%s0]}' % ("[],{}," * 300)])
    assert reasons == [None, None] and columns[0][0].as_py() == "[" * 1000


@given(st.integers(), st.sampled_from(["DECIMAL(38,0)", "DECIMAL(38,38)", "DECIMAL(1,1)"]))
def test_a_number_is_read_at_the_size_of_its_text(exponent, kind):
    """An exponent of any size is taken or refused, and never written out."""
    (column,), (reason,) = Decoder((Field("n", parse_type(kind)),)).decode(
        [f'{{"n": 0.1e{exponent % 10**12 - 5 * 10**11}}}']
    )
    assert reason is not None or column[0].as_py() in (Decimal(0), *(Decimal(10) ** n for n in range(-38, 38)))


def test_raw_numbers_are_written_as_they_are():
    assert write({"a": [Raw("1.50"), "x"]}) == '{"a": [1.50,"x"]}'


@pytest.mark.parametrize(
    ("composite", "key", "taken"),
    [
        (False, "2026-01-01T00:00:00Z", True),
        (False, "2026-01-01T00%3A00%3A00Z", False),
        (True, "2026-01-01T00%3A00%3A00Z", True),
        (True, "2026-01-01T00%3A00%3A00Z/x", False),
    ],
)
def test_a_key_that_is_a_list_of_one_is_percent_encoded_too(composite, key, taken):
    decoder = RecordDecoder((), (Target("s", (parse_type("TIMESTAMP"),), composite=composite),))
    (row,) = decoder.decode([b"purge"], [b"s"], [key], [None]).to_pylist()
    assert (row["_reason"] is None) == taken
