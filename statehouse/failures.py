"""What the jobs fail at just now: by part, in the newest commit of the table ``failures/<part>``, which has no rows."""

from __future__ import annotations

from collections.abc import Collection

from statehouse.config.models import Config
from statehouse.tables import metadata, table

PARTS = ("ingest", "merge", "route", "publish", "tasks")


def failures_table(config: Config, part: str) -> str:
    """The path of ``failures/<part>``."""
    return table(config, "failures", part)


def failing(config: Config, part: str) -> dict[str, dict[str, str]]:
    """By the name of a stream, store or route: the ``error``, and ``since`` when (ISO 8601), until a try succeeds. Of one that is not
    in the file any more there is no other try."""
    names: dict[str, Collection[str]] = {"ingest": config.streams, "route": config.routes, "tasks": ("tasks",)}
    failures = (metadata(failures_table(config, part), part) or {}).get(part, {})
    return {name: failure for name, failure in failures.items() if name in names.get(part, config.stores)}
