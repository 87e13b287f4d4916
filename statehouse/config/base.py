"""What the models of all sections have in common."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the file, or an entry of one: immutable, and a setting that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    def __getstate__(self) -> dict[Any, Any]:
        # What was worked out of the fields is worked out again in another process; a reducer cannot be pickled.
        state = super().__getstate__()
        return {**state, "__dict__": {n: v for n, v in state["__dict__"].items() if n in type(self).model_fields}}
