"""What asks a running service for keys, by its Python client: ``get``, ``scan``, ``history``, ``watch``, ``set``, ``purge``.

A terminal gets lines and tables, anything else a line of JSON for each row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from statehouse.commands.base import command, json_option, service_options
from statehouse.commands.output import (
    in_colour,
    is_terminal,
    printable,
    show_cells,
)
from statehouse.errors import StatehouseError

if TYPE_CHECKING:
    from statehouse.client import Change, Client, ClientError, State

SECTION = "Ask a service"
RETRIES = 3  # half a second where nobody answers
SHOWN = 100  # rows of a scan on a terminal, unless --limit says more
NOT_SHOWN = {"reset", "offsets"}  # columns that mean something to the service only
TEXTS = ("STRING", "DATE", "TIMESTAMP", "BINARY")
ADVICE = {
    "Unreachable": "start one: `statehouse serve`; or name another with --url or $STATEHOUSE_URL",
    "NotAllowed": "give a token that may do this, in $STATEHOUSE_TOKEN",
    "NotFound": "`statehouse top --once` lists streams and stores",
    "NotYet": "the write is in Kafka: look later with `statehouse get`, or at `statehouse top`",
    "Unavailable": "try again later; `statehouse top` says what fails",
    "MissingLibrary": "install it where this command runs",
}


# --- asking ----------------------------------------------------------------------------------------------------------------------


@contextmanager
def asking(url: str, token: str | None) -> Iterator[Client]:
    """A client of the service at a URL. What the client raises becomes an error that says what to do."""
    try:
        from statehouse.client import Client, ClientError
    except ModuleNotFoundError as error:
        raise StatehouseError(
            f"found no {error.name}, expected it for what asks a service", advice="pip install 'statehouse[client]'"
        ) from None
    try:
        with Client(url, token, retries=RETRIES) as client:
            yield client
    except ClientError as error:
        raise cli_error(error, url) from error
    except UnicodeEncodeError as error:
        raise StatehouseError(
            f"found {error.object[:50]!r}, expected text in {error.encoding}", advice="correct the command line"
        ) from None


def cli_error(error: ClientError, url: str) -> StatehouseError:
    """An error of the client, with what was found, what was expected and what to do."""
    from statehouse.client import Problem, Unreachable

    text = f"{error.title}: {error.detail}" if isinstance(error, Problem) else str(error)
    if isinstance(error, Unreachable):
        text = f"found no service at {url} ({text.rpartition(': ')[2]}), expected one"
    return StatehouseError(text, advice=ADVICE.get(type(error).__name__, "correct it, then try again"))


def absent_error(store: str, key: Sequence[str], what: str = "key") -> StatehouseError:
    """The error for a key that is not there."""
    return StatehouseError(
        f"{store}: found no {what} {'/'.join(key)!r}, expected one that is there",
        advice=f"`statehouse scan {store}` lists the keys",
    )


# --- showing ---------------------------------------------------------------------------------------------------------------------


def for_people(as_json: bool) -> bool:
    """Whether to show lines and tables."""
    return not as_json and is_terminal(sys.stdout)


def print_row(row: Any, flush: bool = False) -> None:
    """A row as a line of JSON: numbers have all their digits, times are ISO 8601."""
    from statehouse.client.values import encode

    print(encode(row).decode(), flush=flush)


def text_of(value: Any, null: str = "-") -> str:
    """A value as text."""
    from statehouse.client.values import encode

    if isinstance(value, (str, float)):
        return str(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    return null if value is None else encode(value).decode().strip('"')


def show_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str] | None = None) -> None:
    """Rows as a table, without the columns that are null in all of them; ``names``: with all of these."""
    columns = list(names or dict.fromkeys(n for row in rows for n, v in row.items() if v is not None))
    cells = [[printable(text_of(row.get(name))) for name in columns] for row in rows]
    show_cells([printable(name) for name in columns], cells, thousands=False)


def show_state(state: State) -> None:
    """A state's columns below each other, then its reports and windows as tables."""
    parts = {"reports"} if state.reports else {"windows"} if state.windows else set()
    rows = {n: v for n, v in state.raw.items() if v is not None and n not in NOT_SHOWN | parts}
    width = max(len(name) for name in rows)
    for name, value in rows.items():
        label = f"{name:<{width}}"
        print(f"{click.style(label, bold=True) if in_colour(sys.stdout) else label}  {printable(text_of(value))}")
    if state.reports:
        show_rows([{"agent": agent, **report} for agent, report in state.raw["reports"].items()])
    if state.windows:
        show_rows([_shown(window) for window in state.raw["windows"]])


def _reports(state: State) -> dict[str, str]:
    """The reports as a cell."""
    reports = (state.reports or {}).items()
    return {"reports": ", ".join(f"{agent}: {text_of(report.value)}" for agent, report in reports)} if reports else {}


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in NOT_SHOWN}


# --- reading ---------------------------------------------------------------------------------------------------------------------


@command(
    SECTION,
    ("statehouse get device_status device-007", "what is known of a key; exit 1 where there is none"),
    ("statehouse get tills STR100 7 --json", "a composite key: its parts one after the other"),
)
@service_options
@json_option
@click.argument("store")
@click.argument("key", nargs=-1, required=True)
def get(store: str, key: tuple[str, ...], as_json: bool, url: str, token: str | None) -> None:
    """The state of a key."""
    with asking(url, token) as client:
        state = client.get(store, *key)
    if state is None:
        raise absent_error(store, key)
    show_state(state) if for_people(as_json) else print_row(state.raw)


@command(
    SECTION,
    ("statehouse scan device_status --prefix device-", "the keys that begin so"),
    ("statehouse scan rewards --where 'value > 100' --limit 20", "twenty of those"),
    ("statehouse scan tills --from STR100 --to STR200 --json", "a line of JSON for each key"),
)
@service_options
@json_option
@click.option("--prefix", metavar="TEXT", help="What the key begins with.")
@click.option(
    "--from", "start", metavar="KEY", help="The first key; of a composite one 'STR100/7', or its first parts."
)
@click.option("--to", metavar="KEY", help="The key to end before.")
@click.option("--where", metavar="SQL", help="Columns compared with literals: \"value > 10 AND key LIKE 'a%'\".")
@click.option("--limit", type=click.IntRange(1), help=f"Rows in all. Default: all; on a terminal {SHOWN}.")
@click.argument("store")
def scan(store: str, limit: int | None, as_json: bool, url: str, token: str | None, **given: Any) -> None:
    """The states of a store, in the order of their keys."""
    people = for_people(as_json)
    most = limit or (SHOWN if people else None)
    with asking(url, token) as client:
        states = client.scan(store, limit=most and most + people, **given)
        if not people:
            for state in states:
                print_row(state.raw)
            return
        rows = [{**_shown(state.raw), **_reports(state)} for state in states]
    show_rows(rows[:most])
    if most and len(rows) > most:
        print(f"the first {most:,} rows; there are more", file=sys.stderr)


@command(
    SECTION,
    ("statehouse history device_status device-007", "why is it so? its events, newest first"),
    ("statehouse history rewards 3000000000 --limit 3", "the last three"),
)
@service_options
@json_option
@click.option("--limit", type=click.IntRange(1), help="Events in all. Default: all.")
@click.argument("store")
@click.argument("key", nargs=-1, required=True)
def history(store: str, key: tuple[str, ...], limit: int | None, as_json: bool, url: str, token: str | None) -> None:
    """The events behind the state of a key, newest first."""
    with asking(url, token) as client:
        events = [event.raw for event in islice(client.history(store, *key, page=min(limit or 1000, 1000)), limit)]
    if not events:
        raise absent_error(store, key, "event of the key")
    if for_people(as_json):
        show_rows(events)
        return
    for event in events:
        print_row(event)


@command(
    SECTION,
    ("statehouse watch device_status", "each change, until Ctrl-C"),
    ("statehouse watch rewards --json", "a line of JSON for each, as in a pipe"),
    until_stopped=True,
)
@service_options
@json_option
@click.argument("store")
def watch(store: str, as_json: bool, url: str, token: str | None) -> None:
    """Each key's state as it changes, from now on until Ctrl-C."""
    people = for_people(as_json)
    with asking(url, token) as client:
        for change in client.changes(store):
            _show_change(change) if people else print_row(_change(change), flush=True)


def _change(change: Change) -> dict[str, Any]:
    state = change.state and change.state.raw
    about = {"kind": change.kind, "key": change.key, "window_start": change.window_start, "state": state}
    return {name: v for name, v in {**about, "position": change.position}.items() if v is not None}


def _show_change(change: Change) -> None:
    key = "/".join(map(text_of, change.key)) if isinstance(change.key, tuple) else text_of(change.key)
    state = change.state
    words = [change.kind, "all keys: another state has come in their place" if change.kind == "reset" else key]
    words += [text_of(change.window_start)] if change.window_start else []
    words += [text_of(state.raw.get("value")), text_of(state.event_time)] if state else []
    print("  ".join(printable(word) for word in words), flush=True)


# --- writing ---------------------------------------------------------------------------------------------------------------------


def write_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--no-wait``, as ``wait``."""
    help = "End when Kafka has it; else when it is in the answers."
    return click.option("--no-wait", "wait", is_flag=True, flag_value=False, default=True, help=help)(function)


@command(
    SECTION,
    ("statehouse set any_alarm device-007 alarm", "the state that this makes"),
    ("statehouse set device_status device-007 ok --agent me", "in the name of an agent"),
    ("statehouse set tills STR100 7 12.50 --no-wait", "a composite key; does not wait"),
    name="set",
)
@service_options
@json_option
@write_options
@click.option("--agent", help="In whose name, where the store has agents. Default: api.")
@click.argument("store")
@click.argument("key", nargs=-1, required=True)
@click.argument("value")
def put(
    store: str,
    key: tuple[str, ...],
    value: str,
    agent: str | None,
    wait: bool,
    as_json: bool,
    url: str,
    token: str | None,
) -> None:
    """Set a key to a value: text, or JSON where the store's values are no text."""
    with asking(url, token) as client:
        kind = next(
            (description.columns.get("value") for description in client.stores() if description.name == store), None
        )
        given = _value(value, kind or "")
        _write(client, lambda at: at.put(store, *key, value=given, agent=agent), (store, *key), wait, as_json)


@command(
    SECTION,
    ("statehouse purge any_alarm device-007", "the key is gone"),
    ("statehouse purge tills STR100 7 --no-wait", "a composite key; does not wait"),
)
@service_options
@json_option
@write_options
@click.argument("store")
@click.argument("key", nargs=-1, required=True)
def purge(store: str, key: tuple[str, ...], wait: bool, as_json: bool, url: str, token: str | None) -> None:
    """Purge a key: its state goes, its events stay (`statehouse erase` removes these)."""
    with asking(url, token) as client:
        _write(client, lambda at: at.delete(store, *key), (store, *key), wait, as_json)


def _value(text: str, kind: str) -> Any:
    """A value as the API takes it: by the column's type in Spark's DDL, where that is known."""
    if kind.startswith(TEXTS):
        return text
    with suppress(ValueError):
        return json.loads(text, parse_float=Decimal, parse_constant=int)  # NaN is no JSON: it stays text
    return text


def _write(client: Client, write: Callable[[Client], Any], where: Sequence[str], wait: bool, as_json: bool) -> None:
    """Do a write, wait until it is in the answers, and show what they are then."""
    people = for_people(as_json)
    if not wait:
        token = write(client).token
        print(token) if people else print_row({"token": token})
        return
    with client.session() as session:
        token = write(session).token
        state = session.get(*where)
    if not people:
        print_row({"token": token, "state": state and state.raw})
    elif state:
        show_state(state)
    else:
        print(f"{printable('/'.join(where[1:]))} is not in {where[0]}")
