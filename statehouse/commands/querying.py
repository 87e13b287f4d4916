"""What asks a running service about all of it, by its Python client: ``sql`` and ``top``."""

from __future__ import annotations

import csv
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statehouse import stopping
from statehouse.commands.base import command, json_option, service_options
from statehouse.commands.output import (
    is_terminal,
    print_json,
    printable,
    problems_of,
    rich_table,
    show_cells,
    show_problems,
    show_table,
)
from statehouse.commands.service import SECTION, asking, cli_error, for_people, print_row, show_rows, text_of

if TYPE_CHECKING:
    from statehouse.client import Client, Table

SHOWN = 1000  # rows of a statement on a terminal
REFRESH_SECONDS = 2.0
STREAM_COLUMNS = ("topic", "events", "last_minute", "quarantined", "kafka", "behind")
STORE_COLUMNS = ("stream", "reduce", "keys", "position", "lag_ms", "pending")


@command(
    SECTION,
    ("statehouse sql", "a prompt: \\d lists tables, ; ends a statement"),
    ("statehouse sql 'FROM state.rewards LIMIT 5'", "one statement"),
    ("statehouse sql --csv 'FROM state.rewards'", "CSV; --json: a line of JSON for each row"),
)
@service_options
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout.")
@click.argument("statement", required=False)
def sql(statement: str | None, as_csv: bool, as_json: bool, url: str, token: str | None) -> None:
    """A SELECT in DuckDB's SQL over the lake's tables; without one a prompt, or the statement on stdin.

    The tables are state.STORE, changelog.STREAM, quarantine.STREAM, routes.TABLE and tasks.
    """
    if as_csv and as_json:
        raise click.UsageError("both --csv and --json")
    show = _show_csv if as_csv else _show_result if for_people(as_json) else _show_lines
    typed = statement is None and sys.stdin.isatty()
    if typed and not is_terminal(sys.stdout):
        raise click.UsageError("missing argument 'STATEMENT'")
    with asking(url, token) as client:
        if not typed:
            show(client.sql(_one(sys.stdin.read() if statement is None else statement)))
            return
        print(f"DuckDB's SQL at {url}: ; ends a statement, \\d lists tables, \\q or Ctrl-D ends", file=sys.stderr)
        from statehouse.client import ClientError

        for line in _statements():
            try:
                _describe(client, line) if line.startswith("\\") else show(client.sql(line))
            except ClientError as error:
                show_problems(problems_of(cli_error(error, url)))
            except KeyboardInterrupt:
                print("stopped", file=sys.stderr)


def _one(text: str) -> str:
    """A statement without the ``;`` at its end."""
    return text.strip().removesuffix(";").rstrip()


def _statements() -> Iterator[str]:
    """What is typed at the prompt: statements of one or more lines, and commands such as ``\\d``."""
    with _line_history():
        text = ""
        while True:
            try:
                text += input("  -> " if text else "sql> ") + "\n"
            except KeyboardInterrupt:
                text = ""
                print()
                continue
            except EOFError:
                print()
                return
            words = text.strip()
            if words in ("\\q", "exit", "quit"):
                return
            if words.startswith("\\") or (words.endswith(";") and _one(words)):
                yield _one(words)
            if not words.strip(";") or words.startswith("\\") or words.endswith(";"):
                text = ""


@contextmanager
def _line_history() -> Iterator[None]:
    """The lines of earlier prompts by the arrow keys, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    file = Path(state) / "statehouse" / "sql_history"
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(1000)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(file)


def _describe(client: Client, line: str) -> None:
    """``\\d``: the tables; ``\\d NAME``: the columns of one."""
    word, _, name = line.partition(" ")
    if word != "\\d":
        print(f"found {printable(word)}, expected \\d, \\d TABLE or \\q", file=sys.stderr)
        return
    tables = client.tables()
    if not name.strip():
        show_cells(("table", "columns"), [(of, printable(", ".join(columns))) for of, columns in tables.items()])
    elif columns := tables.get(name.strip()):
        show_cells(("column", "type"), [(printable(column), kind) for column, kind in columns.items()])
    else:
        print(f"found {printable(name.strip())!r}, expected one of {', '.join(tables)}", file=sys.stderr)


def _show_result(table: Table) -> None:
    show_rows(table[:SHOWN], table.to_arrow().column_names)
    more = f"; the first {SHOWN:,} are shown" if len(table) > SHOWN else ""
    print(f"{len(table):,} row{'' if len(table) == 1 else 's'}{more}", file=sys.stderr)


def _show_lines(table: Table) -> None:
    for row in table:
        print_row(row)


def _show_csv(table: Table) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.to_arrow().column_names)
    writer.writerows([text_of(value, "") for value in row.values()] for row in table)


# --- top -------------------------------------------------------------------------------------------------------------------------


@command(
    SECTION,
    ("statehouse top", "streams and stores, every two seconds, until Ctrl-C"),
    ("statehouse top --once", "once; in a script always"),
    ("statehouse top --json", "once, all that the service tells"),
)
@service_options
@json_option
@click.option("--once", is_flag=True, help="Show it once.")
def top(once: bool, as_json: bool, url: str, token: str | None) -> None:
    """How streams and stores of a service stand; live on a terminal, until Ctrl-C."""
    with asking(url, token) as client:
        streams, stores = client.streams(), [store.raw for store in client.stores()]
        if as_json:
            print_json({"streams": streams, "stores": stores})
        elif once or not is_terminal(sys.stdout):
            show_table("stream", STREAM_COLUMNS, [_stream_row(stream) for stream in streams])
            print()
            show_table("store", STORE_COLUMNS, [_store_row(store) for store in stores])
            for line in _errors(stores):
                print(f"\n{line}")
        else:
            _live(client, url, streams, stores)


def _stream_row(stream: Mapping[str, Any]) -> dict[str, Any]:
    live = stream["live"] or {}
    about = {"kafka": live.get("state"), "behind": live.get("behind"), "last_minute": stream["events_per_minute"][-1]}
    return {**stream, **about}


def _store_row(store: Mapping[str, Any]) -> dict[str, Any]:
    return {**store, "pending": (store["live"] or {}).get("pending")}


def _errors(stores: Sequence[Mapping[str, Any]]) -> list[str]:
    return [printable(f"store {store['name']}: {store['error']}") for store in stores if store["error"]]


def _live(client: Client, url: str, streams: list[dict[str, Any]], stores: list[dict[str, Any]]) -> None:
    """The same, refreshed until SIGTERM or Ctrl-C, which is raised here: rich gives the terminal its cursor back."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from statehouse.client import ClientError

    stopping.on_signals(signal.default_int_handler)
    trouble = ""
    with suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        while True:
            tables = [
                rich_table((of, *columns), [[printable(text_of(row[n])) for n in ("name", *columns)] for row in rows])
                for of, columns, rows in (
                    ("stream", STREAM_COLUMNS, map(_stream_row, streams)),
                    ("store", STORE_COLUMNS, map(_store_row, stores)),
                )
            ]
            lines = [Text(line, style="red") for line in (*_errors(stores), *filter(None, [trouble]))]
            now = time.strftime("%H:%M:%S")
            live.update(Group(*tables, *lines, Text(f"{url} at {now}, Ctrl-C ends it")), refresh=True)
            time.sleep(REFRESH_SECONDS)
            try:
                streams, stores, trouble = client.streams(), [store.raw for store in client.stores()], ""
            except ClientError as error:
                trouble = f"{cli_error(error, url)}; this is how it was"
