"""JSON text as values of a stream's columns: the one meaning that a payload has, for both halves (``docs/payloads.md``).

The text is JSON by RFC 8259. msgspec reads it; a payload whose values are all plain is done with one typed call (:mod:`statehouse.decoder`).
Any other is read again column by column (:func:`convert`), which also finds the reason why it is refused. Both ways give the same values.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec

from statehouse.types import INTEGERS, Type

DEEPEST = 200  # levels of arrays and objects; the reader's own limit depends on who calls it
GREATEST_FLOAT = 3.4028234663852886e38  # of 32 bits
SECOND = 1_000_000  # microseconds
LEAST_TIME, GREATEST_TIME = -62_135_596_800 * SECOND, 253_402_300_800 * SECOND - 1  # the years 1 to 9999
SHOWN = 100  # characters of a value in a reason

_DAY = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_CLOCK = r"[Tt ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,30}))?)?"
_ZONE = r" ?(?:[Zz]|([+-])(\d{1,2})(?::?(\d{2}))?)"
_TIME = re.compile(f"{_DAY}(?:{_CLOCK}({_ZONE})?)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,9})?", re.ASCII)
_LONE = re.compile(r"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|[c-fC-F][0-9a-fA-F]{2})")
_EXACT = Context(prec=100)


class Field(NamedTuple):
    """A column of a payload; ``required``: declared NOT NULL."""

    name: str
    kind: Type
    required: bool = False


class Refused(ValueError):
    """A payload, or a value in it, is not of its type: what was found, what was expected, and where (``path``)."""

    path = ""

    def at(self, place: str) -> Refused:
        """The same, found in something larger."""
        self.path = place + self.path
        return self

    def __str__(self) -> str:
        return f"{self.path}: {self.args[0]}" if self.path else str(self.args[0])


def read(text: str | bytes | msgspec.Raw) -> Any:
    """JSON text as Python's values; a number with a fraction or an exponent stays text (:class:`msgspec.Raw`).

    Raises :class:`Refused` for what is not JSON, and for what is nested more than :data:`DEEPEST` levels deep.
    """
    if not isinstance(text, msgspec.Raw):
        check_depth(text)
    try:
        return _ANY.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(_not_json(as_text(text), error)) from None


def read_object(text: str) -> dict[str, Any]:
    """The same of an object; :class:`Refused` for anything else."""
    if not text.lstrip(" \t\r\n").startswith("{"):
        raise Refused(f"not a JSON object: found {text[:40] or 'nothing'}")
    return read(text)


def convert(value: Any, kind: Type, path: str = "") -> Any:
    """A value that :func:`read` gave as Arrow takes it for a type: a moment as microseconds since 1970, a date as days, a map as
    pairs. Raises :class:`Refused` with the ``path``, what was found and what was expected."""
    try:
        return None if value is None else _CONVERTERS[kind.name](value, kind)
    except Refused as reason:
        raise reason.at(path) from None


def canonical(value: Any, kind: Type) -> Any:
    """What :func:`convert` gave in JSON's words again: the form that both engines read alike (:meth:`statehouse.fold.Rule.set_value`)."""
    if value is None:
        return None
    if kind.name == "DECIMAL":
        return format(value, "f")
    if kind.name == "DATE":
        return (_FIRST_DAY + dt.timedelta(days=value)).isoformat()
    if kind.name.startswith("TIMESTAMP"):
        moment = (_EPOCH + dt.timedelta(microseconds=value)).isoformat()
        return f"{moment}Z" if kind.name == "TIMESTAMP" else moment
    if kind.name == "BINARY":
        return base64.b64encode(value).decode()
    if kind.name == "ARRAY":
        return [canonical(element, kind.parts[0]) for element in value]
    if kind.name == "MAP":
        return {name: canonical(element, kind.parts[1]) for name, element in value}
    if kind.name == "STRUCT":
        return {name: canonical(value[name], part) for name, part in kind.fields}
    return value


def text_of(value: Any, kind: Type) -> str | None:
    """The same as text: of text itself, of all else its JSON."""
    plain = canonical(value, kind)
    return plain if plain is None or isinstance(plain, str) else msgspec.json.encode(plain).decode()


def micros_of(text: str, zoned: bool = True) -> int:
    """A moment in ISO 8601 as microseconds since 1970, UTC where it says no zone; ValueError for what is none, and for one outside of
    the years 1 to 9999. What is less than a microsecond is cut off. Not ``zoned``: it must not say one."""
    days, micros, ahead = _parse_moment(text)
    if ahead is not None and not zoned:
        raise ValueError("a zone")
    micros += (days * 86400 - (ahead or 0)) * SECOND
    if not LEAST_TIME <= micros <= GREATEST_TIME:
        raise ValueError("outside the years 1 to 9999")
    return micros


def _parse_moment(text: str) -> tuple[int, int, int | None]:
    """Days since 1970, microseconds of the day, and how many seconds the zone is ahead of UTC, None where there is none; ValueError."""
    parts = _TIME.fullmatch(text)
    if not parts:
        raise ValueError("no time")
    year, month, day, hour, minute, second, fraction, zone, sign, hours, minutes = parts.groups()
    days = dt.date(int(year), int(month), int(day)).toordinal() - _FIRST_DAY.toordinal()
    clock = dt.time(int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "")[:6].ljust(6, "0")))
    ahead = dt.time(int(hours or 0), int(minutes or 0))
    micros = ((clock.hour * 60 + clock.minute) * 60 + clock.second) * SECOND + clock.microsecond
    seconds = (ahead.hour * 60 + ahead.minute) * 60
    return days, micros, (-seconds if sign == "-" else seconds) if zone else None


_EPOCH = dt.datetime(1970, 1, 1)
_FIRST_DAY = _EPOCH.date()
_ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))


def as_text(text: str | bytes | msgspec.Raw) -> str:
    """JSON as text, of bytes that are UTF-8 or not."""
    return text if isinstance(text, str) else bytes(text).decode(errors="replace")


def check_depth(text: str | bytes) -> None:
    """Raises :class:`Refused` for JSON text that is nested more than :data:`DEEPEST` levels deep, whoever reads it."""
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    if brackets <= DEEPEST:
        return
    depth = 0
    for match in _BRACKETS.finditer(as_text(text)):
        bracket = match[0]
        depth += (bracket in "[{") - (bracket in "]}")
        if depth > DEEPEST:
            raise Refused(f"nested more than {DEEPEST} levels deep")


_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def _not_json(text: str, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested more than {DEEPEST} levels deep"
    detail = str(error).removeprefix("JSON is malformed: ")
    if detail.startswith("trailing characters"):
        return "not JSON: found more after the object"
    if lone := _LONE.search(text):
        return f"not JSON: found half of a character, {lone[0]}"
    return f"not JSON: {detail}"


def _refusal(value: Any, kind: Type, expected: str = "") -> Refused:
    """Why a value is not of its type. It is shown as JSON, so that text is told from a number."""
    text = msgspec.json.encode(value).decode()
    return Refused(f"found {text[:SHOWN]}, expected {expected or kind.ddl}")


def _string(value: Any, kind: Type) -> str:
    # What is no text is its JSON.
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _boolean(value: Any, kind: Type) -> bool:
    if type(value) is not bool:
        raise _refusal(value, kind)
    return value


def _integer(value: Any, kind: Type) -> int:
    limit = 1 << (INTEGERS[kind.name] - 1)
    if type(value) is not int or not -limit <= value < limit:
        raise _refusal(value, kind)
    return value


def _float(value: Any, kind: Type) -> float:
    try:
        number = float(as_text(value) if isinstance(value, msgspec.Raw) else value)
    except (OverflowError, ValueError, TypeError):
        number = math.inf
    greatest = GREATEST_FLOAT if kind.name == "FLOAT" else math.inf
    if isinstance(value, (bool, str)) or math.isinf(number) or abs(number) > greatest:
        raise _refusal(value, kind)
    return number + 0.0  # -0.0 is 0.0


def _decimal(value: Any, kind: Type) -> Decimal:
    precision, scale = kind.sizes
    text = value if isinstance(value, str) else as_text(value) if isinstance(value, msgspec.Raw) else None
    try:
        if text is None and type(value) is int:
            number = Decimal(value)
        elif text is not None and _NUMBER.fullmatch(text):
            number = Decimal(text)
        else:
            raise _refusal(value, kind)
        if not number:
            return Decimal(0).scaleb(-scale)
        # It may have an exponent of nine digits: what would have more than 100 when it is written out raises.
        number = number.quantize(kind.unit, ROUND_HALF_UP, _EXACT)
        if not number or number.adjusted() < precision - scale:
            return number
    except InvalidOperation:
        pass
    raise _refusal(value, kind)


def _date(value: Any, kind: Type) -> int:
    """Also of a moment: the day that it says."""
    with suppress(ValueError):
        if isinstance(value, str):
            return _parse_moment(value)[0]
    raise _refusal(value, kind, "a day such as 2026-01-31 (DATE)")


def _timestamp(value: Any, kind: Type) -> int:
    zoned = kind.name == "TIMESTAMP"
    try:
        if isinstance(value, str):
            return micros_of(value, zoned)
        if zoned and type(value) is int:  # seconds since 1970
            if not LEAST_TIME <= value * SECOND <= GREATEST_TIME:
                raise ValueError("outside the years 1 to 9999")
            return value * SECOND
    except ValueError as error:
        if "years" in str(error):
            raise Refused("found a time outside the years 1 to 9999") from None
    raise _refusal(value, kind, f"a time such as 2026-01-31T12:00:00{'Z' * zoned} ({kind.name})")


def _binary(value: Any, kind: Type) -> bytes:
    try:
        if isinstance(value, str):
            return msgspec.convert(value, bytes)
    except msgspec.ValidationError:
        pass
    raise _refusal(value, kind, "base64 (BINARY)")


def _array_of(value: Any, kind: Type) -> list[Any]:
    if not isinstance(value, list):
        raise _refusal(value, kind)
    (part,) = kind.parts
    convert_one, elements = _CONVERTERS[part.name], []
    try:
        for element in value:
            elements.append(None if element is None else convert_one(element, part))
    except Refused as reason:
        raise reason.at(f"[{len(elements)}]") from None
    return elements


def _map(value: Any, kind: Type) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise _refusal(value, kind)
    return [(name, convert(element, kind.parts[1], f".{name}")) for name, element in value.items()]


def _struct(value: Any, kind: Type) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refusal(value, kind)
    fields, name = {}, ""
    try:
        for name, part in kind.fields:
            field = value.get(name)
            fields[name] = None if field is None else _CONVERTERS[part.name](field, part)
    except Refused as reason:
        raise reason.at(f".{name}") from None
    return fields


_CONVERTERS: dict[str, Callable[[Any, Type], Any]] = {
    "STRING": _string,
    "BOOLEAN": _boolean,
    **dict.fromkeys(INTEGERS, _integer),
    "FLOAT": _float,
    "DOUBLE": _float,
    "DECIMAL": _decimal,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": _timestamp,
    "BINARY": _binary,
    "ARRAY": _array_of,
    "MAP": _map,
    "STRUCT": _struct,
}
