"""Drawn types and values, and what a payload means, told by an oracle that shares nothing with the code under test.

Drawn by a seeded dice and not by Hypothesis, which takes a hundred times as long for as many.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import random
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext

from tests.support.data import SHARED

BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
NAMES = ("a", "B", "ab", "Ab_1", "ü", "key2", "select", "a-b")
FLOAT_MAX = 3.4028234663852886e38


class Raw(str):
    """A number as it is written in JSON."""


# --- types ----------------------------------------------------------------------------------------------------------------------

SCALARS = (
    "STRING",
    "BOOLEAN",
    *BITS,
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "BINARY",
    "DECIMAL",
    "DECIMAL",
)
COLUMNS = ("k", "Value", "n", "ts", "at", "é")


def draw_type(dice: random.Random, depth: int = 2):
    """The name of a scalar, or (ARRAY or MAP, what is in it), or (STRUCT, its fields)."""
    shape = dice.choice(("ARRAY", "MAP", "STRUCT")) if depth and dice.random() < 0.35 else ""
    if shape == "STRUCT":
        names = dice.sample(NAMES, dice.randint(1, 3))
        return shape, tuple((name, draw_type(dice, depth - 1)) for name in names)
    if shape:
        return shape, draw_type(dice, depth - 1)
    kind = dice.choice(SCALARS)
    if kind != "DECIMAL":
        return kind
    precision = dice.choice((1, 5, 10, 18, 19, 38))
    return f"DECIMAL({precision}, {dice.choice((0, min(2, precision), precision))})"


def draw_schema(dice: random.Random, columns: int = 4):
    """Columns and their types."""
    return [(name, draw_type(dice)) for name in dice.sample(COLUMNS, dice.randint(1, columns))]


def ddl(kind):
    """A drawn type as Spark's DDL."""
    if isinstance(kind, str):
        return kind
    name, inner = kind
    if name == "ARRAY":
        return f"ARRAY<{ddl(inner)}>"
    if name == "MAP":
        return f"MAP<STRING, {ddl(inner)}>"
    return f"STRUCT<{', '.join(f'`{n}`: {ddl(k)}' for n, k in inner)}>"


# --- values, as JSON has them: Python's own, but for numbers that are written in a way of their own ------------------------------

TEXTS = (
    "",
    "a",
    "b",
    "NaN",
    "null",
    "true",
    "1",
    "1.50",
    "\u0000",
    '"',
    "\\",
    "\U0001f600",
    "é",
    "{}",
    " x ",
    "\u2028",
    "\x7f",
    "\ufffd",
    "[1",
)
EDGES = [s * (2**b) + d for b in (7, 8, 15, 16, 31, 32, 53, 63, 64, 127) for s in (1, -1) for d in (-1, 0, 1)]
FRACTIONS = [Raw(t) for t in (
    "-0.0", "-0", "1.50", "1e2", "1E+2", "0e-400000000", "1e400", "-1e400", "1e1000000", "1e-1000000", "0.005", "0.015", "2.5",
    "3.4028235e38", "3.5e38", "1e-400", "123456789012345678901234567890.123456789", "0." + "9" * 50, "1" * 39, "9.99", "99999.995",
    "5e-324", "1.7976931348623157e308", "1.7976931348623159e308", "0.1", "1e22", "1e23",
)]  # fmt: skip
MOMENTS = (
    "0001-01-01T00:00:00", "1582-10-10T00:00:00", "1677-09-21T00:12:43.145224", "1969-12-31T23:59:59.999999", "1970-01-01",
    "2262-04-11T23:47:16.854776", "9999-12-31T23:59:59.999999", "2024-02-29T12:00", "2024-02-30T12:00:00", "12:00", "10:00Z", "z",
    "2024", "2024-05", "2024-5-1", "2024-05-01T24:00:00", "2024-05-01T23:59:60", "2024-05-01T10", "now", "epoch", "0000-01-01",
    "2024-05-01 10:00:00.1234567", "2024-05-01t10:00:00z", "10000-01-01T00:00:00", "+2024-05-01", "2024-05-01T10:00:00 UTC",
)  # fmt: skip
ZONES = ("", "", "", "Z", "Z", "z", "+01:00", "-18:00", "+0530", "+23:59", "+24:00", " Z", "[UTC]")
BLOBS = ("AAE", "AA E=", "-_==", "====", "", "AAE=", "/+8=")


def draw_text(dice: random.Random) -> str:
    if dice.random() < 0.6:
        return dice.choice(TEXTS)
    return "".join(
        chr(dice.choice((dice.randrange(128), dice.randrange(0xD800), 0x1F600))) for _ in range(dice.randrange(6))
    )


def draw_integer(dice: random.Random) -> int:
    near, edge, far = dice.randint(-200, 200), dice.choice(EDGES), dice.randint(-(10**40), 10**40)
    return dice.choice((near, near, edge, far))


def draw_fraction(dice: random.Random) -> Raw:
    written = Raw(f"{dice.randint(-(10**6), 10**6)}.{dice.randrange(10 ** dice.randint(1, 6))}")
    double = Raw(repr(dice.uniform(-1, 1) * 10 ** dice.randint(-30, 30)))
    return dice.choice((written, double, dice.choice(FRACTIONS)))


def draw_moment(dice: random.Random) -> str:
    if dice.random() < 0.5:
        return dice.choice(MOMENTS) + dice.choice(ZONES)
    micros = dice.choice((dice.randrange(315_537_897_600), dice.randrange(1_600_000_000 + 62_135_596_800)))
    moment = dt.datetime(1, 1, 1) + dt.timedelta(seconds=micros, microseconds=dice.choice((0, 1, 999_999, 500_000)))
    return moment.isoformat() + dice.choice(ZONES)


def draw_anything(dice: random.Random, depth: int = 2):
    if depth and dice.random() < 0.2:
        if dice.random() < 0.5:
            return [draw_anything(dice, depth - 1) for _ in range(dice.randrange(3))]
        return {draw_text(dice): draw_anything(dice, depth - 1) for _ in range(dice.randrange(3))}
    draws = (
        draw_integer,
        draw_fraction,
        draw_text,
        draw_moment,
        lambda d: d.choice(BLOBS),
        lambda d: d.choice((None, True, False)),
    )
    return dice.choice(draws)(dice)


def draw_value(dice: random.Random, kind, odd: float = 0.1):
    """Mostly what a type takes, at its edges too; null or anything where the value is ``odd``."""
    if dice.random() < odd:
        return dice.choice((None, draw_anything(dice)))
    if not isinstance(kind, str):
        name, inner = kind
        odd /= 3
        if name == "ARRAY":
            return [draw_value(dice, inner, odd) for _ in range(dice.randrange(4))]
        if name == "MAP":
            return {draw_text(dice): draw_value(dice, inner, odd) for _ in range(dice.randrange(4))}
        return {n: draw_value(dice, k, odd) for n, k in inner if dice.random() < 0.8}
    if kind == "STRING":
        return draw_text(dice)
    if kind == "BOOLEAN":
        return dice.random() < 0.5
    if kind in BITS:
        limit = 2 ** (BITS[kind] - 1)
        return dice.choice((dice.randrange(-limit, limit), dice.choice((-limit, limit - 1, limit, -limit - 1, 0))))
    if kind in ("FLOAT", "DOUBLE"):
        return dice.choice((draw_fraction, draw_integer))(dice)
    if kind.startswith("DECIMAL"):
        precision, scale = map(int, re.findall(r"\d+", kind))
        number = Raw(format(Decimal(dice.randint(-(10**precision), 10**precision)).scaleb(-scale), "f"))
        return dice.choice((number, str(number), draw_fraction(dice), draw_integer(dice)))
    if kind == "BINARY":
        return dice.choice((dice.choice(BLOBS), base64.b64encode(dice.randbytes(dice.randrange(6))).decode()))
    return draw_moment(dice)


def draw_payload(dice: random.Random, schema, odd: float = 0.1):
    """A value of most of the columns."""
    return {name: draw_value(dice, kind, odd) for name, kind in schema if dice.random() < 0.9}


def write(value):
    """JSON text of a drawn value."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(n)}: {write(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(write, value)) + "]"
    return json.dumps(value)


# --- what they mean -------------------------------------------------------------------------------------------------------------


class Wrong(Exception):
    pass


def meaning(value, kind):
    """What a value of a payload is, by its type: ``docs/payloads.md`` in Python. Raises Wrong where it is refused."""
    if value is None:
        return None
    if not isinstance(kind, str):
        name, inner = kind
        if name == "ARRAY":
            need(isinstance(value, list))
            return [meaning(v, inner) for v in value]
        need(isinstance(value, dict))
        if name == "MAP":
            return {n: meaning(v, inner) for n, v in value.items()}
        return {n: meaning(value.get(n), k) for n, k in inner}
    number = isinstance(value, Raw) or type(value) is int
    if isinstance(value, Raw) and re.fullmatch(r"-?\d+", value):  # a whole number, however it was drawn
        value = int(value)
    if kind == "STRING":
        return str(value) if isinstance(value, str) else compact(value)
    if kind == "BOOLEAN":
        need(isinstance(value, bool))
        return value
    if kind in BITS:
        need(type(value) is int and -(2 ** (BITS[kind] - 1)) <= value < 2 ** (BITS[kind] - 1))
        return value
    if kind in ("FLOAT", "DOUBLE"):
        need(number)
        try:
            made = float(value) + 0.0  # -0.0 is 0.0
        except OverflowError:
            raise Wrong from None
        need(not math.isinf(made) and (kind == "DOUBLE" or abs(made) <= FLOAT_MAX))
        return made
    if kind.startswith("DECIMAL"):
        precision, scale = map(int, re.findall(r"\d+", kind))
        need(number or isinstance(value, str))
        need(
            not isinstance(value, bool)
            and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", str(value), re.ASCII)
        )
        made = Decimal(str(value))
        need(made.adjusted() < 50 or not made)
        with localcontext() as context:
            context.prec = 200
            made = (
                Decimal(0)
                if not made or made.adjusted() < -60
                else made.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
            )
        need(abs(made) < Decimal(10) ** (precision - scale))
        return made
    if kind == "BINARY":
        need(isinstance(value, str) and not isinstance(value, Raw))
        try:
            made = base64.b64decode(value, validate=True)
        except ValueError:
            raise Wrong from None
        need(base64.b64encode(made).decode() == value or len(value) % 4 == 0)
        return made
    if kind == "TIMESTAMP" and type(value) is int:
        need(-62135596800 <= value <= 253402300799)
        return dt.datetime(1970, 1, 1) + dt.timedelta(seconds=value)
    need(isinstance(value, str) and not isinstance(value, Raw))
    moment, zone = parsed(value)
    if kind == "DATE":
        return moment.date()
    need(kind == "TIMESTAMP" or zone is None)
    try:
        return moment - (zone or dt.timedelta(0))
    except OverflowError:
        raise Wrong from None


def parsed(text):
    """A moment as it is written, and how far its zone is ahead of UTC."""
    found = re.fullmatch(
        r"(\d{4}-\d{1,2}-\d{1,2})([Tt ]\d{1,2}:\d{1,2}(:\d{1,2})?(\.\d{1,30})?)?( ?[Zz]| ?[+-]\d{1,2}(:?\d{2})?)?",
        text,
        re.ASCII,
    )
    need(found and (found[2] or not found[5]) and (not found[4] or found[3]))
    try:
        day = dt.date(*map(int, found[1].split("-")))
        clock = [*map(int, (found[2] or "T0:0")[1:].split(".")[0].split(":")), 0][:3]
        moment = dt.datetime.combine(day, dt.time(*clock, int((found[4] or ".")[1:7].ljust(6, "0"))))
    except ValueError:
        raise Wrong from None
    if not found[5]:
        return moment, None
    zone = found[5].strip().upper()
    if zone == "Z":
        return moment, dt.timedelta(0)
    digits = zone[1:].replace(":", "")
    hours, minutes = (int(digits[:-2]), int(digits[-2:])) if len(digits) > 2 else (int(digits), 0)
    need(hours < 24 and minutes < 60)
    return moment, dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)


def compact(value):
    """JSON without spaces; numbers as they were written."""
    if isinstance(value, Raw):
        return str(int(value)) if re.fullmatch(r"-?\d+", value) else str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{compact(n)}:{compact(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\x7f")
    return json.dumps(value)


def need(condition):
    if not condition:
        raise Wrong


SUITE = SHARED / "jsontestsuite" / "test_parsing"  # the files of RFC 8259's test suite


def expected(payload, schema):
    """The values of a payload's columns; None where it is refused."""
    try:
        return {name: rounded(meaning(payload.get(name), kind), kind) for name, kind in schema}
    except Wrong:
        return None


def rounded(value, kind):
    """A FLOAT has 32 bits."""
    import numpy as np

    if value is None:
        return None
    if not isinstance(kind, str):
        name, inner = kind
        if name == "ARRAY":
            return [rounded(v, inner) for v in value]
        return {n: rounded(v, inner if name == "MAP" else dict(inner)[n]) for n, v in value.items()}
    return float(np.float32(value)) if kind == "FLOAT" else value


def wrapped(content: bytes) -> list[bytes]:
    """A file of the suite as a payload, and as the value of columns."""
    return [content, b'{"s": %s}' % content, b'{"x": %s}' % content, b'{"n": %s}' % content, b'{"a": %s}' % content]
