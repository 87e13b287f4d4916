"""Lakes for the API's tests, written with deltalake: state tables and changelogs as the jobs leave them."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.fold import Rule
from statehouse.tables import DEFINITION, EVENT_COLUMNS, POSITION, definition_of, table

YAML = """\
root: ./lake
kafka:
  bootstrap.servers: {bootstrap}
streams:
  reports:
    topic: agent-reports
    schema: key STRING, agent STRING, value STRING, ts TIMESTAMP
    time: ts
  sales:
    topic: till-sales
    schema: customer STRING, till INT, amount DECIMAL(12,2), day DATE, weight DOUBLE, tags ARRAY<STRING>
stores:
  status: {{stream: reports, key: key, agent: agent, value: value, reduce: majority}}
  alarm: {{stream: reports, key: key, agent: agent, value: value, reduce: "at_least_one(alarm, ok)"}}
  last: {{stream: sales, key: customer, value: weight, reduce: latest}}
  tagged: {{stream: sales, key: customer, value: tags, reduce: latest}}
  rewards: {{stream: sales, key: customer, value: amount, reduce: sum}}
  by_till: {{stream: sales, key: till, value: till, reduce: count}}
  pairs: {{stream: sales, key: [customer, till], value: amount, reduce: sum}}
  names: {{stream: sales, key: [customer, "tags[0] AS tag"], value: amount, reduce: sum}}
  days: {{stream: sales, key: day, value: amount, reduce: max}}
  hours: {{stream: sales, key: customer, value: amount, window: 1 hour, reduce: sum}}
"""
KINDS = {
    "status": (("STRING",), "STRING"),
    "alarm": (("STRING",), "STRING"),
    "last": (("STRING",), "DOUBLE"),
    "tagged": (("STRING",), "ARRAY<STRING>"),
    "rewards": (("STRING",), "DECIMAL(12,2)"),
    "by_till": (("INT",), "INT"),
    "pairs": (("STRING", "INT"), "DECIMAL(12,2)"),
    "names": (("STRING", "STRING"), "DECIMAL(12,2)"),
    "days": (("DATE",), "DECIMAL(12,2)"),
    "hours": (("STRING",), "DECIMAL(12,2)"),
}
MOMENT = dt.datetime(2026, 3, 1, 12, 30, 0, 250000, tzinfo=dt.timezone.utc)
MOMENT_TEXT = "2026-03-01T12:30:00.250000Z"
ORDER = pa.decimal128(38, 0)
TIME = pa.timestamp("us", "UTC")


def reset_of(moment: dt.datetime, partition: int = 0, offset: int = 0) -> Decimal:
    """The packed order key, see statehouse.reducers."""
    micros = round((moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) / dt.timedelta(microseconds=1))
    return Decimal(micros * 10**20 + (partition + 1) * 10**15 + offset)


def configured(folder: Path, bootstrap: str = "127.0.0.1:1") -> Config:
    """The configuration above in a folder of its own."""
    file = folder / "statehouse.yaml"
    file.write_text(YAML.format(bootstrap=bootstrap))
    return load(file, {})


def rule(config: Config, store: str) -> Rule:
    """The rule with the types that Spark would have found."""
    return Rule(config.stores[store], *KINDS[store])


class State:
    """A state table, version by version."""

    def __init__(self, config: Config, store: str) -> None:
        self.rule = rule(config, store)
        self.path = table(config, "state", store)
        self.schema = pa.schema([(n, _arrow(t)) for n, t in self.rule.state_columns.items()])
        # The other ways to write a table refuse a property that Delta does not know.
        # Statistics are of the key, as in the jobs' tables: deltalake would write rounded ones of a long decimal.
        settings = {DEFINITION: definition_of(self.rule), "delta.dataSkippingStatsColumns": ",".join(self.rule.keys)}
        DeltaTable.create(self.path, self.schema, configuration=settings, raise_if_key_not_exists=False)

    def write(self, position: int, *rows: dict[str, Any], mode: str = "overwrite") -> int:
        """Commit rows (missing columns: null) with a position; the new version."""
        full = [{"event_time": MOMENT, "changed_at": MOMENT, **row} for row in rows]
        data = pa.Table.from_pylist([{n: r.get(n) for n in self.schema.names} for r in full], schema=self.schema)
        done = CommitProperties(app_transactions=[Transaction(app_id=POSITION, version=position)])
        write_deltalake(self.path, data, mode=mode, commit_properties=done)
        return DeltaTable(self.path).version()


class Sales:
    """A changelog of the stream ``sales``, written as ingest leaves it."""

    stream = "sales"
    own = {  # noqa: RUF012
        "customer": pa.string(),
        "till": pa.int32(),
        "amount": pa.decimal128(12, 2),
        "day": pa.date32(),
        "weight": pa.float64(),
        "tags": pa.list_(pa.string()),
    }

    def __init__(self, config: Config) -> None:
        self.path, self.offset = table(config, "changelog", self.stream), 0
        self.topic = config.streams[self.stream].topic
        kinds = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "TIMESTAMP": TIME}
        self.schema = pa.schema({**self.own, **{n: kinds[t] for n, t in EVENT_COLUMNS.items()}})
        DeltaTable.create(self.path, self.schema, configuration={"delta.enableChangeDataFeed": "true"})

    def append(self, *events: dict[str, Any]) -> int:
        """One version; its number. ``purge``: the key that is purged."""
        rows = []
        for event in events:
            self.offset += 1
            op = "purge" if "purge" in event else "report"
            at = event.pop("at", MOMENT + dt.timedelta(seconds=self.offset))
            times = {"_event_time": at, "_log_time": at, "_key": event.pop("purge", None)}
            rows.append({**event, **times, "_topic": self.topic, "_partition": 0, "_offset": self.offset, "_op": op})
        full = [{n: row.get(n) for n in self.schema.names} for row in rows]
        said = json.dumps({"topic": self.topic, "offsets": {"0": self.offset + 1}})
        done = CommitProperties(custom_metadata={"userMetadata": said})
        write_deltalake(
            self.path, pa.Table.from_pylist(full, schema=self.schema), mode="append", commit_properties=done
        )
        return DeltaTable(self.path).version()


class Reports(Sales):
    """The same of the stream ``reports``."""

    stream = "reports"
    own = {"key": pa.string(), "agent": pa.string(), "value": pa.string(), "ts": TIME}  # noqa: RUF012


def changelog(config: Config, stream: str, commits: int) -> None:
    """A changelog of that many commits; what is in them does not matter here."""
    for number in range(commits):
        write_deltalake(table(config, "changelog", stream), pa.table({"_offset": [number]}), mode="append")


def eventually(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """What the condition gives as soon as that is something."""
    until, pause = time.monotonic() + seconds, 0.02
    while not (found := condition()):
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(pause)
        pause = min(0.15, 1.2 * pause)  # to ask takes time from those who are waited for
    return found


def _arrow(kind: str) -> pa.DataType:
    if kind.startswith("MAP"):
        report = pa.struct([("value", pa.string()), ("event_time", TIME), ("_order", ORDER)])
        return pa.map_(pa.string(), report)
    if kind.startswith("DECIMAL"):
        precision, scale = kind[8:-1].split(",")
        return pa.decimal128(int(precision), int(scale))
    simple = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64()}
    return {**simple, "TIMESTAMP": TIME, "DATE": pa.date32(), "ARRAY<STRING>": pa.list_(pa.string())}[kind]


MERGED = (
    "status",
    "last",
    "tagged",
    "rewards",
    "by_till",
    "days",
)  # their types are known; the others' are not


def made(folder: Path, bootstrap: str, **topics: str) -> Config:
    config = configured(folder, bootstrap)
    for store in MERGED:
        State(config, store).write(3)
    renamed = {n: s.model_copy(update={"topic": topics.get(n, s.topic)}) for n, s in config.streams.items()}
    return config.model_copy(update={"streams": renamed})
