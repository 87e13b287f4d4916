"""The keys that changed of late come back as they were, of whatever type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from api.replica.changed_keys import Recent
from api.replica.snapshot import Snapshot

MOMENT = dt.datetime(2026, 5, 1, 10, 0, 0, 1)
KEYS = {
    "text": [("",), ("a/b",), ("nul\0",), ("🙂",)],
    "numbers": [(-(2**63),), (2**63 - 1,)],
    "decimals": [(Decimal("0.10"),), (Decimal("-99999999999999999999999999999999999.99"),), (Decimal("7.00"),)],
    "days": [(dt.date(1, 1, 1),), (dt.date(9999, 12, 31),)],
    "composite": [("a", 1, True), ("a", 1, False)],
    "windows, and a purge of all": [("a", MOMENT), ("b", None), ("c", dt.datetime(1, 1, 1))],
    "a purge of all only": [("a", None)],
    "none": [],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_keys_come_back_as_they_were(keys):
    recent = Recent()
    recent.add(Snapshot(epoch="x", position=1), 0, dict.fromkeys(keys))
    recent.add(Snapshot(epoch="x", position=2), 1, keys[:1])
    assert recent.since(0) == ("x", 2, keys)
    assert recent.since(1) == ("x", 2, keys[:1])
    assert [list(map(str, key)) for key in recent.since(0)[2]] == [list(map(str, key)) for key in keys]
    assert (recent.count(0), recent.count(1), recent.count(2)) == (len(keys) + len(keys[:1]), len(keys[:1]), 0)


def test_what_is_too_long_ago_is_not_known():
    recent = Recent(most=3)
    for position in range(1, 5):
        recent.add(Snapshot(epoch="x", position=position), position - 1, [(f"k{position}",), (f"l{position}",)])
    assert recent.since(2) == ("x", 4, None)
    assert recent.since(3) == ("x", 4, [("k4",), ("l4",)])
    assert (recent.count(2), recent.count(3)) == (None, 2)
