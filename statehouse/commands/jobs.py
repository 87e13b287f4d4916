"""``run``, and each of its jobs as a command."""

from __future__ import annotations

import logging

import click

from statehouse import stopping
from statehouse.commands.base import Command, command, config_option
from statehouse.commands.progress import working
from statehouse.commands.spark import spark_log

ONCE = "What is there now, then exit 0 (1: something failed)."


def _run(file: str | None, once: bool, parts: tuple[str, ...] | None = None) -> None:
    from statehouse.config import file as configuration

    config = configuration.load(file)
    from jobs.idle import Idle
    from jobs.run import PARTS, Jobs

    parts = parts or PARTS
    idle = Idle(config, parts)
    if once and idle.lasts():
        logging.getLogger("statehouse").info("nothing new in Kafka or in %s", config.root)
        return
    with working("starting Spark"):
        jobs = Jobs(config, parts, spark_log(config), once and idle.is_little())

    def stop(_number: int, _frame: object) -> None:
        if not jobs.at_work:
            stopping.leave()
        logging.getLogger("statehouse").info("stopping: finishing what is in hand")
        jobs.stop()

    stopping.on_signals(stop)  # after Spark's own handler, which would tear down the batch in hand
    with working("running" if once else "", spark=jobs.spark) as work:
        jobs.run(once, work)


@command(
    "Run",
    ("statehouse run", "all jobs until Ctrl-C or SIGTERM"),
    ("statehouse run --once", "what is there now, merged and passed on; for schedulers"),
    ("STATEHOUSE_ROOT=/data/lake statehouse run", "any scalar of the file from the environment"),
    until_stopped=True,
)
@config_option
@click.option("--once", is_flag=True, help=ONCE)
def run(file: str | None, once: bool) -> None:
    """All jobs in one Spark application, until stopped."""
    _run(file, once)


def _part(name: str, help: str, example: str) -> Command:
    @command(
        "One job alone, for schedulers",
        (f"statehouse {name} --once", example),
        (f"statehouse {name}", "the same until Ctrl-C or SIGTERM"),
        name=name,
        until_stopped=True,
    )
    @config_option
    @click.option("--once", is_flag=True, help=ONCE)
    def part(file: str | None, once: bool) -> None:
        _run(file, once, (name,))

    part.help = help
    return part


ingest = _part("ingest", "Kafka → changelog and quarantine.", "what Kafka has now, into the changelog")
merge = _part("merge", "Changelog → state tables.", "what the changelog has now, into the states")
route = _part("route", "Changelog → topics and tables.", "what the changelog has now, to where the routes lead")
publish = _part("publish", "Changes of the state → topics.", "what has changed, told to the topics")
tasks = _part("tasks", "What is due → topics.", "the tasks that are due now")
maintain = _part(
    "maintain",
    "Small files into larger ones, old ones deleted, what has expired removed.",
    "one round over all tables",
)
