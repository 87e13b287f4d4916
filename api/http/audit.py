"""Who wrote what: a line of JSON on the logger ``statehouse.audit`` for each write, also one that was refused.

It has the key and the event's token, never the value.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

from flask import Flask, Response, g, request

log = logging.getLogger("statehouse.audit")


def note(**found: Any) -> None:
    """What the line of this request will say too: ``key`` or ``keys`` (how many), ``token`` or ``tokens``."""
    g.audited = {**g.get("audited", {}), **found}


def install(app: Flask) -> None:
    """A line for each request to the blueprint ``writes`` from here on."""

    @app.after_request
    def line(response: Response) -> Response:
        if request.blueprint == "writes" and request.method != "OPTIONS":
            named = request.view_args or {}
            entry = {
                "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds"),
                "name": g.get("caller"),
                "address": request.remote_addr,
                "method": request.method,
                "store": named.get("store", "")[:100],
                # A key that was refused is not looked at any further: its beginning is enough.
                **({"key": named["key"][:100]} if "key" in named else {}),
                **g.get("audited", {}),
                "status": response.status_code,
            }
            log.info(json.dumps(entry))
        return response
