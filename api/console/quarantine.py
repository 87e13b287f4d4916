"""What was refused of a stream, and why."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from flask import current_app, render_template

from api.console import charts
from api.console.screens import KEPT, ask, asked, screen
from statehouse.requeue import KIND

PAGE = 50
REASONS = 20
WAIT = 1.0  # seconds for the counts of reasons: someone else's statement may take long


@screen("refusals.quarantine")
def page(stream: str) -> str:
    given = asked()
    chosen = {"reason": given["reason"]} if "reason" in given else {}
    refused = ask(f"/streams/{stream}/quarantine", {"limit": PAGE, "cursor": given.get("cursor"), **chosen})
    known = next(s for s in ask("/streams")["streams"] if s["name"] == stream)
    return render_template(
        "quarantine.html",
        stream=known,
        page=refused,
        reasons=current_app.extensions[KEPT].get(
            f"quarantine.{stream}", known["quarantined"], partial(_reasons, stream), WAIT
        ),
        reason=given.get("reason"),
        spark=charts.sparkline(known["quarantined_per_minute"], "refused in each of the last 15 minutes"),
        following=f"?{urlencode({**chosen, 'cursor': refused['cursor']})}" if refused["cursor"] else None,
        first=f"?{urlencode(chosen)}" if "cursor" in given else None,
    )


def _reasons(stream: str) -> list[dict[str, Any]]:
    """The reasons, with how many records each has and when it was last given. What differs from record to record is left out."""
    query = f'''SELECT {KIND} AS reason, count(*) AS records, min(log_time) AS first, max(log_time) AS last
        FROM quarantine."{stream}" GROUP BY ALL ORDER BY records DESC, reason LIMIT {REASONS}'''
    rows: list[dict[str, Any]] = ask("/sql", {"q": query})["rows"]
    return rows
