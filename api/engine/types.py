"""Spark's types for callers: the text of a key and the JSON of a value, checked before anything is done.

A text that passes means the same to Spark, which casts it in the fold, and to DuckDB, which looks it up.
The messages say what was expected; the caller says what was found.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

from sqlglot import exp

from api.engine import exact_json
from statehouse.payload import GREATEST_FLOAT
from statehouse.types import FORMS, INTEGERS

LARGEST = {"FLOAT": GREATEST_FLOAT, "DOUBLE": 1.7976931348623157e308}
EXACT = Context(prec=38, Emax=MAX_EMAX, Emin=MIN_EMIN)  # as many digits as a DECIMAL can have
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)


def canonical(text: str, kind: str) -> str:
    """A key's text in the one form that both engines cast alike; ValueError says what was expected."""
    kind = kind.upper()
    if kind in INTEGERS:
        if not re.fullmatch(r"[-+]?\d{1,40}", text, re.ASCII):
            raise ValueError(f"expected {_integers(kind)}")
        return str(_integer(int(text), kind))
    if kind.startswith("DECIMAL"):
        if not re.fullmatch(r"[-+]?\d{1,40}(\.\d{1,40})?", text, re.ASCII):
            raise ValueError(f"expected a number such as 1.50 ({kind})")
        return format(_decimal(Decimal(text), kind), "f")
    if kind in ("FLOAT", "DOUBLE"):
        if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text, re.ASCII) or math.isinf(float(text)):
            raise ValueError(f"expected a number such as 1.5 ({kind})")
        return repr(float(text) + 0.0)  # -0.0 is 0.0
    if kind == "BOOLEAN":
        if text.lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return text.lower()
    if kind == "DATE":
        return _date(text)
    return exact_json.time(_moment(text)) if kind.startswith("TIMESTAMP") else text


def conforming(value: Any, kind: str) -> Any:
    """A value (not null) as it is sent to the topic; ValueError says what was expected."""
    plain = kind.upper()
    if plain in INTEGERS:
        value = whole(value)
        if type(value) is not int:
            raise ValueError(f"expected {_integers(plain)}")
        return _integer(value, plain)
    if plain.startswith("DECIMAL"):
        if type(value) not in (int, Decimal):
            raise ValueError(f"expected a number ({plain})")
        # As a string: Spark's JSON functions read a number as a double and would lose digits.
        return format(_decimal(Decimal(value), plain), "f")
    if plain in ("FLOAT", "DOUBLE"):
        # As the schema writes it, not as the double that either would be rounded to.
        # copy_abs: abs() rounds, and raises where the exponent is large.
        if type(value) not in (int, Decimal) or Decimal(value).copy_abs() > Decimal(repr(LARGEST[plain])):
            raise ValueError(f"expected a number ({plain})")
        return value or 0  # -0.0 is 0.0
    if plain == "BOOLEAN":
        if type(value) is not bool:
            raise ValueError("expected true or false")
        return value
    if plain.startswith(("ARRAY", "MAP", "STRUCT")):
        return _nested(value, kind)
    if not isinstance(value, str):
        raise ValueError(f"expected a string ({plain})")
    if plain == "DATE":
        return _date(value)
    if plain.startswith("TIMESTAMP"):
        return exact_json.time(_moment(value)).removesuffix("Z" if plain == "TIMESTAMP_NTZ" else "")
    if plain == "BINARY" and not re.fullmatch(FORMS["BINARY"], value):  # Python's decoder takes more than Spark's does
        raise ValueError("expected binary as base64")
    return value


@functools.lru_cache(maxsize=1000)
def _tree(kind: str) -> exp.DataType:
    return exp.DataType.build(kind, dialect="spark")


def _nested(value: Any, kind: str) -> Any:
    """A list, a map or a struct, all of whose parts conform or are null; of a struct with every field, in the order of its type, so
    that it is the same text to both engines."""
    tree = _tree(kind)
    inner = [kind_of(part) for part in tree.expressions]
    if tree.this == exp.DataType.Type.ARRAY:
        if not isinstance(value, list):
            raise ValueError(f"expected {kind} as a JSON array")
        return [_part(str(place), part, inner[0]) for place, part in enumerate(value)]
    if not isinstance(value, dict):
        raise ValueError(f"expected {kind} as a JSON object")
    if tree.this == exp.DataType.Type.MAP:
        return {key: _part(key, part, inner[1]) for key, part in value.items()}
    fields = dict(zip((field.name for field in tree.expressions), inner, strict=True))
    if unknown := [name for name in value if name not in fields]:
        raise ValueError(f"expected {kind}, without a field {unknown[0][:100]!r}")
    return {name: _part(name, value.get(name), of) for name, of in fields.items()}


def kind_of(part: exp.Expr) -> str:
    """The type of a struct's field, or of what a list or a map holds, as text."""
    return (part.args["kind"] if isinstance(part, exp.ColumnDef) else part).sql("spark")


def _part(name: str, value: Any, kind: str) -> Any:
    try:
        return None if value is None else conforming(value, kind)
    except ValueError as error:
        raise ValueError(f"{error}, at {name[:100]!r}") from None


def whole(value: Any) -> Any:
    """A whole number that JSON wrote with a fraction or an exponent (5.0, 1e2) as the integer that it is; else the same."""
    if type(value) is Decimal and value.adjusted() < 40 and value == value.to_integral_value():
        return int(value)
    return value


def digits_of(kind: str) -> tuple[int, int]:
    """A decimal type's precision and scale."""
    sizes = re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", kind.upper())
    return (int(sizes[1]), int(sizes[2])) if sizes else (10, 0)


def moment(text: str) -> dt.datetime:
    """A time as plain UTC; ValueError says what was expected."""
    return _moment(text).replace(tzinfo=None)


def _integers(kind: str) -> str:
    limit = 2 ** (INTEGERS[kind] - 1)
    return f"an integer between {-limit} and {limit - 1} ({kind})"


def _integer(number: int, kind: str) -> int:
    limit = 2 ** (INTEGERS[kind] - 1)
    if not -limit <= number < limit:
        raise ValueError(f"expected {_integers(kind)}")
    return number


def _decimal(number: Decimal, kind: str) -> Decimal:
    precision, scale = digits_of(kind)
    if not number:
        return Decimal(0)  # not as it was sent: written out, 0e-400000000 has as many zeros
    # What more digits than a DECIMAL can have would be rounded to is another number, and the digits of this one are few.
    least = EXACT.plus(number)
    _, digits, exponent = least.as_tuple()
    assert isinstance(exponent, int)
    significant = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(significant)
    if least != number or -exponent > scale or len(significant) + exponent > precision - scale:
        raise ValueError(f"expected a number of at most {precision} digits, {scale} of them decimals ({kind})")
    return least


def _date(text: str) -> str:
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            return dt.date.fromisoformat(text).isoformat()
    except ValueError:
        pass
    raise ValueError("expected a date such as 2026-01-31 (DATE)")


def _moment(text: str) -> dt.datetime:
    match = _TIME.fullmatch(text)
    try:
        if match:
            day, minutes, seconds, fraction, zone = match.groups()
            micros = (fraction or ".0")[1:].ljust(6, "0")
            zone = "+00:00" if zone in (None, "Z") else zone
            moment = dt.datetime.fromisoformat(f"{day}T{minutes or '00:00'}{seconds or ':00'}.{micros}{zone}")
            return moment.astimezone(dt.timezone.utc)
    except (ValueError, OverflowError):
        pass
    raise ValueError("expected a time such as 2026-01-31T12:00:00Z (TIMESTAMP)")
