"""A stream and two stores whose states tasks wait for."""

from __future__ import annotations

STATUS = """
streams:
  s:
    topic: {topic}
    schema: key STRING, value STRING, ts TIMESTAMP
    time: ts
stores:
  status: {{stream: s, key: key, value: value, reduce: latest}}
  acks: {{stream: s, key: key, value: value, where: "FALSE", reduce: latest}}
tasks: {rules}
"""
