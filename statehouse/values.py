"""What a value of ``statehouse.yaml`` may be: durations, windows, times of the day, expressions, schemas, names, addresses."""

from __future__ import annotations

import datetime as dt
import functools
import re
from typing import Annotated, Any

import sqlglot
from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BaseModel, BeforeValidator
from sqlglot import TokenType, exp

from statehouse import topics
from statehouse.types import NUMBERS, check_name, parse_type

UNITS = {
    "millisecond": 1,
    "second": 1000,
    "minute": 60_000,
    "hour": 3_600_000,
    "day": 86_400_000,
    "week": 604_800_000,
}


# What makes several rows of one; found in a text that only names it, it costs a sort.
GENERATORS = re.compile(r"\b((pos)?explode|inline)(_outer)?\b|\b(stack|json_tuple)\b", re.IGNORECASE)
MOST_WINDOWS = 1440  # that one event may be in: a day, of which one begins every minute
# Columns of a state or tombstones table that are no key's and no reducer's.
RESERVED = ("value", "event_time", "changed_at", "reset", "position", "log_time", "window_start")


OPENING = (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
CLOSING = (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)


def milliseconds(text: Any) -> int:
    """A duration such as ``5 seconds`` or ``1.5 hours``, in milliseconds; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)s?\s*", str(text).lower())
    if not match or match[2] not in UNITS:
        raise ValueError(f"found {text!r}, expected a duration such as '5 seconds', '1 hour' or '7 days'")
    return int(float(match[1]) * UNITS[match[2]])


def parse_window(text: str) -> tuple[int, int]:
    """``1 hour`` or ``1 hour every 15 minutes``: a window's length and how often one begins, in microseconds."""
    length, _, every = str(text).partition(" every ")
    size = milliseconds(length) * 1000
    step = milliseconds(every) * 1000 if every else size
    if not 0 < step <= size <= step * MOST_WINDOWS:
        raise ValueError(
            f"found {text!r}, expected a length such as '1 hour', or '1 hour every 15 minutes' with a step that is "
            f"not longer than it, and at most {MOST_WINDOWS:,} windows to an event"
        )
    return size, step


def next_time(cron: str, after: dt.datetime) -> dt.datetime:
    """The first moment after one that a line such as ``0 6 * * MON-FRI`` (minute, hour, day, month, day of the week; UTC) names;
    ValueError for anything else, and for one that never comes."""
    try:
        return next(CronSim(cron, after))
    except (CronSimError, StopIteration) as error:
        raise ValueError(
            f"found {cron!r}, expected minute, hour, day, month and day of the week, such as '0 6 * * *': "
            f"{error or 'there is no such day'}"
        ) from None


def _cron(text: Any) -> str:
    next_time(str(text), dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc))
    return str(text)


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text):
        raise ValueError(f"found the name {text!r}, expected a letter, then letters, digits or '_'")
    return text


def _one_line(error: Exception) -> str:
    """The first line of an sqlglot error without its terminal colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()[0].rstrip(".")


def parse_expression(text: str) -> exp.Expr:
    """A Spark SQL expression as sqlglot's tree; ValueError when it is not one."""
    try:
        return sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        raise ValueError(f"found {text!r}, expected a Spark SQL expression: {_one_line(error)}") from None


def _expression(text: Any) -> str:
    if isinstance(text, (list, dict)) or text is None:
        raise ValueError(f"found {text!r}, expected a Spark SQL expression")
    parse_expression(str(text))
    return str(text)


@functools.lru_cache(maxsize=1000)
def safe(text: str) -> str:
    """An expression as it is given to Spark, with a guard around each computed index of ``element_at``: the least INT becomes null, since
    Spark would read outside of its memory with it, and its process would end."""
    tokens = sqlglot.tokenize(text, dialect="spark")
    edits: list[tuple[int, str]] = []
    for number, token in enumerate(tokens[:-1]):
        if token.text.lower() != "element_at" or tokens[number + 1].token_type != TokenType.L_PAREN:
            continue
        depth, commas, end = 0, [], None
        for other in tokens[number + 1 :]:
            depth += (other.token_type in OPENING) - (other.token_type in CLOSING)
            if depth == 1 and other.token_type == TokenType.COMMA:
                commas.append(other)
            if depth == 0:
                end = other.start
                break
        if end is None or len(commas) != 1:
            continue  # Spark refuses it
        index = safe(text[commas[0].end + 1 : end])
        if re.fullmatch(r"\s*(-?\d+|'[^']*')\s*", index):
            continue
        edits += [
            (commas[0].end + 1, f" if(typeof({index}) = 'int' AND ({index}) = {-(2**31)}, NULL, "),
            (end, ")"),
        ]
    for place, more in sorted(edits, reverse=True):
        text = text[:place] + more + text[place:]
    return text


def without_alias(text: str) -> str:
    """``upper(agent) AS ag`` without its alias, in the user's own words (sqlglot would write them its own way)."""
    alias = parse_expression(text).alias
    return re.sub(rf"\s+(AS\s+)?[`\"]?{re.escape(alias)}[`\"]?\s*$", "", text, flags=re.IGNORECASE) if alias else text


def _key(value: Any) -> Any:
    if value in ("", [], None):
        raise ValueError(f"found {value!r}, expected an expression, or a list of columns or 'expression AS name'")
    return [_expression(part) for part in value] if isinstance(value, list) else _expression(value)


def as_list(value: Any) -> Any:
    """A list of expressions, or one."""
    return value if isinstance(value, list) else [value]


# Types that a table can be clustered by: those of which Delta keeps the least and the greatest of a file.
ORDERED = ("STRING", "DATE", "TIMESTAMP", *NUMBERS)


class Column(BaseModel):
    """A column of a stream's payload: ``type`` in Spark's DDL, ``required`` when declared NOT NULL."""

    name: str
    type: str
    required: bool = False


def parse_schema(ddl: str) -> list[Column]:
    """The columns of a Spark DDL such as ``key STRING NOT NULL, ts TIMESTAMP``; ValueError when it is not one."""
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
        definitions = list(table.this.expressions)
    except (sqlglot.errors.SqlglotError, AttributeError) as error:
        raise ValueError(
            f"found {ddl!r}, expected a DDL such as 'key STRING, ts TIMESTAMP': {_one_line(error)}"
        ) from None
    columns = []
    for definition in definitions:
        if not isinstance(definition, exp.ColumnDef) or definition.kind is None:
            raise ValueError(f"found {definition.sql('spark')!r} in the schema, expected 'name TYPE'")
        if definition.name.startswith("_"):
            raise ValueError(f"found the column {definition.name!r}: names that begin with '_' are the system's own")
        try:
            check_name(definition.name)
            kind = parse_type(definition.kind.sql("spark"))
        except ValueError as error:
            raise ValueError(f"column {definition.name}: {error}") from None
        required = any(isinstance(c.kind, exp.NotNullColumnConstraint) for c in definition.constraints)
        columns.append(Column(name=definition.name, type=kind.ddl, required=required))
    names = [c.name.lower() for c in columns]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ValueError(f"found the column {sorted(twice)[0]!r} twice (Spark does not tell cases apart)")
    return columns


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"https?://[^/\s]+", text):
        raise ValueError(f"found {text!r}, expected '*' or an origin such as 'https://app.example.org'")
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", text):
        raise ValueError(f"found {text!r}, expected the name of a host, without a port, such as 'state.example.org'")
    return text.lower()


def _instance(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s?#]+:\d{1,5}/?", text):
        raise ValueError(f"found {text!r}, expected an instance such as 'http://10.0.0.1:8080'")
    return text.rstrip("/")


def parse_address(text: Any) -> tuple[str, int]:
    """``127.0.0.1:9100`` or ``[::1]:9100``: host and port; ValueError for anything else."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})", str(text))
    if not match or int(match[2]) > 65535:
        raise ValueError(f"found {text!r}, expected a host and a port such as '127.0.0.1:9100'")
    return match[1].strip("[]"), int(match[2])


def _topic(name: str) -> str:
    if not topics.is_possible(name):
        raise ValueError(f"found {name!r}, expected {topics.POSSIBLE}")
    return name


def _stream_topics(value: Any) -> Any:
    if isinstance(value, str) and value:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"found {value!r}, expected a regular expression such as 'orders\\..*': {error}") from None
        return value
    if not isinstance(value, list) or not value or not all(topics.is_possible(name) for name in value):
        raise ValueError(
            f"found {value!r}, expected topics such as [orders, returns], or a pattern such as 'orders\\..*'"
        )
    if len(set(value)) < len(value):
        raise ValueError(f"found {value!r}, expected each topic once")
    return value


def _topics(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError(
            "found a rule of this name, expected the topics that tasks may be asked to send to, such as [alerts, 'ops-*']: "
            "give the rule another name"
        )
    return as_list(value)


def _topic_pattern(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(topics.PATTERN, text):
        raise ValueError(
            f"found {text!r}, expected a topic, in which * is any text and ? any character, such as 'ops-*'"
        )
    return text


Duration = Annotated[int, BeforeValidator(milliseconds)]
Expression = Annotated[str, BeforeValidator(_expression)]
Name = Annotated[str, AfterValidator(_name)]
Topic = Annotated[str, AfterValidator(_topic)]
StreamTopics = Annotated[str | list[str], BeforeValidator(_stream_topics)]
TopicPatterns = Annotated[list[Annotated[str, BeforeValidator(_topic_pattern)]], BeforeValidator(_topics)]
Host = Annotated[str, AfterValidator(_host)]
Instance = Annotated[str, AfterValidator(_instance)]
Origin = Annotated[str, AfterValidator(_origin)]
Schema = Annotated[str, AfterValidator(lambda s: parse_schema(s) and s)]
Window = Annotated[str, AfterValidator(lambda w: parse_window(w) and w)]
Cron = Annotated[str, BeforeValidator(_cron)]
Keys = Annotated[str | list[str], BeforeValidator(_key)]
Address = Annotated[str, BeforeValidator(lambda a: parse_address(a) and a)]
OneOrMore = BeforeValidator(as_list)
