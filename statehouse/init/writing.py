"""The text of a ``statehouse.yaml``, with comments that say what each line is for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from statehouse.formats.format import BYTES, CSV, DEBEZIUM, JSON, KINDS, STRING
from statehouse.init.shapes import Column
from statehouse.kafka_clients import is_secret, variable

WIDTH = 42  # where comments begin
REDUCERS = "latest, first, sum, count, min, max, avg, majority, at_least_one(value, otherwise)"


@dataclass
class Proposal:
    """All that the file says."""

    source: str
    topic: str
    stream: str
    columns: Sequence[Column]
    store: str
    key: Sequence[str]  # several: a composite key
    reduce: str
    value: str | None = None
    agent: str | None = None
    time: str | None = None
    root: str = "./lake"
    kafka: dict[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()  # names that cannot be columns
    values: dict[str, list[str]] = field(default_factory=dict)  # of columns that have few
    other_keys: Sequence[str] = ()
    other_times: Sequence[str] = ()
    why_key: str = ""
    time_required: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # that say what payloads are written in, besides JSON
    registry: Mapping[str, str] = field(default_factory=dict)


def text_of(proposal: Proposal) -> str:
    """The file."""
    payload = "_payload" in (proposal.value or "") or proposal.left_out
    captured = proposal.settings.get("format") == DEBEZIUM
    lines = [
        f"# What statehouse keeps of {_shown(proposal.topic)}: written by `statehouse init` from {_shown(proposal.source)}.",
        "# Change what you like, then run `statehouse check`.",
        _with(f"root: {_scalar(proposal.root)}", "where the tables are: a path, s3a://, abfss://"),
        "kafka:",
        *(f"  {_scalar(n)}: {_scalar(v)}" for n, v in proposal.kafka.items() if not is_secret(n)),
        *(f"  # {_scalar(n)}: comes from the environment, ${variable(n)}" for n in proposal.kafka if is_secret(n)),
        *(["registry:"] if proposal.registry else []),
        *(f"  {_scalar(n)}: {_scalar(v)}" for n, v in proposal.registry.items()),
        "",
        "streams:",
        f"  {proposal.stream}:",
        f"    topic: {_scalar(proposal.topic)}",
        *(f"    {name}: {_scalar(value)}" for name, value in proposal.settings.items()),
        *_schema(proposal),
    ]
    if proposal.left_out:
        names = ", ".join(map(_shown, proposal.left_out[:10]))
        lines.append(f"    # Left out, since a column cannot have such a name: {names}.")
    if proposal.time:
        lines.append(
            _with(
                f"    time: {_scalar(proposal.time)}",
                "when it happened" + ("" if proposal.time_required else "; a record without it: Kafka's time"),
            )
        )
        if proposal.other_times:
            lines.append(f"    # Also possible: {', '.join(map(_shown, proposal.other_times))}")
    else:
        now = "the one of its source" if captured else "Kafka's time"
        lines.append(_with("    # time: a_column", f"when it happened; now it is {now}"))
    if proposal.settings.get("format", JSON) == JSON:
        lines.append(
            _with("    keep_payload: true" if payload else "    # keep_payload: true", "also keeps the text itself")
        )
    lines += ["", "stores:", f"  {proposal.store}:", f"    stream: {proposal.stream}"]
    keys = [_scalar(k) for k in proposal.key]
    key = keys[0] if len(keys) == 1 else f"[{', '.join(_scalar(k, flow=True) for k in proposal.key)}]"
    lines.append(_with(f"    key: {key}", proposal.why_key))
    if proposal.other_keys:
        lines.append(f"    # Also possible: {', '.join(map(_shown, proposal.other_keys))}; or several: [a, b]")
    if proposal.agent:
        lines.append(_with(f"    agent: {_scalar(proposal.agent)}", "who reports"))
    if proposal.value is not None:
        lines.append(f"    value: {_scalar(proposal.value)}")
    lines.append(_with(f"    reduce: {_scalar(proposal.reduce)}", f"or: {REDUCERS}"))
    for name, values in proposal.values.items():
        lines.append(f"    # {_shown(name)} is one of: {', '.join(_shown(value) for value in values)}")
    if proposal.values:
        name, values = next(iter(proposal.values.items()))
        condition = f"{name} = {_literal(values[0])}"
        lines.append(_with(f"    # where: {_scalar(condition)}", "only these events"))
    lines.append(_with("    # window: 1 hour", "a value for each hour of event time"))
    lines.append(_with("    # publish: a-topic", "each change, to a compacted topic"))
    return "\n".join(lines) + "\n"


def _schema(proposal: Proposal) -> Iterator[str]:
    """The stream's columns: as they are to be, or, where something else says them, as they are now."""
    format, definitions = proposal.settings.get("format", JSON), [column.definition for column in proposal.columns]
    if format in (*KINDS, STRING, BYTES):
        yield "    # Its columns are those of its schema:" if format in KINDS else "    # Its column is:"
        yield from (f"    #   {definition}" for definition in definitions)
        return
    of = {JSON: "the JSON payload", CSV: "a line: give them their names", DEBEZIUM: "the table"}[format]
    yield f"    # The columns of {of}. A record that lacks a NOT NULL column, or has another type, is refused: it goes"
    yield "    # to the quarantine." + " Fields that are not listed are ignored." * (format != CSV)
    yield "    schema: >-"
    yield from (f"      {d}{',' * (d is not definitions[-1])}" for d in definitions)


def _with(text: str, comment: str) -> str:
    return f"{text:<{WIDTH - 1}} # {comment}" if comment else text


def _shown(text: str) -> str:
    """Text in a comment: one line, and what cannot be printed is escaped."""
    short = text if len(text) <= 60 else f"{text[:59]}…"
    return short if short.isprintable() else json.dumps(short)


def _literal(value: str) -> str:
    return (
        value if value in ("true", "false") or re.fullmatch("-?[0-9]+", value) else "'" + value.replace("'", "''") + "'"
    )


def _scalar(value: Any, flow: bool = False) -> str:
    """A text as YAML, in quotes only where it needs them."""
    text = str(value)
    line = f"[{text}]" if flow else text
    try:
        plain = yaml.safe_load(f"x: {line} # comment")
    except yaml.YAMLError:
        plain = None
    if text.isprintable() and plain == {"x": [text] if flow else text}:
        return text
    return json.dumps(text)
