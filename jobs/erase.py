"""What is known of a key, removed: its events, and all that was made of them, also from the files of older versions.

Other stores of the same stream have folded those events too, so every state of the stream is folded anew: what is left is what
there would be if the events had never come. In steps, each of which does nothing where it was done before; after a crash the
command is given again:

1. Delete the key's rows from the changelog, and from the quarantine what has it as Kafka's key. *The states still have them.*
2. Fold each state of the stream anew, and put it into the place of the old one (:mod:`jobs.recover`). *Old files still have them.*
3. Delete the told tasks of the key, and every file that the newest versions do not have. *Older versions cannot be read any more.*
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from jobs.maintain import maintenance_session
from jobs.recover import fold_anew, will_swap
from jobs.spark.expressions import rule_of
from statehouse.config.models import Config, Store
from statehouse.errors import DefinitionChanged, StatehouseError
from statehouse.fold import Rule
from statehouse.progress import SILENT, Progress
from statehouse.spark_sql import literal
from statehouse.tables import opened, rows_and_bytes, table, tasks_table

APPEND_ONLY = "delta.appendOnly"


@dataclass(frozen=True)
class Erased:
    """How many events and refused records were removed; and of each table the first version that can still be read."""

    events: int
    refused: int
    versions: dict[str, int]


def erase(
    spark: SparkSession, config: Config, store: Store, keys: Sequence[str], progress: Progress = SILENT
) -> Erased:
    """Remove all that is known of some keys of a store, each as its text in Kafka (a composite key's parts percent-encoded, with
    '/' between them).

    Raises StatehouseError for a text that is no key of the store, DefinitionChanged where a store of the stream has another rule
    than its state. The caller holds every lock of the lake: nothing else writes to it.
    """
    spark = maintenance_session(spark)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")  # nobody else writes to it
    rule, stream = rule_of(spark, config, store), store.stream
    stores = config.stores_of(stream)
    for other in stores:
        if not will_swap(spark, config, other):
            raise DefinitionChanged(f"store {other.name}: its state was folded by another rule; recover it first")
    condition = " OR ".join(_key_condition(spark, rule, text) for text in keys)
    changelog, quarantine = table(config, "changelog", stream), table(config, "quarantine", stream)
    texts = ", ".join(map(literal, keys))
    progress.begin(f"removing events of {stream}", lambda: rows_and_bytes(changelog)[0])
    events, refused = _delete(spark, changelog, condition), _delete(spark, quarantine, f"key IN ({texts})")
    for other in stores:
        fold_anew(spark, config, other, progress)
    _delete(spark, tasks_table(config), f"store = {literal(store.name)} AND key IN ({texts})")
    paths = [changelog, quarantine, tasks_table(config)]
    paths += [table(config, kind, other.name) for other in stores for kind in ("state", "tombstones")]
    versions = {}
    progress.begin("deleting old files", lambda: len(paths), "tables")
    for path in paths:
        if delta := opened(path):
            spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
            versions[path.removeprefix(f"{config.root}/")] = delta.version()
        progress.advance()
    return Erased(events, refused, versions)


def _key_condition(spark: SparkSession, rule: Rule, text: str) -> str:
    """SQL over rows of the changelog: whether one is of the key."""
    wanted = [control.replace("_key", literal(text)) for control in rule.control_keys()]
    missing = " OR ".join(f"({value}) IS NULL" for value in wanted)
    if spark.range(1).where(missing).count():
        kinds = ", ".join(rule.key_columns.values())
        raise StatehouseError(f"found the key {text[:100]!r}, expected one of {rule.store.name}: {kinds}, as in Kafka")
    tests = (f"({key}) <=> {value}" for key, value in zip(rule.key_of(), wanted, strict=True))
    return f"({' AND '.join(tests)})"


def _delete(spark: SparkSession, path: str, condition: str) -> int:
    """Delete rows of a table that is only appended to, otherwise; how many."""
    if (delta := opened(path)) is None:
        return 0
    only = delta.metadata().configuration.get(APPEND_ONLY)
    if only:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{APPEND_ONLY}' = 'false')")
    done = spark.sql(f"DELETE FROM delta.`{path}` WHERE {condition}").collect()[0]["num_affected_rows"]
    if only:
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{APPEND_ONLY}' = 'true')")
    return int(done)
