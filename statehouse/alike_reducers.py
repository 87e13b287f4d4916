"""Whether a user's own reducer means the same in Spark and DuckDB: its aggregates here, the rest of it by :mod:`statehouse.kinds`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from sqlglot import exp

from statehouse.alike import kind_of, nulled
from statehouse.config.models import Own
from statehouse.kinds import Differs, differs
from statehouse.reducers import ORDER
from statehouse.types import INTEGERS
from statehouse.values import parse_expression

Place = tuple[str, ...]
ORDERED = (
    "STRING",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
    "DOUBLE",
    "DECIMAL",
    *INTEGERS,
)  # have one least value in both
LONGEST_SUMMED = 28  # digits of a decimal whose sum, of ten more, has room in both


def own_parts(reduce: Own, value: str, types: Sequence[str]) -> Iterator[tuple[Place, str, str | Differs]]:
    """What a user's reducer computes of values of a type: the place below ``reduce``, the expression as it is written, and as both
    engines are given it, or what is not known to be alike. ``types``: those that Spark found, of ``fold``'s columns and of the result."""
    columns = dict(zip(reduce.fold, types[:-1], strict=True))
    seen = {"value": value, "event_time": "TIMESTAMP", "agent": "STRING", "_order": ORDER}
    row = f"STRUCT<{', '.join(f'`{name}`: {kind}' for name, kind in columns.items())}>"
    parts = [
        *((("fold", name), expression, seen, columns[name]) for name, expression in reduce.fold.items()),
        *((("combine", name), text, {"a": row, "b": row}, columns[name]) for name, text in reduce.combine.items()),
        (("result",), reduce.result, columns, types[-1]),
    ]
    for place, written, names, kind in parts:
        try:
            yield place, written, _nulled_expression(written, names, kind, aggregates=place[0] == "fold")
        except Differs as error:
            yield place, written, error


def own_given(reduce: Own, value: str, types: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The expressions of a reducer, as they are written and as both engines are given them. Raises Differs where one is not known to be
    alike."""
    pairs = []
    for _, written, given in own_parts(reduce, value, types):
        if isinstance(given, Differs):
            raise given
        pairs.append((written, given))
    return tuple(pairs)


def own_given_or_written(reduce: Own, value: str, types: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The same; nothing where one is not known to be alike, and Spark alone computes all of them as they are written."""
    with suppress(Differs):
        return own_given(reduce, value, types)
    return ()


def _nulled_expression(written: str, names: Mapping[str, str], kind: str, aggregates: bool) -> str:
    """An expression as both engines are given it; Differs where it is not known to be alike, as a value of a type."""
    aggregates_by_column: dict[str, str] = {}
    if aggregates:
        whole = parse_expression(written)
        tree, names = exp.Paren(this=whole.copy()), dict(names)
        for number, node in enumerate(_aggregates(tree)):
            column = f"_aggregate_{number}_"
            names[column], aggregates_by_column[column] = _aggregate(node, names)
            node.replace(exp.column(column))
        written = tree.this.sql("spark")
    kind_of(f"CAST(({written}) AS {kind})", names)
    text = nulled(written, names)
    if aggregates_by_column and text != written:  # DuckDB has no TRY around an aggregate
        raise differs(whole)
    for column, aggregate in aggregates_by_column.items():
        text = text.replace(column, aggregate)
    return text


def _aggregates(tree: exp.Expr) -> list[exp.Expr]:
    """The aggregates of a tree, none of them within another."""
    return [node for node in tree.find_all(exp.AggFunc) if not node.find_ancestor(exp.AggFunc)]


def _aggregate(node: exp.Expr, names: Mapping[str, str]) -> tuple[str, str]:
    """An aggregate's type in Spark and its words for both engines."""
    if isinstance(node.parent, exp.Filter):
        raise differs(node.parent)
    match node:
        case exp.Count() if isinstance(node.this, exp.Star):
            return "BIGINT", "count(*)"
        case exp.ArgMax() | exp.ArgMin() if node.expression.sql("spark") == "_order" and not node.args.get("count"):
            argument, name = node.this.sql("spark"), "max_by" if isinstance(node, exp.ArgMax) else "min_by"
            return kind_of(argument, names).ddl, f"{name}({nulled(argument, names)}, _order)"
    if isinstance(node.this, exp.Distinct | None) or node.args.get("expressions") or node.this.find(exp.AggFunc):
        raise differs(node)
    argument = node.this.sql("spark")
    kind = kind_of(argument, names)
    argument = nulled(argument, names)
    match node:
        case exp.Count():
            return "BIGINT", f"count({argument})"
        case exp.Min() | exp.Max() if kind.name in ORDERED:
            return kind.ddl, f"{'min' if isinstance(node, exp.Min) else 'max'}({argument})"
        case exp.CountIf() if kind.name == "BOOLEAN":
            return "BIGINT", f"count_if({argument})"
        case exp.LogicalOr() | exp.LogicalAnd() if kind.name == "BOOLEAN":
            return "BOOLEAN", f"{'bool_or' if isinstance(node, exp.LogicalOr) else 'bool_and'}({argument})"
        case exp.Sum() if kind.name in INTEGERS:  # which begins anew beyond its type in Spark
            return "BIGINT", f"try_cast(sum(CAST({argument} AS DECIMAL(38,0))) AS BIGINT)"
        case exp.Sum() if kind.name == "DECIMAL" and kind.sizes[0] <= LONGEST_SUMMED:
            return f"DECIMAL({kind.sizes[0] + 10},{kind.sizes[1]})", f"sum({argument})"
    raise differs(node)
