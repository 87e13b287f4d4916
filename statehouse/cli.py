"""The ``statehouse`` command: the one place that knows both halves, and imports each only when asked for.

What takes long to import is imported by the command that needs it, when the signals have their handler.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statehouse import logs, stopping
from statehouse.errors import ConfigError, StatehouseError
from statehouse.places import remote

if TYPE_CHECKING:
    from statehouse.config import Config

EXAMPLES = """examples:
  statehouse check                       is statehouse.yaml right? names the line that is not
  statehouse run                         all jobs until Ctrl-C
  statehouse run --once                  what is there now, merged; for schedulers
  statehouse load reports old/*.jsonl.gz  history into the changelog, once a file
  statehouse recover rewards             the state anew from the changelog
  statehouse erase rewards 77            all that is known of a key, removed
  statehouse requeue reports             refused records once more, after the schema was mended
  statehouse serve --port 8080           the API: http://127.0.0.1:8080/
  statehouse status                      positions, lags, counts

Any scalar of the file can be given by the environment: STATEHOUSE_ROOT, STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS."""

# Where a text of SQL was meant, and YAML has made a column's name of it.
QUOTES_OFF = """ (YAML takes its own quotes off: a text of SQL in YAML's quotes is "'text'")"""


def parser() -> argparse.ArgumentParser:
    """The command line; every subcommand takes ``-c``."""
    main = argparse.ArgumentParser(
        prog="statehouse",
        description="The current state of millions of keys from streams of events, as Delta tables.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=help, description=help)
        added.add_argument(
            "-c", "--config", metavar="FILE", help="default: $STATEHOUSE_CONFIG, else statehouse.yaml here"
        )
        return added

    command("check", "validate the file, against Spark SQL and DuckDB both; exit 2 when it is wrong")
    for name, help in {
        "run": "all jobs in one Spark application, until stopped",
        "ingest": "Kafka → changelog and quarantine",
        "merge": "changelog → state tables",
        "route": "changelog → topics and tables",
        "publish": "changes of the state → topics",
        "tasks": "what is due → topics",
        "maintain": "small files into larger ones, old ones deleted, what has expired removed",
    }.items():
        job = command(name, help)
        job.add_argument("--once", action="store_true", help="what is there now, then exit 0")
    load = command("load", "history from JSON lines, CSV or Parquet files into a stream's changelog, once a file")
    load.add_argument("stream")
    load.add_argument("file", nargs="+")
    recover = command(
        "recover", "fold a store's state anew from the whole changelog; under a changed rule: show what changes"
    )
    recover.add_argument("store")
    recover.add_argument(
        "--rule", metavar="FILE", help="the store's new rule: a statehouse.yaml, or the store's part of one"
    )
    recover.add_argument("--swap", action="store_true", help="make the new state the live one, in one commit")
    recover.add_argument("--json", action="store_true", help="the difference, for scripts")
    erase = command(
        "erase", "remove all that is known of some keys of a store, also from older versions; no job may run"
    )
    erase.add_argument("store")
    erase.add_argument(
        "key", nargs="+", help="as in Kafka; a composite key's parts percent-encoded, with / between them"
    )
    requeue = command("requeue", "send refused records of a stream to its topic again, once each")
    requeue.add_argument("stream")
    requeue.add_argument("--reason", help="those of a reason only, as the quarantine has it")
    serve = command("serve", "the API")
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1; another machine's needs api: tokens")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--workers", type=int, default=1)
    broker = commands.add_parser(
        "broker", help="the embedded single-node Kafka", description="the embedded single-node Kafka"
    )
    broker.add_argument("--dir", default="./kafka", help="where its data is kept (default: ./kafka)")
    broker.add_argument("--port", type=int, default=9092, help="0: any free one")
    status = command("status", "positions, lags, quarantine counts, table sizes")
    status.add_argument("--json", action="store_true", help="for scripts")
    return main


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; the exit code. 1: failed, 2: the file or the command line is wrong."""
    arguments = parser().parse_args(argv)
    if COMMANDS[arguments.command] in UNTIL_STOPPED:
        stopping.on_signals(stopping.leave)
    logs.to_stderr()
    try:
        return int(COMMANDS[arguments.command](arguments) or 0)
    except StatehouseError as error:
        print(f"statehouse: {error}" if not isinstance(error, ConfigError) else error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0


def entry_point() -> None:
    """The command as an installed script, and as a task of Databricks, to which what :func:`main` gives back is nothing, and any
    ``sys.exit`` a failure, also one with 0."""
    with stopping.no_child_left():
        code = main()
    if code:
        sys.exit(code)


def _spark_log(config: Config) -> Path:
    folder = Path(config.root) if not remote(config.root) else Path.cwd()
    return folder / "_logs" / "spark.log"


def _check(arguments: argparse.Namespace) -> int:
    from api.check import check as duckdb_check
    from jobs.law import counterexample
    from jobs.rules import problems, rule_of
    from jobs.session import session
    from statehouse import config as configuration
    from statehouse.yaml_file import read_yaml

    path = configuration.chosen(arguments.config)
    config = configuration.load(path)
    print(f"{path}: asking Spark (a few seconds) ...", file=sys.stderr)
    spark = session("statehouse check", _spark_log(config), config.root)
    document = read_yaml(path, "a statehouse.yaml")
    wrong = problems(spark, config)
    rules = {} if wrong else {s.name: rule_of(spark, config, s) for s in config.stores.values()}
    for name, rule in rules.items():
        if rule.store.reducer.written and (shown := counterexample(spark, rule)):
            wrong.append((("stores", name, "reduce"), shown))
    for where, message in wrong:
        quotes = QUOTES_OFF if where in document.quoted and "UNRESOLVED_COLUMN" in message else ""
        print(f"{path}:{document.line_of(where)}: {'.'.join(map(str, where))}: {message}{quotes}", file=sys.stderr)
    if wrong:
        return 2
    for where, message in duckdb_check(config, rules):
        line = document.line_of(where)
        print(
            f"{path}:{line}: note: {'.'.join(map(str, where))}: {message}; served at the MERGE's freshness",
            file=sys.stderr,
        )
    sections = ("streams", "lookups", "stores", "routes", "tasks")
    parts = {name: len(getattr(config, name) or ()) for name in sections}
    print(f"{path}: {', '.join(f'{count} {name}' for name, count in parts.items() if count)}: all right")
    return 0


def _jobs(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration

    config = configuration.load(arguments.config)
    from jobs.run import PARTS, Jobs

    parts = PARTS if arguments.command == "run" else (arguments.command,)
    jobs = Jobs(config, parts, _spark_log(config))

    def stop(_number: int, _frame: object) -> None:
        if not jobs.at_work:
            stopping.leave()
        logging.getLogger("statehouse").info("stopping: finishing what is in hand")
        jobs.stop()

    stopping.on_signals(stop)  # after Spark's own handler, which would tear down the batch in hand
    jobs.run(arguments.once)


def _load(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration

    config = configuration.load(arguments.config)
    if arguments.stream not in config.streams:
        raise ConfigError(f"found the stream {arguments.stream!r}, expected one of {', '.join(config.streams)}")
    from jobs.load import load
    from jobs.session import lock, session

    spark = session("statehouse load", _spark_log(config), config.root)
    with lock(spark, config, "load"):
        for file in arguments.file:
            done = load(spark, config, config.streams[arguments.stream], file)
            refused = f", {done.refused} refused: see quarantine/{arguments.stream}" if done.refused else ""
            print(f"{file}: {'loaded before' if done.events is None else f'{done.events} events'}{refused}")


def _recover(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration

    config = configuration.load(arguments.config)
    name = arguments.store
    store = configuration.rule_file(arguments.rule, config, name) if arguments.rule else config.stores.get(name)
    if store is None:
        raise ConfigError(f"found the store {name!r}, expected one of {', '.join(config.stores)}")
    from contextlib import nullcontext

    from jobs.recover import recover, texts, will_swap
    from jobs.session import lock, session

    spark = session("statehouse recover", _spark_log(config), config.root)
    with lock(spark, config, "recover"):
        writes = arguments.swap or will_swap(spark, config, store)
        with lock(spark, config, "merge") if writes else nullcontext():
            found = recover(spark, config, store, arguments.swap)
    if arguments.json:
        print(json.dumps(vars(found), indent=2, default=str))
        return
    print("\n".join(texts(found)))
    if found.swapped:
        stands = config.stores.get(name)
        note = (
            ""
            if stands and stands.definition == store.definition
            else f"; now put the rule into {configuration.chosen(arguments.config)}"
        )
        print(f"{name}: the state is the new one{note}")
    else:
        print(f"{name}: nothing is changed yet; with --swap this becomes the state")


def _erase(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration

    config = configuration.load(arguments.config)
    store = config.stores.get(arguments.store)
    if store is None:
        raise ConfigError(f"found the store {arguments.store!r}, expected one of {', '.join(config.stores)}")
    from contextlib import ExitStack

    from jobs.erase import erase
    from jobs.run import PARTS
    from jobs.session import lock, session

    spark = session("statehouse erase", _spark_log(config), config.root)
    with ExitStack() as held:
        for part in (*PARTS, "load", "recover"):
            held.enter_context(lock(spark, config, part, patience=0))
        found = erase(spark, config, store, arguments.key)
    print(f"{found.events} events and {found.refused} refused records are gone")
    print("older versions cannot be read any more; the first that can:")
    for name, version in found.versions.items():
        print(f"  {name}: {version}")


def _requeue(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration
    from statehouse.requeue import requeue

    config = configuration.load(arguments.config)
    if arguments.stream not in config.streams:
        raise ConfigError(f"found the stream {arguments.stream!r}, expected one of {', '.join(config.streams)}")
    sent, more = 0, True
    while more:
        done = requeue(config, config.streams[arguments.stream], arguments.reason)
        sent, more = sent + done.sent, done.more
    print(f"{arguments.stream}: {sent} sent again, {done.before - sent + done.sent} were sent before")


def _serve(arguments: argparse.Namespace) -> int:
    from api.server import serve
    from statehouse import config as configuration

    return serve(configuration.load(arguments.config), arguments.host, arguments.port, arguments.workers)


def _broker(arguments: argparse.Namespace) -> int:
    from demo.broker import serve

    return serve(Path(arguments.dir), arguments.port)


def _status(arguments: argparse.Namespace) -> None:
    from statehouse import config as configuration
    from statehouse.status import (
        failing_status,
        published_status,
        route_status,
        store_status,
        stream_status,
        task_status,
    )

    config = configuration.load(arguments.config)
    streams = [stream_status(config, n) for n in config.streams]
    stores = [store_status(config, n) for n in config.stores]
    routes = [route_status(config, n) for n in config.routes]
    told = [published_status(config, n) for n, store in config.stores.items() if store.publish]
    tasks, failing = task_status(config), failing_status(config)
    if arguments.json:
        parts = {"streams": streams, "stores": stores, "routes": routes, "published": told, "tasks": tasks}
        print(json.dumps({**parts, "failing": failing}, indent=2))
        return
    _table("stream", ("topic", "events", "quarantined", "version", "behind", "bytes"), streams)
    print()
    _table("store", ("reduce", "keys", "position", "head", "lag_ms", "unkeyed", "late", "version", "bytes"), stores)
    for of, rows in (("route", routes), ("published", told)):
        if rows:
            print()
            _table(of, ("from", "to", "position", "head"), rows)
    if tasks:
        print()
        _table("task", ("waiting", "sent", "cancelled", "failed", "next"), tasks)
    for stream in streams:
        if stream["error"]:
            print(f"\nstream {stream['name']}: {stream['error']}")
    for job in failing:
        print(f"\n{job['job']} {job['name']}: failing since {job['since']}: {job['error']}")


COMMANDS = {
    "check": _check,
    "run": _jobs,
    "ingest": _jobs,
    "merge": _jobs,
    "route": _jobs,
    "publish": _jobs,
    "tasks": _jobs,
    "maintain": _jobs,
    "load": _load,
    "recover": _recover,
    "erase": _erase,
    "requeue": _requeue,
    "serve": _serve,
    "broker": _broker,
    "status": _status,
}


UNTIL_STOPPED = {_jobs, _serve, _broker}


def _table(of: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    cells = [(of, *columns), *((r["name"], *("-" if r[c] is None else str(r[c]) for c in columns)) for r in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for row in cells:
        print("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    entry_point()
