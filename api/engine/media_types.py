"""The content types in which rows are asked for and answered."""

from __future__ import annotations

JSON, NDJSON, CSV, ARROW = "application/json", "application/x-ndjson", "text/csv", "application/vnd.apache.arrow.stream"
EVENTS, HTML, PROBLEM = "text/event-stream", "text/html", "application/problem+json"
