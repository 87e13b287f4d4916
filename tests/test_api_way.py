"""Who goes first: what is to be shown, for a moment, and then the event loop."""

from __future__ import annotations

import threading
import time

import pytest

from api.way import MOST, Way


def given(way: Way) -> float:
    """Seconds that the loop waited."""
    began = time.monotonic()
    way.give()
    return time.monotonic() - began


def test_the_loop_goes_on_when_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.way.MOST", 3600)
    way, order = Way(), []
    inside, out = threading.Event(), threading.Event()

    def work() -> None:
        with way:
            with way:
                inside.set()
            assert out.wait(10)
            order.append("work")

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    threading.Timer(0.1, out.set).start()
    way.give()
    order.append("loop")
    thread.join()
    assert order == ["work", "loop"]


def test_the_loop_is_held_for_half_of_the_time_at_the_most() -> None:
    way = Way()
    with way:
        first, second = given(way), given(way)
        assert first >= MOST and second < first, "and goes on at once the second time"
        while given(way) < MOST:
            pass
    assert way._again > time.monotonic(), "it has waited again"


def test_nobody_waits_for_nothing() -> None:
    way = Way()
    with way:
        pass
    assert sum(given(way) for _ in range(1000)) < 1000 * MOST
