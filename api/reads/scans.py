"""The part of a store that a scan is of, and its pages one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from api.engine.columns import Columns, Key, count
from api.engine.deadline import Deadline
from api.engine.duck import Connection
from api.engine.types import canonical
from api.engine.where import Where
from api.errors import Problem, bad_parameter
from api.replica.snapshot import After, Inside, Selection, Snapshot

PAGE = 5000  # rows that are made while those who change the state wait


def selection(snapshot: Snapshot, asked: dict[str, str], cursor: Callable[[], Connection], at_once: bool) -> Selection:
    """What the parameters ``prefix``, ``from``, ``to`` and ``where`` say, or a problem. What is pending is folded ``at_once``, where many
    pages are wanted, as a stream: a few keys of each would take much longer."""
    return Selection(*_bounds(snapshot, asked), _condition(snapshot, asked, cursor), at_once)


def _bounds(snapshot: Snapshot, asked: dict[str, str]) -> tuple[Key, Inside | None]:
    """Where the scan begins, and a test that holds as long as it goes on (None: to the end)."""
    least = _key(snapshot, "from", asked["from"]) if "from" in asked else ()
    most = _key(snapshot, "to", asked["to"]) if "to" in asked else None
    prefix: Key = ()
    if "prefix" in asked:
        prefix = _prefix(snapshot, asked["prefix"])
        least = max(least, prefix)
    depth = len(prefix) - 1

    def inside(key: Key) -> bool:
        if most is not None and key[: len(most)] >= most:
            return False
        return not prefix or (key[:depth] == prefix[:depth] and key[depth].startswith(prefix[depth]))

    return least, inside if most is not None or prefix else None


def pages(snapshot: Snapshot, of: Selection, after: After, limit: int, deadline: Deadline) -> Iterator[Columns]:
    """All of a scan, page by page. A key that changes meanwhile is given once, as it was or as it is. Each page of a stream has the
    time of the deadline, all others together have it once; a problem where one is not made by then."""
    if of.at_once:
        snapshot.settle(of.least, of.inside)
    more = True

    def page() -> Columns | None:
        nonlocal after, limit, more
        rows: Columns = {}
        while more and limit > 0 and not count(rows):
            if of.at_once:
                deadline.renew()
            with deadline.turn():
                rows, more = snapshot.page(after, min(PAGE, limit), of, deadline)
        if not count(rows):
            return None
        after = snapshot.last(rows)
        limit -= count(rows)
        return rows

    yield from iter(page, None)  # a loop would keep the rows of each page until the next is wanted


def _condition(snapshot: Snapshot, asked: dict[str, str], cursor: Callable[[], Connection]) -> Where | None:
    """What ``where`` says, or a problem."""
    if "where" not in asked:
        return None
    try:
        return Where(asked["where"], snapshot.shown(), cursor)
    except ValueError as error:
        raise Problem(400, "bad-parameter", f"where: {error}") from None


def _parts(snapshot: Snapshot, text: str) -> list[str]:
    assert snapshot.rule is not None
    return text.split("/") if snapshot.rule.store.composite else [text]


def _key(snapshot: Snapshot, name: str, text: str) -> Key:
    assert snapshot.rule is not None
    parts, kinds = _parts(snapshot, text), snapshot.rule.key_types
    if len(parts) > len(kinds):
        raise Problem(400, "bad-parameter", f"{name}: found {len(parts)} parts, expected at most {len(kinds)}")
    try:
        return snapshot.key([canonical(part, kind) for part, kind in zip(parts, kinds, strict=False)])
    except ValueError as error:
        raise bad_parameter(name, text, error) from None


def _prefix(snapshot: Snapshot, text: str) -> Key:
    assert snapshot.rule is not None
    parts, kinds = _parts(snapshot, text), snapshot.rule.key_types
    if len(parts) > len(kinds) or kinds[len(parts) - 1].upper() != "STRING":
        raise bad_parameter("prefix", text, "one of a part that is text")
    return (*_key(snapshot, "prefix", "/".join(parts[:-1])), parts[-1]) if len(parts) > 1 else (parts[-1],)
