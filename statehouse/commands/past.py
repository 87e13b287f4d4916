"""What works on the past: ``load``, ``recover``, ``erase``, ``requeue``."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext

import click

from statehouse.commands.base import command, config_option, json_option
from statehouse.commands.output import print_json
from statehouse.commands.progress import working
from statehouse.commands.spark import start_spark, store_named, stream_named

SECTION = "The past"


@command(
    SECTION,
    ("statehouse load reports may.jsonl june.csv.gz", "history into the changelog, once a file"),
    ("statehouse load reports old/*.parquet --json", "how many events of each were loaded, for scripts"),
)
@config_option
@json_option
@click.argument("stream")
@click.argument("file_names", metavar="FILE...", nargs=-1, required=True)
def load(stream: str, file_names: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """History from JSON lines, CSV, Parquet or Avro files into a stream's changelog, once a file."""
    from statehouse.config import file as configuration

    config = configuration.load(file)
    of = stream_named(config, stream)
    spark = start_spark(config, "load")
    from jobs import load as loading
    from jobs.spark.session import lock

    files = []
    with lock(spark, config, "load"), working(f"loading into {stream}", len(file_names), "files", spark) as work:
        for name in file_names:
            loaded = loading.load(spark, config, of, name, work)
            work.count()
            files.append({"file": name, "events": loaded.events, "refused": loaded.refused})
            if not as_json:
                refused = f", {loaded.refused} refused: see quarantine/{stream}" if loaded.refused else ""
                print(f"{name}: {'loaded before' if loaded.events is None else f'{loaded.events} events'}{refused}")
    if as_json:
        print_json({"stream": stream, "files": files})


@command(
    SECTION,
    ("statehouse recover rewards", "the state anew from the changelog"),
    ("statehouse recover rewards --rule new.yaml", "what a new rule would change; nothing is changed yet"),
    ("statehouse recover rewards --rule new.yaml --swap", "the same, and the new state is the live one"),
)
@config_option
@json_option
@click.argument("store")
@click.option("--rule", metavar="FILE", help="The store's new rule: a statehouse.yaml, or the store's part of one.")
@click.option("--swap", is_flag=True, help="Make the new state the live one, in one commit.")
def recover(store: str, rule: str | None, swap: bool, file: str | None, as_json: bool) -> None:
    """Fold a store's state anew from the whole changelog; under a changed rule: show what changes."""
    from statehouse.config import file as configuration

    config = configuration.load(file)
    of = configuration.rule_file(rule, config, store) if rule else store_named(config, store)
    spark = start_spark(config, "recover")
    from jobs import recover as recovering
    from jobs.spark.session import lock

    with lock(spark, config, "recover"):
        writes = swap or recovering.will_swap(spark, config, of)
        with (
            lock(spark, config, "merge") if writes else nullcontext(),
            working(f"recovering {store}", spark=spark) as work,
        ):
            difference = recovering.recover(spark, config, of, swap, work)
    if as_json:
        print_json(vars(difference))
        return
    print("\n".join(recovering.texts(difference)))
    if not difference.swapped:
        print(f"{store}: nothing is changed yet; with --swap this becomes the state")
        return
    live = config.stores.get(store)
    same = live and live.definition == of.definition
    note = "" if same else f"; now put the rule into {configuration.chosen(file)}"
    print(f"{store}: the state is the new one{note}")


@command(
    SECTION,
    ("statehouse erase rewards 3002359862", "all that is known of a key, removed"),
    ("statehouse erase till_invoices STR100/POS1", "a composite key"),
)
@config_option
@json_option
@click.argument("store")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def erase(store: str, keys: tuple[str, ...], file: str | None, as_json: bool) -> None:
    """Remove all that is known of some keys of a store, also from older versions; no job may run.

    A KEY is written as in Kafka; a composite key's parts are percent-encoded, with / between them.
    """
    from statehouse.config import file as configuration

    config = configuration.load(file)
    of = store_named(config, store)
    spark = start_spark(config, "erase")
    from jobs import erase as erasing
    from jobs.run import PARTS
    from jobs.spark.session import lock

    with ExitStack() as locks:
        for part in (*PARTS, "load", "recover"):
            locks.enter_context(lock(spark, config, part, patience=0))
        with working("erasing", spark=spark) as work:
            erased = erasing.erase(spark, config, of, keys, work)
    if as_json:
        print_json(vars(erased))
        return
    print(f"{erased.events} events and {erased.refused} refused records are gone")
    print("older versions cannot be read any more; the first that can:")
    for name, version in erased.versions.items():
        print(f"  {name}: {version}")


@command(
    SECTION,
    ("statehouse requeue reports", "refused records once more, after the schema was mended"),
    ("statehouse requeue reports --reason 'not UTF-8'", "those of a reason, as the quarantine has it"),
)
@config_option
@json_option
@click.argument("stream")
@click.option("--reason", help="Those of a reason only, as the quarantine has it.")
def requeue(stream: str, reason: str | None, file: str | None, as_json: bool) -> None:
    """Send refused records of a stream to its topic again, once each."""
    from statehouse import requeue as requeueing
    from statehouse.config import file as configuration

    config = configuration.load(file)
    of = stream_named(config, stream)
    sent, more = 0, True
    with working("sending") as work:
        while more:
            done = requeueing.requeue(config, of, reason)
            sent, more = sent + done.sent, done.more
            work.say(f"{sent:,} sent")
    before = done.before - sent + done.sent
    if as_json:
        print_json({"stream": stream, "sent": sent, "before": before})
    else:
        print(f"{stream}: {sent} sent again, {before} were sent before")
