"""Pieces of Spark SQL: names, texts, and values that are null where no reader has them. DuckDB is given the same, transpiled."""

from __future__ import annotations

import re

from statehouse.payload import GREATEST_TIME, LEAST_TIME
from statehouse.types import FLOATS, FORMS, INTEGERS, Type, type_or_none

TIMES = ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ")
GREATEST_RANK = 10**18 - 1  # which there is room for in the order, see statehouse.reducers.ORDER
GREATEST_DOUBLE = 1.7976931348623157e308


def quoted(name: str) -> str:
    """A column's name as Spark SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string as a Spark SQL literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def text_as(text: str, ddl: str) -> str:
    """SQL: text as a value of a scalar type, null where it has none of the :data:`FORMS` that the engines read alike."""
    name = kind.name if (kind := type_or_none(ddl)) else ""
    if name not in FORMS:
        return f"CAST({text} AS {ddl})"
    value = f"unbase64({text})" if name == "BINARY" else f"CAST({text} AS {ddl})"
    return f"CASE WHEN {text} RLIKE '^({FORMS[name]})$' THEN {value} END"


def value_of(text: str, ddl: str) -> str:
    """SQL: text (as :func:`statehouse.payload.text_of` writes it) as a value of a type, null where it is none."""
    nested = ddl.upper().startswith(("ARRAY", "MAP", "STRUCT"))
    return f"from_json({text}, {literal(ddl)})" if nested else text_as(text, ddl)


def in_years(moment: str) -> str:
    """SQL: whether a TIMESTAMP is in the years 1 to 9999."""
    return f"unix_micros({moment}) BETWEEN {LEAST_TIME} AND {GREATEST_TIME}"


def within_years(column: str, kind: str) -> str:
    """A column as SQL, null where it is a time outside the years 1 to 9999."""
    if kind.upper() not in TIMES:
        return column
    moment = column if kind.upper() == "TIMESTAMP" else f"CAST({column} AS TIMESTAMP)"
    return f"CASE WHEN {in_years(moment)} THEN {column} END"


def rank_of(made: str, kind: Type) -> str:
    """SQL: the rank of an event, of what its stream's `order:` has ``made`` of a type, a whole number or a time; null where that has more
    than eighteen digits. ValueError for another type."""
    if kind.name in TIMES:
        micros = f"unix_micros(CAST({made} AS TIMESTAMP))"
        return f"CASE WHEN {micros} BETWEEN {LEAST_TIME} AND {GREATEST_TIME} THEN {micros} END"
    if kind.name in INTEGERS or (kind.name == "DECIMAL" and not kind.sizes[1]):
        return f"CASE WHEN ({made}) BETWEEN -{GREATEST_RANK} AND {GREATEST_RANK} THEN CAST({made} AS BIGINT) END"
    raise ValueError(f"of type {kind.ddl}, expected a whole number or a time")


def finite(column: str, kind: str) -> str:
    """A column as SQL, null where it is a number that JSON does not have; -0.0 is 0.0."""
    if kind.upper() not in FLOATS:
        return column
    return f"CASE WHEN abs({column}) <= {GREATEST_DOUBLE!r} THEN {column} + CAST(0 AS {kind}) END"


def valid(made: str, kind: str, written: str) -> str:
    """SQL as a user has ``written`` it, ``made`` of a type: null where it is text that is not UTF-8, as bytes that are cast can be."""
    plain = re.fullmatch(r"[\w.]+", written)  # a column has what the parser let pass
    return made if plain or kind.upper() != "STRING" else f"try_validate_utf8({made})"
