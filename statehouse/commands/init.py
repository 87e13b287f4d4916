"""``statehouse init``: a ``statehouse.yaml`` from what a topic or a file has."""

from __future__ import annotations

import os
import re
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statehouse.commands.base import command, json_option
from statehouse.commands.output import in_colour, print_json
from statehouse.commands.progress import working
from statehouse.errors import ConfigError, StatehouseError
from statehouse.formats.format import BYTES, CSV, DEBEZIUM, JSON, KINDS, STRING

if TYPE_CHECKING:
    from statehouse.init.propose import Findings
    from statehouse.init.roles import Rule
    from statehouse.init.sample import Sample

FORMATS = (JSON, *KINDS, CSV, STRING, BYTES, DEBEZIUM)
EXAMPLES = ("retail", "fleet", "topic")
NONE = "none"  # as --time or --agent: there is none


@command(
    "Start",
    ("statehouse init --topic invoices", "from a topic of Kafka on this machine; Enter takes what is likely"),
    ("statehouse init --bootstrap kafka:9092 --topic t --yes", "another Kafka; asks nothing"),
    ("statehouse init --file old.jsonl.gz --key customer_id", "from a file of JSON lines"),
    ("statehouse init --topic t --key StoreID --key PosID --reduce count", "a composite key"),
    ("statehouse init --topic orders --registry http://127.0.0.1:8081", "a topic in Avro, Protobuf or JSON Schema"),
    ("statehouse init --example retail", "a file to learn from: retail, fleet or topic"),
)
@click.option("--topic", metavar="NAME", help="The topic. With --file: the one that the stream will have.")
@click.option("--bootstrap", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="Kafka.")
@click.option(
    "--kafka",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="Any other property of a Kafka client; repeatable.",
)
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    help="What the topic's payloads are written in; found by a look at them.",
)
@click.option("--registry", metavar="URL", help="The registry that has the payloads' schemas.")
@click.option("--schema-file", metavar="FILE", help="The Avro schema of payloads that name none.")
@click.option("--subject", metavar="NAME", help="The subject in the registry, where it is not TOPIC-value.")
@click.option("--file", "source", metavar="FILE", help="JSON lines instead of a topic; also .gz and .bz2.")
@click.option("--example", type=click.Choice(EXAMPLES), help="One of the shapes of the docs instead.")
@click.option("--records", type=click.IntRange(1), default=20_000, show_default=True, help="How many to look at.")
@click.option("--key", "key", metavar="SQL", multiple=True, help="The key; repeated: a composite key.")
@click.option("--time", metavar="SQL", help=f"The event time; '{NONE}': Kafka's.")
@click.option("--value", metavar="SQL", help="What is reduced.")
@click.option("--reduce", metavar="NAME", help="The reducer, such as latest, sum or majority.")
@click.option("--agent", metavar="SQL", help=f"Who reports; '{NONE}': nobody in particular.")
@click.option("--store", metavar="NAME", help="The store's name.")
@click.option("--out", metavar="FILE", default="statehouse.yaml", show_default=True, help="The file to write.")
@click.option("--yes", is_flag=True, help="Ask nothing: take what is likely.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
@json_option
def init(out: str, force: bool, example: str | None, as_json: bool, **given: Any) -> None:
    """Write a statehouse.yaml from what a topic or a file has.

    Looks at some records, finds columns, types, key, time and agent, asks what it cannot know, and writes a file with comments. It
    never overwrites a file without --force.
    """
    path = Path(out)
    if path.exists() and not force:
        raise ConfigError(
            f"{path}: found a file, expected none", advice="name another with --out, or overwrite it with --force"
        )
    if example:
        text = (
            resources.files("statehouse.init")
            .joinpath("examples")
            .joinpath(f"{example}.yaml")
            .read_text(encoding="utf-8")
        )
        key, sample = None, None
    else:
        text, key, sample = _propose(path, **given)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StatehouseError(
            f"{path}: cannot be written: {error.strerror}", advice="name another with --out"
        ) from None
    steps = _next_steps(path, given["source"] if sample and sample.lines else None, key, given["properties"])
    if as_json:
        counts = {"records": len(sample.records), "refused": sample.refused} if sample else {}
        print_json({"file": str(path), **counts, "next": [step for step, _ in steps]})
        return
    print(f"{path}: written{_read(sample)}")
    print("next:")
    width = min(max(len(step) for step, _ in steps), 44)
    for step, why in steps:
        shown = click.style(f"{step:<{width}}", bold=True) if in_colour(sys.stdout) else f"{step:<{width}}"
        print(f"  {shown}  # {why}")


def _read(sample: Sample | None) -> str:
    if sample is None:
        return ""
    text = f", from {len(sample.records):,} records of {sample.source}"
    if sample.refused:
        text += f"; {sample.refused:,} more would be refused ({sample.reason})"
    return text


def _next_steps(path: Path, source: str | None, key: str | None, properties: tuple[str, ...]) -> list[tuple[str, str]]:
    """The commands to run now, and what each does."""
    from statehouse.config.file import load
    from statehouse.kafka_clients import is_secret, secrets_of, variable

    # What is not in the file, nor anything else of this environment.
    secrets = secrets_of(os.environ) | {n: v for n, v in map(_property, properties) if is_secret(n)}
    config = load(path, {variable(name): value for name, value in secrets.items()} | _of_registry())
    stream, store = next(iter(config.streams)), next(iter(config.stores))
    file = "" if str(path) == "statehouse.yaml" else f" -c {path}"
    steps = [(f"statehouse check{file}", "are all expressions right?")]
    if source and config.streams[stream].time:
        steps += [(f"statehouse load {stream} {source}{file}", "this file's events, once")]
        steps += [(f"statehouse merge --once{file}", "into the store")]
    else:
        steps += [(f"statehouse run{file}", "the jobs, until Ctrl-C")]
    steps += [(f"statehouse serve{file}", "in another terminal: http://127.0.0.1:8080/")]
    steps += [(f"curl http://127.0.0.1:8080/stores/{store}/keys/{key or 'KEY'}", "what is known of a key")]
    return steps


def _propose(
    path: Path,
    topic: str | None,
    bootstrap: str,
    properties: tuple[str, ...],
    format: str | None,
    registry: str | None,
    schema_file: str | None,
    subject: str | None,
    source: str | None,
    records: int,
    key: tuple[str, ...],
    time: str | None,
    value: str | None,
    reduce: str | None,
    agent: str | None,
    store: str | None,
    yes: bool,
) -> tuple[str, str | None, Sample]:
    """The file's text, a key to ask for, and the sample that it is made of."""
    from statehouse.init.propose import Choice, file_text, look_at, name_of
    from statehouse.init.roles import Rule
    from statehouse.kafka_clients import complaints, secrets_of

    ask = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    secrets = secrets_of(os.environ)
    kafka = {"bootstrap.servers": bootstrap, **secrets, **dict(_property(text) for text in properties)}
    if not source and (wrong := next(complaints(kafka), None)):
        raise ConfigError(f"--kafka {wrong[0]}: {wrong[1]}")
    settings = {"format": format, "schema_file": schema_file, "subject": subject}
    given = {name: value for name, value in settings.items() if value is not None}
    sample = _read_sample(kafka, topic, given, registry, source, records, ask)
    topic = topic or (
        name_of(Path(source or "").name.split(".")[0]) if source else sample.source.removeprefix("topic ")
    )
    findings = look_at(sample)
    if not findings.columns:
        raise StatehouseError(f"{sample.source}: found no field that can be a column", advice="use --example topic")
    if time is None and sample.encoding.format != DEBEZIUM:  # whose changes have their own
        time = findings.times[0].sql if findings.times else None
    parts = _split(key, findings) or findings.primary_key or [_ask_key(findings, ask)]
    by = None if agent == NONE else agent or findings.agent(parts[0])
    if reduce or value:
        reducer = reduce or "latest"
        rule = Rule(reducer, value, "", by if re.match("majority|at_least_one", reducer) else None)
    else:
        rule = _ask_rule(findings, parts[0], by, time, ask)
    if agent and agent != NONE:
        rule = Rule(rule.reduce, rule.value, rule.text, agent)
    choice = Choice(topic, parts, rule, None if time == NONE else time, store, kafka=kafka)
    return file_text(findings, choice, path), _a_key(findings, parts), sample


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(
            f"--kafka: found {text!r}, expected NAME=VALUE", advice="such as --kafka security.protocol=SASL_SSL"
        )
    return name, value


def _of_registry() -> dict[str, str]:
    """The variables of the environment that say how to sign in to a registry."""
    return {name: value for name, value in os.environ.items() if name.startswith("STATEHOUSE_REGISTRY__")}


def _read_sample(
    kafka: dict[str, str],
    topic: str | None,
    given: dict[str, str],
    registry: str | None,
    source: str | None,
    records: int,
    ask: bool,
) -> Sample:
    from statehouse.init import sample
    from statehouse.init.payloads import Encoding

    if source:
        if wrong := next(iter(given), "registry" if registry else None):
            raise ConfigError(f"--{wrong.replace('_', '-')}: found it with --file, expected it with --topic")
        with working(f"reading {source}"):
            return sample.read_file(source, records)
    if topic is None:
        with working("asking Kafka for its topics"):
            names = sample.topic_names(kafka)
        if len(names) != 1 and not (names and ask):
            topics = f"{len(names)} topics ({', '.join(names[:20])})" if names else "no topics"
            raise ConfigError(
                f"statehouse init: found {topics}, expected --topic or --file", advice="name a topic with --topic"
            )
        topic = names[0] if len(names) == 1 else names[_choose("Which topic?", [(name, "") for name in names])]
    with working(f"reading {topic}"):
        if registry and "@" in registry:
            raise ConfigError(
                "--registry: found a sign-in in the address, expected it in $STATEHOUSE_REGISTRY__BASIC_AUTH_USER_INFO",
                advice="put USER:PASSWORD into that variable: the file is no place for it",
            )
        properties = {"url": registry} if registry else {}
        return sample.read_topic(kafka, Encoding(topic, given, properties, _of_registry()), records)


def _split(key: tuple[str, ...], findings: Findings) -> list[str]:
    """The parts of the key: what is given by several options, or as ``a,b`` where both are columns."""
    parts = []
    for text in key:
        pieces = [piece.strip() for piece in text.split(",")]
        parts += pieces if all(findings.leaf(piece) for piece in pieces) else [text]
    return parts


def _ask_key(findings: Findings, ask: bool) -> str:
    if not findings.keys:
        raise ConfigError(
            f"{findings.sample.source}: found no column that can be a key, expected --key",
            advice="give an expression with --key",
        )
    rows = [(candidate.sql, candidate.why) for candidate in findings.keys]
    return findings.keys[_choose("Which key? The store has a row for each.", rows) if ask else 0].sql


def _ask_rule(findings: Findings, key: str, agent: str | None, time: str | None, ask: bool) -> Rule:
    rules = findings.rules(key, agent, time)
    rows = [(_short(rule), rule.text) for rule in rules]
    return rules[_choose("What is kept of each key?", rows) if ask else 0]


def _short(rule: Rule) -> str:
    return rule.reduce if rule.value is None else f"{rule.reduce} of {rule.value}"


def _choose(question: str, rows: list[tuple[str, str]]) -> int:
    """Ask on the terminal; the number of the row that is chosen, by its number or its name. Enter takes the first."""
    width = max(len(name) for name, _ in rows)
    click.echo(question, err=True)
    for number, (name, why) in enumerate(rows, 1):
        click.echo(f"  {number}  {name:<{width}}  {why}".rstrip(), err=True)
    names = {name: index for index, (name, _) in enumerate(rows)}
    while True:
        try:
            answer = str(click.prompt("", default="1", prompt_suffix="> ", show_default=False, err=True)).strip()
        except click.Abort:
            raise StatehouseError("stopped: nothing is written", advice="--yes asks nothing") from None
        if answer in names:
            return names[answer]
        if answer.isdigit() and 1 <= int(answer) <= len(rows):
            return int(answer) - 1
        click.echo(f"found {answer!r}, expected a number from 1 to {len(rows)}, or one of these names", err=True)


def _a_key(findings: Findings, parts: list[str]) -> str | None:
    """A key of the sample as it stands in a path; None where it is an expression."""
    from urllib.parse import quote

    for number in range(len(findings.sample.records) - 1, -1, -1):
        values: list[Any] = []
        for part in parts:
            leaf = findings.leaf(part)
            values.append(findings.sample.records[number].key if part == "_key" else leaf and leaf.values[number])
        if None not in values:
            return "/".join(quote(str(value), safe="") for value in values)
    return None
