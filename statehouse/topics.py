"""Names of topics: those that there can be, and those that tasks may be asked to send to.

Which these are says ``tasks: {topics: [alerts, "ops-*"]}``; without it they are the topics that the file's task rules and routes
name. No imports of pydantic here: Spark's executors decode records without it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST = 249
CHARACTER = "[A-Za-z0-9._-]"
NAME = f"{CHARACTER}{{1,{LONGEST}}}"  # that Kafka takes, but for the two below
PATTERN = f"[A-Za-z0-9._*?-]{{1,{LONGEST}}}"
WILDCARDS = {"*": f"{CHARACTER}*", "?": CHARACTER}
IMPOSSIBLE = (".", "..")  # they would be folders
INTERNAL = "__"  # what Kafka's own topics begin with
POSSIBLE = f"letters, digits, '.', '_' and '-', {LONGEST} at most, and neither '.' nor '..'"


def is_possible(topic: object) -> bool:
    """Whether Kafka can have a topic of that name."""
    return isinstance(topic, str) and re.fullmatch(NAME, topic) is not None and topic not in IMPOSSIBLE


def askable(patterns: Sequence[str]) -> str | None:
    """A regular expression of the topics that tasks may be asked to send to; None where there are none."""
    if not patterns:
        return None
    names = ("".join(WILDCARDS.get(c, re.escape(c)) for c in pattern) for pattern in patterns)
    return rf"(?!{INTERNAL}|\.\.?$)(?:{'|'.join(names)})"


def expected_instead(topic: str, patterns: Sequence[str]) -> str | None:
    """What is expected instead of a topic that a task is asked to send to; None: it may be."""
    regex = askable(patterns)
    if regex and re.fullmatch(regex, topic) and len(topic) <= LONGEST:
        return None
    if topic.startswith(INTERNAL):
        return f"no topic of Kafka's own, which begin with {INTERNAL}"
    named = (
        f"one that tasks may send to: {', '.join(patterns)}" if patterns else "none that tasks may be asked to send to"
    )
    return f"{named} (the setting is tasks: topics)"
