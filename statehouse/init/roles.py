"""Which column is what: the key, the event time, the agent, the value. Each is a guess by name and by the values of a sample; the
guesses stand in the order of how likely they are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from statehouse.init.names import (
    AGENT_WORDS,
    AMOUNT_WORDS,
    CHANGE_WORDS,
    COUNT_WORDS,
    EVENT_WORDS,
    ID_WORDS,
    KIND_WORDS,
    LATER_WORDS,
    MAYBE_AGENT_WORDS,
    READING_WORDS,
    STATE_WORDS,
    TIME_WORDS,
    WHAT_WORDS,
    WHO_WORDS,
    words,
)
from statehouse.init.sample import Record
from statehouse.init.shapes import Column, expression
from statehouse.payload import micros_of
from statehouse.types import Type, parse_type

DEEPEST_PATH = 2  # fields of structs, such as meta.id, are looked at too
FEW = 8  # different values are few, and are named in the file
ENOUGH = 20  # records from which on it counts that each has another value

# Epoch numbers of the years 2000 to 2100: the SQL that makes a time of each, and its seconds.
EPOCHS = {
    "timestamp_seconds({})": 1,
    "timestamp_millis({})": 1_000,
    "timestamp_micros({})": 1_000_000,
    "timestamp_micros({} DIV 1000)": 1_000_000_000,
}
YEAR_2000, YEAR_2100 = 946_684_800, 4_102_444_800
NUMBERS = ("INT", "BIGINT", "DECIMAL", "DOUBLE")


@dataclass(frozen=True)
class Leaf:
    """A scalar column, or a field of a struct: its place, its type, and its value in each record of the sample."""

    path: tuple[str, ...]
    kind: Type
    values: tuple[Any, ...]

    @property
    def sql(self) -> str:
        """The leaf in Spark SQL."""
        return expression(self.path)

    @cached_property
    def words(self) -> set[str]:
        """The words of its own name."""
        return words(self.path[-1])

    @cached_property
    def present(self) -> list[Any]:
        """The values that are not null."""
        return [value for value in self.values if value is not None]

    @cached_property
    def counts(self) -> Counter[Any]:
        """How often each value is there."""
        return Counter(self.present)

    @property
    def missing(self) -> float:
        """The share of records without a value."""
        return 1 - len(self.present) / max(1, len(self.values))


@dataclass(frozen=True)
class Candidate:
    """A guess: an expression in Spark SQL, how likely it is, and why, in words."""

    sql: str
    score: float
    why: str = ""


@dataclass(frozen=True)
class Rule:
    """What a store may keep of each key."""

    reduce: str
    value: str | None
    text: str
    agent: str | None = None


def leaves_of(columns: Sequence[Column], records: Sequence[Record]) -> list[Leaf]:
    """All scalar leaves of the columns, in their order."""
    return [leaf for c in columns for leaf in _leaves((c.name,), parse_type(c.ddl), records)]


def _leaves(path: tuple[str, ...], kind: Type, records: Sequence[Record]) -> Iterator[Leaf]:
    if kind.name == "STRUCT" and len(path) < DEEPEST_PATH:
        for name, inner in kind.fields:
            yield from _leaves((*path, name), inner, records)
    elif not kind.parts and not kind.fields:
        yield Leaf(path, kind, tuple(_plain(_value_at(record.values, path)) for record in records))


def _value_at(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _plain(value: Any) -> Any:
    """A value that can be counted: what is not plain is its JSON, as a STRING has it."""
    if isinstance(value, msgspec.Raw):
        return bytes(value).decode()
    return msgspec.json.encode(value).decode() if isinstance(value, (dict, list)) else value


# --- time ------------------------------------------------------------------------------------------------------------------------


def times(leaves: Sequence[Leaf], records: Sequence[Record]) -> list[Candidate]:
    """The event times that are likely, the likeliest first."""
    candidates = []
    for leaf in leaves:
        if (moments := _moments(leaf)) is None:
            continue
        sql, seconds = moments
        score = _time_score(leaf, seconds, records)
        if score >= 3.5:
            candidates.append(Candidate(sql, score))
    return sorted(candidates, key=lambda candidate: -candidate.score)


def _moments(leaf: Leaf) -> tuple[str, list[float | None]] | None:
    """The SQL that makes a time of a leaf, and the time in each record, in seconds since 1970; None where it is no time."""
    if leaf.kind.name in ("TIMESTAMP", "DATE"):
        sql = leaf.sql if leaf.kind.name == "TIMESTAMP" else f"CAST({leaf.sql} AS TIMESTAMP)"
        return sql, [None if v is None else micros_of(v) / 1e6 for v in leaf.values]
    if not leaf.words & (TIME_WORDS | EVENT_WORDS) or leaf.kind.name not in ("INT", "BIGINT", "STRING"):
        return None
    text = leaf.kind.name == "STRING"
    if not leaf.present or not all(re.fullmatch("[0-9]{1,19}", str(value)) for value in leaf.present):
        return None
    numbers = [None if v is None else int(v) for v in leaf.values]
    filled = [n for n in numbers if n]  # 0 is what is not filled in
    for form, unit in EPOCHS.items():
        if all(YEAR_2000 * unit <= n < YEAR_2100 * unit for n in filled):
            # Of nothing but zeros the unit is a guess.
            form = form if filled else "timestamp_millis({})"
            column = f"CAST({leaf.sql} AS BIGINT)" if text else leaf.sql
            return form.format(column), [None if n is None else n / unit for n in numbers]
    return None


def _time_score(leaf: Leaf, seconds: Sequence[float | None], records: Sequence[Record]) -> float:
    name = leaf.words
    score = 3.0 if name & TIME_WORDS else 1.0
    score += 2 if name & EVENT_WORDS else 0
    score -= 1 if name & CHANGE_WORDS else 0
    score -= 4 if name & LATER_WORDS else 0
    score -= 1 if leaf.kind.name == "DATE" else 0
    score -= 5 * leaf.missing + (0.5 if len(leaf.path) > 1 else 0)
    present = [s for s in seconds if s is not None]
    if len(set(present)) > 1:
        pairs = list(pairwise(present))
        score += 3 * sum(a <= b for a, b in pairs) / len(pairs)  # events mostly come in the order of their times
    elif present:
        score += 1.5
    near = [abs(s - r.time / 1000) < 3600 for s, r in zip(seconds, records, strict=True) if s is not None and r.time]
    return score + (2 * sum(near) / len(near) if near else 0)


# --- key -------------------------------------------------------------------------------------------------------------------------


def keys(leaves: Sequence[Leaf], records: Sequence[Record]) -> list[Candidate]:
    """The keys that are likely, the likeliest first: columns, and the key of Kafka's messages where no column says the same."""
    with_key = [record.key is not None for record in records]
    candidates, same = [], False
    for leaf in leaves:
        if leaf.kind.name not in ("STRING", "INT", "BIGINT") or not leaf.present:
            continue
        of_kafka = _is_kafkas(leaf, records) if any(with_key) else False
        same = same or of_kafka
        counts = leaf.counts
        why = f"{len(counts):,} different in {len(leaf.present):,} records"
        if leaf.missing:
            why += f", {leaf.missing:.0%} have none"
        score = _key_score(leaf, counts) + (100 if of_kafka else 0)
        candidates.append(Candidate(leaf.sql, score, f"{why}, the key of the messages" if of_kafka else why))
    if all(with_key) and not same:
        different = len({record.key for record in records})
        candidates.append(
            Candidate("_key", 4, f"the key of the messages, {different:,} different in {len(records):,} records")
        )
    likely = [candidate for candidate in candidates if candidate.score > 0]
    return sorted(likely or candidates, key=lambda candidate: -candidate.score)


def _is_kafkas(leaf: Leaf, records: Sequence[Record]) -> bool:
    """Whether a leaf says what the messages' keys say: of nearly all records that have both."""
    both = [(str(v), r.key) for v, r in zip(leaf.values, records, strict=True) if v is not None and r.key is not None]
    return len(both) > 0.5 * len(records) and sum(a == b for a, b in both) >= 0.99 * len(both)


def _key_score(leaf: Leaf, counts: Counter[Any]) -> float:
    name, total = leaf.words, sum(counts.values())
    score = 3.0 if name & ID_WORDS else 0.0
    score += 3 if name == {"key"} else 0
    score += 3 if name & WHO_WORDS else 2 if name & WHAT_WORDS else 0
    score += min(2.0, math.log10(total / len(counts)))
    if total >= ENOUGH and len(counts) == total:
        score -= 5  # the event's own number: nothing is ever folded by it
    elif total >= ENOUGH and len(counts) == 1:
        score -= 6
    elif total >= ENOUGH and len(counts) <= FEW:
        score -= 2
    score -= 3 if name & (AGENT_WORDS | STATE_WORDS | TIME_WORDS | AMOUNT_WORDS | READING_WORDS | KIND_WORDS) else 0
    score -= 5 if name & COUNT_WORDS and not name & {"id", "key"} else 0
    score -= 3 if leaf.kind.name == "STRING" and any(" " in str(v) or len(str(v)) > 60 for v in counts) else 0
    return score - 4 * leaf.missing - 0.5 * (len(leaf.path) - 1)


# --- agent, value ----------------------------------------------------------------------------------------------------------------


def agents(leaves: Sequence[Leaf], key: Leaf | None) -> list[Candidate]:
    """Who reports, where the name says so, or where several report of the same key."""
    candidates = []
    for leaf in leaves:
        if leaf is key or leaf.kind.name not in ("STRING", "INT", "BIGINT") or not leaf.present:
            continue
        score = 3.0 if leaf.words & AGENT_WORDS and "user" not in leaf.words else 0.0
        score += 1.5 if leaf.words & MAYBE_AGENT_WORDS else 0
        if score and key:
            pairs = {pair for pair in zip(key.values, leaf.values, strict=True) if None not in pair}
            score += 2 if len(pairs) > 1.2 * len({k for k, _ in pairs}) else 0
        if score >= 3 and len(leaf.counts) > 1:
            candidates.append(Candidate(leaf.sql, score))
    return sorted(candidates, key=lambda candidate: -candidate.score)


def rules(leaves: Sequence[Leaf], key: str | None, agent: str | None, time: str | None) -> list[Rule]:
    """What a store may keep of each key, the likeliest first."""
    others = [
        leaf for leaf in leaves if leaf.sql not in (key, agent) and leaf.present and not mentions(time or "", leaf.sql)
    ]
    # What is inside of something else, or often missing, is more likely a part of an address than a state.
    states = _best(
        [leaf for leaf in others if leaf.missing < 0.3 and (len(leaf.path) == 1 or has_few_values(leaf))], STATE_WORDS
    )
    readings = _best([leaf for leaf in others if leaf.kind.name in NUMBERS], READING_WORDS)
    amounts = _best([leaf for leaf in others if leaf.kind.name in NUMBERS], AMOUNT_WORDS)
    proposals = []
    if agent:
        votes = states or [leaf for leaf in others if has_few_values(leaf)]
        proposals += [
            Rule("majority", s.sql, f"what most agents' latest reports say of {s.sql}", agent) for s in votes[:1]
        ]
        proposals += [one for s in votes[:1] if has_few_values(s) and (one := _at_least_one(s, agent))]
    proposals += [Rule("latest", s.sql, f"the latest {s.sql}") for s in [*states[:1], *readings[:1]]]
    proposals += [Rule("sum", a.sql, f"the sum of {a.sql}") for a in amounts[:1]]
    proposals.append(Rule("latest", "_payload", "the newest record, all of it"))
    proposals.append(Rule("count", None, "the number of records"))
    return proposals


def _at_least_one(leaf: Leaf, agent: str) -> Rule | None:
    """One agent is enough for the rarest value; None where the values are no plain words."""
    common, *_, rare = [str(value) for value, _ in leaf.counts.most_common()]
    if not all(re.fullmatch(r"[A-Za-z]\w*", word) for word in (rare, common)):
        return None
    text = f"{rare} as long as one agent's latest report says so, else {common}"
    return Rule(f"at_least_one({rare}, {common})", leaf.sql, text, agent)


def mentions(sql: str, leaf: str) -> bool:
    """Whether an expression has a leaf in it."""
    return re.search(rf"(?<![\w.`]){re.escape(leaf)}(?![\w.`])", sql) is not None


def _best(leaves: Sequence[Leaf], wanted: set[str]) -> list[Leaf]:
    """Leaves whose name has one of the words, those first of which it is the last word: ``TotalAmount`` before ``AmountCode``."""
    named = [leaf for leaf in leaves if leaf.words & wanted and not leaf.words & ID_WORDS]
    return sorted(named, key=lambda leaf: (len(leaf.path), len(leaf.words - wanted)))


def has_few_values(leaf: Leaf) -> bool:
    """Whether a leaf has so few values that they can be named."""
    counts = leaf.counts
    plain = leaf.kind.name in ("STRING", "BOOLEAN", "INT")
    return plain and 1 < len(counts) <= FEW and sum(counts.values()) >= max(ENOUGH, 3 * len(counts))
