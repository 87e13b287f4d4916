"""From a sample to a file: what is likely, what else is possible, and the text with a choice made."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlglot import exp

from statehouse.config.file import from_document
from statehouse.errors import ConfigError
from statehouse.formats.debezium import key_columns
from statehouse.formats.format import DEBEZIUM, SOURCE
from statehouse.init.names import KIND_WORDS, STATE_WORDS
from statehouse.init.roles import Candidate, Leaf, Rule, agents, has_few_values, keys, leaves_of, mentions, rules, times
from statehouse.init.sample import Sample
from statehouse.init.shapes import Column, columns_of, expression
from statehouse.init.writing import Proposal, text_of
from statehouse.kafka_clients import is_secret, variable
from statehouse.records import decoder_for
from statehouse.tables import EVENT_COLUMNS
from statehouse.values import RESERVED, parse_expression
from statehouse.yaml_file import parse_yaml

MOST_KEYS = 5  # that are offered


@dataclass(frozen=True)
class Findings:
    """What a sample says: columns, the names that cannot be columns, and the likely keys and event times."""

    sample: Sample
    columns: list[Column]
    left_out: list[str]
    leaves: list[Leaf]
    keys: list[Candidate]
    times: list[Candidate]

    def leaf(self, sql: str) -> Leaf | None:
        """The column, or field, of an expression that is one."""
        return next((leaf for leaf in self.leaves if leaf.sql == sql), None)

    def agent(self, key: str) -> str | None:
        """Who reports, where the store has this key."""
        likely = agents([leaf for leaf in self.leaves if leaf.sql != key], self.leaf(key))
        return likely[0].sql if likely else None

    @property
    def primary_key(self) -> list[str]:
        """The columns that a table's changes are keyed by; none of what is no table, or has no such key."""
        if self.sample.encoding.format != DEBEZIUM:
            return []
        names = key_columns(self.sample.records[-1].key)
        return [expression((name,)) for name in names if any(column.name == name for column in self.columns)]

    def rules(self, key: str, agent: str | None, time: str | None) -> list[Rule]:
        """What the store may keep."""
        row = [Rule("latest", "row", "each row as it is now")] if self.sample.encoding.format == DEBEZIUM else []
        return row + rules(self.leaves, key, agent, time)


@dataclass
class Choice:
    """What the file shall say, where it is not what is likeliest."""

    topic: str
    key: Sequence[str]
    rule: Rule
    time: str | None = None
    store: str | None = None
    root: str = "./lake"
    kafka: Mapping[str, str] = field(default_factory=dict)


def look_at(sample: Sample) -> Findings:
    """What a sample says."""
    if sample.encoding.derived:
        columns = [Column(c.name, c.type, c.required) for c in sample.encoding.stream.columns]
        left_out: list[str] = []
    else:
        columns, left_out = columns_of(sample.records)
        left_out = [name for name in left_out if name != SOURCE]
    leaves = leaves_of(columns, sample.records)
    likely = keys(leaves, sample.records)[:MOST_KEYS]
    return Findings(sample, columns, left_out, leaves, likely, times(leaves, sample.records))


def file_text(findings: Findings, choice: Choice, out: str | Path) -> str:
    """The text of the file that will be ``out``. Raises ConfigError where the choice makes no valid file."""
    stream, key, rule = name_of(choice.topic), list(choice.key), choice.rule
    first = next((k for k in findings.keys if [k.sql] == key), None)
    proposal = Proposal(
        source=f"{len(findings.sample.records):,} records of {findings.sample.source}",
        topic=choice.topic,
        stream=stream,
        columns=findings.columns,
        store=choice.store or store_name(stream, key, rule),
        key=_with_names(key) if len(key) > 1 else key,
        reduce=rule.reduce,
        value=rule.value,
        agent=rule.agent,
        time=choice.time,
        root=choice.root,
        kafka=dict(choice.kafka),
        left_out=findings.left_out,
        values=_named_values(findings, {*key, rule.agent}, choice.time),
        other_keys=[k.sql for k in findings.keys if k.sql not in key],
        time_required=any(c.required and mentions(choice.time or "", c.name) for c in findings.columns),
        other_times=[t.sql for t in findings.times if t.sql != choice.time],
        why_key=first.why if first else "",
        settings=_located(findings.sample.encoding.settings, Path(out)),
        registry=findings.sample.encoding.registry,
    )
    text = text_of(proposal)
    environ = {variable(name): str(value) for name, value in choice.kafka.items() if is_secret(name)}
    environ.update(findings.sample.encoding.environ)
    config = from_document(parse_yaml(text, str(out), "a statehouse.yaml"), Path(out), environ)
    _check_columns(proposal, findings)
    payloads = [record.payload for record in findings.sample.records]
    decoder = decoder_for(config.streams[stream], [], [])
    if decoder.format.framed:
        decoder = decoder.knowing(dict(findings.sample.encoding.schemas(payloads)))
    none = [None] * len(payloads)
    values, ids, record_keys = zip(*payloads, strict=True)
    reasons = decoder.decode(none, none, record_keys, values, ids).column("_reason")
    if reasons.null_count != len(reasons):
        raise AssertionError(f"{out}: a record of the sample does not fit: {reasons.drop_null()[0]}")
    return text


def _located(settings: Mapping[str, str], out: Path) -> dict[str, str]:
    """Settings as they stand in a file: another file is named from its folder on."""
    file = settings.get("schema_file")
    return {**settings, "schema_file": os.path.relpath(file, out.parent)} if file else dict(settings)


def name_of(text: str) -> str:
    """A name for a stream or a store: letters, digits and ``_``."""
    plain = re.sub("[^A-Za-z0-9]+", "_", text).strip("_")
    return plain if re.match("[A-Za-z]", plain) else f"s_{plain}".rstrip("_")


def store_name(stream: str, key: Sequence[str], rule: Rule) -> str:
    """``reports_by_device``, ``total_amount_by_customer_card_no``."""
    what = stream if rule.value in (None, "_payload") else rule.value or stream
    of = ["key" if part == "_key" else part for part in key]
    return name_of("_".join([_snake(what), "by", *map(_snake, of)]))


def _snake(text: str) -> str:
    return re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name_of(text)).lower()


def _with_names(key: Sequence[str]) -> list[str]:
    """The parts of a composite key: a table cannot have a column ``value``, or two of one name."""
    parts = []
    for part in key:
        tree = parse_expression(part)
        name = tree.alias_or_name
        taken = name in RESERVED or name.startswith("_")
        own = f"{_snake(name)}_key" if taken else "" if name else _snake(part)
        parts.append(f"{part} AS {own}" if own and not tree.alias else part)
    return parts


def _named_values(findings: Findings, but: set[str | None], time: str | None) -> dict[str, list[str]]:
    """Columns that have few values, kinds and states first; and these, the most frequent first."""
    leaves = [
        leaf
        for leaf in findings.leaves
        if has_few_values(leaf) and leaf.sql not in but and not mentions(time or "", leaf.sql)
    ]
    leaves.sort(key=lambda leaf: not leaf.words & (KIND_WORDS | STATE_WORDS))
    return {
        leaf.sql: [str(v).lower() if isinstance(v, bool) else str(v) for v, _ in leaf.counts.most_common()]
        for leaf in leaves
    }


def _check_columns(proposal: Proposal, findings: Findings) -> None:
    """Raise ConfigError where an expression names what is no column; of all else ``check`` knows more."""
    known = {column.name.lower() for column in findings.columns} | set(EVENT_COLUMNS)
    if findings.sample.encoding.format == DEBEZIUM:
        known |= {SOURCE, "row"}
    given = {"--key": proposal.key, "--time": [proposal.time], "--value": [proposal.value], "--agent": [proposal.agent]}
    for option, texts in given.items():
        for text in filter(None, texts):
            for column in parse_expression(text).find_all(exp.Column):
                name = column.parts[0].name
                if name.lower() not in known:
                    expected = ", ".join(c.name for c in findings.columns)
                    raise ConfigError(
                        f"{option}: found the column {name!r}, expected one of {expected}",
                        advice=f"give another {option}",
                    )
