"""What waits for its time, what was sent, cancelled, and failed."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import render_template

from api.console.screens import ask, asked, screen
from api.http.context import service
from api.http.tasks import STATUSES

PAGE = 50
FILTERS = ("status", "task", "store", "key")


@screen("tasks.list_tasks")
def page() -> str:
    given = asked()
    filters = {name: given[name] for name in FILTERS if name in given}
    config = service().config
    tasks = ask("/tasks", {**filters, "cursor": given.get("cursor"), "limit": PAGE})
    return render_template(
        "tasks.html",
        page=tasks,
        statuses=STATUSES,
        filters=filters,
        topics=config.askable_topics,
        settable=config.settable,
        with_status={status: f"/tasks?{urlencode({**filters, 'status': status})}" for status in STATUSES},
        without={name: f"/tasks?{urlencode({n: v for n, v in filters.items() if n != name})}" for name in filters},
        following=f"/tasks?{urlencode({**filters, 'cursor': tasks['cursor']})}" if tasks["cursor"] else None,
    )
