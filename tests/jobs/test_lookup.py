"""Lookups: events get a column from a small table, as that was when they were read."""

from __future__ import annotations

import json
import random
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from api import create_app
from api.engine.duck import connect
from api.engine.prepared import cursor
from api.replica import arrivals
from jobs.check import problems
from jobs.ingest import Ingest
from jobs.load import load as load_file
from jobs.merge import Merge
from jobs.recover import recover
from statehouse.errors import ConfigError
from tests.support.depth import first
from tests.support.records import SCHEMA, record, rows

T0 = 1_700_000_000_000_000
CONFIG = """
streams:
  sales: {{topic: t, schema: "card STRING, tier STRING, shop INT, total DECIMAL(12,2), at TIMESTAMP", time: at}}
lookups:
  rates: {{stream: sales, table: "{table}", key: tier, schema: "tier STRING, rate DECIMAL(4,2)"}}
  towns: {{stream: sales, table: towns.csv, key: [id, kind], by: [shop + 1, "'shop'"], schema: "id INT, kind STRING, town STRING"}}
stores:
  points: {{stream: sales, key: card, value: total * rates.rate, reduce: sum}}
  by_town: {{stream: sales, key: towns.town, reduce: count}}
routes:
  bills: {{from: sales, select: [card, rates.rate AS rate, towns.town AS town], to: {{table: bills}}}}
"""
TOWNS = 'id,kind,town,since\n1,shop,"Bern, CH",1900\n2,shop,Paris,\n2,store,Rome,\n,shop,None,\n'


class Tables:
    """The tables that are looked up, and what is right."""

    def __init__(self, folder, kind):
        self.folder, self.kind, self.rates, self.version = folder, kind, {}, 0
        (folder / "towns.csv").write_text(TOWNS)

    @property
    def name(self):
        return {"csv": "rates.csv", "parquet": "rates.parquet", "delta": "rates"}[self.kind]

    def write(self, *rates):
        """Pairs of tier and rate; a tier may be there twice."""
        self.rates = {}
        for tier, rate in rates:
            self.rates.setdefault(tier, []).append(rate)
        found = pa.table({"rate": [str(r) for _, r in rates], "tier": [t for t, _ in rates]})
        if self.kind == "csv":
            lines = (f"{rate},{tier}\n" for tier, rate in rates)
            (self.folder / self.name).write_text("rate, Tier\n" + "".join(lines))
        elif self.kind == "parquet":
            pq.write_table(found, self.folder / self.name)
        else:
            write_deltalake(self.folder / self.name, found, mode="overwrite")


def drawn(dice, first, count):
    return [
        {"card": dice.choice("abc"), "tier": dice.choice(["gold", "base", "odd", None]), "shop": dice.randrange(3),
         "total": dice.randrange(1000) / 100, "at": "2026-01-01T00:00:00Z", "offset": first + i}
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", first(1, ["delta", "csv", "parquet"]))
def test_an_event_has_what_the_table_said_when_it_was_read(spark, lake, tmp_path, kind):
    tables, dice = Tables(tmp_path, kind), random.Random()
    tables.write(("gold", 0.05), ("base", 0.01), (None, 9.0))
    config = lake(CONFIG.format(table=tables.name))
    ingest = Ingest(spark, config, config.streams["sales"])
    right, refused = [], 0
    for step, rates in enumerate(
        [None, [("gold", 0.07), ("odd", 0.5)], [("gold", 1.0), ("gold", 2.0), ("base", 0.02)]]
    ):
        if rates:
            tables.write(*rates)
        events = drawn(dice, step * 30, 30)
        ingest.batch(
            spark.createDataFrame([record("t", 0, e["offset"], T0, None, e) for e in events], SCHEMA), here=step == 1
        )
        for event in events:
            found = tables.rates.get(event["tier"], [None]) if event["tier"] else [None]
            if len(found) > 1:
                refused += 1
            else:
                right.append({**event, "rate": found[0], "town": {0: "Bern, CH", 1: "Paris"}.get(event["shop"])})
        if step == 0 and kind == "csv":  # the rest is folded in DuckDB first
            for store in config.stores.values():
                Merge(spark, config, store).round()
    log = rows(spark, f"{config.root}/changelog/sales")
    found = {r["_offset"]: (r["rates"] and float(r["rates"]["rate"]), r["towns"] and r["towns"]["town"]) for r in log}
    assert found == {e["offset"]: (e["rate"], e["town"]) for e in right}
    bad = rows(spark, f"{config.root}/quarantine/sales")
    assert {r["reason"] for r in bad} == {"rates: found 2 rows with the key gold, expected one"} and len(bad) == refused
    assert ahead(config, events) == {
        e["offset"]: (e["rate"], e["town"]) for e in right if e["offset"] >= events[0]["offset"]
    }
    if kind == "csv":  # the states do not ask where it was from
        folded_alike(spark, config, tables, right)


def folded_alike(spark, config, tables, right):
    """The states are the oracle's: ahead of a merge, after it, and folded anew when the table says something else."""
    points, towns = {}, {}
    for event in right:
        if event["rate"] is not None:
            points[event["card"]] = points.get(event["card"], 0) + round(event["total"] * 100) * round(
                event["rate"] * 100
            )
        if event["town"]:
            towns[event["town"]] = towns.get(event["town"], 0) + 1
    assert states(config) == (points, towns), "before a merge: folded in DuckDB"
    for store in config.stores.values():
        Merge(spark, config, store).round()
    assert states(config) == (points, towns)
    tables.write(("gold", 3.0))
    recover(spark, config, config.stores["points"])
    assert states(config) == (points, towns), "the changelog is what counts"


def ahead(config, events):
    """What the API makes of events that it reads itself."""
    made = [("t", 0, e["offset"], T0 // 1000, None, json.dumps(e).encode(), None) for e in events]
    with connect() as db:
        parser = arrivals.Parser(cursor(db), config.streams["sales"], [], config.stores_of("sales"))
        found = parser.parse(arrivals.table((*arrivals.record(*place), T0 // 1000) for place in made)).to_pylist()
    assert [r["_offset"] for r in found] == sorted(r["_offset"] for r in found), "in their order"
    return {r["_offset"]: (r["rates"] and float(r["rates"]["rate"]), r["towns"] and r["towns"]["town"]) for r in found}


def states(config):
    """The states by the API: points in ten thousandths."""
    app = create_app(config)
    client = app.test_client()
    try:
        found = client.post("/stores/points/lookup", json={"keys": list("abc")}).get_json()["rows"]
        towns = client.post("/stores/by_town/lookup", json={"keys": ["Bern, CH", "Paris", "Rome"]}).get_json()["rows"]
    finally:
        app.extensions["statehouse"].replica.stop()
    return {r["key"]: round(r["value"] * 10_000) for r in found}, {r["key"]: r["value"] for r in towns}


def test_files_are_joined_too_and_a_lookup_may_come_later(spark, lake, tmp_path):
    tables = Tables(tmp_path, "csv")
    tables.write(("gold", 0.05))
    text = CONFIG.format(table=tables.name)
    before = lake(text[: text.index("lookups:")])
    (tmp_path / "old.jsonl").write_text('{"card": "a", "tier": "gold", "shop": 0, "at": "2026-01-01T00:00:00Z"}\n')
    load_file(spark, before, before.streams["sales"], tmp_path / "old.jsonl")
    config = lake(text)
    (tmp_path / "new.jsonl").write_text('{"card": "b", "tier": "gold", "shop": 0, "at": "2026-01-01T00:00:00Z"}\n')
    load_file(spark, config, config.streams["sales"], tmp_path / "new.jsonl")
    found = {r["card"]: r["towns"] and r["towns"]["town"] for r in rows(spark, f"{config.root}/changelog/sales")}
    assert found == {"a": None, "b": "Bern, CH"}


def test_a_table_that_cannot_be_read_for_a_while_is_what_it_was(spark, lake, tmp_path, caplog):
    tables = Tables(tmp_path, "parquet")
    tables.write(("gold", 0.05))
    config = lake(CONFIG.format(table=tables.name))
    ingest = Ingest(spark, config, config.streams["sales"])
    for offset, content in enumerate([b"PAR1 half of it", None]):
        (tmp_path / tables.name).write_bytes(content) if content else (tmp_path / tables.name).unlink()
        event = {"card": "a", "tier": "gold", "shop": 0, "total": 1, "at": "2026-01-01T00:00:00Z"}
        ingest.batch(spark.createDataFrame([record("t", 0, offset, T0, None, event)], SCHEMA))
    log = rows(spark, f"{config.root}/changelog/sales")
    assert [float(r["rates"]["rate"]) for r in log] == [0.05, 0.05]
    assert "what it was before still counts" in caplog.text


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("table: nothing.csv", "lookups.wrong.table: .*nothing.csv: cannot be read: "),
        ("table: towns.csv, schema: 'id INT, street STRING'", "lookups.wrong.table: .*found no column 'street', expected it among id, kind"),
        ("table: towns.csv", "lookups.wrong.table: found 2 rows with the key '2', expected one"),
        ("table: rates.csv, by: nothing", "lookups.wrong.by.0: found 'nothing': .*UNRESOLVED_COLUMN"),
        ("table: towns.csv, by: [shop, card]", "lookups.wrong: found by: shop, card, expected as many"),
        ("table: towns.csv, key: nr", "lookups.wrong: found the key 'nr', expected one of id"),
        ("table: towns.csv, stream: nothing", "lookups.wrong.stream: found stream 'nothing', expected one of sales"),
    ],
)  # fmt: skip
def test_what_cannot_be_looked_up_is_said(spark, lake, tmp_path, found, said):
    Tables(tmp_path, "csv").write(("gold", 0.05))
    (tmp_path / "rates.csv").write_text("id\n1\n")
    given = {"stream": "sales", "key": "id", "by": "shop", "schema": "'id INT'"}
    text = ", ".join(f"{name}: {value}" for name, value in given.items() if f"{name}:" not in found)
    text = CONFIG.format(table="towns.csv").replace("  rates: {", "  wrong: {" + f"{found}, {text}" + "}\n  rates: {")
    text = text.replace('"tier STRING, rate DECIMAL(4,2)"', '"id INT, tier STRING, rate DECIMAL(4,2)"')
    text = text.replace('table: "towns.csv", key: tier, schema: "id INT, tier STRING, rate DECIMAL(4,2)"', 'table: rates.csv, key: id, by: shop, schema: "id INT"').replace("rates.rate", "rates.id")  # fmt: skip
    try:
        wrong = problems(spark, lake(text))
    except ConfigError as error:
        assert re.search(said, str(error))
    else:
        assert any(re.search(said, ".".join(map(str, where)) + ": " + message) for where, message in wrong), wrong
