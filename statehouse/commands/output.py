"""What a command shows: errors and tables. Colour and tables with lines are for a terminal; what is piped or redirected gets plain
text, and so does a script. What takes a while is in :mod:`statehouse.commands.progress`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

import click

from statehouse.errors import ConfigError, StatehouseError

_FOUND = re.compile(r"(?:(?P<where>.*?):? )??(?P<what>found .*?), (?P<wanted>expected .*)", re.DOTALL)


def is_terminal(stream: IO[str]) -> bool:
    """Whether someone looks at a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def in_colour(stream: IO[str]) -> bool:
    """Whether a stream takes colours: a terminal does, unless $NO_COLOR is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def print_json(value: Any) -> None:
    """JSON on stdout."""
    print(json.dumps(value, indent=2, default=str))


# --- errors ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``line`` is all of it in one line, which scripts and editors read."""

    line: str
    advice: str = ""

    @property
    def parts(self) -> dict[str, str]:
        """``where``, ``found`` and ``expected``; only ``found`` for a sentence that has no such parts."""
        match = _FOUND.fullmatch(self.line)
        if match is None:
            return {"found": self.line}
        return {
            "where": match["where"] or "",
            "found": match["what"].removeprefix("found "),
            "expected": match["wanted"].removeprefix("expected "),
        }


def problems_of(error: StatehouseError) -> list[Problem]:
    """The problems that an error names: a line each where the file is wrong."""
    if isinstance(error, ConfigError):
        return [Problem(line, error.advice) for line in str(error).splitlines()]
    return [Problem(f"statehouse: {error}", error.advice)]


def show_problems(problems: Sequence[Problem]) -> None:
    """Problems on stderr. On a terminal what was found, what was expected and what to do stand below each other; elsewhere
    each problem is one line, and what to do the last."""
    looked_at = is_terminal(sys.stderr)
    for problem in problems:
        if looked_at:
            _show_parts(problem)
        else:
            print(problem.line, file=sys.stderr)
    for advice in dict.fromkeys(problem.advice for problem in problems if problem.advice):
        if looked_at:
            _write("to do", advice, "green")
        else:
            print(f"  to do: {advice}", file=sys.stderr)


def _show_parts(problem: Problem) -> None:
    parts = problem.parts
    if where := parts.pop("where", ""):
        print(click.style(where, bold=True) if in_colour(sys.stderr) else where, file=sys.stderr)
    for name, text in parts.items():
        _write(name, text, "red" if name == "found" else "yellow")


def _write(name: str, text: str, colour: str) -> None:
    label = f"{name:<8}"
    print(f"  {click.style(label, fg=colour) if in_colour(sys.stderr) else label}  {text}", file=sys.stderr)


# --- tables ----------------------------------------------------------------------------------------------------------------------


def show_table(of: str, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Rows by their ``name``, under ``of``, and other columns of theirs."""
    cells = [(r["name"], *("-" if r[c] is None else str(r[c]) for c in columns)) for r in rows]
    show_cells((of, *columns), cells)


def show_cells(names: Sequence[str], cells: Sequence[Sequence[str]], thousands: bool = True) -> None:
    """Rows of text under the columns' names; ``thousands``: whole numbers get commas on a terminal."""
    if is_terminal(sys.stdout):
        from rich.console import Console

        Console().print(rich_table(names, cells, thousands))
        return
    lines = [names, *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def rich_table(names: Sequence[str], cells: Sequence[Sequence[str]], thousands: bool = True) -> Any:
    """The same as a table of rich's."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for number, name in enumerate(names):
        column = [row[number] for row in cells]
        numeric = all(cell == "-" or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", cell) for cell in column)
        table.add_column(Text(name), justify="right" if number and numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(
            *(Text(f"{int(c):,}" if thousands and i and re.fullmatch("[0-9]+", c) else c) for i, c in enumerate(row))
        )
    return table


def printable(text: str) -> str:
    """Text of any origin for a terminal, which would obey control characters: they are escaped, as Python has them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
