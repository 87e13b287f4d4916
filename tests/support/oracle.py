"""What is right, in plain Python. Shares nothing with the code under test.

An event is a dict: op (report, set, purge), agent, value, order = (time in microseconds, partition, offset); in a stream with `order:`
order = (rank, partition, offset), and the time is in `time`.
"""

from collections import Counter
from decimal import Context, Decimal, localcontext

YEAR_ONE = -62_135_596_800_000_000  # microseconds since 1970


def fold(reduce, events, *arguments):
    """The value of one key and the time (microseconds) of the latest event behind it; None: absent.

    The events may come in any order and more than once.
    """
    events = sorted({e["order"]: e for e in events}.values(), key=lambda e: e["order"])
    by_agent = reduce in ("latest", "majority", "at_least_one")
    resets = [
        i for i, e in enumerate(events)
        if e["op"] == "purge" or (e["op"] == "set" and not by_agent and e["value"] is not None)
    ]  # fmt: skip
    events = [e for e in events[resets[-1] :] if e["op"] != "purge"] if resets else events
    if reduce == "latest":
        standing = events[-1:]
    elif by_agent:
        standing = sorted({e["agent"]: e for e in events}.values(), key=lambda e: e["order"])
    else:
        standing = events
    standing = [e for e in standing if e["value"] is not None]
    if not standing:
        return None
    values = [e["value"] for e in standing]
    return REDUCE[reduce](values, standing, *arguments), max(map(time_of, standing))


def time_of(event):
    """An event's time, in microseconds."""
    return event.get("time", event["order"][0])


def history(events):
    """The events of one key, newest first; each once."""
    return sorted({e["order"]: e for e in events}.values(), key=lambda e: e["order"], reverse=True)


def standing(events):
    """Each agent's report that counts, by agent; the events are reports and purges."""
    events = history(events)
    purges = [i for i, e in enumerate(events) if e["op"] == "purge"]
    after = events[: purges[0]] if purges else events
    return {e["agent"]: e["value"] for e in reversed(after)}


def windowed(reduce, events, size, step, *arguments):
    """The same for each window of the key, by its start: an event is in every window [start, start + size), a purge in all. No
    window begins before the year 1."""
    starts = set()
    for event in events:
        if event["op"] == "report":
            time = time_of(event)
            last = time // step * step
            starts |= {s for s in range(last, last - size, -step) if s <= time < s + size and s >= YEAR_ONE}
    inside = {s: [e for e in events if e["op"] == "purge" or s <= time_of(e) < s + size] for s in starts}
    folded = {s: fold(reduce, found, *arguments) for s, found in inside.items()}
    return {s: found for s, found in folded.items() if found}


def table(changes):
    """The rows of a table by key, as its changes make it: dicts of op (c, u, r, d), key, row, order = (position, partition, offset). They
    may come in any order and more than once."""
    rows = {}
    for change in sorted({c["order"]: c for c in changes}.values(), key=lambda c: c["order"]):
        rows.pop(change["key"], None)
        if change["op"] != "d":
            rows[change["key"]] = change["row"]
    return rows


def _majority(values, standing):
    votes = Counter(values)
    return max(standing, key=lambda e: (votes[e["value"]], e["order"]))["value"]


def _total(values):
    with localcontext(Context(prec=100)):  # by default a sum is rounded to 28 digits
        return sum(values)


def _count(values, standing):
    return sum(e["value"] if e["op"] == "set" else 1 for e in standing)


REDUCE = {
    "latest": lambda values, standing: values[-1],
    "majority": _majority,
    "at_least_one": lambda values, standing, v, w: v if v in values else w,
    "first": lambda values, standing: values[0],
    "sum": lambda values, standing: _total(values),
    "count": _count,
    "min": lambda values, standing: min(values),
    "max": lambda values, standing: max(values),
    "own": lambda values, standing: max(values) - min(values),  # the range, as the tests define it
    "avg": lambda values, standing: float(_total(map(Decimal, values))) / len(values),
}
