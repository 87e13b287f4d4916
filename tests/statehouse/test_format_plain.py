"""Text, CSV and bytes as columns: each cell against the JSON that a producer would have written of it."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.decoder import Decoder
from statehouse.formats.decoders import decoder_of
from statehouse.formats.format import Format
from statehouse.payload import Field
from statehouse.types import parse_type
from tests.support.payloads import SCALARS, TEXTS

KINDS = [kind if kind != "DECIMAL" else "DECIMAL(10, 2)" for kind in dict.fromkeys(SCALARS)]
KINDS += ["ARRAY<INT>", "MAP<STRING, DOUBLE>", "STRUCT<`a`: INT>"]
CELLS = st.one_of(
    st.sampled_from([*TEXTS, "007", "+5", " 7 ", "1e3", ".5", "TRUE", "false ", "[1, 2]", '{"a": 1}', "9" * 60, "2026-05-01"]),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.text(),
)  # fmt: skip
SETTINGS = {"string": Format("string"), "csv": Format("csv"), "semicolon": Format("csv", ";"), "bytes": Format("bytes")}


def decode(format, fields, payloads):
    found, reasons = decoder_of(tuple(fields), SETTINGS[format]).decode(payloads, [None] * len(payloads))
    return list(zip(*(column.to_pylist() for column in found), strict=True)), reasons


def as_json(text, kind):
    """The JSON that a producer would write of a cell: bare where it is a number, a boolean or nested, else text."""
    bare, name = text.strip(), re.match("[A-Z]+", kind)[0]
    if not text:
        return "null"
    if name in ("TINYINT", "SMALLINT", "INT", "BIGINT") and re.fullmatch("[-+]?[0-9]{1,39}", bare):
        return str(int(bare))
    if name in ("FLOAT", "DOUBLE", "DECIMAL") and re.fullmatch(
        r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", bare
    ):
        sign, digits = ("-", bare[1:]) if bare[0] == "-" else ("", bare.lstrip("+"))
        whole, _, rest = digits.partition(".")
        if "e" in whole.lower():
            whole, rest = re.split("[eE]", whole)[0], "0e" + re.split("[eE]", whole)[1]
        return f"{sign}{whole.lstrip('0') or '0'}.{rest if rest[:1].isdigit() else '0' + rest}"
    if name == "BOOLEAN" and bare.lower() in ("true", "false"):
        return bare.lower()
    if name in ("ARRAY", "MAP", "STRUCT") and bare[:1] in ("[", "{"):
        return bare
    return json.dumps(text)


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), CELLS), min_size=1, max_size=4), st.sampled_from(["csv", "semicolon"])
)
def test_a_cell_is_what_its_json_is(cells, format):
    fields = [Field(f"c{number}", parse_type(kind)) for number, (kind, _) in enumerate(cells)]
    out = io.StringIO()
    texts = [text.replace("\0", "0") for _, text in cells]
    csv.writer(out, delimiter=SETTINGS[format].delimiter, quoting=csv.QUOTE_ALL).writerow(texts)
    try:
        payload = out.getvalue().encode()
    except UnicodeEncodeError:  # half of a character
        return
    rows, (reason,) = decode(format, fields, [payload])
    pairs = [
        f'"c{number}": {as_json(text, kind)}' for number, ((kind, _), text) in enumerate(zip(cells, texts, strict=True))
    ]
    right, (why,) = Decoder(fields).decode(["{" + ", ".join(pairs) + "}"])
    assert (reason is None) == (why is None), (payload, reason, why)
    assert repr(rows[0]) == repr(tuple(column.to_pylist()[0] for column in right))


@given(st.binary())
def test_any_bytes_are_a_row_or_have_a_reason(payload):
    for format, kind in (("string", "STRING"), ("string", "DOUBLE"), ("csv", "INT"), ("bytes", "BINARY")):
        rows, (reason,) = decode(format, [Field("value", parse_type(kind))], [payload])
        assert len(rows) == 1 and (reason is None or rows == [(None,)])
    assert decode("bytes", [Field("value", parse_type("BINARY"))], [payload]) == ([(payload,)], [None])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"1,2", "found 2 cells, expected 3: a,b,c"),
        (b"1,2,3\n4,5,6", "found 2 lines, expected one"),
        (b"", "found 0 lines, expected one"),
        (b'1,2,"3', "not CSV: unexpected end of data"),
        (b"\xff,1,2", "not UTF-8"),
        (b"x,1.5,no", 'a: found "x", expected INT; c: found "no", expected BOOLEAN'),
    ],
)
def test_a_line_that_is_none_says_so(payload, reason):
    fields = [Field("a", parse_type("INT")), Field("b", parse_type("DOUBLE")), Field("c", parse_type("BOOLEAN"))]
    assert decode("csv", fields, [payload]) == ([(None, None, None)], [reason])


def test_one_line_has_a_row():
    fields = [
        Field("a", parse_type("INT"), True),
        Field("b", parse_type("STRING")),
        Field("c", parse_type("ARRAY<INT>")),
    ]
    payloads = [b'1,"x, ""y""","[1, null]"', b"2,,\r\n", b",x,", None]
    rows, reasons = decode("csv", fields, payloads)
    assert rows[:2] == [(1, 'x, "y"', [1, None]), (2, None, None)]
    assert reasons == [None, None, "a: found nothing, expected INT NOT NULL", None]


def test_a_text_is_one_value():
    assert decode("string", [Field("value", parse_type("STRING"))], [b"", b" x"]) == ([("",), (" x",)], [None, None])
    assert decode("string", [Field("level", parse_type("DOUBLE"))], [b"1.5", b""]) == ([(1.5,), (None,)], [None, None])
