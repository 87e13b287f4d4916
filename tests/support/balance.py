"""Which tests stay together when two processes share the work (pytest-xdist, ``--dist loadgroup``).

A group runs in one process, in its order. A file is a group, so what its tests share is made once; each process has a
Spark session and a broker of its own for all of its groups. Tests that share a service or a lake with other files are one
group, and so is what kills processes of its own: no two of those run at a time.
"""

from __future__ import annotations

from collections import Counter

import pytest

SHARED = ("tried", "base")  # fixtures of several files that take long to make


def group_of(item: pytest.Item) -> str:
    """The group of a test."""
    if item.get_closest_marker("crash"):
        return "processes"
    fixtures = getattr(item, "fixturenames", ())
    return next((name for name in SHARED if name in fixtures), item.location[0])


def sort(items: list[pytest.Item]) -> None:
    """Sort the groups: those with the most slow tests begin first, so that what is left at the end is small. Tests of a
    group keep their order."""
    groups = {item: group_of(item) for item in items}
    slow = Counter(groups[item] for item in items if item.get_closest_marker("slow"))
    size = Counter(groups.values())
    items.sort(key=lambda item: (-slow[groups[item]], -size[groups[item]], groups[item]))
