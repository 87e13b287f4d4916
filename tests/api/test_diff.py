"""What differs between two versions of a store's table, against a few lines of Python."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

from api import create_app
from tests.support.api_lake import State, configured
from tests.support.calls import problem


def right(old: dict[tuple, int | None], new: dict[tuple, int | None]) -> list[dict]:
    """By key: what was added, is gone, or has another value."""
    found = []
    for customer, till in sorted(old.keys() | new.keys()):
        before, after = (v.get((customer, till)) for v in (old, new))
        change = (
            "changed"
            if (customer, till) in old and (customer, till) in new
            else "gone"
            if (customer, till) in old
            else "added"
        )
        if change != "changed" or before != after:
            found.append(
                {"key": {"customer": customer, "till": till}, "change": change, "before": before, "after": after}
            )
    return found


def test_random_versions(tmp_path: Path) -> None:
    config, dice = configured(tmp_path), random.Random(3)
    state, versions = State(config, "pairs"), [{}]
    for number in range(4):
        rows = {(dice.choice(["a", "b/c", ""]), dice.randrange(5)): dice.choice([None, 0, 1, 2]) for _ in range(8)}
        state.write(
            number,
            *({"customer": c, "till": t, "value": None if v is None else Decimal(v)} for (c, t), v in rows.items()),
        )
        versions.append(rows)
    app = create_app(config)
    client = app.test_client()
    for old in range(5):
        for new in range(5):
            found = client.get(f"/stores/pairs/diff?from={old}&to={new}").get_json()
            rows = right(versions[old], versions[new])
            counts = {change: sum(row["change"] == change for row in rows) for change in ("added", "gone", "changed")}
            assert found == {"from": old, "to": new, **counts, "rows": rows, "more": False}
    assert client.get("/stores/pairs/diff").get_json()["rows"] == right(versions[3], versions[4]), "the last commit"
    few = client.get("/stores/pairs/diff?from=0&to=1&limit=2").get_json()
    assert few["rows"] == right({}, versions[1])[:2] and few["more"] is True
    assert few["added"] == len(versions[1]), "of all, and not of the page"
    problem(client.get("/stores/pairs/diff?to=5"), 404, "unknown-version")
    problem(client.get("/stores/pairs/diff?to=x"), 400, "bad-parameter")
    problem(client.get("/stores/alarm/diff"), 404, "unknown-version")
    for file in Path(config.root, "state", "pairs").glob("*.parquet"):
        file.unlink()
    problem(client.get("/stores/pairs/diff?from=1&to=2"), 404, "unknown-version")
    app.extensions["statehouse"].stop()
