"""``docs/options.md``, made from the commands themselves.

python -m tests.support.options > docs/options.md
"""

from __future__ import annotations

import click

from statehouse.cli import cli

HEAD = """# Options of each command

`statehouse COMMAND --help` says the same, with examples. What a command is for is in [the reference](reference.md#the-command).
This page is made from the commands: `python -m tests.support.options > docs/options.md`.
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in cli.commands.items())])


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"statehouse {name}")
    usage = " ".join([f"statehouse {name}", *command.collect_usage_pieces(context)])
    help = (command.help or "").strip().splitlines()[0]
    rows = [_row(option) for option in command.params if isinstance(option, click.Option)]
    return "\n".join([f"## {name}", "", f"`{usage}`", "", help, "", "| option | is |", "|---|---|", *rows, ""])


def _row(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    shown = option.make_metavar(click.Context(click.Command(""))).strip("[]").replace("|", " or ")
    value = "" if option.is_flag else f" `{shown}`"
    help = (option.help or "").replace("|", "\\|")
    default = f" Default: `{option.default}`." if option.show_default and option.default is not None else ""
    return f"| {names}{value} | {help}{default} |".replace("|  ", "| ")


if __name__ == "__main__":
    print(page(), end="")
