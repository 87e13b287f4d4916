"""The section ``tasks:``: what is sent, or set, once a key's state has been so for a while, or at a time of the day."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from statehouse.config.base import Section
from statehouse.values import Cron, Duration, Expression, Topic


class Send(Section):
    """The message of a task: its key and its value are expressions over the state's columns, ``since`` and ``due``. Without them
    the key of the state, and what there is of it as JSON."""

    topic: Topic
    key: Expression | None = None
    value: Expression | None = None


class SetKey(Section):
    """What a task sets: a key of a store, by default the one that it is about."""

    store: str
    key: Expression | None = None
    value: Expression


class Task(Section):
    """What is done when a key's state has been so for a while (``when``, ``after``), again and again (``every``), or at a time of
    the day for each key that is so (``at``)."""

    name: str = ""
    store: str
    when: Expression | None = None
    after: Duration = 0
    every: Annotated[Duration, Field(ge=1)] | None = None
    at: Cron | None = None
    send: Send | None = None
    set_: SetKey | None = Field(default=None, alias="set")

    @model_validator(mode="after")
    def _consistent(self) -> Task:
        if (self.send is None) == (self.set_ is None):
            raise ValueError(f"found {'both' if self.send else 'neither'}, expected one of send: and set:")
        if self.at and (self.after or self.every):
            raise ValueError(
                "found at: with after: or every:, expected one of them: a time of the day, or so long after a change"
            )
        return self
