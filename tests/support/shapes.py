"""Stores of every shape, and the API over them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import pytest
from flask import Flask
from flask.testing import FlaskClient

from api import create_app
from statehouse.config.models import Config
from tests.support.api_lake import MOMENT, State, changelog, configured, reset_of
from tests.support.calls import STRANGE

REPORTED = {
    "b": {"value": "ok", "event_time": MOMENT, "_order": reset_of(MOMENT)},
    "_a": {"value": "down", "event_time": MOMENT, "_order": reset_of(MOMENT)},
    "gone": {"value": None, "event_time": MOMENT, "_order": reset_of(MOMENT)},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Stores of every shape; `alarm` has never been merged, `tagged` is empty."""
    config = configured(tmp_path_factory.mktemp("it's a lake, é"))
    changelog(config, "sales", 4)
    State(config, "status").write(
        7, {"key": "d1", "value": "ok", "reports": list(REPORTED.items()), "reset": reset_of(MOMENT, 4, 99)}
    )
    State(config, "last").write(
        3,
        *({"key": k, "value": float(i)} for i, k in enumerate(STRANGE)),
        {"key": "inf", "value": float("inf")},
    )
    State(config, "tagged").write(3)
    State(config, "rewards").write(2, {"key": "c", "value": Decimal("12345678901234567890123456.70")})
    State(config, "by_till").write(3, *({"key": i, "value": 2**60 + i, "total": 1} for i in range(-5, 2500)))
    pairs = [("a/b", 1), ("a", 1), ("a", 2), ("a", 10), ("", 0), ("b", -1)]
    State(config, "pairs").write(3, *({"customer": c, "till": t, "value": Decimal(t)} for c, t in pairs))
    State(config, "names").write(3, {"customer": "a/b", "tag": "x%2Fy", "value": Decimal("0.10")})
    hours = [(key, MOMENT.replace(minute=0, hour=h, microsecond=0)) for key in ("a", "b") for h in (13, 12)]
    State(config, "hours").write(
        3, *({"key": k, "window_start": w, "value": Decimal(w.hour), "total": Decimal(1)} for k, w in hours)
    )
    State(config, "days").write(3, {"key": dt.date(2026, 3, 1), "value": Decimal("5.00")})
    return config


@pytest.fixture(scope="module", params=["memory", "disk", "none"])
def app(config: Config, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    """Wherever the state is, the answers are the same."""
    kept = {"replica": request.param, "cache": str(tmp_path_factory.mktemp("cache"))}
    app = create_app(config.model_copy(update={"api": config.api.model_copy(update=kept)}))
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
