"""Which tests stay together when two processes share the work (pytest-xdist).

A group runs in one process, in its order. A file is a group, so what its tests share is made once; each process has a
Spark session and a broker of its own for all of its groups. Files that share a service or a lake are one group, and so
are those that kill processes: no two of them run at a time. Groups are told by files and not by pytest-xdist's marks,
which xdist 3.8 writes where pytest 9.2 does not look.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

GROUPS = {
    "processes": (
        "system/test_api_robust",
        "system/test_broker",
        "system/test_cluster",
        "system/test_crash",
        "system/test_million",
        "system/test_postgres",
    ),
    "tried": (
        "api/test_fuzz",
        "api/test_openapi",
        "api/test_console_browser",
    ),  # fixtures of tests/support/services.py and tests/support/lakes.py
    "base": ("api/test_tail", "jobs/test_recover"),
}
GROUP_OF = {f"tests/{name}.py": group for group, names in GROUPS.items() for name in names}


def group_of(nodeid: str) -> str:
    """The group of a test, by its name such as ``tests/system/test_law.py::test_x``."""
    file = nodeid.partition("::")[0]
    return GROUP_OF.get(file, file)


def sort(items: list[pytest.Item]) -> None:
    """Sort the groups: those with the most slow tests begin first, so that what is left at the end is small. Tests of a
    group keep their order."""
    slow = Counter(group_of(item.nodeid) for item in items if item.get_closest_marker("slow"))
    size = Counter(group_of(item.nodeid) for item in items)
    groups = {item: group_of(item.nodeid) for item in items}
    items.sort(key=lambda item: (-slow[groups[item]], -size[groups[item]], groups[item]))


def scheduler(config: pytest.Config, log: Any) -> Any:
    """What gives the groups to pytest-xdist's processes."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)
