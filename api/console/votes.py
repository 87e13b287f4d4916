"""What an agent's report counts for in a key's value, and what the value would be without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from api.console.format import plain
from statehouse.reducers import parse_reduce

Reports = Mapping[str, Mapping[str, Any]]


class Vote(NamedTuple):
    """An agent's standing report."""

    agent: str
    value: Any
    event_time: str
    wins: bool  # it is the key's value
    without: Any  # what the value would be without this agent; None: the key would be absent


def votes(reduce: str, reports: Reports) -> tuple[list[Vote], str]:
    """The votes, those that win first, and in a sentence why the value is what it is."""
    name, arguments = parse_reduce(reduce)
    value = result(name, arguments, reports)
    standing = []
    for agent, report in reports.items():
        without = result(name, arguments, {a: r for a, r in reports.items() if a != agent})
        standing.append(Vote(agent, report["value"], report["event_time"], report["value"] == value, without))
    standing.sort(key=lambda vote: vote.event_time, reverse=True)
    standing.sort(key=lambda vote: not vote.wins)
    return standing, _why(name, arguments, reports, value)


def result(name: str, arguments: list[str], reports: Reports) -> Any:
    """What standing reports make; None where there are none. Of reports at the same time nothing tells which was last."""
    if not reports:
        return None
    counts = Counter(plain(report["value"]) for report in reports.values())
    if name == "at_least_one":
        return arguments[0] if arguments[0] in counts else arguments[1]
    most = max(counts.values())
    tied = [report for report in reports.values() if counts[plain(report["value"])] == most]
    return max(tied, key=lambda report: report["event_time"])["value"]


def _why(name: str, arguments: list[str], reports: Reports, value: Any) -> str:
    if not reports:
        return "No agent has a report."
    if name == "at_least_one":
        those = [agent for agent, report in reports.items() if plain(report["value"]) == arguments[0]]
        if not those:
            return f"No agent's latest report is {arguments[0]}, so it is {arguments[1]}."
        return f"{len(those)} of {len(reports)} agents say {arguments[0]}: {', '.join(sorted(those)[:5])}{'…' if len(those) > 5 else ''}."
    counts = Counter(plain(report["value"]) for report in reports.values())
    most = counts[plain(value)]
    tied = sorted(v for v, n in counts.items() if n == most)
    text = f"{most} of {len(reports)} agents say {plain(value)}"
    if len(tied) > 1:
        others = " and ".join(v for v in tied if v != plain(value))
        return f"{text}, and as many {others}: a tie goes to the value that was reported last."
    return f"{text}, more than any other value."
