"""The shape of JSON values, and the type of Spark's DDL that takes all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from statehouse.decoder import Decoder, decoder_of
from statehouse.init.names import COUNT_WORDS, ID_WORDS, LATER_WORDS, MONEY_WORDS, words
from statehouse.init.sample import Record
from statehouse.payload import Field, Refused, convert
from statehouse.types import check_name, parse_type
from statehouse.values import parse_expression, parse_schema

# An INT has to have room for ten times what was seen: numbers grow.
LARGEST_INT = (1 << 31) // 10
LARGEST_BIGINT = 1 << 63
DEEPEST_TYPE = 8  # levels of types; what is deeper is kept as its JSON
MONEY_SCALE = 4  # decimals; what has more is a measurement, and a DOUBLE
MAP_NAMES = 12  # more names than this, each in few of the objects, are data and not fields
MAP_SHARE = 0.3
SURE = 10  # records from which on what is never missing is NOT NULL
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}.*", re.ASCII | re.DOTALL)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
# Words of joins and sets, that one engine or the other reads as such where a column is meant.
_WORDS = {"anti", "cross", "except", "full", "inner", "intersect", "join", "lateral", "left", "minus", "natural", "on"}
_WORDS |= {"right", "semi", "union", "using"}
MOMENT, DAY = parse_type("TIMESTAMP"), parse_type("DATE")


class Shape:
    """What values at one place were like. ``kinds`` counts them: ``boolean``, ``integer``, ``fraction``, ``text``, ``object``,
    ``array``; nulls are counted nowhere."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.largest = 0  # of integers, without their sign
        self.digits = 0  # of numbers, in front of the point
        self.scale = 0  # digits of fractions
        self.exponents = False
        self.moments = self.days = True  # all texts are such
        self.fields: dict[str, Shape] = {}
        self.element: Shape | None = None

    def add(self, value: Any) -> None:
        """Take one more value, as :func:`statehouse.payload.read` gives it."""
        if value is None:
            return
        if isinstance(value, bool):
            self.kinds["boolean"] += 1
        elif isinstance(value, int):
            self.kinds["integer"] += 1
            self.largest = max(self.largest, abs(value) if value >= 0 else -value - 1)
            self.digits = max(self.digits, len(str(abs(value))) if abs(value) < 10**40 else 41)
        elif isinstance(value, msgspec.Raw):
            self.kinds["fraction"] += 1
            self._add_fraction(bytes(value).decode())
        elif isinstance(value, str):
            self.kinds["text"] += 1
            self.moments = self.moments and _MOMENT.fullmatch(value) is not None and _fits(value, MOMENT)
            self.days = self.days and _DAY.fullmatch(value) is not None and _fits(value, DAY)
        elif isinstance(value, dict):
            self.kinds["object"] += 1
            for name, inner in value.items():
                self.fields.setdefault(name, Shape()).add(inner)
        else:
            self.kinds["array"] += 1
            self.element = self.element or Shape()
            for inner in value:
                self.element.add(inner)

    def _add_fraction(self, text: str) -> None:
        whole, _, decimals = text.lstrip("-").partition(".")
        self.exponents = self.exponents or "e" in text.lower()
        self.digits, self.scale = max(self.digits, len(whole)), max(self.scale, len(decimals))

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.kinds.values())

    def merge(self, others: Iterable[Shape]) -> Shape:
        """One shape of several places."""
        shape = Shape()
        for other in (self, *others):
            shape.kinds += other.kinds
            shape.largest, shape.digits = max(shape.largest, other.largest), max(shape.digits, other.digits)
            shape.scale, shape.exponents = max(shape.scale, other.scale), shape.exponents or other.exponents
            shape.moments, shape.days = shape.moments and other.moments, shape.days and other.days
            if other.element:
                shape.element = (shape.element or Shape()).merge([other.element])
            for name, inner in other.fields.items():
                shape.fields[name] = shape.fields.get(name, Shape()).merge([inner])
        return shape

    def ddl(self, name: str = "", deep: int = 0) -> str:
        """The type, of a column or a field of this name. A STRING takes any value, as its JSON."""
        kinds = set(self.kinds)
        if kinds == {"boolean"}:
            return "BOOLEAN"
        if kinds and kinds <= {"integer", "fraction"}:
            return self._number(name)
        if kinds == {"text"}:
            return "DATE" if self.days else "TIMESTAMP" if self.moments else "STRING"
        if deep < DEEPEST_TYPE and kinds == {"array"}:
            return f"ARRAY<{self.element.ddl(name, deep + 1) if self.element else 'STRING'}>"
        if deep < DEEPEST_TYPE and kinds == {"object"}:
            return self._object(deep)
        return "STRING"

    def _number(self, name: str) -> str:
        money = bool(words(name) & MONEY_WORDS) and not words(name) & (COUNT_WORDS | ID_WORDS)
        if not self.kinds["fraction"] and not (money and self.digits <= 12):
            if self.largest < LARGEST_INT:
                return "INT"
            if self.largest < LARGEST_BIGINT:
                return "BIGINT"
            return "DECIMAL(38,0)" if self.digits <= 38 else "DOUBLE"
        scale = max(2, self.scale)
        if self.exponents or scale > MONEY_SCALE or self.digits + scale > 34:
            return "DOUBLE"
        # Four digits more than were seen, and at least as many as money is usually given.
        precision = next(p for p in (12, 18, 38) if p >= self.digits + scale + 4)
        return f"DECIMAL({precision},{scale})"

    def _object(self, deep: int) -> str:
        shares = sum(inner.count for inner in self.fields.values()) / max(1, len(self.fields) * self.kinds["object"])
        fields = [(name, inner) for name, inner in self.fields.items() if usable_name(name)]
        fields = _drop_case_twins(fields)
        if not fields or (len(self.fields) > MAP_NAMES and shares < MAP_SHARE):
            values = Shape().merge(self.fields.values())
            return f"MAP<STRING, {values.ddl(deep=deep + 1)}>"
        return f"STRUCT<{', '.join(f'{quoted(name)}: {inner.ddl(name, deep + 1)}' for name, inner in fields)}>"


def _fits(value: str, kind: Any) -> bool:
    try:
        convert(value, kind)
    except Refused:
        return False
    return True


def usable_name(name: str) -> bool:
    """Whether a Delta table and a line of YAML can have a name."""
    try:
        check_name(name)
    except ValueError:
        return False
    return name.isprintable()


def quoted(name: str) -> str:
    """A name in a DDL or as a field, in backticks where it needs them."""
    return name if _NAME.fullmatch(name) and name.lower() not in _WORDS else f"`{name.replace('`', '``')}`"


def expression(path: Sequence[str]) -> str:
    """A column, or a field of a struct, in Spark SQL; in backticks where the words alone mean something else."""
    parts = []
    for name in path:
        try:
            plain = parse_expression(name).sql("spark") == name and type(parse_expression(name)).__name__ == "Column"
        except ValueError:
            plain = False
        parts.append(name if plain and quoted(name) == name else f"`{name.replace('`', '``')}`")
    return ".".join(parts)


def _drop_case_twins(fields: list[tuple[str, Shape]]) -> list[tuple[str, Shape]]:
    """Spark does not tell cases apart: of names that differ in them only, the one that is there more often."""
    best: dict[str, tuple[str, Shape]] = {}
    for name, shape in fields:
        known = best.get(name.lower())
        if known is None or shape.count > known[1].count:
            best[name.lower()] = (name, shape)
    return [pair for pair in fields if best[pair[0].lower()] == pair]


@dataclass(frozen=True)
class Column:
    """A column of the payload."""

    name: str
    ddl: str
    required: bool

    @property
    def definition(self) -> str:
        """As it stands in a schema."""
        return f"{quoted(self.name)} {self.ddl}{' NOT NULL' if self.required else ''}"


def columns_of(records: Sequence[Record]) -> tuple[list[Column], list[str]]:
    """The columns that take every record, in the order in which they were first seen; and the names that cannot be columns."""
    shape = Shape()
    for record in records:
        shape.add(record.values)
    shapes = [(n, s) for n, s in shape.fields.items() if not n.startswith("_") and usable_name(n)]
    texts, columns = [record.text for record in records], []
    for name, inner in _drop_case_twins(shapes):
        # The newest records mostly lack what comes later, such as `returned_at`; those of the sample may all be old.
        required = inner.count == len(records) >= SURE and not words(name) & LATER_WORDS
        # The decoder has the last word. Any value is a STRING, as its JSON.
        for ddl in dict.fromkeys([inner.ddl(name), "STRING"]):
            column = Column(name, ddl, required)
            if _parses(column) and _takes(column, texts):
                columns.append(column)
                break
    names = {column.name for column in columns}
    return columns, [name for name in shape.fields if name not in names]


def _parses(column: Column) -> bool:
    """Whether the schema's reader finds this one column."""
    try:
        return [parsed.name for parsed in parse_schema(column.definition)] == [column.name]
    except ValueError:
        return False


def _takes(column: Column, texts: Sequence[str]) -> bool:
    decoder: Decoder = decoder_of((Field(column.name, parse_type(column.ddl), column.required),))
    _, reasons = decoder.decode(texts)
    return not any(reasons)
