"""``keep_headers``: what both halves have of a record's headers, and of where its time is from, is the oracle's."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Producer

from api import create_app
from jobs.ingest import Ingest
from jobs.merge import Merge
from tests.support.api_lake import eventually
from tests.support.records import create, rows

CONFIG = """
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT", keep_headers: true}}
stores:
  sites: {{stream: s, key: key, value: "coalesce(_headers['site'], 'none')", reduce: latest}}
  kinds: {{stream: s, key: key, value: _timestamp_type, reduce: latest}}
  all: {{stream: s, key: key, value: _headers, reduce: latest}}
  north: {{stream: s, key: key, where: "_headers['site'] = 'north'", value: n, reduce: sum}}
"""
# A record's headers; what the column has of them.
HEADERS = [
    (None, None),
    ([("site", b"north")], {"site": "north"}),
    ([("site", b"south"), ("site", b"north")], {"site": "north"}),  # the last of a name
    ([("site", b"\xff\xfe"), ("other", b"x")], {"site": None, "other": "x"}),
    ([("site", None)], {"site": None}),
    ([("site", b""), ("", b"no name")], {"site": "", "": "no name"}),
    ([("\u00fc \u2603", "\u2603".encode()), ("site", b"a'b\"c")], {"\u00fc \u2603": "\u2603", "site": "a'b\"c"}),
    ([(f"h{number}", b"v") for number in range(50)], {f"h{number}": "v" for number in range(50)}),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_both_halves_have_the_same_headers(spark, broker, lake, kind):
    topic = f"headers-{uuid.uuid4()}"
    create(broker.bootstrap, topic, message_timestamp_type=kind)
    config = lake(CONFIG.format(topic=topic), broker.bootstrap)
    ingest = Ingest(spark, config, config.streams["s"])
    merges = [Merge(spark, config, store) for store in config.stores.values()]
    for merge in merges:
        merge.round()
    app = create_app(config)
    try:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number, (headers, _) in enumerate(HEADERS):
            producer.produce(topic, f'{{"key": "k{number}", "n": {number}}}', headers=headers)
        producer.flush()
        sites = {
            f"k{n}": (has or {}).get("site") or ("" if has and has.get("site") == "" else "none")
            for n, (_, has) in enumerate(HEADERS)
        }
        right = {
            "sites": sites,
            "kinds": dict.fromkeys(sites, kind),
            "all": {f"k{n}": has for n, (_, has) in enumerate(HEADERS) if has},
            "north": {f"k{n}": n for n, (_, has) in enumerate(HEADERS) if has and has.get("site") == "north"},
        }

        def values_by_store(freshness):
            def of(store):
                answer = app.test_client().get(f"/stores/{store}/keys?freshness={freshness}").get_json()
                return {row["key"]: row["value"] for row in answer["rows"]}

            return {store: of(store) for store in right}

        eventually(lambda: values_by_store("live") == right, 60)
        ingest.run(once=True)
        logged = {row["key"]: (row["_headers"], row["_timestamp_type"]) for row in rows(spark, ingest.changelog)}
        assert logged == {f"k{n}": (has, kind) for n, (_, has) in enumerate(HEADERS)}
        eventually(lambda: values_by_store("changelog") == right, 60)
        for merge in merges:
            merge.round()
        merged = {
            store: {row["key"]: row["value"] for row in rows(spark, f"{config.root}/state/{store}")} for store in right
        }
        assert merged == right
    finally:
        app.extensions["statehouse"].replica.stop()
