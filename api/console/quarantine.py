"""What was refused of a stream, and why."""

from __future__ import annotations

from typing import Any

from flask import render_template

from api.console import charts
from api.console.screens import ask, asked, screen
from api.problems import Problem
from statehouse.requeue import FOUND

PAGE = 50
REASONS = 20


@screen("refusals.quarantine")
def page(stream: str) -> str:
    """The screen of a stream's quarantine."""
    given = asked()
    found = ask(f"/streams/{stream}/quarantine", {"limit": PAGE, "cursor": given.get("cursor")})
    known = next(s for s in ask("/streams")["streams"] if s["name"] == stream)
    return render_template(
        "quarantine.html",
        stream=known,
        page=found,
        reasons=_reasons(stream),
        spark=charts.sparkline(known["quarantined_per_minute"], "refused in each of the last 15 minutes"),
        following=f"?cursor={found['cursor']}" if found["cursor"] else None,
        first="cursor" in given,
    )


def _reasons(stream: str) -> list[dict[str, Any]]:
    """The reasons, with how many records each has and when it was last given. What differs from record to record is left out."""
    kind = f"regexp_replace(reason, '{FOUND}', 'found …\\1', 's')"  # statehouse.requeue.kind_of
    query = f'''SELECT {kind} AS reason, count(*) AS records, min(log_time) AS first, max(log_time) AS last
        FROM quarantine."{stream}" GROUP BY ALL ORDER BY records DESC, reason LIMIT {REASONS}'''
    try:
        rows: list[dict[str, Any]] = ask("/sql", {"q": query})["rows"]
    except Problem:  # the page has the records all the same
        return []
    return rows
