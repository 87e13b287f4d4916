"""SIGTERM and Ctrl-C at any moment of a command that runs until it is stopped: it ends with 0, and leaves no process behind.

The signal may come to this process alone, or to all of its group or its unit at once, as a terminal and systemd send it. So
Spark's JVM takes no notice of either (:mod:`jobs.spark.session`): it ends with this process, whose pipe it reads.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = signal.SIGTERM, signal.SIGINT
END_SECONDS = 20  # for a child to end by itself, after its pipe was closed
children: list[subprocess.Popen[bytes]] = []  # that are to end with this process, each when its stdin is closed


def on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    """From here on a handler has the signals."""
    for number in SIGNALS:
        signal.signal(number, handler)


def leave(_number: int = 0, _frame: FrameType | None = None) -> None:
    """End at once, with 0: for as long as there is nothing in hand. Not by an exception, which what is interrupted might catch."""
    for child in children:
        _end(child)
    os._exit(0)


@contextmanager
def no_child_left() -> Iterator[None]:
    """What is begun meanwhile has ended afterwards."""
    before = list(children)
    try:
        yield
    finally:
        for child in [child for child in children if child not in before]:
            _end(child)
            children.remove(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let a child end, and wait for it."""
    if child.stdin is None or child.pid is None:  # it was interrupted before it began
        return
    with suppress(OSError):
        child.stdin.close()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
