"""What docs/client.md shows, and a lake that answers it so."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import yaml

from statehouse.config.file import load
from statehouse.config.models import Config
from tests.support.api_lake import MOMENT, YAML, Reports, Sales, State

PAGE = Path(__file__).parents[2] / "docs/client.md"
TOPICS = {"reports": ("client-reports", 1), "sales": ("client-sales", 3)}


def configured(folder: Path, bootstrap: str = "127.0.0.1:1", **api: object) -> Config:
    """A configuration with topics of its own and tasks, in a folder of its own."""
    text = {**yaml.safe_load(YAML.format(bootstrap=bootstrap)), "tasks": {"topics": ["alerts"]}, "api": api}
    for stream, (topic, _) in TOPICS.items():
        text["streams"][stream]["topic"] = topic
    (folder / "statehouse.yaml").write_text(yaml.safe_dump(text))
    return load(folder / "statehouse.yaml", {})


def filled(config: Config) -> Sales:
    """What the page shows: states of three stores, and an event of one of them in its changelog."""
    sales = Sales(config)
    sales.append({"customer": "c-1", "weight": 2.5, "at": MOMENT})
    State(config, "last").write(1, {"key": "c-1", "value": 2.5})
    Reports(config).append({"key": "device-007", "agent": "north", "value": "ok"})
    reports = {"device-006": "ok", "device-007": "ok", "device-008": "alarm"}.items()
    north = [{"north": {"value": value, "event_time": MOMENT, "_order": Decimal(1)}} for _, value in reports]
    rows = [{"key": key, "value": value, "reports": n} for (key, value), n in zip(reports, north, strict=True)]
    State(config, "status").write(1, *rows)
    price = Decimal("12.50")
    tills = ({"customer": "store 1", "till": till, "value": price, "total": price} for till in (6, 7))
    State(config, "pairs").write(1, *tills)
    return sales
