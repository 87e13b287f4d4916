"""The ``where`` of a scan: comparisons of a store's columns with literals, in Spark's words.

What a caller writes is parsed, and only what is listed here passes; of its text nothing gets into a query. Columns are the
store's own, operators are those below, literals are bound. DuckDB decides, on Arrow columns of the replica, so that null,
decimals and times compare as in SQL.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlglot import TokenType, exp, parse_one, tokenize
from sqlglot.errors import SqlglotError

from api.engine.columns import count
from api.engine.deadline import Deadline
from api.engine.duck import Connection, quoted
from api.engine.types import canonical, moment
from statehouse.types import NUMBERS

LONGEST = 2000  # characters
# What a parenthesis may come after. Of calls within calls, such as STRUCT(STRUCT(…, the parser's time doubles with each.
BEFORE_PARENTHESES = {
    *(None, TokenType.L_PAREN, TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.DASH),
    *(TokenType.EQ, TokenType.NEQ, TokenType.NULLSAFE_EQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE),
    *(TokenType.IN, TokenType.BETWEEN, TokenType.LIKE),
}
COMPARE: dict[type[exp.Expr], tuple[str, str]] = {  # as it is, and with its sides the other way round
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", "<>"),
    exp.NullSafeEQ: ("IS NOT DISTINCT FROM", "IS NOT DISTINCT FROM"),
    exp.LT: ("<", ">"),
    exp.LTE: ("<=", ">="),
    exp.GT: (">", "<"),
    exp.GTE: (">=", "<="),
}
SUCH_AS = "comparisons with literals, such as value > 10 AND key LIKE 'a%' (also OR, NOT, IN, BETWEEN, IS NULL)"
ANY = {"%": ".*", "_": "."}  # of a LIKE, as a regular expression
PLAIN = (*NUMBERS, "BOOLEAN", "STRING", "DATE", "TIMESTAMP")


class Where:
    """A condition on rows whose columns have these types, Spark's: ``sql`` in DuckDB's words, with ``bound`` for its '?'.

    Raises ValueError for what is not such a condition.
    """

    def __init__(self, text: str, types: Mapping[str, str], cursor: Callable[[], Connection]) -> None:
        self._types = {n: t for n, t in types.items() if t.upper().startswith(PLAIN) and n != "reset"}
        self.bound: list[Any] = []
        self._cursor = cursor
        if len(text) > LONGEST:
            raise ValueError(f"found {len(text)} characters, expected at most {LONGEST}")
        try:
            tokens = [token.token_type for token in tokenize(text, dialect="spark")]
            for before, token in zip([None, *tokens], tokens, strict=False):
                if token == TokenType.L_PAREN and before not in BEFORE_PARENTHESES:
                    raise ValueError(f"found {text[:100]!r}, expected {SUCH_AS}")
            self.sql = self._condition(parse_one(text, dialect="spark"))
        except (SqlglotError, RecursionError):
            raise ValueError(f"found {text[:100]!r}, expected {SUCH_AS}") from None

    def places(self, columns: Mapping[str, pa.Array], deadline: Deadline | None = None) -> list[int]:
        """Which rows of some columns meet the condition, by their numbers; a problem where that is not known by the deadline."""
        if not (size := count(columns)):
            return []
        with closing(self._cursor()) as cursor:
            rows = {name: column for name, column in columns.items() if name in self._types}
            cursor.register("_asked", pa.table({**rows, "_place": pa.array(range(size), pa.int64())}))
            with deadline.over(cursor) if deadline else nullcontext():
                places = cursor.execute(f"SELECT _place FROM _asked WHERE {self.sql}", self.bound).fetchnumpy()
            return places["_place"].tolist()

    def _condition(self, node: exp.Expr) -> str:
        if isinstance(node, (exp.And, exp.Or)):
            word = "AND" if isinstance(node, exp.And) else "OR"
            return f"({self._condition(node.this)} {word} {self._condition(node.expression)})"
        if isinstance(node, exp.Paren):
            return self._condition(node.this)
        if isinstance(node, exp.Not):
            return f"(NOT {self._condition(node.this)})"
        if type(node) in COMPARE:
            forth, back = COMPARE[type(node)]
            if isinstance(node.this, exp.Column):
                return self._compared(node.this, forth, node.expression)
            return self._compared(node.expression, back, node.this)
        if isinstance(node, exp.Like) and not node.args.get("escape"):
            return self._compared(node.this, "LIKE", node.expression)
        if isinstance(node, exp.Between):
            least, most = node.args["low"], node.args["high"]
            return f"({self._compared(node.this, '>=', least)} AND {self._compared(node.this, '<=', most)})"
        if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
            name = self._column(node.this)
            for value in node.expressions:
                self._bind(name, value)
            return f"({quoted(name)} IN ({', '.join('?' * len(node.expressions))}))"
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return f"({quoted(self._column(node.this))} IS NULL)"
        if isinstance(node, exp.Column) and self._types.get(node.name, "").upper() == "BOOLEAN":
            return quoted(self._column(node))
        raise self._wrong(node)

    def _compared(self, column: exp.Expr, operator: str, value: exp.Expr) -> str:
        name = self._column(column)
        if operator == "LIKE" and self._types[name].upper() != "STRING":
            raise ValueError(f"found LIKE on {name}, expected a column that is text")
        self._bind(name, value)
        if operator == "LIKE" and re.search(r"[_\\]", self.bound[-1]):
            # DuckDB tries every way to match a pattern with '_': their number doubles with each '%'. Its regular expressions take
            # each character of a value once.
            self.bound[-1] = _pattern(self.bound[-1])
            return f"regexp_full_match({quoted(name)}, ?, 's')"
        return f"({quoted(name)} {operator} ?)"

    def _column(self, node: exp.Expr) -> str:
        if not isinstance(node, exp.Column) or node.table:
            raise self._wrong(node)
        name = next((n for n in self._types if n.lower() == node.name.lower()), None)  # as Spark: no cases
        if name is None:
            raise ValueError(f"found the column {node.name[:100]!r}, expected {', '.join(self._types)}")
        return name

    def _bind(self, name: str, node: exp.Expr) -> None:
        kind = self._types[name].upper()
        negative = isinstance(node, exp.Neg)
        literal = node.this if negative else node
        try:
            if isinstance(literal, exp.Literal) and literal.is_string and not negative and kind in TEXTS:
                self.bound.append(TEXTS[kind](literal.this))
            elif isinstance(literal, exp.Literal) and not literal.is_string and kind.startswith(NUMBERS):
                self.bound.append(_number(literal.this, negative))
            elif isinstance(literal, exp.Boolean) and kind == "BOOLEAN":
                self.bound.append(bool(literal.this))
            else:
                raise ValueError(f"expected a literal of {name}, which is {kind}")
        except ValueError as error:
            raise ValueError(f"found {node.sql('spark')[:100]}, {error}") from None

    @staticmethod
    def _wrong(node: exp.Expr) -> ValueError:
        return ValueError(f"found {node.sql('spark')[:100]}, expected {SUCH_AS}")


def _pattern(text: str) -> str:
    """The pattern of a LIKE as a regular expression; as in Spark a backslash is before what stands for itself."""
    if re.search(r"(?<!\\)(\\\\)*\\([^_%\\]|$)", text):
        raise ValueError(f"found {text[:100]!r}, expected a backslash only before %, _ and another one")
    parts = re.findall(r"\\.|.", text, re.DOTALL)
    return "".join(re.escape(part[1]) if len(part) == 2 else ANY.get(part, re.escape(part)) for part in parts)


def _number(text: str, negative: bool) -> Any:
    number = float(text) if "e" in text.lower() else Decimal(text)
    if isinstance(number, Decimal) and len(number.as_tuple().digits) > 38:
        raise ValueError("expected a number of at most 38 digits")
    return -number if negative else number


TEXTS: dict[str, Callable[[str], Any]] = {
    "STRING": str,
    "DATE": lambda text: dt.date.fromisoformat(canonical(text, "DATE")),
    "TIMESTAMP": moment,
}
