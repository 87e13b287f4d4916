"""A key: its value, what it is made of, and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from flask import render_template, request
from werkzeug.exceptions import HTTPException

from api.console import charts, words
from api.console.format import is_number, key_of, plain, stamp
from api.console.screens import ask, asked, screen
from api.console.store import key_names
from api.console.votes import Reports, result, votes
from api.engine.types import canonical
from api.errors import Problem, bad_parameter
from api.http import paths
from api.http.context import service
from statehouse.reducers import REDUCERS, parse_reduce
from statehouse.values import RESERVED

EVENTS = 100
LEVELS = 8  # texts that a chart has lines for
OWN = (*RESERVED, "reports", "windows", "provisional", "offsets")


@screen("reads.get_key")
def page(store: str, key: str) -> str:
    """The screen of a key, as of now or as of a moment (``at``), beside another moment (``against``)."""
    given = asked()
    document = ask(f"/stores/{store}")
    target = paths.raw_path(request.environ) or quote(request.path)
    current = _state(target, {name: given[name] for name in ("after", "timeout", "freshness") if name in given})
    events = _history(target, given.get("cursor"))
    if current is None and not events["events"] and not events["wrong"]:
        raise Problem(404, "unknown-key", f"found no {key[:100]!r} in {store}", position=None)
    moments: dict[str, str] = {}
    states, wrong = {"at": current, "against": None}, None
    try:
        moments = {name: _moment(name, given[name]) for name in states if name in given}
        states |= {name: _state(target, {"at": moment}) for name, moment in moments.items()}
    except Problem as problem:  # most often a time that is not one yet
        moments, wrong = {}, problem.detail
    shown, at = states["at"], moments.get("at")
    rule = document["reduce"] if isinstance(document["reduce"], str) else ""
    reducer = REDUCERS.get(parse_reduce(rule)[0]) if rule else None
    reports = (shown or {}).get("reports")
    standing, why = votes(rule, reports) if reports and reducer and reducer.per_agent else ([], "")
    row = shown or current or {}
    names = key_names(document)
    writable = service().config.writable(store)
    # Where events are not in the order of their times, no `at` tells the state between two pages of them.
    told = writable or not ("cursor" in given or events["cursor"])
    values = _values(document, target, events, current, "cursor" in given) if told else None
    return render_template(
        "key.html",
        store=document,
        what=words.reduction(document),
        fresh=words.freshness(document)[0],
        parts=key_of(row, names) if all(name in row for name in names) else [key],
        target=target,
        current=current,
        shown=shown,
        at=at,
        against=states["against"],
        against_at=moments.get("against"),
        asked=given,
        kept={name: given[name] for name in ("cursor", "against") if name in given},
        mistaken=wrong,
        votes=standing,
        why=why,
        per_agent=bool(reducer and reducer.per_agent),
        writable=writable,
        events=_told(events["events"], bool(reducer and reducer.additive), values),
        since=_since(events, values, at) if at or "cursor" not in given else None,
        chosen=_chosen(events["events"], at, "cursor" in given) if at else None,
        newest=target if "cursor" in given else None,
        wrong=events["wrong"],
        older=f"{target}?{urlencode({**given, 'cursor': events['cursor']})}#timeline" if events["cursor"] else None,
        chart=_chart(document, events, values),
        more={n: v for n, v in row.items() if n not in (*OWN, *names) and v != row.get("value")},
    )


def _state(target: str, query: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = ask(target, query)
        return state
    except Problem as problem:
        if problem.kind != "unknown-key":
            raise
        return None


def _history(target: str, cursor: str | None) -> dict[str, Any]:
    """A page of the key's events; ``wrong`` says why there is none: the state is shown all the same."""
    nothing: dict[str, Any] = {"events": [], "cursor": None, "wrong": None}
    try:
        return {**nothing, **ask(f"{target}/history", {"limit": EVENTS, "cursor": cursor})}
    except Problem as problem:
        return nothing if problem.kind == "unknown-key" else {**nothing, "wrong": problem.detail}
    except HTTPException as error:
        return {**nothing, "wrong": error.description}


def _moment(name: str, text: str) -> str:
    try:
        return canonical(text, "TIMESTAMP")
    except ValueError as error:
        raise bad_parameter(name, text, error) from None


def _chosen(events: Sequence[Mapping[str, Any]], at: str, older: bool) -> int | None:
    """Which of a page's events, the newest first, was the last one by a moment; None where it is not of this page."""
    times = [stamp(event["event_time"]) for event in events if event["event_time"]]
    if len(times) < len(events) or not times or (older and stamp(at) > times[0]):
        return None
    return next((number for number, time in enumerate(times) if time <= stamp(at)), None)


def _told(events: list[dict[str, Any]], additive: bool, values: list[Any] | None) -> list[dict[str, Any]]:
    """The events, each with the milliseconds since the one before, whether its agent said the same before, whether it came ``late``, behind
    one that is newer, and what the value ``became`` by it where that is known. They are the newest first."""
    course = values[::-1] if values else []
    told = []
    first: dict[int, int] = {}  # of a partition, the least offset of the events so far
    for number, event in enumerate(events):
        agents = (e for e in events[number + 1 :] if e.get("agent") == event.get("agent"))
        before = next(((e["op"], e["value"]) for e in agents), None)
        unchanged = not additive and event["op"] == "report" and before == ("report", event["value"])
        times = [e["event_time"] for e in events[number : number + 2]]
        elapsed = (stamp(times[0]) - stamp(times[1])) * 1000 if len(times) == 2 and all(times) else None
        late = event["offset"] > first.get(event["partition"], event["offset"])
        first[event["partition"]] = min(event["offset"], first.get(event["partition"], event["offset"]))
        changed = number + 1 < len(course) and course[number] != course[number + 1]
        became = {"became": course[number]} if changed else {}
        told.append({**event, "elapsed": elapsed, "unchanged": unchanged, "late": late, **became})
    return told


def _values(
    store: Mapping[str, Any], target: str, history: Mapping[str, Any], current: dict[str, Any] | None, older: bool
) -> list[Any] | None:
    """The value after each of a page's events, the oldest first; None where the store's rule does not tell it from them."""
    events = history["events"][::-1]
    if not events or store.get("window") or any(event["event_time"] is None for event in events):
        return None
    last = _state(target, {"at": events[-1]["event_time"]}) if older else current
    before = _state(target, {"at": events[0]["event_time"]}) if history["cursor"] else None
    return course(store["reduce"], events, (last or {}).get("value"), (before or {}).get("reports") or {})


def _since(history: Mapping[str, Any], values: list[Any] | None, at: str | None) -> str | None:
    """Since when the value is so: the time of the event that made it. None where the page's events do not tell."""
    if values is None:
        return None
    told = list(zip(history["events"][::-1], values, strict=True))
    if at:
        told = [(event, value) for event, value in told if stamp(event["event_time"]) <= stamp(at)]
    since: str | None = None
    for number in range(len(told) - 1, -1, -1):
        if told[number][1] != told[-1][1]:
            return since
        since = told[number][0]["event_time"]
    return None if history["cursor"] else since


def _chart(store: Mapping[str, Any], history: Mapping[str, Any], values: list[Any] | None) -> Any:
    """The value over event time, or what each event gave where the value cannot be told; None where there is nothing to see."""
    events = [event for event in history["events"] if event["event_time"]][::-1]
    if len(events) < 2 or store.get("window"):
        return None
    times = [event["event_time"] for event in events]
    points = [
        (stamp(time), _point(given), f"{time}: {'none' if given is None else plain(given)}")
        for time, given in zip(times, values or [event["value"] for event in events], strict=True)
    ]
    words = {value for _, value, _ in points if isinstance(value, str)}
    return charts.steps(points) if len(words) <= LEVELS else None


def course(reduce: Any, events: Sequence[Mapping[str, Any]], value: Any, reports: Reports) -> list[Any] | None:
    """The value after each of some events, the oldest first, of which ``value`` is the last; ``reports`` stood before them. None of a
    reducer of which it cannot be told so."""
    name, arguments = parse_reduce(reduce) if isinstance(reduce, str) else ("own", [])
    if name in REDUCERS and REDUCERS[name].per_agent:
        standing, values = dict(reports), []
        for event in events:
            if event["op"] == "purge":  # which withdraws every report
                standing = {}
            agent = event.get("agent")
            standing = {name: report for name, report in standing.items() if name != agent}
            if event["value"] is not None and agent is not None:
                standing[agent] = event
            values.append(result(name, arguments, standing))
        return values
    contributed = [event["value"] for event in events]
    if name == "latest":
        return contributed
    if name not in ("sum", "count") or value is None or any(event["op"] != "report" for event in events):
        return None
    values = []
    for amount in reversed(contributed):
        values.append(value)
        value -= amount or 0
    return values[::-1]


def _point(value: Any) -> str | float | None:
    if value is None or isinstance(value, str):
        return value
    return float(value) if is_number(value) else plain(value)
