"""Spark SQL in DuckDB's words: sqlglot does nearly all of it; the exceptions are here, few and named.

* ``map_filter``, ``map_zip_with`` and ``exists`` take a lambda over a map or a list: written with DuckDB's list functions.
  (Spark's ``exists`` is null where nothing is true and something is null; here it is false.)
* ``max_by`` and ``min_by``: DuckDB's pass over a null value, Spark's do not: ``arg_max_null``, ``arg_min_null``.
* ``try_url_decode``: DuckDB's ``url_decode`` raises; under ``TRY`` it is null. ``timestamp_millis`` and
  ``timestamp_micros`` have other names.
* ``upper`` and ``lower``: of what is not ASCII Python's, as DuckDB has one character for each (:data:`CASES`, in :mod:`api.engine.duck`).
* ``size`` of what is null is -1. ``timestamp_seconds`` has no other name, ``try_subtract`` and ``try_multiply`` are what they say.
* ``try_sum`` and ``try_add``: DuckDB's raise where decimals or integers are too large; its sum of integers has room for all.
* ``from_json`` of a literal type: a cast of JSON, null where it is not of that type; what is binary in it is base64.

``tests/statehouse/test_transpile.py`` runs each in DuckDB, and ``tests/system/test_law.py`` the whole fold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import sqlglot
from sqlglot import exp

from statehouse.payload import GREATEST_TIME, LEAST_TIME


@functools.lru_cache(maxsize=1000)  # the same few queries, at every refresh of a replica
def to_duckdb(sql: str) -> str:
    """A query or expression in Spark SQL for DuckDB. Raises sqlglot's errors where it has no words for it."""
    tree = sqlglot.parse_one(sql, dialect="spark").transform(_rewrite)
    return tree.sql("duckdb", unsupported_level=sqlglot.ErrorLevel.RAISE)


def duckdb_type(kind: str) -> str:
    """A type of Spark's DDL in DuckDB's words."""
    return exp.DataType.build(kind, dialect="spark").sql("duckdb")


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def _field(of: exp.Expr, name: str) -> exp.Expr:
    return exp.Dot(this=of.copy(), expression=exp.to_identifier(name))


def _lambda(parameter: str, body: exp.Expr) -> exp.Expr:
    return exp.Lambda(this=body, expressions=[exp.to_identifier(parameter)])


def _parameters(function: exp.Lambda) -> list[str]:
    return [p.name for p in function.expressions]


def _bind(function: exp.Lambda, values: dict[str, exp.Expr]) -> exp.Expr:
    """A lambda's body with its parameters replaced by expressions."""

    def replace(node: exp.Expr) -> exp.Expr:
        name = node.name if isinstance(node, exp.Column | exp.Identifier) else ""
        field = isinstance(node.parent, exp.Dot) and node.arg_key == "expression"
        inner = isinstance(node, exp.Identifier) and isinstance(node.parent, exp.Column | exp.Lambda | exp.PropertyEQ)
        return values[name].copy() if name in values and not field and not inner else node

    return cast(exp.Expr, function.this.copy().transform(replace))


def _map_filter(node: exp.Anonymous) -> exp.Expr:
    of, function = node.expressions
    key, value = _parameters(function)
    entry = exp.to_identifier("_e")
    condition = _bind(function, {key: _field(entry, "key"), value: _field(entry, "value")})
    return _call("map_from_entries", _call("list_filter", _call("map_entries", of), _lambda("_e", condition)))


def _map_zip_with(node: exp.Anonymous) -> exp.Expr:
    left, right, function = node.expressions
    key, x, y = _parameters(function)
    at = exp.to_identifier("_k")
    arguments = {key: at, x: _call("map_extract_value", left, at), y: _call("map_extract_value", right, at)}
    pairs = [("key", at.copy()), ("value", _bind(function, arguments))]
    entry = _struct(pairs)
    keys = _call("list_distinct", _call("list_concat", _call("map_keys", left), _call("map_keys", right)))
    return _call("map_from_entries", _call("list_transform", keys, _lambda("_k", entry)))


def _exists(node: exp.Exists) -> exp.Expr:
    matching = _call("list_filter", node.this, node.expression)
    return exp.GT(this=_call("len", matching), expression=exp.Literal.number(0))


def _times(value: exp.Expr, factor: int) -> exp.Expr:
    return exp.Mul(
        this=exp.Cast(this=value.copy(), to=exp.DataType.build("BIGINT")), expression=exp.Literal.number(factor)
    )


def _in_years(micros: exp.Expr) -> exp.Expr:
    """The time of so many microseconds; DuckDB's greatest number is no time to it, but `infinity`."""
    low, high = (exp.convert(bound) for bound in (LEAST_TIME, GREATEST_TIME))
    known = exp.Between(this=micros.copy(), low=low, high=high)
    return exp.Case(ifs=[exp.If(this=known, true=_call("make_timestamptz", micros))])


def _change_case(node: exp.Expr) -> exp.Expr:
    """A text in capitals or small letters: of ASCII, which has as many bytes as characters, by the engine itself."""
    name, text = ("upper" if isinstance(node, exp.Upper) else "lower"), node.this
    ascii_ = exp.EQ(this=_call("strlen", text), expression=_call("length", text))
    return exp.Case(ifs=[exp.If(this=ascii_, true=_call(name, text))], default=_call(f"{CASED}{name}", text))


CASED = "_text_"  # before the names of the functions that make Python's capitals and small letters
CASES: dict[str, Callable[[str], str]] = {f"{CASED}upper": str.upper, f"{CASED}lower": str.lower}
SAFE: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.SafeAdd: exp.Add,
    exp.SafeSubtract: exp.Sub,
    exp.SafeMultiply: exp.Mul,
}


def _try_sum(node: exp.Anonymous) -> exp.Expr:
    """Of a cast to DECIMAL(38, s): one after the other, as an error cannot be caught in an aggregate."""
    (value,) = node.expressions
    if not isinstance(value, exp.Cast):
        return _call("sum", value)
    kind, narrow = value.to, exp.DataType.build(value.to.sql("spark").replace("(38,", "(37,"), dialect="spark")
    x, y = (exp.TryCast(this=exp.to_identifier(name), to=narrow.copy()) for name in ("_x", "_y"))
    both = exp.Cast(this=exp.Add(this=x, expression=y), to=kind.copy())
    add = exp.Lambda(this=both, expressions=[exp.to_identifier("_x"), exp.to_identifier("_y")])
    known = exp.Filter(
        this=_call("list", value),
        expression=exp.Where(this=exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null()))),
    )
    return _call("list_reduce", known, add)


ANONYMOUS: dict[str, Callable[[exp.Anonymous], exp.Expr]] = {
    "map_filter": _map_filter,
    "map_zip_with": _map_zip_with,
    "timestamp_micros": lambda node: _in_years(node.expressions[0]),
    "timestamp_millis": lambda node: _call("make_timestamptz", _times(node.expressions[0], 1000)),
    "timestamp_seconds": lambda node: _call("make_timestamptz", _times(node.expressions[0], 1_000_000)),
    "try_validate_utf8": lambda node: node.expressions[0].copy(),  # DuckDB has no other text
    "try_sum": _try_sum,
    "try_url_decode": lambda node: _call("try", _call("url_decode", *node.expressions)),
}


def _from_json(node: exp.FromJson) -> exp.Expr:
    text = node.expression.name
    try:
        kind = exp.DataType.build(text, dialect="spark")
    except sqlglot.errors.ParseError:  # the columns of an object, as Spark also takes them
        kind = exp.DataType.build(f"STRUCT<{text}>", dialect="spark")
    value = exp.TryCast(this=exp.TryCast(this=node.this.copy(), to=exp.DataType.build("JSON")), to=_in_text(kind))
    return _decode_bytes(value, kind) if _holds_binary(kind) else value


def _holds_binary(kind: exp.Expr) -> bool:
    return any(part.this == exp.DataType.Type.BINARY for part in kind.find_all(exp.DataType))


def _in_text(kind: exp.DataType) -> exp.DataType:
    """A type with what JSON has as base64 as the text that it is."""
    text_kind = kind.copy()
    for part in text_kind.find_all(exp.DataType):
        if part.this == exp.DataType.Type.BINARY:
            part.set("this", exp.DataType.Type.TEXT)
    return text_kind


def _decode_bytes(value: exp.Expr, kind: exp.Expr) -> exp.Expr:
    """A value of :func:`_in_text` with the bytes that its texts say; null where they say none."""
    kinds = exp.DataType.Type
    if not _holds_binary(kind):
        return value.copy()
    if kind.this == kinds.BINARY:
        return _call("try", _call("from_base64", value))
    item = exp.to_identifier("_i")
    if kind.this == kinds.ARRAY:
        return _call("list_transform", value, _lambda("_i", _decode_bytes(item, kind.expressions[0])))
    if kind.this == kinds.MAP:
        pairs = [("key", _field(item, "key")), ("value", _decode_bytes(_field(item, "value"), kind.expressions[1]))]
        entries = _call("list_transform", _call("map_entries", value), _lambda("_i", _struct(pairs)))
        return _call("map_from_entries", entries)
    fields = [(f.name, _decode_bytes(_quoted_field(value, f.name), f.args["kind"])) for f in kind.expressions]
    there = exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null()))
    return exp.Case(ifs=[exp.If(this=there, true=_struct(fields))])


def _quoted_field(of: exp.Expr, name: str) -> exp.Expr:
    return exp.Dot(this=exp.Paren(this=of.copy()), expression=exp.to_identifier(name, quoted=True))


def _struct(fields: list[tuple[str, exp.Expr]]) -> exp.Expr:
    return exp.Struct(
        expressions=[exp.PropertyEQ(this=exp.to_identifier(n, quoted=True), expression=v) for n, v in fields]
    )


def _rewrite(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Anonymous) and node.name.lower() in ANONYMOUS:
        return ANONYMOUS[node.name.lower()](node).transform(_rewrite)
    if type(node) in SAFE:
        operation = SAFE[type(node)](this=node.this.copy(), expression=node.expression.copy())
        return _call("try", operation).transform(_rewrite)
    if isinstance(node, exp.Upper | exp.Lower):
        return _change_case(node).transform(_rewrite)
    if isinstance(node, exp.ArraySize):
        return _call("coalesce", _call("len", node.this), exp.Literal.number(-1)).transform(_rewrite)
    if isinstance(node, exp.Exists) and isinstance(node.expression, exp.Lambda):
        return _exists(node).transform(_rewrite)
    if isinstance(node, exp.FromJson) and isinstance(node.expression, exp.Literal):
        return _from_json(node).transform(_rewrite)
    if isinstance(node, exp.ArgMax | exp.ArgMin):
        name = "arg_max_null" if isinstance(node, exp.ArgMax) else "arg_min_null"
        return _call(name, node.this, node.expression).transform(_rewrite)
    return node
