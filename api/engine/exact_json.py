"""JSON without loss: what DuckDB gives, as text. Every digit of a number survives.

The standard encoder knows floats only, so this one is written out. Times are ISO 8601 in UTC, binary is
base64, a map's keys are text. What JSON has no number for (NaN, infinity) is null.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from json.encoder import encode_basestring as quote  # json.dumps would make an encoder for each text
from typing import Any

from api.errors import refused
from statehouse.payload import check_depth


def dumps(value: Any) -> str:
    """A value, nested as it may be, as compact JSON text."""
    write = _SCALARS.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(_name(k))}:{dumps(v)}" for k, v in value.items()]) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    return quote(str(value))


def loads(text: str) -> Any:
    """The opposite, for what a caller sends: numbers with a fraction or an exponent become Decimals.

    Raises ValueError for what is not JSON, also for NaN and Infinity, which Python alone takes for JSON, and for what is nested so
    deeply that only some of those who work with it could.
    """
    try:
        check_depth(text)
        return json.loads(text, parse_float=Decimal, parse_constant=_refused)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ArithmeticError:
        raise ValueError("a number is out of all proportion") from None


def decoded(body: bytes, such_as: str) -> dict[str, Any]:
    """A JSON object, every digit of its numbers kept."""
    try:
        document = loads(body.decode("utf-8"))
        dumps(document).encode()  # half of a surrogate pair is JSON, but no text
    except ValueError as error:
        raise refused("bad-body", f"a body that is not JSON in UTF-8 ({error})", "an object") from None
    if not isinstance(document, dict):
        raise refused("bad-body", dumps(document)[:100], f"an object such as {such_as}")
    return document


def time(moment: dt.datetime) -> str:
    """A moment, in UTC, as ISO 8601."""
    return (moment.replace(tzinfo=None) if moment.tzinfo else moment).isoformat() + "Z"


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _decimal(number: Decimal) -> str:
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        return "null"
    # A column has at most 38 digits; what a caller sends may have an exponent that nobody wants written out.
    return format(number, "f") if -40 < exponent <= 0 else str(number)


def _name(key: Any) -> str:
    return key if isinstance(key, str) else dumps(key).strip('"')


_SCALARS: dict[type, Callable[[Any], str]] = {
    type(None): lambda v: "null",
    bool: lambda v: "true" if v else "false",
    int: str,
    float: lambda v: repr(v) if math.isfinite(v) else "null",
    Decimal: _decimal,
    str: quote,
    bytes: lambda v: f'"{base64.b64encode(v).decode()}"',
    dt.datetime: lambda v: f'"{time(v)}"',
    dt.date: lambda v: f'"{v.isoformat()}"',
}
