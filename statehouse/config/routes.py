"""The section ``routes:``: events that are passed on, to a topic or to a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from statehouse.config.base import Section
from statehouse.values import GENERATORS, Expression, Name, OneOrMore, Topic


class Target(Section):
    """Where a route's events go: to a topic, by a key, or to a table. ``format`` is what messages are written in; of one whose schemas
    are in the registry ``subject`` is theirs, `TOPIC-value` where it is None."""

    topic: Topic | None = None
    key: Expression | None = None
    table: Name | None = None
    format: Literal["json", "avro", "json_schema"] = "json"
    subject: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one(self) -> Target:
        if (self.topic is None) == (self.table is None):
            which = "both" if self.topic else "neither"
            raise ValueError(f"found {which}, expected one of topic: and table:")
        if self.table and self.key:
            raise ValueError("found a key, expected none: it is messages of a topic that have one")
        if self.table and self.registered:
            raise ValueError(f"found format: {self.format}, expected none: it is messages of a topic that have one")
        if self.subject and not self.registered:
            raise ValueError("found a subject, expected format: avro or json_schema too")
        return self

    @property
    def registered(self) -> bool:
        """Whether messages name their schema, which is in the registry."""
        return self.format != "json"


class Source(Section):
    """A store, whose events a route passes on, each with the state before and after it."""

    store: str


class Route(Section):
    """Events of a stream, or of a store, on their way to somewhere else: those that pass ``where``, in the shape of ``select``. ``late``
    says what becomes of the later events of a key where one has come late: nothing, or they are passed on once more."""

    name: str = ""
    source: Annotated[
        Annotated[str, Tag("<stream>")] | Annotated[Source, Tag("<store>")],
        Discriminator(lambda found: "<store>" if isinstance(found, (dict, Source)) else "<stream>"),
    ] = Field(alias="from")
    where: Expression | None = None
    select: Annotated[list[Expression], OneOrMore] = Field(default=["*"], min_length=1)
    to: Target
    late: Literal["append", "resend"] | None = None

    @property
    def store(self) -> str | None:
        """The store whose events are passed on; None: all of a stream."""
        return self.source.store if isinstance(self.source, Source) else None

    @property
    def multiplies(self) -> bool:
        """Whether one event may become several rows."""
        return any(GENERATORS.search(part) for part in self.select)

    @model_validator(mode="after")
    def _of_a_store(self) -> Route:
        if self.late and not self.store:
            raise ValueError("found late, expected from: {store: ...} too: it is a state that a late event changes")
        return self
