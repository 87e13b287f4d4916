"""What `make test` leaves to the full depth is not forgotten."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.balance import GROUP_OF
from tests.support.turns import PARTS, TURNS, turn_of

TESTS = Path(__file__).parent


def test_every_file_that_has_more_at_full_depth_has_a_turn():
    words = re.compile(r"@given\(|= sized\(|@deep|, first\(\d")
    deeper = {str(f.relative_to(TESTS.parent)) for f in TESTS.rglob("test_*.py") if words.search(f.read_text())}
    assert "tests/api/test_where.py" in deeper and "tests/jobs/test_recover.py" in deeper
    assert deeper - {file for files in TURNS.values() for file in files} <= {"tests/test_turns.py"}


def test_every_turn_comes_three_times_in_any_month():
    days = Counter(turn_of(day) for day in range(1, 31))
    assert set(days) == set(TURNS) and min(days.values()) >= 3
    assert len(TURNS) == sum(map(len, PARTS.values())), "each has a name of its own"


def test_every_turn_has_tests():
    assert [file for files in TURNS.values() for file in files if not (TESTS.parent / file).is_file()] == []


@pytest.mark.parametrize("target", PARTS)
def test_every_part_is_a_target_of_make(target):
    assert re.search(
        r"^law fuzz soak: .*\n\t@.*tests\.support\.turns \$@$", (TESTS.parent / "Makefile").read_text(), re.M
    )
    assert target in ["law", "fuzz", "soak"]


def test_every_group_has_its_files():
    assert [file for file in GROUP_OF if not (TESTS.parent / file).is_file()] == []
