"""The jobs and a registry: a batch waits for a schema, what is learned is kept, and a new version's fields become columns."""

from __future__ import annotations

import base64
import json
import pickle
import struct

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from jobs.ingest import Ingest
from jobs.spark.parse import _decode_batches
from statehouse.config import load
from statehouse.errors import RegistryUnavailable
from statehouse.formats import registry as registries
from statehouse.records import decoder_for
from tests.support.avro import encoded
from tests.support.records import SCHEMA as RECORDS
from tests.support.records import rows, stamp
from tests.support.registry import SchemaRegistry

FIRST = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int"}]}
SECOND = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "n", "type": "string"},
        {"name": "more", "type": "double"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
    ],
}


@pytest.fixture
def registry():
    registries._registry.cache_clear()
    with SchemaRegistry() as running:
        running.register("t-value", json.dumps(FIRST))
        yield running


def framed(id, schema, value):
    return struct.pack(">bI", 0, id) + encoded(schema, value)


def batch(spark, *payloads, start=0):
    made = [("t", 0, start + n, stamp(10**15), None, payload, None) for n, payload in enumerate(payloads)]
    return spark.createDataFrame(made, RECORDS)


def test_a_batch_waits_for_the_registry_and_what_it_learns_is_kept(spark, lake, registry):
    streams = "streams:\n  s: {topic: t, format: avro}\n"
    config = lake(f"registry: {{url: '{registry.url}', max.retries: 0}}\n{streams}")
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(batch(spark, framed(1, FIRST, {"id": 1, "n": 5})))
    registry.register("t-value", json.dumps(SECOND))
    second = batch(
        spark,
        framed(2, SECOND, {"n": "x", "more": 1.5, "at": None}),
        framed(7, FIRST, {"id": 1, "n": 5}),
        framed(1, FIRST, {"id": 2, "n": 6}),
        framed(2, {**SECOND, "fields": SECOND["fields"][::-1]}, {"n": "x", "more": 1.5, "at": None})[:9],
        start=1,
    )
    registry.away = True
    with pytest.raises(RegistryUnavailable):
        ingest.batch(second)
    assert (ingest.events, ingest.refused) == (1, 0), "nothing is refused that may be good"
    registry.away = False
    ingest.batch(second)
    kept = {row["_offset"]: row for row in rows(spark, ingest.changelog)}
    assert {o: (r["id"], r["n"], r["more"]) for o, r in kept.items()} == {0: (1, 5, None), 3: (2, 6, None)}
    reasons = {row["offset"]: row["reason"] for row in rows(spark, ingest.quarantine)}
    assert reasons[1] == 'schema 2: n: found "x", expected INT'
    assert reasons[2].startswith("schema 7: found an id that the registry does not have")
    assert reasons[4].startswith("schema 2: found")

    # Another process, without the registry: columns and schemas are those that the changelog keeps.
    registry.away, registry.asked = True, []
    registries._registry.cache_clear()
    again = load(f"{config.root}/../statehouse.yaml", {})
    assert list(again.streams["s"].types) == ["id", "n", "more", "at"]
    ingest = Ingest(spark, again, again.streams["s"])
    ingest.batch(
        batch(
            spark,
            framed(2, {**SECOND}, {"n": "y", "more": 2.5, "at": None}),
            framed(1, FIRST, {"id": 3, "n": 7}),
            start=5,
        )
    )
    assert (ingest.events, ingest.refused, registry.asked) == (1, 1, [])


def test_the_columns_may_stay_as_they_are(spark, lake, registry):
    more = "streams:\n  s: {topic: t, format: avro, on_new_field: ignore}\n"
    config = lake(f"registry: {{url: '{registry.url}'}}\n{more}")
    ingest = Ingest(spark, config, config.streams["s"])
    registry.register("t-value", json.dumps({**FIRST, "fields": [*FIRST["fields"], {"name": "more", "type": "int"}]}))
    ingest.batch(batch(spark, struct.pack(">bI", 0, 2) + b"\x02\x04\x06"))
    ((row),) = rows(spark, ingest.changelog)
    assert (row["id"], row["n"]) == (1, 2) and "more" not in row


def test_what_spark_sends_to_its_workers_knows_all_that_it_needs(lake, registry):
    """Without Spark: the function that its workers get, pickled as it pickles it."""
    config = lake(f"registry: {{url: '{registry.url}'}}\nstreams:\n  s: {{topic: t, format: avro}}\n")
    decoder = decoder_for(config.streams["s"], [], [])
    registry.away, registry.asked = True, []
    headers = json.dumps([{"key": "__value_schema_id", "value": base64.b64encode(b"\0\0\0\0\x01").decode()}])
    values = [
        framed(1, FIRST, {"id": 1, "n": 5}),
        framed(9, FIRST, {"id": 1, "n": 5}),
        encoded(FIRST, {"id": 2, "n": 6}),
    ]
    columns = {
        "_partition": pa.array([0] * 3, pa.int32()),
        "_offset": pa.array(range(3), pa.int64()),
        "_timestamp": pa.array([0] * 3, pa.timestamp("us", "UTC")),
        "_key": pa.nulls(3, pa.string()),
        "_header_list": pa.array([None, None, headers], pa.string()),
        "_bytes": pa.array(values, pa.binary()),
    }
    work = pickle.loads(cloudpickle.dumps(_decode_batches(decoder, False, [*columns])))
    (made,) = work(iter([pa.record_batch(columns)]))
    assert (made["id"].to_pylist(), made["n"].to_pylist()) == ([1, None, 2], [5, None, 6])
    assert made["_reason"].to_pylist() == [None, "unknown schema: 9", None]
    assert made["_bytes"].to_pylist() == [None, values[1], None], "what is refused goes back as it was"
    assert registry.asked == []
