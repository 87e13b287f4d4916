"""How things stand: ``status`` and ``doctor``."""

from __future__ import annotations

import sys

import click

from statehouse.commands.base import command, config_option, json_option
from statehouse.commands.output import in_colour, print_json, show_table

COLOURS = {"ok": "green", "warn": "yellow", "bad": "red", "skip": "cyan"}


@command(
    "Run",
    ("statehouse status", "positions, lags, refused events, sizes"),
    ("statehouse status --json", "the same for scripts"),
)
@config_option
@json_option
def status(file: str | None, as_json: bool) -> None:
    """Positions, lags, quarantine counts, table sizes."""
    from statehouse import status as of
    from statehouse.config import file as configuration

    config = configuration.load(file)
    streams = [of.stream_status(config, n) for n in config.streams]
    stores = [of.store_status(config, n) for n in config.stores]
    routes = [of.route_status(config, n) for n in config.routes]
    published = [of.published_status(config, n) for n, store in config.stores.items() if store.publish]
    tasks, failing = of.task_status(config), of.failing_status(config)
    if as_json:
        parts = {"streams": streams, "stores": stores, "routes": routes, "published": published, "tasks": tasks}
        print_json({**parts, "failing": failing})
        return
    show_table("stream", ("topic", "events", "quarantined", "version", "behind", "bytes"), streams)
    print()
    columns = ("reduce", "keys", "position", "head", "lag_ms", "unkeyed", "late", "version", "bytes")
    show_table("store", columns, stores)
    for kind, rows in (("route", routes), ("published", published)):
        if rows:
            print()
            show_table(kind, ("from", "to", "position", "head"), rows)
    if tasks:
        print()
        show_table("task", ("waiting", "sent", "cancelled", "failed", "next"), tasks)
    for stream in streams:
        if stream["error"]:
            print(f"\nstream {stream['name']}: {stream['error']}")
    for job in failing:
        print(f"\n{job['job']} {job['name']}: failing since {job['since']}: {job['error']}")


@command(
    "Start",
    ("statehouse doctor", "a line for each thing that statehouse needs, and what to do"),
    ("statehouse doctor --json", "the same for scripts; exit 1 where something is bad as well"),
)
@config_option
@json_option
def doctor(file: str | None, as_json: bool) -> int:
    """Look at Java, packages, memory, disk, Kafka, topics, lake and clock; exit 1 when something is bad."""
    from statehouse.doctor import examine

    checks = []
    for check in examine(file):
        checks.append(check)
        if not as_json:
            level = f"{check.level:<4}"
            print(
                f"{click.style(level, fg=COLOURS[check.level]) if in_colour(sys.stdout) else level}  {check.name}: {check.found}"
            )
            if check.advice:
                print(f"      to do: {check.advice}")
            sys.stdout.flush()
    bad = any(check.level == "bad" for check in checks)
    if as_json:
        print_json({"ok": not bad, "checks": [check._asdict() for check in checks]})
    return int(bad)
