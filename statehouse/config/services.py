"""The sections ``api:`` and ``jobs:``: how the two halves run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from statehouse.config.base import Section
from statehouse.values import Address, Duration, Host, Instance, Origin


class Api(Section):
    """Who may use the API, and how much of it; and where the other instances are."""

    tokens: str | None = None  # a file
    max_body: int = Field(default=1_000_000, ge=1)  # bytes
    max_key: int = Field(default=32_768, ge=1)  # bytes
    max_rows: int = Field(default=10_000, ge=1)
    max_answer: int = Field(default=8_000_000, ge=1)  # bytes, about
    max_time: Duration = Field(default=60_000, ge=1)  # ms
    rate_limit: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # requests per second
    cors: list[Origin] = Field(default_factory=list)
    hosts: list[Host] = Field(default_factory=list)  # names of this machine, where there are no tokens
    max_lag: Duration | None = None  # ms
    replica: Literal["memory", "disk", "none"] = "memory"
    cache: str | None = None  # a folder of this machine, of a replica on disk
    freshness: Literal["live", "changelog"] = "live"
    shards: int = Field(default=0, ge=0, le=4096)  # 0: this instance has every key
    copies: int = Field(default=2, ge=1)  # instances that have a shard
    address: Instance | None = None  # where the others reach this instance
    peers: list[Instance] = Field(default_factory=list)
    discover: Instance | None = None  # the others are at every address that its name has

    @model_validator(mode="after")
    def _fleet(self) -> Api:
        if self.shards and not self.address:
            raise ValueError("shards: found no address, expected where the other instances reach this one")
        if self.shards and self.replica == "none":
            raise ValueError(
                "shards: found replica: none, expected memory or disk: it keeps no key that could be shared out"
            )
        return self


class Jobs(Section):
    """How the jobs run."""

    metrics: Address | None = None
