"""Who goes first: what is to be shown, for a moment, and then the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop

from api.replica.priority import MOST, FoldPriority


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = uvloop.new_event_loop()
    yield made
    made.close()


def given(loop: asyncio.AbstractEventLoop, priority: FoldPriority, pause: float = 0.0) -> tuple[float, float]:
    """Seconds that the loop waited, asked twice in one turn."""

    async def give() -> tuple[float, float]:
        times = []
        for _ in range(2):
            began = time.monotonic()
            priority.yield_to_fold()
            times.append(time.monotonic() - began)
            time.sleep(pause)
        return times[0], times[1]

    return loop.run_until_complete(give())


def test_the_loop_goes_on_when_all_have_left(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.replica.priority.MOST", 3600)
    priority, order = FoldPriority(), []
    inside, out = threading.Event(), threading.Event()

    def work() -> None:
        with priority:
            with priority:
                inside.set()
            assert out.wait(120)
            order.append("work")

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(120)
    threading.Timer(0.1, out.set).start()
    given(loop, priority)
    order.append("loop")
    thread.join()
    assert order == ["work", "loop"]


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> float:
    """The seconds that the loop waits at the most: so many that a busy machine is not taken for a wait."""
    monkeypatch.setattr("api.replica.priority.MOST", 0.5)
    return 0.5


def test_the_loop_is_held_for_half_of_the_time_at_the_most(loop: asyncio.AbstractEventLoop, most: float) -> None:
    priority = FoldPriority()
    with priority:
        first, _ = given(loop, priority)
        second, _ = given(loop, priority)
        assert first >= most and second < first, "and goes on at once the second time"
        while given(loop, priority)[0] < most:
            pass
    assert priority._again > time.monotonic(), "it has waited again"


def test_the_loop_waits_once_in_a_turn(loop: asyncio.AbstractEventLoop, most: float) -> None:
    priority = FoldPriority()
    with priority:
        first, second = given(loop, priority, pause=2 * most)  # by the time it may wait again
        assert second < most <= first


def test_nobody_waits_for_nothing(loop: asyncio.AbstractEventLoop) -> None:
    priority = FoldPriority()
    with priority:
        pass
    assert sum(sum(given(loop, priority)) for _ in range(1000)) < 1000 * MOST
