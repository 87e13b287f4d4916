"""Published stores: a compacted topic that has, of each key, what the state has."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from urllib.parse import quote

import pytest

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.publish import Publisher
from jobs.recover import recover
from statehouse.config.file import load
from statehouse.errors import ConfigError
from statehouse.tables import position
from tests.support.depth import deep
from tests.support.lakes import drawn, merged
from tests.support.records import SCHEMA, rows
from tests.support.topics import messages

CONFIG = """
streams:
  s:
    topic: t
    schema: key STRING, agent STRING, n BIGINT, ts TIMESTAMP
    time: ts
stores:
  total: {{stream: s, key: key, value: n, reduce: sum, publish: {topic}-total}}
  votes: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority, publish: {{topic: {topic}-votes, where: value > 0}}}}
  hours: {{stream: s, key: key, value: n, window: 1 hour, reduce: count, publish: {topic}-hours}}
  pairs: {{stream: s, key: [key, "concat(agent, '/ ', n) AS which"], value: n, reduce: latest, publish: {topic}-pairs}}
"""
VISIBLE = {"votes": lambda row: row["value"] > 0}


class Published:
    """A lake, its topics, and what is right."""

    def __init__(self, spark, config, bootstrap):
        self.spark, self.config, self.bootstrap, self.offset = spark, config, bootstrap, 0
        self.seen = set()  # messages

    def more(self, seed, count=30, resets=True):
        records, _ = drawn(seed, count, first=self.offset, resets=resets)
        self.offset += count
        Ingest(self.spark, self.config, self.config.streams["s"]).batch(self.spark.createDataFrame(records, SCHEMA))

    def merge(self, *stores):
        merged(self.spark, self.config, *stores)

    def round(self, store):
        return Publisher(self.spark, self.config, self.config.stores[store]).round()

    def right(self, store):
        """Value and time of each key of the state that is to be seen."""
        made = {}
        for row in rows(self.spark, f"{self.config.root}/state/{store}"):
            names = [k.name for k in self.config.stores[store].keys]
            parts = [row[n] for n in names]
            if "window_start" in row:
                parts.append(row["window_start"].isoformat() + "Z")
            key = "/".join(quote(p, safe="") for p in parts) if len(parts) > 1 else parts[0]
            if VISIBLE.get(store, lambda _: True)(row):
                made[key] = row["value"]
        return made

    def checked(self, store):
        """The topic has what the state has; the messages since the last look."""
        last, new = {}, []
        for m in messages(self.bootstrap, self.config.stores[store].publish.topic):
            key, value = m.key().decode(), m.value() and json.loads(m.value())
            last[key] = value
            if (place := (m.topic(), m.partition(), m.offset())) not in self.seen:
                self.seen.add(place)
                new.append((key, value))
        assert {key: value["value"] for key, value in last.items() if value} == self.right(store)
        return new


@pytest.fixture
def told(lake, broker, spark):
    topic = f"told-{os.getpid()}-{random.randrange(10**9)}"
    return Published(spark, lake(CONFIG.format(topic=topic), broker.bootstrap), broker.bootstrap)


@pytest.mark.slow
def test_the_topic_has_what_the_state_has_and_a_message_only_where_a_value_changed(told):
    before = {store: {} for store in ("votes", "hours", "pairs")}
    for seed in (random.randrange(10**6), 2, 3):
        told.more(seed, resets=seed == 3)
        if seed == 2:
            continue  # two merges in one round
        told.merge(*before)
        for store in before:
            done, now = told.round(store), told.right(store)
            new = told.checked(store)
            was = before[store]
            assert len(new) == done.count == len({k for k, _ in new}), "one message a key"
            assert {k for k, _ in new} == {k for k in {*was, *now} if was.get(k) != now.get(k)}
            for key, value in new:
                if value:
                    assert value["position"] == position(f"{told.config.root}/state/{store}")
                    assert key.startswith(value["key"]) and value["event_time"] and value["changed_at"]
            before[store] = now
            assert told.round(store) is None


@pytest.mark.slow
def test_after_a_crash_a_lost_position_or_a_lost_feed_the_topic_is_right(told, monkeypatch):
    told.more(5)
    told.merge("total")
    told.round("total")
    told.checked("total")
    told.more(6, resets=False)
    told.merge("total")
    with monkeypatch.context() as patch:  # between the messages and the position
        patch.setattr("jobs.spark.position.Position.move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            told.round("total")
    told.more(7, resets=False)
    told.merge("total")
    told.round("total")
    told.checked("total")
    shutil.rmtree(f"{told.config.root}/positions")
    assert told.round("total").count == 0 and not told.checked("total"), "what is there is not sent again"
    told.more(8)  # some purges
    told.merge("total")

    def lost(*_):
        raise RuntimeError("[DELTA_MISSING_CHANGE_DATA]")

    with monkeypatch.context() as patch:
        patch.setattr("jobs.spark.change_feed.changes", lost)
        assert told.round("total").count
    assert told.checked("total")


@pytest.mark.slow
def test_a_state_that_was_recovered_under_another_rule_is_told(told, tmp_path):
    told.more(9)
    told.merge("votes")
    told.round("votes")
    told.checked("votes")
    text = (tmp_path / "statehouse.yaml").read_text().replace("value: n % 3", "value: n % 3 + 2")
    (tmp_path / "statehouse.yaml").write_text(text)
    told.config = load(tmp_path / "statehouse.yaml", {})
    recover(told.spark, told.config, told.config.stores["votes"], swap=True)
    told.round("votes")
    assert told.checked("votes")
    (tmp_path / "statehouse.yaml").write_text(text.replace("where: value > 0", "where: value < 0"))
    told.config = load(tmp_path / "statehouse.yaml", {})
    VISIBLE["votes"] = lambda row: row["value"] < 0
    try:
        told.round("votes")
        assert told.checked("votes")
        told.more(10, resets=False)
        Merge(told.spark, told.config, told.config.stores["votes"]).round()
        told.round("votes")
        told.checked("votes")
    finally:
        VISIBLE["votes"] = lambda row: row["value"] > 0


@deep
def test_a_store_that_is_published_later_has_its_feed_from_then_on(told, tmp_path):
    text = (tmp_path / "statehouse.yaml").read_text()
    topic = told.config.stores["total"].publish.topic
    (tmp_path / "statehouse.yaml").write_text(text.replace(f", publish: {topic}", ""))
    published, told.config = told.config, load(tmp_path / "statehouse.yaml", {})
    told.more(11)
    told.merge("total")
    told.config = published
    told.round("total")  # before the merge knows of it
    told.checked("total")
    for seed in (12, 13):
        told.more(seed)
        told.merge("total")
        assert told.round("total").count
        told.checked("total")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("publish: t", "stores.wrong.publish: found 't', expected another topic"),
        ("publish: {topic: x, where: n > 1}", "stores.wrong.publish.where: found 'n > 1': .*UNRESOLVED_COLUMN"),
        (
            "publish: {topic: x, where: value}",
            "stores.wrong.publish.where: found 'value' of type BIGINT, expected a BOOLEAN",
        ),
        ("publish: {to: x}", "stores.wrong.publish.topic: found no 'topic', expected one"),
    ],
)
def test_what_cannot_be_published_is_said(spark, lake, found, said):
    text = CONFIG.format(topic="x") + "  wrong: {stream: s, key: key, value: n, reduce: sum, " + found + "}"
    try:
        wrong = problems(spark, lake(text))
    except ConfigError as error:
        assert re.search(said, str(error))
    else:
        ((where, message),) = wrong
        assert re.search(said, ".".join(where) + ": " + message)
