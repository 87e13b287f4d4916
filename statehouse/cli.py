"""The ``statehouse`` command: the one place, with :mod:`statehouse.commands`, that knows both halves.

What takes long to import is imported by the command that needs it, when the signals have their handler.
"""

from __future__ import annotations

import sys

import click

from statehouse import stopping
from statehouse.commands import check, init, jobs, past, querying, service, serving, watching
from statehouse.commands.base import Group
from statehouse.commands.output import Problem, problems_of, show_problems
from statehouse.errors import StatehouseError

COMMANDS = (
    *(init.init, watching.doctor, check.check),
    *(jobs.run, serving.serve, watching.status, serving.broker),
    *(
        service.get,
        service.scan,
        service.history,
        service.watch,
        service.put,
        service.purge,
        querying.sql,
        querying.top,
    ),
    *(jobs.ingest, jobs.merge, jobs.route, jobs.publish, jobs.tasks, jobs.maintain),
    *(past.load, past.recover, past.erase, past.requeue),
)


@click.group(
    cls=Group,
    examples=(
        ("statehouse init --topic invoices", "a statehouse.yaml from what a topic has"),
        ("statehouse check", "is it right? names the line that is not"),
        ("statehouse run", "all jobs until Ctrl-C"),
        ("statehouse serve", "the API: http://127.0.0.1:8080/"),
        ("statehouse status", "positions, lags, counts"),
        ("statehouse COMMAND --help", "the options and examples of a command"),
    ),
)
@click.version_option(package_name="statehouse")
def cli() -> None:
    """The current state of millions of keys from streams of events, as Delta tables.

    Each command but init, broker and those that ask a service takes -c FILE (default: $STATEHOUSE_CONFIG, else statehouse.yaml
    here). Any scalar of the file can be given by the environment: STATEHOUSE_ROOT, STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS.
    """


for added in COMMANDS:
    cli.add_command(added)


def main(argv: list[str] | None = None) -> int:
    """Run a command; the exit code. 1: failed, 2: the file or the command line is wrong."""
    try:
        return int(cli.main(argv, prog_name="statehouse", standalone_mode=False) or 0)
    except StatehouseError as error:
        show_problems(problems_of(error))
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        show_problems([_usage_problem(error)])
        return 2
    except click.Abort:  # Ctrl-C
        return 0


def _usage_problem(error: click.UsageError) -> Problem:
    """What is wrong with the command line."""
    context = error.ctx
    name = context.command_path if context else "statehouse"
    usage = " ".join([name, *context.command.collect_usage_pieces(context)]) if context else f"{name} COMMAND"
    return Problem(f"{name}: found {_inside_sentence(error.format_message())}, expected {usage}", f"{name} --help")


def _inside_sentence(text: str) -> str:
    """A message of click's inside a sentence."""
    return text[:1].lower() + text[1:].rstrip(".")


def entry_point() -> None:
    """The command as an installed script, and as a task of Databricks, to which what :func:`main` gives back is nothing, and any
    ``sys.exit`` a failure, also one with 0."""
    with stopping.no_child_left():
        code = main()
    if code:
        sys.exit(code)


if __name__ == "__main__":
    entry_point()
