"""Routes: events of a stream to a topic or a table, against a few lines of plain Python."""

from __future__ import annotations

import os
import random
import re
import threading
from collections import Counter

import pytest
from pyspark.sql import functions as F

from jobs.attempts import Attempts
from jobs.check import problems
from jobs.ingest import Ingest
from jobs.route import Router
from jobs.run import send_on
from jobs.spark.kafka_sink import headers, send
from statehouse import kafka
from statehouse.config.models import Route
from statehouse.errors import ConfigError
from statehouse.failures import failing
from tests.support.records import SCHEMA, control, iso, record, rows
from tests.support.topics import topic_of

NOTHING = {"from": "sales", "where": "FALSE", "to": {"table": "none"}}
T0 = 1_700_000_000_000_000
CONFIG = """
streams:
  sales:
    topic: {topic}
    schema: >-
      id INT, shop STRING, kind STRING, card STRING, total DECIMAL(12,2), at TIMESTAMP, lines ARRAY<STRUCT<code: STRING, n: INT>>
    time: at
routes:
  shipment: {{from: sales, where: "kind = 'HOME'", to: {{topic: {topic}-shipment, key: shop}}}}
  codes:
    from: sales
    select: [id, "explode(lines) AS line", "line.code AS code"]
    to: {{topic: {topic}-codes, key: code}}
  lines:
    from: sales
    select: [id, shop, "'***' AS card", "explode(lines) AS line", _event_time]
    to: {{table: lines}}
  paid: {{from: sales, where: total > 50, select: [id, total], to: {{table: paid}}}}
"""


def sale(dice, number):
    """One event, at random."""
    lines = [{"code": dice.choice("abc"), "n": dice.randrange(1, 4)} for _ in range(dice.randrange(4))]
    return {
        "id": number,
        "shop": dice.choice(["s1", "s2", None]),
        "kind": dice.choice(["HOME", "TAKE", None]),
        "card": str(dice.randrange(9)),
        "total": dice.choice([None, dice.randrange(10_000) / 100]),
        "at": iso(T0 + dice.randrange(10**9)),
        "lines": dice.choice([None, lines, lines, lines]),
    }


def right(sales):
    """The oracle: what is in the two topics, by coordinates, and in the two tables."""
    shipment = {(c, "0"): (s["shop"], s) for c, s in sales.items() if s["kind"] == "HOME"}
    each = [(c, i, s, line) for c, s in sales.items() for i, line in enumerate(s["lines"] or [])]
    codes = {(c, str(i)): (x["code"], {"id": s["id"], "line": x, "code": x["code"]}) for c, i, s, x in each}
    lines = Counter((s["id"], s["shop"], "***", x["code"], x["n"], s["at"]) for _, _, s, x in each)
    paid = Counter((s["id"], s["total"]) for s in sales.values() if (s["total"] or 0) > 50)
    return shipment, codes, lines, paid


def plain(row):
    """A row of the table `lines` as the oracle has it."""
    at = row["_event_time"].isoformat() + "Z"
    return row["id"], row["shop"], row["card"], row["line"]["code"], row["line"]["n"], at


def same(spark, config, bootstrap, sales):
    """What is in the topics and tables is the oracle's; how many messages were repeated."""
    topic = config.streams["sales"].topic
    shipment, codes, _, _ = right(sales)
    found, again = topic_of(bootstrap, f"{topic}-shipment")
    assert found == shipment
    found, more = topic_of(bootstrap, f"{topic}-codes")
    assert found == codes
    same_tables(spark, config, sales)
    return again + more


def same_tables(spark, config, sales):
    """What is in the tables is the oracle's."""
    _, _, lines, paid = right(sales)
    assert Counter(map(plain, rows(spark, f"{config.root}/routes/lines"))) == lines
    assert Counter((r["id"], float(r["total"])) for r in rows(spark, f"{config.root}/routes/paid")) == paid


@pytest.fixture
def sold(lake, broker, spark):
    """The configuration, and what appends random sales (and others) to the changelog."""
    topic = f"sales-{os.getpid()}-{random.randrange(10**9)}"
    config = lake(CONFIG.format(topic=topic), broker.bootstrap)
    ingest, dice, sales = Ingest(spark, config, config.streams["sales"]), random.Random(), {}

    def sell(count):
        made = []
        for offset in range(ingest.offsets.get(0, 0), ingest.offsets.get(0, 0) + count):
            found = sale(dice, offset)
            if (kind := dice.random()) < 0.05:
                made.append(record(topic, 0, offset, T0, "s1", None))
            elif kind < 0.1:
                made.append(record(topic, 0, offset, T0, "s1", b"rubbish", dice.choice([None, control("set", "x")])))
            else:
                made.append(record(topic, 0, offset, T0, None, found))
                sales[f"{topic}:0:{offset}"] = found
        ingest.batch(spark.createDataFrame(made, SCHEMA))

    return config, sell, sales


def routers(spark, config):
    return [Router(spark, config, route) for route in config.routes.values()]


@pytest.mark.slow
def test_every_event_is_sent_once_in_its_shape_whatever_the_batches(spark, broker, sold):
    config, sell, sales = sold
    for count in (40, 1, 20, 30):
        sell(count)
        made = routers(spark, config)  # as after a start
        if count != 1:  # two commits in one round
            assert all(router.round().count for router in made)
            assert [router.round() for router in made] == [None] * 4
    assert same(spark, config, broker.bootstrap, sales) == 0


@pytest.mark.slow
def test_what_is_sent_again_after_a_crash_says_that_it_is(spark, broker, sold, monkeypatch):
    """Between the messages and the position, and between the rows and what would come after."""
    config, sell, sales = sold
    sell(30)
    with monkeypatch.context() as patch:
        patch.setattr("jobs.spark.position.Position.move", lambda *_: 1 / 0)
        patch.setattr("jobs.spark.position.Position.append", lambda *_: 1 / 0)
        for router in routers(spark, config):
            with pytest.raises(ZeroDivisionError):
                router.round()
    sell(10)
    for router in routers(spark, config):
        router.round()
    shipment, codes, _, _ = right({c: s for c, s in sales.items() if int(c.rpartition(":")[2]) < 30})
    assert same(spark, config, broker.bootstrap, sales) == len(shipment) + len(codes) > 0


@pytest.mark.slow
def test_a_route_goes_on_where_the_log_has_forgotten_what_came(spark, broker, sold, monkeypatch):
    config, sell, sales = sold
    sell(20)
    for router in routers(spark, config):
        router.round()
    sell(20)
    sell(5)

    def lost(*_):
        raise RuntimeError("[DELTA_CHANGE_DATA_FILE_NOT_FOUND]")

    monkeypatch.setattr("jobs.spark.change_feed.changes", lost)
    for router in routers(spark, config):
        router.round()
    assert same(spark, config, broker.bootstrap, sales) == 0


@pytest.mark.slow
def test_one_that_fails_does_not_keep_the_others(spark, sold, monkeypatch):
    config, sell, sales = sold
    sell(10)
    monkeypatch.setitem(config.kafka, "bootstrap.servers", "127.0.0.1:1")
    made = routers(spark, config)
    attempts = Attempts(config, "route")
    assert send_on(made, attempts, threading.Event()) == len(made) - 2
    assert all("127.0.0.1:1" in str(attempts.errors[name]) for name in ("shipment", made[1].name))
    assert failing(config, "route").keys() == attempts.errors.keys()
    assert [router.round() for router in made[2:]] == [None, None]
    same_tables(spark, config, sales)


def test_what_no_event_passes_is_an_empty_table_and_moves_on(spark, sold):
    config, sell, _ = sold
    sell(30)
    router = Router(spark, config, Route.model_validate({**NOTHING, "name": "none"}))
    for _ in range(2):
        assert router.round().count and router.round() is None
        assert rows(spark, f"{config.root}/routes/none") == []
        sell(30)


def test_a_message_that_is_too_long_is_in_the_quarantine_once(spark, broker, sold, monkeypatch):
    config, sell, _ = sold
    sell(5)
    topic = config.streams["sales"].topic
    kafka.create_topic(config.kafka, f"{topic}-codes", {"max.message.bytes": "3000"})
    body = {"id": 5, "lines": [{"code": "a", "n": 1}, {"code": "b" * 3000, "n": 1}]}
    Ingest(spark, config, config.streams["sales"]).batch(
        spark.createDataFrame([record(topic, 0, 5, T0, None, body)], SCHEMA)
    )
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("jobs.spark.position.Position.move", lambda *_: 1 / 0)
        Router(spark, config, config.routes["codes"]).round()
    Router(spark, config, config.routes["codes"]).round()
    found, _ = topic_of(broker.bootstrap, f"{topic}-codes")
    assert (f"{topic}:0:5", "0") in found and (f"{topic}:0:5", "1") not in found
    refused = [r for r in rows(spark, f"{config.root}/quarantine/sales") if r["offset"] == 5]
    assert len(refused) == 1 and refused[0]["reason"].startswith("route codes: found a message of ")


def test_a_topic_that_takes_little_at_once_takes_many_messages(spark, broker, sold):
    config, _, _ = sold
    topic = f"{config.streams['sales'].topic}-small"
    kafka.create_topic(config.kafka, topic, {"max.message.bytes": "3000"})
    number = {"statehouse-source": F.col("id"), "statehouse-part": F.lit(0)}
    sent = spark.range(200).select(
        F.lit("k").alias("key"), F.lit(f'"{"v" * 500}"').alias("value"), headers(number).alias("headers")
    )
    send(sent, config, topic, 3000)
    assert len(topic_of(broker.bootstrap, topic)[0]) == 200


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("where: kind", "routes.wrong.where: found 'kind' of type STRING, expected a BOOLEAN"),
        ("where: nothing = 1", "routes.wrong.where: found 'nothing = 1': .*UNRESOLVED_COLUMN"),
        ("select: [upper(kind)]", "routes.wrong.select: found a column 'upper.kind.', expected a name of its own"),
        ("select: [id, kind AS ID]", "routes.wrong.select: found a column 'id', expected a name"),
        ("select: [sum(id) AS n]", "routes.wrong.select: found 'sum.id. AS n': "),
        (
            "to: {topic: x, key: kind}, select: [id]",
            "routes.wrong.to.key: found 'kind': .*a key is made of what is selected",
        ),
        ("to: {topic: x, table: y}", "routes.wrong.to: found both, expected one of topic: and table:"),
        ("to: {table: y, key: id}", "routes.wrong.to: found a key, expected none"),
        ("to: {topic: sales}", "routes.wrong.to.topic: found 'sales', expected another topic"),
        ("from: nothing", "routes.wrong.from: found stream 'nothing', expected one of sales"),
        ("too: {topic: x}", "routes.wrong.too: found 'too', expected one of from, late, select, to, where"),
    ],
)
def test_what_a_route_cannot_do_is_said_with_its_line(spark, lake, found, said):
    text = CONFIG.format(topic="sales") + "  wrong: {" + ("" if "from:" in found else "from: sales, ") + found
    text += "}" if "to:" in found else ", to: {topic: x}}"
    try:
        wrong = problems(spark, lake(text))
    except ConfigError as error:
        assert re.search(rf"statehouse.yaml:2\d: {said}", str(error))
    else:
        ((where, message),) = wrong
        assert re.search(said, ".".join(where) + ": " + message)
