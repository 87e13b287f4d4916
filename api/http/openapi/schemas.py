"""Spark's types as JSON Schema: what :mod:`api.engine.types` takes, no more and no less, and what :mod:`api.engine.exact_json` gives.

The patterns are plain ones (no look-around, no ``\\d``), which every dialect of regular expressions reads alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from api.engine.keys import ESCAPED
from api.engine.types import LARGEST, digits_of, kind_of
from statehouse.types import FORMS, INTEGERS

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
MOST_DIGITS = 40  # that a number in a key may be written with
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{_YEAR}{_DAY}|{_LEAP}-02-29)"
_HOUR = "(?:[01][0-9]|2[0-3])"
_MINUTE = f"{_HOUR}:[0-5][0-9]"
# Where a time has a zone, its day is in no year that the zone could lead out of what there is.
_INNER = "(?:000[2-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"
MOMENT = (
    f"(?:{DATE}(?:[T ]{_MINUTE}(?::[0-5][0-9])?(?:\\.[0-9]{{1,6}})?Z?)?"
    f"|{_INNER}{_DAY}[T ]{_MINUTE}(?::[0-5][0-9])?(?:\\.[0-9]{{1,6}})?[+-]{_MINUTE})"
)


def whole(pattern: str) -> str:
    """A pattern of a whole text."""
    return f"^(?:{pattern})$"


def matching(pattern: str, **more: Any) -> Schema:
    """The texts that a pattern is of as a whole."""
    return {"type": "string", "pattern": whole(pattern), **more}


# Long as they are, they are in the document once.
TIME: Schema = {"$ref": "#/components/schemas/Time"}
DAY: Schema = {"$ref": "#/components/schemas/Date"}
COMPONENTS: dict[str, Schema] = {
    "Time": matching(MOMENT, description="ISO 8601; without a zone it is UTC", examples=["2026-01-31T12:00:00Z"]),
    "Date": matching(DATE, description="ISO 8601", examples=["2026-01-31"]),
}


def integer(kind: str) -> Schema:
    """The numbers of one of Spark's integer types."""
    limit = 2 ** (INTEGERS[kind] - 1)
    return {"type": "integer", "minimum": -limit, "maximum": limit - 1}


def part(kind: str) -> Schema:
    """A part of a key, as a parameter of its own."""
    kind = kind.upper()
    if kind in INTEGERS:
        return integer(kind)
    if kind == "BOOLEAN":
        return {"type": "boolean"}
    if kind == "DATE":
        return DAY
    if kind.startswith("TIMESTAMP"):
        return TIME
    return TEXT if (made := key_pattern(kind)) is None else matching(made)


def key_pattern(kind: str) -> str | None:
    """What the text of a key's part looks like; None: like anything."""
    kind = kind.upper()
    if kind in INTEGERS:
        limit = 2 ** (INTEGERS[kind] - 1)
        return f"-{_up_to(limit)}|[+]?{_up_to(limit - 1)}"
    if kind.startswith("DECIMAL"):
        precision, scale = digits_of(kind)
        before = precision - scale
        digits = f"0{{0,{MOST_DIGITS - before}}}[0-9]{{1,{before}}}" if before else f"0{{1,{MOST_DIGITS}}}"
        after = f"[0-9]{{1,{scale}}}0{{0,{MOST_DIGITS - scale}}}" if scale else f"0{{1,{MOST_DIGITS}}}"
        return f"[-+]?{digits}(?:\\.{after})?"
    if kind in ("FLOAT", "DOUBLE"):
        # What is not infinite. Exponents from 100 on may not be either: a pattern cannot say.
        exponent = r"[eE](?:-[0-9]+|\+?0*[0-9]{1,2})"
        return rf"[-+]?(?:[0-9]{{1,300}}(?:\.[0-9]*)?|[0-9]{{1,200}}(?:\.[0-9]*)?{exponent}|\.[0-9]+(?:{exponent})?)"
    if kind == "BOOLEAN":
        return "[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]"
    if kind == "DATE":
        return DATE
    return MOMENT if kind.startswith("TIMESTAMP") else None


def keys_pattern(kinds: Sequence[str], separator: str = "/") -> str:
    """One or more first parts of a composite key, a ``separator`` between them."""
    first, rest = _plain_part(kinds[0], separator), kinds[1:]
    return f"(?:{first})(?:{separator}{keys_pattern(rest, separator)})?" if rest else f"(?:{first})"


def prefix_pattern(kinds: Sequence[str]) -> str | None:
    """A beginning of a composite key that ends in a part that is text; None where no part is."""
    ends = [i for i, kind in enumerate(kinds) if kind.upper() == "STRING"]
    patterns = ["/".join([*(f"(?:{_plain_part(k, '/')})" for k in kinds[:end]), "[^/]*"]) for end in ends]
    return "|".join(patterns) or None


def cursor_pattern(kinds: Sequence[str]) -> str:
    """The cursors of a scan whose rows are named by parts of these types; an empty one is none."""
    return "|" + "".join(f"\\.(?:{_in_cursor(kind.upper())})" for kind in kinds)


def _in_cursor(kind: str) -> str:
    if kind in INTEGERS:
        return "-?[0-9]{1,40}"
    if kind.startswith("DECIMAL"):
        return "-?[0-9]{1,40}(?:~2e~[0-9]{1,40})?"
    if kind == "DATE":
        return DATE
    if kind.startswith("TIMESTAMP"):
        return f"{DATE}T{_HOUR}~3a~[0-5][0-9]~3a~[0-5][0-9](?:~2e~[0-9]{{6}})?Z"
    return "true|false" if kind == "BOOLEAN" else ESCAPED


def in_body(kind: str) -> Schema:
    """A part of a key in JSON: as text, or as the number or the boolean that it is; text also as any of them."""
    plain = kind.upper()
    pattern = key_pattern(plain)
    if pattern is None:
        return {"type": ["string", "number", "boolean"]}
    own = value(plain)
    return own if own in (TIME, DAY) else {"anyOf": [own, matching(pattern)]}


def in_bulk(kind: str) -> Schema:
    """A part of a key in a line of a bulk write: as text or as a whole number; of a fraction's texts only the caller knows
    which is meant."""
    plain = kind.upper()
    pattern = key_pattern(plain)
    if pattern is None:
        return {"type": ["string", "integer"]}
    if plain in INTEGERS:
        return {"anyOf": [integer(plain), matching(pattern)]}
    if plain.startswith("DECIMAL"):
        precision, scale = digits_of(plain)
        most = 10 ** (precision - scale) - 1
    elif plain in ("FLOAT", "DOUBLE"):
        most = 10**MOST_DIGITS - 1
    else:
        return matching(pattern)
    return {"anyOf": [{"type": "integer", "minimum": -most, "maximum": most}, matching(pattern)]}


def text_of(kinds: Sequence[str]) -> str:
    """A composite key as one text: its parts, percent-encoded, with '/' between them."""
    encoded = "(?:[^/%]|%[0-7][0-9A-Fa-f])*"
    return "/".join(f"(?:{key_pattern(kind) or encoded})" for kind in kinds)


def value(kind: str) -> Schema:
    """A value that a set may give (not null)."""
    plain = kind.upper()
    if plain in INTEGERS:
        return integer(plain)
    if plain.startswith("DECIMAL"):
        precision, scale = digits_of(plain)
        limit = 10 ** (precision - scale)
        step = {"multipleOf": 10**-scale} if scale else {}
        kinds = {"type": "number" if scale else "integer"}
        return {**kinds, "exclusiveMinimum": -limit, "exclusiveMaximum": limit, **step, "description": plain}
    if plain in ("FLOAT", "DOUBLE"):
        return {"type": "number", "minimum": -LARGEST[plain], "maximum": LARGEST[plain]}
    if plain == "BOOLEAN":
        return {"type": "boolean"}
    if plain.startswith(("ARRAY", "MAP", "STRUCT")):
        return _nested(exp.DataType.build(kind, dialect="spark"), kind)
    if plain == "DATE":
        return DAY
    if plain.startswith("TIMESTAMP"):
        return TIME
    return matching(FORMS["BINARY"], contentEncoding="base64") if plain == "BINARY" else TEXT


def _nested(kind: exp.DataType, text: str) -> Schema:
    """A list, a map or a struct as a set may give it: any part of it may be null or, of a struct, missing."""
    parts = [nullable(value(kind_of(part))) for part in kind.expressions]
    if kind.this == exp.DataType.Type.STRUCT:
        fields = {field.name: part for field, part in zip(kind.expressions, parts, strict=True)}
        return {"type": "object", "properties": fields, "additionalProperties": False, "description": text}
    if kind.this == exp.DataType.Type.MAP:
        return {"type": "object", "additionalProperties": parts[1], "description": text}
    return {"type": "array", "items": parts[0], "description": text}


def nullable(schema: Schema) -> Schema:
    """The same or null."""
    if not schema:
        return schema
    if "type" not in schema or "enum" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, "null"]}


def shown(kind: str) -> Schema:
    """A column's value in an answer, nested as it may be; any of it may be null."""
    return nullable(_shown(exp.DataType.build(kind, dialect="spark")))


def _shown(kind: exp.DataType) -> Schema:
    kinds = exp.DataType.Type
    inner = kind.expressions
    if kind.this in (kinds.ARRAY, kinds.LIST):
        return {"type": "array", "items": nullable(_shown(inner[0]))}
    if kind.this == kinds.MAP:
        return {"type": "object", "additionalProperties": nullable(_shown(inner[1]))}
    if kind.this == kinds.STRUCT:
        return {"type": "object", "properties": {field.name: nullable(_shown(field.kind)) for field in inner}}
    if kind.this in exp.DataType.INTEGER_TYPES:
        return {"type": "integer"}
    if kind.this in exp.DataType.NUMERIC_TYPES:
        return {"type": "number"}
    if kind.this == kinds.BOOLEAN:
        return {"type": "boolean"}
    if kind.this == kinds.DATE:
        return {"type": "string", "format": "date"}
    if kind.this in exp.DataType.TEMPORAL_TYPES:
        return {"type": "string", "format": "date-time"}
    return {"type": "string", "contentEncoding": "base64"} if kind.this == kinds.BINARY else TEXT


def _plain_part(kind: str, separator: str) -> str:
    return key_pattern(kind) or f"[^{separator}]*"


def _up_to(most: int) -> str:
    """Digits of the numbers from 0 to ``most``, also with zeros in front."""
    digits = str(most)
    lower = [f"{digits[:i]}[0-{int(d) - 1}][0-9]{{{len(digits) - i - 1}}}" for i, d in enumerate(digits) if d != "0"]
    pad = MOST_DIGITS - len(digits)
    return f"0{{0,{pad}}}(?:[0-9]{{1,{len(digits) - 1}}}|{'|'.join([*lower, digits])})"
