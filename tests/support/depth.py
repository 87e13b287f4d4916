"""How deep the tests go.

`make test` shows each capability by the fewest examples, events and kills that show it. ``DEPTH=full``, which `make law`,
`make fuzz` and `make soak` set, holds it at full size. Hypothesis is set up here and nowhere else: a test has no number of
examples of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")
FULL = os.environ.get("DEPTH") == "full"
FEW, MANY = 25, 1000  # examples of a property


def sized(few: T, full: T) -> T:
    """``few`` for `make test`, ``full`` at full depth."""
    return full if FULL else few


# A test at full depth only (tests/support/turns.py).
deep = pytest.mark.skipif(not FULL, reason="DEPTH=full runs it: make law, make fuzz, make soak")


def first(few: int, cases: Iterable[T]) -> list[Any]:
    """All of the cases of a parametrized test; those after the first ``few`` are :data:`deep`."""
    return [case if number < few else pytest.param(case, marks=deep) for number, case in enumerate(cases)]


def load_profile() -> None:
    """Make Hypothesis' settings the default of every property. How fast the machine is never fails one."""
    common = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
    settings.register_profile("few", max_examples=FEW, **common)
    settings.register_profile("many", max_examples=MANY, **common)
    settings.load_profile(sized("few", "many"))
