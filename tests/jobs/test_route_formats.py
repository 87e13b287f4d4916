"""Routes whose messages are in Avro, or JSON with a schema: a reader of that format has what a reader of JSON has."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.route import Router
from statehouse.errors import ConfigError, RegistryUnavailable, SchemaRefused
from statehouse.formats.wire import frame_of
from statehouse.formats.writing import frame
from tests.support.records import SCHEMA, iso, record
from tests.support.registry import SchemaRegistry
from tests.support.topics import messages

SHAPE = """select: [id, shop, total, at, "CAST(at AS DATE) AS day", lines, "named_struct('a', id, 'b', array(shop)) AS nested",
      "map('k', total) AS by", "CAST(shop AS BINARY) AS raw"]"""
CONFIG = f"""
registry: {{{{url: '{{url}}', max.retries: 0}}}}
streams:
  sales:
    topic: {{topic}}
    schema: "id INT, shop STRING, total DECIMAL(12,2), at TIMESTAMP, lines ARRAY<STRUCT<code: STRING, n: INT>>"
    time: at
routes:
  plain: {{{{from: sales, {SHAPE}, to: {{{{topic: {{topic}}-plain, key: shop}}}}}}}}
  avro: {{{{from: sales, {SHAPE}, to: {{{{topic: {{topic}}-avro, key: shop, format: avro}}}}}}}}
  schema: {{{{from: sales, {SHAPE}, to: {{{{topic: {{topic}}-schema, key: shop, format: json_schema, subject: sales}}}}}}}}
  far: {{{{from: sales, select: ["make_timestamp(20000, 1, 1, 0, 0, id) AS far"], to: {{{{topic: {{topic}}-far, format: avro}}}}}}}}
"""
EVENTS = 40
T0 = 1_700_000_000_000_000


def sales(dice):
    for number in range(EVENTS):
        lines = [{"code": dice.choice("abc"), "n": None} for _ in range(dice.randrange(3))]
        yield {
            "id": number,
            "shop": dice.choice(["s1", "é", "", None]),
            "total": dice.choice([None, "9999999999.99", "-0.01"]),
            "at": iso(T0 + number),
            "lines": dice.choice([None, lines]),
        }


@pytest.fixture(scope="module")
def registry():
    with SchemaRegistry() as running:
        yield running


def by_source(bootstrap, topic):
    """A topic's messages by the event that each is made of."""
    found = {dict(m.headers())["statehouse-source"]: m for m in messages(bootstrap, topic)}
    assert len(found) == EVENTS
    return found


@pytest.mark.slow
def test_each_format_tells_the_same(spark, broker, lake, registry):
    config = lake(CONFIG.format(topic="formats", url=registry.url), broker.bootstrap)
    assert list(problems(spark, config)) == []
    given = [record("formats", 0, n, T0 + n, None, row) for n, row in enumerate(sales(random.Random(3)))]
    Ingest(spark, config, config.streams["sales"]).batch(spark.createDataFrame(given, SCHEMA))
    for route in config.routes.values():
        assert Router(spark, config, route).round().count == EVENTS
    plain = by_source(broker.bootstrap, "formats-plain")
    right = {source: json.loads(m.value(), parse_float=Decimal) for source, m in plain.items()}
    for source, message in by_source(broker.bootstrap, "formats-schema").items():
        place = frame_of(message.value(), None)
        assert place.id == str(registry.subjects["sales"][0])
        assert json.loads(message.value()[place.end :], parse_float=Decimal) == right[source]
        assert (message.key(), message.headers()) == (plain[source].key(), plain[source].headers())
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    for source, message in by_source(broker.bootstrap, "formats-avro").items():
        found = read(message.value(), SerializationContext("formats-avro", MessageField.VALUE))
        assert {**found, "at": f"{found['at']:%Y-%m-%dT%H:%M:%S.%fZ}", "day": str(found["day"])} == {
            **right[source],
            "raw": None if found["shop"] is None else found["shop"].encode(),
        }
        assert (message.key(), message.headers()) == (plain[source].key(), plain[source].headers())
    [id] = registry.subjects["formats-far-value"]
    for message in by_source(broker.bootstrap, "formats-far").values():
        assert message.value()[:5] == frame(id) and len(message.value()) == 5 + 1 + 9, "a long after its union's branch"


@pytest.mark.slow
def test_a_registry_that_is_away_or_refuses_a_schema(spark, broker, lake):
    with SchemaRegistry() as registry:
        config = lake(CONFIG.format(topic="refusing", url=registry.url), broker.bootstrap)
        Ingest(spark, config, config.streams["sales"]).batch(
            spark.createDataFrame([record("refusing", 0, 0, T0, None, next(sales(random.Random(3))))], SCHEMA)
        )
        router = Router(spark, config, config.routes["avro"])
        registry.away = True
        with pytest.raises(RegistryUnavailable):
            router.round()
        registry.away, registry.refusing = False, "Schema being registered is incompatible with an earlier schema"
        with pytest.raises(SchemaRefused, match=r"found .*incompatible with an earlier schema.*expected to register"):
            router.round()
        registry.refusing = None
        assert router.round().count == 1 and router.round() is None


@pytest.mark.slow
def test_changes_of_a_table_as_they_are(spark, broker, lake):
    """Their own column `_source` is one of the message's."""
    config = lake(
        "streams:\n  s: {topic: captured, format: debezium, schema: id INT}\nroutes:\n  r: {from: s, to: {topic: captured-on}}\n",
        broker.bootstrap,
    )
    assert list(problems(spark, config)) == []
    body = {"op": "c", "before": None, "after": {"id": 1}, "source": {"connector": "postgresql", "lsn": 7, "ts_ms": 1}}
    given = spark.createDataFrame([record("captured", 0, 0, T0, None, body)], SCHEMA)
    Ingest(spark, config, config.streams["s"]).batch(given)
    assert Router(spark, config, config.routes["r"]).round().count == 1
    (message,) = messages(broker.bootstrap, "captured-on")
    told = json.loads(message.value())
    assert (told["id"], told["_source"]["position"]) == (1, 7)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("{topic: a, format: avro}", "routes.r.to.format: found avro without a registry, expected registry"),
        ("{table: a, format: avro}", "found format: avro, expected none: it is messages of a topic that have one"),
        ("{topic: a, subject: x}", "found a subject, expected format: avro or json_schema too"),
        ("{topic: a, format: xml}", "should be 'json', 'avro' or 'json_schema'"),
    ],
)
def test_what_the_file_may_say(lake, to, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        lake(f"streams:\n  s: {{topic: t, schema: a INT}}\nroutes:\n  r: {{from: s, to: {to}}}\n")


def test_check_says_which_name_avro_does_not_have(spark, lake):
    config = lake(
        "registry: {url: 'http://127.0.0.1:1'}\nstreams:\n  s: {topic: t, schema: a INT}\nroutes:\n"
        "  r: {from: s, select: [a AS `é`], to: {topic: u, format: avro}}\n"
    )
    assert [*problems(spark, config)] == [
        (("routes", "r", "to", "format"), "found the column 'é', expected a name of Avro's: letters, digits and _")
    ]
