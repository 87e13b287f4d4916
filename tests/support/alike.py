"""Both halves on the same records, and where their answers differ."""

from __future__ import annotations

import json

from api import create_app
from api.replica import arrivals
from jobs.ingest import Ingest
from jobs.merge import Merge
from tests.support.records import SCHEMA, stamp
from tests.support.records import rows as stored

T0 = 1_700_000_000_000_000
KEYS = ("STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "DECIMAL")
# When a value changed is the wall clock's; the others are what tells the answers apart.
MARKS = ("changed_at", "provisional", "position")


def answers(client, config):
    """Every row of every store, as JSON."""
    found = {}
    for name in config.stores:
        answer = client.get(f"/stores/{name}/keys", headers={"Accept": "application/x-ndjson"})
        assert answer.status_code == 200, answer.text
        # As it is written: in Python -0.0 is 0.0, and 1.0 is 1.
        lines = [
            json.loads(line, parse_float=lambda text: ("number", text)) for line in answer.text.split("\n") if line
        ]
        found[name] = [{n: v for n, v in line.items() if n not in MARKS} for line in lines]
    return found


class Served:
    """The API on a lake; it follows when it is told to."""

    def __init__(self, config):
        quiet = config.model_copy(update={"api": config.api.model_copy(update={"freshness": "changelog"})})
        app = create_app(quiet)
        self.client, self.replica = app.test_client(), app.extensions["statehouse"].replica
        self.replica.stop()
        self.replica.refresh()


def differ(spark, config, records, first=b'{"id": 0}'):
    """Send records through both halves, behind one that is ``first``; fail at the first difference. The number of records that were
    taken."""
    stream = config.streams["s"]
    ingest, merges = Ingest(spark, config, stream), [Merge(spark, config, store) for store in config.stores.values()]
    rows = [
        (
            "t",
            0,
            offset,
            stamp(T0 + offset * 1000),
            None if key is None else key.encode(),
            value,
            [*headers.items()] or None,
        )
        for offset, (key, value, headers) in enumerate([(None, first, {}), *records])
    ]
    ingest.batch(spark.createDataFrame(rows[:1], SCHEMA))
    for merge in merges:
        merge.round()
    served = Served(config)
    before = served.replica._streams["s"].provisional
    sent = [(t, p, o, (T0 + o * 1000) // 1000, k, v, h) for t, p, o, _, k, v, h in rows[1:]]
    before.cover({0: 1})
    before.arrived(arrivals.table((*arrivals.record(*row), 0) for row in sent))
    ahead = answers(served.client, config)
    ingest.batch(spark.createDataFrame(rows, SCHEMA), here=len(rows) % 2 == 0)
    served.replica.refresh()
    same(ahead, answers(served.client, config), "by the changelog")
    kept = {
        r["offset"]: r["payload_bytes"] if r["payload"] is None else r["payload"].encode()
        for r in stored(spark, ingest.quarantine)
    }
    assert kept == {offset: rows[offset][5] for offset in kept}, "nothing of a refused record is lost"
    assert len(kept) == ingest.refused
    for merge in merges:
        merge.round()
    same(ahead, answers(Served(config).client, config), "after the merge")
    return ingest.events - 1


def same(one, other, when):
    for store, rows in one.items():
        for left, right in zip(rows, other[store], strict=False):
            assert left == right, (when, store)
        assert len(rows) == len(other[store]), (when, store)
