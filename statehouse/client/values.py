"""A store's columns as Python has them: JSON by Spark's types, and a key's parts as a path and a body have them."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec

from statehouse.partitioner import text_of

Convert = Callable[[Any], Any]
_encoder = msgspec.json.Encoder(decimal_format="number")  # a number's digits all survive


def encode(document: Any) -> bytes:
    """JSON; Decimals are numbers with all their digits, times are ISO 8601."""
    return _encoder.encode(document)


def decode(content: bytes) -> Any:
    """The opposite: a number with a fraction or an exponent is a Decimal."""
    return json.loads(content, parse_float=Decimal)


def moment(value: Any) -> Any:
    """A time as an aware datetime in UTC; what is no time (`reset` may be outside of the calendar) stays as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            time = dt.datetime.fromisoformat(value.removesuffix("Z"))
            return time.astimezone(dt.timezone.utc) if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)
    return value


def converter(kind: str) -> Convert:
    """What makes a Python value of a column's JSON, by its type in Spark's DDL; null is None, and what the type does not expect stays."""
    name, _, inner = kind.partition("<")
    inner = inner.removesuffix(">")
    if name == "ARRAY":
        item = converter(inner)
        return lambda value: value if value is None else [item(part) for part in value]
    if name == "MAP":
        item = converter(_split(inner)[1])
        return lambda value: value if value is None else {key: item(part) for key, part in value.items()}
    if name == "STRUCT":
        fields = {n.strip(" `"): converter(k.strip()) for n, _, k in (part.partition(":") for part in _split(inner))}
        return lambda value: value if value is None else convert(value, fields)
    return _SCALARS.get(name.partition("(")[0], _as_it_is)


def convert(row: Mapping[str, Any], columns: Mapping[str, Convert]) -> dict[str, Any]:
    """A row with each column as Python has it; a column that is not known stays as it is."""
    return {name: columns.get(name, _as_it_is)(value) for name, value in row.items()}


def _split(text: str) -> list[str]:
    """What is between the commas, but for those inside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _as_it_is(value: Any) -> Any:
    return value


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("+-").isdecimal() else value


def _decimal(value: Any) -> Any:
    with suppress(ArithmeticError):
        return Decimal(value) if type(value) in (int, str) else value
    return value


def _float(value: Any) -> Any:
    with suppress(ValueError):
        return float(value) if isinstance(value, (Decimal, str)) else value
    return value


def _date(value: Any) -> Any:
    with suppress(ValueError):
        return dt.date.fromisoformat(value) if isinstance(value, str) else value
    return value


def _bytes(value: Any) -> Any:
    return base64.b64decode(value) if isinstance(value, str) else value


def _local(value: Any) -> Any:
    time = moment(value)
    return time.replace(tzinfo=None) if isinstance(time, dt.datetime) else time


_SCALARS: dict[str, Convert] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), _integer),
    **dict.fromkeys(("FLOAT", "DOUBLE"), _float),
    "DECIMAL": _decimal,
    "DATE": _date,
    "TIMESTAMP": moment,
    "TIMESTAMP_NTZ": _local,
    "BINARY": _bytes,
}


@dataclass(frozen=True)
class Shape:
    """The columns of a store: ``keys`` are the names of its key's parts, ``columns`` what makes Python values of each column."""

    keys: tuple[str, ...]
    columns: Mapping[str, Convert]

    @classmethod
    def of(cls, store: Mapping[str, Any]) -> Shape:
        """As ``GET /stores/{store}`` tells them; of a store that was never merged no column is known."""
        parts = len(store["key"]) if isinstance(store["key"], list) else 1
        return cls(tuple(store["columns"])[:parts], {n: converter(k) for n, k in store["columns"].items()})

    def identity(self, key: Sequence[Any]) -> tuple[Any, ...]:
        """A key's parts as Python has them: equal ones are one key, also where one is given as text."""
        names: Iterable[str] = self.keys or [""] * len(key)
        return tuple(self.columns.get(n, _as_it_is)(text_of(part)) for n, part in zip(names, key, strict=False))


def key_path(key: Sequence[Any]) -> str:
    """A key as it is in a path."""
    if not key:
        raise ValueError("found no key, expected its parts")
    texts = (quote(text_of(part), safe="") for part in key)
    return "/".join(t.replace(".", "%2E") if t in (".", "..") else t for t in texts)  # or it would be another path


def key_body(key: Any) -> Any:
    """A key as it is in a body: one part, or a list of them."""
    if isinstance(key, (tuple, list)):
        return [key_body(part) for part in key] if len(key) != 1 else key_body(key[0])
    return key if type(key) in (str, int) else text_of(key)


def key_bound(key: Any) -> str:
    """A key, or the first parts of one, as a scan's bound has it. ValueError where a part cannot be told from two."""
    if not isinstance(key, (tuple, list)):
        return text_of(key)
    texts = [text_of(part) for part in key]
    if len(texts) > 1 and (wrong := [t for t in texts if "/" in t]):
        raise ValueError(f"found {wrong[0][:100]!r} in a bound of a scan, expected parts without '/'")
    return "/".join(texts)


def as_parts(key: Any) -> tuple[Any, ...]:
    """A key's parts: of a tuple or a list its items, else the key itself."""
    return tuple(key) if isinstance(key, (tuple, list)) else (key,)
