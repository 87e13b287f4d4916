"""Which of Spark's expressions mean the same in DuckDB, whatever the values are.

Both engines know most functions by the same names, and differ at an edge: `CAST(1.5 AS INT)` is 1 in one and 2 in the other,
`dayofweek` counts from another day, a time as text ends in `+00`. So it is not asked what DuckDB can compute, but what is known to
be alike: what is in :mod:`statehouse.kinds`. A store with anything else is right in Spark, and the API shows it as it was merged.
Whole numbers beyond their type begin anew in Spark, and make all of an expression null in DuckDB; by :func:`nulled` they are null in
both.
`tests/system/test_alike_expressions.py` holds both engines to each of them, over values at the edges of every type.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import suppress

from sqlglot import exp

from statehouse.config.models import Store, Stream
from statehouse.kinds import Differs, infer_type
from statehouse.types import INTEGERS, Type, parse_type
from statehouse.values import parse_expression

SAFE: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.Add: exp.SafeAdd,
    exp.Sub: exp.SafeSubtract,
    exp.Mul: exp.SafeMultiply,
    exp.Neg: exp.SafeSubtract,  # from 0
}


@functools.lru_cache(maxsize=1000)
def _parse(expression: str) -> exp.Expr:
    return parse_expression(expression)


def kind_of(expression: str, columns: Mapping[str, str]) -> Type:
    """The type of an expression over columns (their types in Spark's DDL). Raises :class:`Differs` where it is not known to mean the
    same in both engines."""
    if "array_size" in expression.lower():  # to sqlglot `size`, which is -1 of what is null, and this is null
        raise Differs("array_size(…) is not known to be the same in DuckDB; write size(…)")
    tree = _parse(expression)
    if isinstance(tree, exp.Anonymous) and tree.name.lower() == "timestamp_micros" and len(tree.expressions) == 1:
        tree = exp.Anonymous(
            this="timestamp_millis", expressions=tree.expressions
        )  # what is outside of the years is null here alone
    return infer_type(tree, _types(columns))


def _types(columns: Mapping[str, str]) -> dict[str, Type]:
    names = {}
    for name, ddl in columns.items():
        with suppress(ValueError):  # of a type that no payload has
            names[name.lower()] = parse_type(ddl)
    return names


def difference(expression: str, columns: Mapping[str, str]) -> str | None:
    """What in an expression is not known to mean the same in both engines; None: all of it is."""
    try:
        kind_of(expression, columns)
    except Differs as error:
        return str(error)
    return None


def nulled(expression: str, columns: Mapping[str, str]) -> str:
    """An expression as both engines are given it: sums, differences and products of whole numbers are null beyond their type. As it is
    where it is not known to mean the same in both engines."""
    if difference(expression, columns) is not None:
        return expression
    names = _types(columns)
    parent = exp.Paren(this=_parse(expression).copy())
    arithmetic = [node for node in parent.walk() if type(node) in SAFE and _whole_number(node, names)]
    for node in reversed(arithmetic):  # the inner ones first
        zero = exp.Literal.number(0)
        operands = (zero, node.this) if isinstance(node, exp.Neg) else (node.this, node.expression)
        node.replace(SAFE[type(node)](this=operands[0], expression=operands[1]))
    return parent.this.sql("spark") if arithmetic else expression


def _whole_number(node: exp.Expr, names: Mapping[str, Type]) -> bool:
    """Whether a part of an expression is a whole number that is computed."""
    if isinstance(node.this, exp.Literal) and isinstance(node, exp.Neg):
        return False
    scope = dict(names)
    for function in reversed([*_lambdas(node)]):
        assert function.parent is not None
        scope[function.expressions[0].name.lower()] = infer_type(function.parent.this, scope).parts[0]
    try:
        return infer_type(node, scope).name in INTEGERS
    except Differs:  # a part of what is alike as a whole, such as the days of `date_sub`
        return False


def _lambdas(node: exp.Expr) -> Iterator[exp.Expr]:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, exp.Lambda):
            yield node


def store_expressions(store: Store) -> Iterator[tuple[tuple, str]]:
    """What a store computes of an event: each expression with its place in the file, below the store."""
    for index, key in enumerate(store.keys):
        yield ("key", index) if store.composite else ("key",), key.expression
    if store.agent:
        yield ("agent",), f"CAST({store.agent} AS STRING)"
    if store.value:
        yield ("value",), store.value
    if store.where:
        yield ("where",), f"CASE WHEN {store.where} THEN 1 END"


def given(store: Store, columns: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a store computes of an event, as it is written and as both engines are given it (:func:`nulled`)."""
    written = [*(key.expression for key in store.keys), *filter(None, (store.value, store.where, store.agent))]
    return tuple((expression, nulled(expression, columns)) for expression in written)


def stream_expressions(stream: Stream) -> Iterator[tuple[tuple, str]]:
    """What a stream computes of a payload, likewise, with its place in the file."""
    if stream.time:
        yield ("streams", stream.name, "time"), stream.time
    if stream.order:
        yield ("streams", stream.name, "order"), stream.order
    for lookup in stream.lookups:
        for index, (_, by) in enumerate(lookup.matches):
            yield ("lookups", lookup.name, "by", index), by


def check_store(store: Store, columns: Mapping[str, str]) -> None:
    """Raises :class:`Differs` where one of a store's expressions is not known to be alike."""
    for _, expression in store_expressions(store):
        kind_of(expression, columns)


def check_stream(stream: Stream) -> None:
    """Raises :class:`Differs` where the time of a stream's events, or what they are looked up by, is not known to be alike."""
    for _, expression in stream_expressions(stream):
        kind_of(expression, stream.types)
