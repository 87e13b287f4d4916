"""The tests at full depth, in parts: all of a part by `make law`, `make fuzz` or `make soak`; the turn of a day by `make turn`.

    python -m tests.support.turns law       the turns of a part, one after the other
    python -m tests.support.turns 17        the turn of the 17th of a month
    python -m tests.support.turns           today's, by UTC

Each turn fits into twenty minutes on two cores, and each comes at least three times a month. A file that has
more at full depth and that no turn names is in the one of the properties.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

# A turn has a name and its tests.
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    "law": {
        "the law in both engines": ("tests/system/test_law.py",),
        "reducers of one's own, interrupted recoveries": (
            "tests/jobs/test_own_reducers.py",
            "tests/jobs/test_recover.py",
        ),
        "a million events": ("tests/system/test_million.py",),
        "kills": ("tests/system/test_crash.py",),
        "a cluster": ("tests/system/test_cluster.py",),
    },
    "fuzz": {
        "the API by schemathesis": ("tests/api/test_openapi.py",),
        "keys over plain sockets, payloads through both halves": (
            "tests/api/test_fuzz.py",
            "tests/system/test_alike.py",
            "tests/statehouse/test_payload.py",
        ),
        "properties": (),  # of all files that no other turn names
    },
    "soak": {
        "what is pending": ("tests/api/test_live.py",),
        "an API among things that fail, a database by Debezium": (
            "tests/system/test_api_robust.py",
            "tests/system/test_postgres.py",
        ),
    },
}
DEEPER = re.compile(r"^from (hypothesis|tests\.support\.depth) import", re.MULTILINE)


def _of_no_turn() -> tuple[str, ...]:
    """The files that have more at full depth, and that no turn names."""
    named = {file for part in PARTS.values() for files in part.values() for file in files}
    files = (file for file in sorted(TESTS.rglob("test_*.py")) if DEEPER.search(file.read_text()))
    return tuple(name for file in files if (name := str(file.relative_to(TESTS.parent))) not in named)


PARTS["fuzz"]["properties"] = _of_no_turn()
TURNS = {name: files for part in PARTS.values() for name, files in part.items()}


def turn_of(day: int) -> str:
    """The name of the turn of a day of the month."""
    return list(TURNS)[(day - 1) % len(TURNS)]


def main(words: list[str]) -> int:
    """Run what the words ask for; pytest's exit code."""
    word = words[0] if words else str(dt.datetime.now(dt.timezone.utc).day)
    turns = PARTS[word] if word in PARTS else {turn_of(int(word)): TURNS[turn_of(int(word))]}
    files = [file for files in turns.values() for file in files]
    print(f"at full depth: {'; '.join(turns)} ({' '.join(files)})", flush=True)
    os.environ["DEPTH"] = "full"  # before tests.support.depth is imported
    return pytest.main(files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
