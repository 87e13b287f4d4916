"""What a command is made of: its examples, its common options, and how it runs in :func:`statehouse.cli.main`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from statehouse import logs, stopping

F = TypeVar("F", bound=Callable[..., Any])
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(click.Command):
    """A command with a ``section`` in the list of commands, and ``examples``: what is typed, and what that does.

    One that is ``until_stopped`` ends at once with 0 when it is asked to, from its first moment on; what it starts takes the
    signals over. A ``negative_number`` is an argument of every command, never an option: keys may be such.
    """

    def __init__(
        self,
        *args: Any,
        section: str = "",
        examples: Sequence[tuple[str, str]] = (),
        until_stopped: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **settings})
        self.section, self.examples, self.until_stopped = section, examples, until_stopped

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move arguments behind ``--``, in their order: nothing is taken for an option there, also no negative number."""
        with_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        options, arguments, rest = [], [], [*args]
        while rest:
            word = rest.pop(0)
            if word == "--":
                arguments += rest
                break
            if not word.startswith("-") or word == "-" or re.match(r"-\.?\d", word):
                arguments.append(word)
                continue
            options += [word, *([rest.pop(0)] if word in with_value and rest else [])]
        return super().parse_args(ctx, [*options, "--", *arguments] if arguments else options)

    def invoke(self, ctx: click.Context) -> Any:
        """Set up signals and log lines, then run."""
        if self.until_stopped:
            stopping.on_signals(stopping.leave)
        logs.to_stderr()
        return super().invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write_dl(list(self.examples), col_max=54)


class Group(click.Group):
    """All commands, listed by section in the order in which they are added."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **settings: Any) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **settings})
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the sections, not of the alphabet."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """A list for each section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, entry in self.commands.items():
            section = getattr(entry, "section", "") or "Commands"
            sections.setdefault(section, []).append((name, entry.get_short_help_str(limit=100)))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    format_epilog = Command.format_epilog


def command(
    section: str, *examples: tuple[str, str], name: str | None = None, until_stopped: bool = False
) -> Callable[[Callable[..., Any]], Command]:
    """A decorator that makes a :class:`Command` of a function, whose docstring is its help."""
    settings = {"section": section, "examples": examples, "until_stopped": until_stopped}
    return click.command(name, cls=Command, **settings)


def config_option(function: F) -> F:
    """``-c FILE``, which most commands take, as ``file``."""
    help = "The settings. Default: $STATEHOUSE_CONFIG, else statehouse.yaml here."
    return click.option("-c", "--config", "file", metavar="FILE", help=help)(function)


def service_options(function: F) -> F:
    """``--url`` and ``--token`` of the commands that ask a running service."""
    url = click.option(
        "--url",
        default="http://127.0.0.1:8080",
        envvar="STATEHOUSE_URL",
        show_default=True,
        callback=_checked_url,
        help="Where the service is. Also $STATEHOUSE_URL.",
    )
    token = click.option("--token", envvar="STATEHOUSE_TOKEN", help="Who asks. Better: $STATEHOUSE_TOKEN.")
    return url(token(function))


def _checked_url(_context: click.Context, _option: click.Parameter, url: str) -> str:
    if not re.match(r"https?://[^/?#]", url):
        raise click.BadParameter(f"{url!r} is no address such as http://127.0.0.1:8080")
    return url


def json_option(function: F) -> F:
    """``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for scripts.")(function)
