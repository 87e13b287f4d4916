"""What Spark and DuckDB compute alike, as the type that it has: sqlglot's trees, node by node, in one table. See :mod:`statehouse.alike`.

It is one module, and one long function in it, since a reader looks a node up here: each case says all that is asked of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp
from sqlglot.errors import UnsupportedError

from statehouse.spark_sql import TIMES
from statehouse.types import FORMS, INTEGERS, Type, parse_type

NULL = Type("NULL", "NULL")
BOOLEAN, TEXT, DATE, TIMESTAMP, DOUBLE = map(parse_type, ("BOOLEAN", "STRING", "DATE", "TIMESTAMP", "DOUBLE"))
DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
FAST = 18  # digits that DuckDB has room for in a product or sum of decimals that have no more
EXACT = 15  # digits of a decimal that a double tells from all others
UNITS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")
PATTERN = r"(%Y|%[mdHMS]strict|[-/:._ ])+"  # of a time as text, as sqlglot reads it: `strict` are two digits
LONGEST = 10_000  # characters that a text is filled up to
# Of sqlglot's nodes: one that has another one, such as a limit, is another function.
ARGUMENTS = (  # and spaces between them
    "this expression expressions is_string quoted table db catalog offset low high ifs default true false to safe start length "
    "fill_pattern is_left replacement unit format position ignore_nulls coalesce flatten typed"
)
COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
OF_TEXT: dict[type[exp.Expr], Type] = {exp.MD5: TEXT, exp.SHA: TEXT, exp.Length: parse_type("INT")}
OF_TEXTS: dict[type[exp.Expr], Type] = {exp.StartsWith: BOOLEAN, exp.EndsWith: BOOLEAN, exp.Contains: BOOLEAN}
OF_DATE = (exp.Year, exp.Quarter, exp.Month, exp.DayOfMonth, exp.DayOfYear)
OF_TIME = (exp.Hour, exp.Minute, exp.Second)


class Differs(UnsupportedError):
    """An expression, or a part of it, that is not known to be alike; it says which."""


def differs(node: exp.Expr) -> Differs:
    """That a part of an expression is not known to be alike."""
    return Differs(f"{node.sql('spark')[:100]} is not known to be the same in DuckDB")


def infer_type(node: exp.Expr, names: Mapping[str, Type]) -> Type:
    """The type of an expression, a tree of sqlglot's, over columns of some types. Raises :class:`Differs` where it is not known that both
    engines compute it alike."""

    def of(child: exp.Expr) -> Type:
        return infer_type(child, names)

    def need(child: exp.Expr, *kinds: str) -> Type:
        child_type = of(child)
        if child_type.name not in kinds:
            raise differs(node)
        return child_type

    if any(given and name not in ARGUMENTS.split() for name, given in node.args.items()):
        raise differs(node)
    match node:
        case exp.Paren():
            return of(node.this)
        case exp.Null():
            return NULL
        case exp.Boolean():
            return BOOLEAN
        case exp.Literal():
            return _literal(node)
        case exp.Column() | exp.Identifier():
            return _field(
                node, [part.name for part in node.parts] if isinstance(node, exp.Column) else [node.name], names
            )
        case exp.Dot():
            return _inner(node, of(node.this), node.expression.name)
        case exp.Bracket():
            return _item(node, of(node.this), names)
        case exp.And() | exp.Or() | exp.Not():
            for child in (node.this, node.args.get("expression")):
                if child is not None:
                    need(child, "BOOLEAN", "NULL")
            return BOOLEAN
        case exp.Is() if isinstance(node.expression, exp.Null):
            of(node.this)
            return BOOLEAN
        case exp.Between():
            _comparable(node, node.this, [node.args["low"], node.args["high"]], names)
            return BOOLEAN
        case exp.In() if node.expressions:
            _comparable(node, node.this, node.expressions, names)
            return BOOLEAN
        case exp.Like() if (
            _is_text_literal(node.expression) and "\\" not in node.expression.name and not node.args.get("escape")
        ):
            need(node.this, "STRING")
            return BOOLEAN
        case exp.Case() if node.this is None:
            for branch in node.args["ifs"]:
                need(branch.this, "BOOLEAN")
            results = [branch.args["true"] for branch in node.args["ifs"]]
            return _common(node, [*results, *filter(None, [node.args.get("default")])], names)
        case exp.If():
            need(node.this, "BOOLEAN")
            return _common(node, list(filter(None, [node.args["true"], node.args.get("false")])), names)
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return _common(node, [node.this, *node.expressions], names)
        case exp.Nullif():
            _comparable(node, node.this, [node.expression], names)
            return of(node.this)
        case exp.Cast() | exp.TryCast():
            return _cast(node, of(node.this))
        case exp.Mod() if _number(node.expression) not in (
            None,
            -1,
        ):  # the least number has no remainder by -1 to DuckDB
            return _numeric(node, [need(node.this, *INTEGERS), need(node.expression, *INTEGERS)])
        case exp.IntDiv() if _number(node.expression) not in (None, 0, -1):
            need(node.this, *INTEGERS)
            return parse_type("BIGINT")
        case exp.Div():
            need(node.this, *INTEGERS, "DOUBLE")
            need(node.expression, *INTEGERS, "DOUBLE")
            return DOUBLE
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            if not _is_fixed(node.expression):
                raise differs(node)
            return need(node.this, "TIMESTAMP")
        case exp.Add() | exp.Sub() | exp.Mul():
            return _arithmetic(node, of(node.this), of(node.expression))
        case exp.SafeAdd() | exp.SafeSubtract() | exp.SafeMultiply():
            return _sum(node, need(node.this, *INTEGERS), need(node.expression, *INTEGERS))
        case exp.Neg() if isinstance(node.this, exp.Literal):
            return of(node.this)
        case exp.Neg():
            return need(node.this, "DOUBLE", "DECIMAL", "INT", "BIGINT")
        case exp.Abs():
            return need(node.this, "DOUBLE", "DECIMAL")
        case exp.Upper() | exp.Lower() if not isinstance(node.this, exp.Upper | exp.Lower):  # of two Spark does one
            return need(node.this, "STRING")
        case exp.DPipe():
            return _texts(node, [node.this, node.expression], names)
        case exp.Concat() | exp.ConcatWs():
            return _texts(node, node.expressions, names)
        case exp.Trim() if node.args.get("expression") is None:
            return need(node.this, "STRING")
        case exp.Substring() if (_number(node.args["start"]) or 0) >= 1 and _is_size(node.args.get("length")):
            return need(node.this, "STRING")
        case exp.Left() | exp.Right() if _is_size(node.expression):
            return need(node.this, "STRING")
        case exp.Pad() if (_number(node.expression) or -1) in range(LONGEST) and (
            node.args["fill_pattern"] or node
        ).name:
            return need(node.this, "STRING")
        case exp.Replace() if (
            _is_text_literal(node.expression) and node.expression.name and _is_text_literal(node.args["replacement"])
        ):
            return need(node.this, "STRING")
        case exp.RegexpSplit() if _is_text_literal(node.expression) and re.fullmatch(
            r"[\w,;:/#@ -]+", node.expression.name
        ):
            need(node.this, "STRING")
            return parse_type("ARRAY<STRING>")
        case exp.SHA2() if _number(node.args.get("length")) == 256:
            return need(node.this, "STRING")
        case exp.Hex() | exp.ToBase64():
            need(node.this, "BINARY")
            return TEXT
        case exp.TimestampTrunc() if node.text("unit").upper() in UNITS:
            return need(node.this, "TIMESTAMP")
        case exp.TsOrDsToDate() if not node.args.get("format"):
            need(node.this, *TIMES)
            return DATE
        case exp.TsOrDsAdd() if node.text("unit") == "DAY" and _is_days(node.expression):
            return need(node.this, "DATE")
        case exp.DateDiff() if not node.args.get("unit"):
            need(node.this, "DATE")
            need(node.expression, "DATE")
            return parse_type("INT")
        case exp.LastDay() if not node.args.get("unit"):
            return need(node.this, "DATE")
        case exp.TimeToStr() if re.fullmatch(PATTERN, node.text("format")) and isinstance(node.this, exp.TimeStrToTime):
            need(node.this.this, "TIMESTAMP")
            return TEXT
        case exp.UnixMillis() | exp.UnixMicros():
            need(node.this, "TIMESTAMP")
            return parse_type("BIGINT")
        case exp.Anonymous() if (
            node.name.lower() in ("timestamp_millis", "timestamp_seconds") and len(node.expressions) == 1
        ):
            need(node.expressions[0], *INTEGERS)
            return TIMESTAMP
        case exp.ArraySize():
            need(node.this, "ARRAY")
            return parse_type("INT")
        case exp.Array():
            return parse_type(f"ARRAY<{_common(node, node.expressions, names).ddl}>")
        case exp.ArrayFilter() | exp.Transform():
            return _each(node, need(node.this, "ARRAY"), names)
        case exp.Struct():
            fields = [
                (field.this.name, of(field.expression))
                for field in node.expressions
                if isinstance(field, exp.PropertyEQ)
            ]
            if len(fields) != len(node.expressions) or any(kind is NULL for _, kind in fields):
                raise differs(node)
            return Type(
                "STRUCT", f"STRUCT<{', '.join(f'`{name}`: {kind.ddl}' for name, kind in fields)}>", fields=tuple(fields)
            )
    if isinstance(node, COMPARISONS):
        _comparable(node, node.this, [node.expression], names)
        return BOOLEAN
    if type(node) in OF_TEXT:
        need(node.this, "STRING")
        return OF_TEXT[type(node)]
    if type(node) in OF_TEXTS:
        need(node.this, "STRING")
        need(node.expression, "STRING")
        return OF_TEXTS[type(node)]
    if isinstance(node, OF_DATE) and isinstance(node.this, exp.TsOrDsToDate):
        need(node.this.this, *TIMES)
        return parse_type("INT")
    if isinstance(node, OF_TIME):
        need(node.this, "TIMESTAMP")
        return parse_type("INT")
    raise differs(node)


def _literal(node: exp.Literal) -> Type:
    text = node.this
    if node.is_string:
        return TEXT
    if re.fullmatch(r"\d{1,19}", text) and int(text) < 2**63:
        return parse_type("INT" if int(text) < 2**31 else "BIGINT")
    if match := re.fullmatch(r"(\d{0,20})\.(\d{0,15})", text):
        whole, scale = len(match[1].lstrip("0")), len(match[2])
        return parse_type(f"DECIMAL({max(1, whole + scale)},{scale})")
    if "e" in text.lower():
        return DOUBLE
    raise differs(node)


def _field(node: exp.Expr, path: Sequence[str], names: Mapping[str, Type]) -> Type:
    if path[0].lower() not in names:
        raise differs(node)
    kind = names[path[0].lower()]
    for name in path[1:]:
        kind = _inner(node, kind, name)
    return kind


def _inner(node: exp.Expr, kind: Type, name: str) -> Type:
    inner_kind = next((inner for field, inner in kind.fields if field.lower() == name.lower()), None)
    if inner_kind is None:
        raise differs(node)
    return inner_kind


def _item(node: exp.Bracket, of: Type, names: Mapping[str, Type]) -> Type:
    """``list[0]``, ``element_at(list, 1)``, ``map['key']``."""
    (index,) = node.expressions
    counted, number = bool(node.args.get("offset")), _number(index)
    if of.name == "ARRAY" and number is not None and (number != 0 if counted else number >= 0):
        return of.parts[0]
    if of.name == "MAP" and infer_type(index, names).name == "STRING":
        return of.parts[1]
    raise differs(node)


def _number(node: exp.Expr | None) -> int | None:
    """A whole number as it is written; None: it is none."""
    negative = isinstance(node, exp.Neg)
    literal = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(literal, exp.Literal) or literal.is_string or not literal.this.isdigit():
        return None
    return -int(literal.this) if negative else int(literal.this)


def _is_size(node: exp.Expr | None) -> bool:
    return node is None or ((_number(node) or 0) >= 0 and _number(node) is not None)


def _is_days(node: exp.Expr) -> bool:
    return _number(node) is not None or (
        isinstance(node, exp.Mul) and _number(node.this) is not None
    )  # the latter is `date_sub`


def _is_text_literal(node: exp.Expr | None) -> bool:
    """Whether it is a text as it is written."""
    return isinstance(node, exp.Literal) and node.is_string


def _is_fixed(node: exp.Interval) -> bool:
    """Whether an interval is of a length that is always the same."""
    return node.text("unit").upper().rstrip("S") in ("WEEK", "DAY", "HOUR", "MINUTE", "SECOND") and node.name.isdigit()


def _comparable(node: exp.Expr, one: exp.Expr, others: Sequence[exp.Expr], names: Mapping[str, Type]) -> None:
    kind = infer_type(one, names)
    for other in others:
        other_kind = infer_type(other, names)
        if NULL in (kind, other_kind) or _is_time_text(kind, other) or _is_time_text(other_kind, one):
            continue
        if kind.name != other_kind.name or kind.name not in ("STRING", "BOOLEAN", "BINARY", "FLOAT", *TIMES):
            _numeric(node, [kind, other_kind])


def _is_time_text(kind: Type, text: exp.Expr) -> bool:
    """Whether a text that is compared with a time is one that both engines read alike."""
    return kind.name in TIMES and _is_text_literal(text) and bool(re.fullmatch(FORMS[kind.name], text.name))


def _numeric(node: exp.Expr, kinds: Sequence[Type]) -> Type:
    """The type that numbers of some types are brought to, to be compared or chosen among."""
    if any(kind.name not in (*INTEGERS, "DECIMAL", "DOUBLE") for kind in kinds):
        raise differs(node)
    decimals = [kind for kind in kinds if kind.name == "DECIMAL"]
    if any(kind.name == "DOUBLE" for kind in kinds):
        if any(kind.sizes[0] > EXACT for kind in decimals):
            raise differs(node)
        return DOUBLE
    if not decimals:
        return max(kinds, key=lambda kind: DIGITS[kind.name])
    scale = max(kind.sizes[1] for kind in decimals)
    whole = max(_whole(kind) for kind in kinds)
    if whole + scale > 38:
        raise differs(node)
    return parse_type(f"DECIMAL({whole + scale},{scale})")


def _whole(kind: Type) -> int:
    """How many digits a number of a type can have before the point."""
    return kind.sizes[0] - kind.sizes[1] if kind.sizes else DIGITS[kind.name]


def _common(node: exp.Expr, choices: Sequence[exp.Expr], names: Mapping[str, Type]) -> Type:
    """The one type of several results."""
    kinds = [kind for kind in (infer_type(choice, names) for choice in choices) if kind is not NULL]
    if not kinds:
        return NULL
    return kinds[0] if all(kind == kinds[0] for kind in kinds) else _numeric(node, kinds)


def _arithmetic(node: exp.Expr, left: Type, right: Type) -> Type:
    names = {left.name, right.name}
    if names <= INTEGERS.keys():
        return _sum(node, left, right)
    if "DOUBLE" in names and names <= {"DOUBLE", *INTEGERS}:
        return DOUBLE
    if "DECIMAL" not in names or not names <= {"DECIMAL", *INTEGERS}:
        raise differs(node)
    sizes = []
    for kind, operand in ((left, node.this), (right, node.expression)):
        literal = _number(operand)
        whole = _whole(kind) if literal is None else len(str(abs(literal)))
        sizes.append((whole, kind.sizes[1] if kind.sizes else 0))
    (whole, scale), (other, digits) = sizes
    if isinstance(node, exp.Mul):
        sizes_of_result = whole + scale + other + digits + 1, scale + digits
    else:
        sizes_of_result = max(whole, other) + max(scale, digits) + 1, max(scale, digits)
    if sizes_of_result[0] > FAST:
        raise differs(node)
    return parse_type(f"DECIMAL({sizes_of_result[0]},{sizes_of_result[1]})")


def _sum(node: exp.Expr, left: Type, right: Type) -> Type:
    """Of whole numbers. A number as it is written is an INT to Spark; DuckDB gives it the other one's type."""
    literals = [_number(operand) is not None for operand in (node.this, node.expression)]
    small = [DIGITS[kind.name] < DIGITS["INT"] for kind in (left, right)]
    if all(literals) or (literals[0] and small[1]) or (literals[1] and small[0]):
        raise differs(node)
    return _numeric(node, [left, right])


def _cast(node: exp.Expr, of: Type) -> Type:
    try:
        to = parse_type(node.args["to"].sql("spark"))
    except ValueError:
        raise differs(node) from None
    if of in (to, NULL):
        return to
    fits = {
        "STRING": _has_one_text(of),
        "DOUBLE": of.name in INTEGERS or (of.name == "DECIMAL" and of.sizes[0] <= EXACT),
        "DECIMAL": of.name == "DECIMAL"
        or (of.name in INTEGERS and to.name == "DECIMAL" and _whole(to) >= DIGITS[of.name]),
        "DATE": of.name in ("TIMESTAMP", "TIMESTAMP_NTZ") or _is_time_text(to, node.this),
        "TIMESTAMP": of.name in ("DATE", "TIMESTAMP_NTZ") or _is_time_text(to, node.this),
        "TIMESTAMP_NTZ": of.name in ("DATE", "TIMESTAMP") or _is_time_text(to, node.this),
    }
    wider = of.name in DIGITS and to.name in DIGITS and DIGITS[of.name] <= DIGITS[to.name]
    if not wider and not fits.get(to.name, False) and not (_number(node.this) is not None and to.name in DIGITS):
        raise differs(node)
    return to


def _texts(node: exp.Expr, parts: Sequence[exp.Expr], names: Mapping[str, Type]) -> Type:
    """What is put together to a text, each part of which is one, or is written in one way."""
    for part in parts:
        if not _has_one_text(infer_type(part, names)):
            raise differs(node)
    return TEXT


def _has_one_text(kind: Type) -> bool:
    """Whether values of a type are written as text in one way; Spark writes a decimal of which six zeros follow the point with an
    exponent."""
    return kind.name in ("STRING", "NULL", "BOOLEAN", *INTEGERS, "DATE") or (
        kind.name == "DECIMAL" and kind.sizes[1] <= 6
    )


def _each(node: exp.Expr, of: Type, names: Mapping[str, Type]) -> Type:
    """``filter`` and ``transform`` with a function of one parameter."""
    function = node.expression
    if not isinstance(function, exp.Lambda) or len(function.expressions) != 1:
        raise differs(node)
    element = infer_type(function.this, {**names, function.expressions[0].name.lower(): of.parts[0]})
    if isinstance(node, exp.ArrayFilter):
        if element.name != "BOOLEAN":
            raise differs(node)
        return of
    if element is NULL:
        raise differs(node)
    return parse_type(f"ARRAY<{element.ddl}>")
