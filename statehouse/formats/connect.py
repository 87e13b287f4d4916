"""Values that Kafka Connect's converters write as numbers or as bytes: what they mean by their schema, as the text that JSON has for it.

These are Connect's logical types and Debezium's, which have names of their own. In JSON a schema comes with each record; in Avro it is the
record's, and the names are properties in it.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from statehouse.payload import GREATEST_TIME, LEAST_TIME, SHOWN, Refused
from statehouse.types import INTEGERS

LONGEST = 1000  # bytes of a decimal's digits: Python writes none that is much longer
DAY, FIRST_DAY = 86_400_000_000, dt.date(1970, 1, 1)
EPOCH = dt.datetime(1970, 1, 1)
MOMENTS = {  # microseconds of the unit, and how many of the unit these are
    "io.debezium.time.Timestamp": (1000, 1),
    "org.apache.kafka.connect.data.Timestamp": (1000, 1),
    "io.debezium.time.MicroTimestamp": (1, 1),
    "io.debezium.time.NanoTimestamp": (1, 1000),
}
CLOCKS = {
    "io.debezium.time.Time": (1000, 1),
    "org.apache.kafka.connect.data.Time": (1000, 1),
    "io.debezium.time.MicroTime": (1, 1),
    "io.debezium.time.NanoTime": (1, 1000),
}
DAYS = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
ISO = ("io.debezium.time.IsoDate", "io.debezium.time.IsoTimestamp")
WITHOUT_ZONE = ("DATE", "TIMESTAMP_NTZ")  # types of text without one
DECIMAL, VARIABLE = "org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"
Change = Callable[[Any], Any]


def connect_fields(schema: Any, of: str | None) -> Iterator[tuple[str, Any]]:
    """The fields of Connect's schema, or of a struct in it: their names, and each with its ``name`` and ``parameters``."""
    if of is not None:
        schema = next((part for part in _fields(schema) if part.get("field") == of), None)
    for field in _fields(schema):
        if isinstance(name := field.get("field"), str):
            yield name, field


def avro_fields(schema: Any, of: str) -> Iterator[tuple[str, Any]]:
    """The same of a record in an Avro schema. What has a logical type is read as that already."""
    records = {part["name"]: part for part in _parts(schema) if part.get("type") == "record" and "name" in part}

    def alone(part: Any) -> Any:
        """What is in a union with null, by its name."""
        if isinstance(part, list):
            part = next((one for one in part if one != "null"), None)
        return records.get(part.rpartition(".")[2], part) if isinstance(part, str) else part

    row = next((alone(field.get("type")) for field in _fields(schema) if field.get("name") == of), None)
    for field in _fields(row):
        part = alone(field.get("type"))
        if isinstance(part, dict) and "logicalType" not in part and isinstance(field.get("name"), str):
            yield field["name"], {"name": part.get("connect.name"), "parameters": part.get("connect.parameters")}


def _fields(schema: Any) -> list[dict[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """All objects that are in a schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _parts(part)


def change_of(schema: Mapping[str, Any], kind: str) -> Change | None:
    """The change that turns a value of a field into what a column of type ``kind`` takes; None where the value stays as it is."""
    name = schema.get("name")
    if not isinstance(name, str):
        return None
    if name in MOMENTS and kind not in INTEGERS:
        return _moment(*MOMENTS[name], zone="" if kind == "TIMESTAMP_NTZ" else "Z")
    if name in CLOCKS and kind not in INTEGERS:
        return _clock(*CLOCKS[name])
    if name in ISO and kind in WITHOUT_ZONE:
        return without_zone
    if name in DAYS and kind not in INTEGERS:
        return _day
    if name == DECIMAL and kind != "BINARY":
        parameters = schema.get("parameters")
        scale = parameters.get("scale") if isinstance(parameters, dict) else None
        return functools.partial(_decimal, scale) if re.fullmatch(r"-?\d{1,4}", str(scale), re.ASCII) else None
    if name == VARIABLE and kind != "STRUCT":
        return _variable
    return None


def _whole(value: Any, what: str) -> int:
    if type(value) is not int:
        raise Refused(f"found {str(value)[:SHOWN]}, expected {what} as a whole number")
    return value


def _moment(multiple: int, part: int, zone: str) -> Change:
    def text(value: Any) -> str:
        micros = _whole(value, "a moment") * multiple // part
        if not LEAST_TIME <= micros <= GREATEST_TIME:
            raise Refused("found a time outside the years 1 to 9999")
        return (EPOCH + dt.timedelta(microseconds=micros)).isoformat() + zone

    return text


def _clock(multiple: int, part: int) -> Change:
    def text(value: Any) -> str:
        micros = _whole(value, "a time of the day") * multiple // part
        if micros == DAY:
            return "24:00:00"  # which databases have
        if not 0 <= micros < DAY:
            raise Refused(f"found {value}, expected a time of the day")
        return (EPOCH + dt.timedelta(microseconds=micros)).time().isoformat()

    return text


def without_zone(value: Any) -> Any:
    """A day, or a moment, of a column that has no zone: Debezium's text puts a ``Z`` behind it nevertheless."""
    return value.removesuffix("Z") if isinstance(value, str) else value


def _day(value: Any) -> str:
    days = _whole(value, "a day")
    if not LEAST_TIME // DAY <= days <= GREATEST_TIME // DAY:
        raise Refused("found a day outside the years 1 to 9999")
    return (FIRST_DAY + dt.timedelta(days=days)).isoformat()


def _decimal(scale: Any, value: Any) -> Any:
    """A decimal of its unscaled digits, which are bytes in base64."""
    try:
        digits = base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        digits = b""
    if not 0 < len(digits) <= LONGEST:
        raise Refused(f"found {str(value)[:SHOWN]}, expected a decimal's digits in base64") from None
    return msgspec.Raw(_decimal_text(int.from_bytes(digits, "big", signed=True), int(scale)).encode())


def _variable(value: Any) -> Any:
    if not isinstance(value, dict) or type(value.get("scale")) is not int or abs(value["scale"]) > 10_000:
        raise Refused("found no decimal, expected one as an object with scale and value")
    return _decimal(value["scale"], value.get("value"))


def _decimal_text(digits: int, scale: int) -> str:
    """A number without an exponent: so many digits of it are decimals."""
    sign, text = "-" * (digits < 0), str(abs(digits))
    if scale <= 0:
        return sign + (text + "0" * -scale if digits else "0")
    text = text.rjust(scale + 1, "0")
    return f"{sign}{text[:-scale]}.{text[-scale:]}"
