"""``statehouse check``: is the file right?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statehouse.commands.base import command, config_option, json_option
from statehouse.commands.output import Problem, is_terminal, print_json, problems_of, show_problems
from statehouse.commands.progress import working
from statehouse.commands.spark import start_spark
from statehouse.errors import ConfigError

if TYPE_CHECKING:
    from statehouse.config.models import Config
    from statehouse.yaml_file import YamlFile

# Where a text of SQL was meant, and YAML has made a column's name of it.
QUOTES_OFF = """ (YAML takes its own quotes off: a text of SQL in YAML's quotes is "'text'")"""
SECTIONS = ("streams", "lookups", "stores", "routes", "tasks")


@command(
    "Start",
    ("statehouse check", "is statehouse.yaml right? names the line that is not"),
    ("statehouse check -c other.yaml", "another file"),
    ("statehouse check --json", "the problems and notes for an editor or CI; exit 2 as well"),
)
@config_option
@json_option
def check(file: str | None, as_json: bool) -> int:
    """Validate the file, against Spark SQL and DuckDB both; exit 2 when it is wrong."""
    from statehouse.config import file as configuration
    from statehouse.yaml_file import read_yaml

    path = configuration.chosen(file)
    try:
        config = configuration.load(path)
    except ConfigError as error:
        if not as_json:
            raise
        print_json(_report(path, problems_of(error)))
        return 2
    if not is_terminal(sys.stderr):
        print(f"{path}: asking Spark (a few seconds) ...", file=sys.stderr)
    problems, notes = _ask(path, config, read_yaml(path, "a statehouse.yaml"))
    counts = {name: count for name in SECTIONS if (count := len(getattr(config, name) or ()))}
    if as_json:
        print_json({**_report(path, problems), "notes": notes, "parts": counts})
        return 2 if problems else 0
    if problems:
        show_problems(problems)
        return 2
    for note in notes:
        print(note, file=sys.stderr)
    print(f"{path}: {', '.join(f'{count} {name}' for name, count in counts.items())}: all right")
    return 0


def _ask(path: Path, config: Config, document: YamlFile) -> tuple[list[Problem], list[str]]:
    """What Spark refuses; and where it refuses nothing, what DuckDB cannot compute."""
    spark = start_spark(config, "check")
    from api.engine.check import check as duckdb_check
    from jobs.check import problems, unknown_properties
    from jobs.law import counterexample
    from jobs.spark.expressions import rule_of

    with working("asking Spark"):
        wrong = problems(spark, config)
        rules = {} if wrong else {s.name: rule_of(spark, config, s) for s in config.stores.values()}
        for name, rule in rules.items():
            if rule.store.reducer.written and (example := counterexample(spark, rule)):
                wrong.append((("stores", name, "reduce"), example))
    lines = []
    for where, message in wrong:
        quotes = QUOTES_OFF if where in document.quoted and "UNRESOLVED_COLUMN" in message else ""
        line = f"{path}:{document.line_of(where)}: {'.'.join(map(str, where))}: {message}{quotes}"
        lines.append(Problem(line, ConfigError.advice))
    notes = [
        f"{path}:{document.line_of(where)}: note: {'.'.join(map(str, where))}: {message}; served at the MERGE's freshness"
        for where, message in (() if wrong else duckdb_check(config, rules))
    ]
    return lines, [
        *_kafka(path, config, document, unknown_properties(spark, config)),
        *_derived_columns(path, config, document),
        *notes,
    ]


def _kafka(path: Path, config: Config, document: YamlFile, unknown: list[str]) -> list[str]:
    """What may not be meant so in the section ``kafka``."""
    from statehouse.kafka_clients import notes

    both = "found a property that neither librdkafka nor Spark's client knows; it has no effect"
    pairs = [*notes(config.kafka), *((name, both) for name in unknown)]
    return [f"{path}:{document.line_of(('kafka', name))}: note: kafka.{name}: {message}" for name, message in pairs]


def _derived_columns(path: Path, config: Config, document: YamlFile) -> list[str]:
    """The columns of the streams whose schemas say them, and not the file."""
    streams = [stream for stream in config.streams.values() if stream.derived]
    if not streams:
        return []
    from statehouse.formats.columns import describe_columns  # with packages that others do not need

    places = {stream.name: f"{path}:{document.line_of(('streams', stream.name))}" for stream in streams}
    return [f"{places[stream.name]}: note: streams.{stream.name}: {describe_columns(stream)}" for stream in streams]


def _report(path: Path, problems: list[Problem]) -> dict[str, Any]:
    listed = [{"message": problem.line, **problem.parts} for problem in problems]
    return {"file": str(path), "ok": not problems, "problems": listed}
