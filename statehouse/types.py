"""The types of a payload's columns: Spark's DDL as a tree that both halves read. No engine, no JSON."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}  # bits
FLOATS = ("FLOAT", "DOUBLE")
NUMBERS = (*INTEGERS, "DECIMAL", *FLOATS)
SCALARS = (
    *("STRING", "BOOLEAN", *INTEGERS, *FLOATS, "DECIMAL"),
    *("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BINARY"),
)
_FRACTION = "[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]{1,3})?"
_MOMENT = "[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?%s)?"
# The forms of text that a cast reads alike in Spark, in DuckDB and here, as regular expressions that all three know. A key that a
# control event names is such text, and so is a scalar that a set gives.
FORMS = {
    **dict.fromkeys(INTEGERS, "[-+]?[0-9]{1,19}"),
    **dict.fromkeys((*FLOATS, "DECIMAL"), _FRACTION),
    "BOOLEAN": "[tT][rR][uU][eE]|[fF][aA][lL][sS][eE]",
    "DATE": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "TIMESTAMP": _MOMENT % "(Z|[-+](0[0-9]|1[0-7]):[0-5][0-9])?",
    "TIMESTAMP_NTZ": _MOMENT % "Z?",
    "BINARY": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
}
ENCODED = "([^%]|%[0-9A-Fa-f]{2})*"  # a part of a composite key
_ARROW: dict[str, Callable[[], pa.DataType]] = {
    "STRING": pa.string,
    "BOOLEAN": pa.bool_,
    "TINYINT": pa.int8,
    "SMALLINT": pa.int16,
    "INT": pa.int32,
    "BIGINT": pa.int64,
    "FLOAT": pa.float32,
    "DOUBLE": pa.float64,
    "DATE": pa.date32,
    "BINARY": pa.binary,
}


@dataclass(frozen=True)
class Type:
    """A type: ``name`` such as ``DECIMAL`` or ``STRUCT``; ``ddl`` as Spark writes all of it; ``sizes`` of a DECIMAL its precision
    and scale; ``parts`` of an ARRAY its element, of a MAP its key and value; ``fields`` of a STRUCT."""

    name: str
    ddl: str
    sizes: tuple[int, ...] = ()
    parts: tuple[Type, ...] = ()
    fields: tuple[tuple[str, Type], ...] = ()

    @functools.cached_property
    def arrow(self) -> pa.DataType:
        """Arrow's type, as Spark has it: moments in microseconds."""
        if self.name == "DECIMAL":
            return pa.decimal128(*self.sizes)
        if self.name.startswith("TIMESTAMP"):
            return pa.timestamp("us", "UTC" if self.name == "TIMESTAMP" else None)
        if self.name == "ARRAY":
            return pa.list_(self.parts[0].arrow)
        if self.name == "MAP":
            return pa.map_(self.parts[0].arrow, self.parts[1].arrow)
        if self.name == "STRUCT":
            return pa.struct([(name, kind.arrow) for name, kind in self.fields])
        return _ARROW[self.name]()

    @functools.cached_property
    def unit(self) -> Decimal:
        """Of a DECIMAL the least number above 0."""
        return Decimal(1).scaleb(-self.sizes[1])

    @property
    def leaves(self) -> Iterator[Type]:
        """The scalar types that are anywhere in it."""
        inner = (*self.parts, *(kind for _, kind in self.fields))
        if not inner:
            yield self
        for kind in inner:
            yield from kind.leaves


@functools.lru_cache(maxsize=1000)
def parse_type(ddl: str) -> Type:
    """A type of Spark's DDL such as ``MAP<STRING, DECIMAL(38,3)>``; ValueError for one that a JSON payload cannot have."""
    # Imported where it is needed: Spark's executors have the tree, and need not read DDL.
    import sqlglot
    from sqlglot import exp

    try:
        (column,) = sqlglot.parse_one(f"CREATE TABLE t (x {ddl})", dialect="spark").this.expressions
    except (sqlglot.errors.SqlglotError, AttributeError, ValueError):
        column = None
    if not isinstance(column, exp.ColumnDef) or column.kind is None:
        raise ValueError(f"found the type {ddl!r}, expected one of {', '.join(SCALARS)}, ARRAY, MAP and STRUCT")
    return _tree(column.kind)


def check_name(name: str) -> None:
    """ValueError for a name that a Delta table cannot have, of a column or of a struct's field."""
    if not name or re.search(r"[ ,;{}()\n\t=]", name):
        raise ValueError(f"found the name {name!r}, expected one without spaces and any of ,;{{}}()= (Delta's rule)")


def type_or_none(ddl: str) -> Type | None:
    """The same; None for a type that a JSON payload cannot have, which an expression's value may well be of."""
    try:
        return parse_type(ddl)
    except ValueError:
        return None


def _tree(kind: object) -> Type:
    from sqlglot import exp

    assert isinstance(kind, exp.Expression)
    ddl = kind.sql("spark")
    name = (re.match(r"[A-Za-z_]+", ddl) or [""])[0].upper()
    name, ddl = ("TIMESTAMP", "TIMESTAMP") if name == "TIMESTAMP_LTZ" else (name, ddl)
    if name == "ARRAY" and len(kind.expressions) == 1:
        return Type(name, ddl, parts=(_tree(kind.expressions[0]),))
    if name == "MAP" and len(kind.expressions) == 2:
        key, value = map(_tree, kind.expressions)
        if key.name != "STRING":
            raise ValueError(f"found {ddl!r}, expected STRING as the type of a map's keys: JSON has no other")
        return Type(name, ddl, parts=(key, value))
    if name == "STRUCT" and kind.expressions:
        fields = tuple((f.name, _tree(f.args["kind"])) for f in kind.expressions)
        for field, _ in fields:
            check_name(field)
        names = [field.lower() for field, _ in fields]
        if twice := {n for n in names if names.count(n) > 1}:
            raise ValueError(f"found the field {sorted(twice)[0]!r} twice in {ddl!r} (Spark does not tell cases apart)")
        return Type(name, ddl, fields=fields)
    sizes = tuple(int(number) for number in re.findall(r"\d+", ddl))
    if name == "DECIMAL":
        sizes = (*(sizes or (10,)), 0)[:2]
        if not 1 <= sizes[0] <= 38 or sizes[1] > sizes[0]:
            raise ValueError(f"found {ddl!r}, expected DECIMAL(p, s) of at most 38 digits, s of them decimals")
    if name not in SCALARS or isinstance(kind, exp.Interval):
        raise ValueError(f"found the type {ddl!r}, expected one of {', '.join(SCALARS)}, ARRAY, MAP and STRUCT")
    return Type(name, ddl, sizes)
