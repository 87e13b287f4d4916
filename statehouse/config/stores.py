"""The section ``stores:``: keys, reducers, windows, and where the states are published."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from statehouse.config.base import Section
from statehouse.config.streams import Stream
from statehouse.reducers import REDUCERS, Reducer, own, parse_reduce
from statehouse.spark_sql import quoted
from statehouse.values import (
    RESERVED,
    Expression,
    Keys,
    Name,
    Topic,
    Window,
    milliseconds,
    parse_expression,
    parse_window,
    without_alias,
)

ROW = "row"  # a store's value that is all of a row


class Own(Section):
    """A user's own reducer, in SQL. ``fold``: aggregates over ``value``, ``event_time`` and ``agent``, by the column
    that keeps each; ``combine``: the same columns of two rows, ``a`` and ``b``; ``result``: the value, of those columns."""

    fold: dict[Name, Expression] = Field(min_length=1)
    combine: dict[Name, Expression]
    result: Expression

    @model_validator(mode="after")
    def _consistent(self) -> Own:
        if set(self.fold) != set(self.combine):
            raise ValueError(
                f"found combine: {', '.join(self.combine)}, expected fold's columns: {', '.join(self.fold)}"
            )
        if taken := {c for c in self.fold if c in (*RESERVED, "agent")}:
            raise ValueError(f"found a column named {sorted(taken)[0]!r}, expected a name of its own")
        return self


class Publish(Section):
    """Where a state's changes are told: a compacted topic; ``where`` is over the state's columns."""

    topic: Topic
    where: Expression | None = None


class Key(BaseModel):
    """One column of a store's key: its name in the state table, and the expression that makes it."""

    name: str
    expression: str


class Store(Section):
    """A state: the events of a stream, by key, reduced to a row each."""

    name: str = ""
    stream: str
    key: Keys
    agent: Expression | None = None
    where: Expression | None = None
    value: Expression | None = None
    window: Window | None = None
    retention: Annotated[str, AfterValidator(lambda r: (milliseconds(r), r)[1])] | None = None
    reduce: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Own, Tag("<own>")],
        Discriminator(lambda found: "<own>" if isinstance(found, (dict, Own)) else "<name>"),
    ]
    publish: Annotated[Publish | None, BeforeValidator(lambda p: {"topic": p} if isinstance(p, str) else p)] = None
    buckets: Annotated[int, Field(ge=1, le=10_000)] | None = None  # partitions of the state's table, by key

    @cached_property
    def keys(self) -> list[Key]:
        """The key's columns: one named ``key``, or a composite key's own."""
        if isinstance(self.key, str):
            return [Key(name="key", expression=without_alias(self.key))]
        return [Key(name=parse_expression(part).alias_or_name, expression=without_alias(part)) for part in self.key]

    @property
    def composite(self) -> bool:
        """Whether the key was written as a list, so that its parts are separated by '/' in text."""
        return not isinstance(self.key, str)

    @cached_property
    def reducer(self) -> Reducer:
        """The registry's entry that this store names, or the one that it writes itself."""
        if isinstance(self.reduce, Own):
            return own(self.reduce.fold, self.reduce.combine, self.reduce.result)
        return REDUCERS[parse_reduce(self.reduce)[0]]

    @cached_property
    def arguments(self) -> list[str]:
        """The reducer's arguments, as text."""
        return parse_reduce(self.reduce)[1] if isinstance(self.reduce, str) else []

    @cached_property
    def windows(self) -> tuple[int, int] | None:
        """A window's length and how often one begins, in microseconds; None: the store has no windows."""
        return parse_window(self.window) if self.window else None

    def of(self, stream: Stream) -> Store:
        """The same over a stream's columns: ``value: row`` is all of them, unless one is named so."""
        names = [column.name for column in stream.columns if not column.name.startswith("_")]
        if self.value != ROW or not names or ROW in map(str.lower, names):
            return self
        return self.model_copy(update={"value": f"struct({', '.join(map(quoted, names))})"})

    @property
    def definition(self) -> dict[str, Any]:
        """What the state is a function of: kept with the table, so that a changed rule is noticed."""
        return self.model_dump(exclude={"name", "publish", "buckets"}, exclude_none=True)

    @model_validator(mode="after")
    def _consistent(self) -> Store:
        name, arguments = parse_reduce(self.reduce) if isinstance(self.reduce, str) else ("own", [])
        if isinstance(self.reduce, str) and name not in REDUCERS:
            raise ValueError(
                f"found reduce: {self.reduce!r}, expected one of {', '.join(sorted(REDUCERS))}, or fold, combine and result"
            )
        reducer = self.reducer
        if len(arguments) != len(reducer.arguments):
            usage = f"{name}({', '.join(reducer.arguments)})" if reducer.arguments else name
            raise ValueError(f"found reduce: {self.reduce!r}, expected {usage}")
        if self.retention and not self.window:
            raise ValueError("found retention, expected a window too: it is windows that are kept for so long")
        if reducer.per_agent and self.agent is None:
            raise ValueError(f"found no 'agent', expected one: {name} is over each agent's latest report")
        if self.value is None and not reducer.value_optional:
            raise ValueError(f"found no 'value', expected an expression: {name} reduces values")
        names = [k.name for k in self.keys]
        if "" in names:
            raise ValueError(
                f"found the key part {self.key[names.index('')]!r}, expected a column or 'expression AS name'"
            )
        taken = {*RESERVED, *(column.lower() for column in reducer.columns), *(["agent"] if reducer.written else [])}
        small = [name.lower() for name in names]  # Spark does not tell cases apart
        for key, name in zip(names, small, strict=True):
            if name in taken or name.startswith("_") or small.count(name) > 1:
                raise ValueError(
                    f"found a key part named {key!r}, expected a name of its own: write 'expression AS name'"
                )
        return self
