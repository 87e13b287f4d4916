"""Transactions: what one has committed counts, what one has aborted is nowhere, and the offsets of markers and of what was aborted are no gap."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from jobs import metrics
from jobs.ingest import Ingest
from statehouse.kafka import end_offsets
from statehouse.status import stream_status
from statehouse.tables import metadata, opened
from tests.support.api_lake import eventually
from tests.support.depth import first
from tests.support.houses import CONFIG, House, Writer
from tests.support.records import rows

PARTITIONS = 2


@pytest.fixture
def house(spark, broker, lake):
    made = House(spark, broker, lake, PARTITIONS)
    yield made
    made.close()


def totals(events):
    """The oracle."""
    found = Counter()
    for key, n, _ in events:
        found[key] += n
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("example", first(1, range(2)))
def test_what_was_committed_counts_whatever_the_order(house, broker, example):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    writers, counted = [Writer(broker, house.topic) for _ in range(3)], []
    for step in range(30):
        events = [(f"k{dice.randrange(5)}", dice.randrange(1, 100), dice.randrange(PARTITIONS)) for _ in range(3)]
        writer = dice.choice(writers)
        if dice.random() < 0.2:
            house.send(*events)
            counted += events
        elif writer.events is None:
            writer.begin()
            writer.write(*events)
        elif dice.random() < 0.4:
            writer.write(*events)
        else:
            counted += writer.end(dice.random() < 0.5)
        if step in (10, 20):
            house.once()
    for writer in writers:
        if writer.events is not None:
            counted += writer.end(commit=False)
    # At its end the topic has markers only, and what was aborted.
    writers[0].begin()
    writers[0].write(*[("k0", 1000, partition) for partition in range(PARTITIONS)])
    writers[0].end(commit=False)
    eventually(lambda: house.shown("live") == totals(counted))
    eventually(lambda: house.live()["behind"] == 0)
    progress = house.query()
    assert house.merged() == totals(counted)
    ends = {name: json.dumps(progress["sources"][0][name]) for name in ("endOffset", "latestOffset")}
    assert metrics.behind([SimpleNamespace(**ends)]) == 0, "as Spark's listener is told"
    eventually(lambda: house.shown("changelog") == totals(counted))
    eventually(lambda: house.live()["pending"] == 0)
    assert house.shown("live") == totals(counted) and house.behind() == (0, 0)
    status = stream_status(house.config, "s")
    assert (status["events"], status["quarantined"]) == (len(counted), 0)


def test_an_open_transaction_is_not_behind_and_markers_are_one_commit(house, broker):
    house.send(("a", 1, 0))
    writer = Writer(broker, house.topic)
    writer.begin()
    writer.write(("a", 10, 0), ("a", 20, 0))
    house.send(("a", 100, 0))  # behind the open one
    eventually(lambda: house.shown("live") == {"a": 1})
    house.once()
    eventually(lambda: house.live()["pending"] == 0)
    assert house.merged() == house.shown("live") == {"a": 1} and house.behind() == (0, 0)
    writer.end(commit=False)
    eventually(lambda: house.shown("live") == {"a": 101})
    house.once()
    assert house.merged() == {"a": 101}
    writer.begin()
    writer.write(("a", 1000, 1))
    writer.end(commit=False)  # of partition 1 there is nothing else
    eventually(lambda: house.live()["offsets"] == {"0": 5, "1": 2})
    version = opened(house.ingest.changelog).version()
    house.once()
    assert metadata(house.ingest.changelog, "offsets")["offsets"] == {"0": 5, "1": 2}
    assert opened(house.ingest.changelog).version() == version + 1
    house.once()
    assert opened(house.ingest.changelog).version() == version + 1, "a topic without news has no commits"
    assert house.behind() == (0, 0)
    # An offset that has no record is read when what comes after it is.
    token = f"{house.topic}:1:1"
    assert house.client.get(f"/stores/total/keys/a?after={token}&timeout=20").get_json()["value"] == 101


def test_uncommitted_events_count_where_the_file_says_so(spark, broker, lake):
    house = House(spark, broker, lake, PARTITIONS, kafka="  isolation.level: read_uncommitted")
    try:
        writer = Writer(broker, house.topic)
        writer.begin()
        writer.write(("a", 1, 0))
        writer.end(commit=False)
        writer.begin()
        writer.write(("a", 10, 0))
        eventually(lambda: house.shown("live") == {"a": 11})
        house.once()
        assert house.merged() == {"a": 11} and house.behind() == (0, 0)
        # Read as committed from here on: the position is amid a transaction, and nothing comes twice.
        text = CONFIG.format(kafka="", topic=house.topic)
        ingest = Ingest(spark, lake(text, broker.bootstrap), house.config.streams["s"])
        assert end_offsets(ingest.config.kafka, house.topic)[0][1] < ingest.offsets[0]
        assert stream_status(ingest.config, "s")["behind"] == 0
        ingest.run(once=True)
        writer.end(commit=True)
        house.send(("a", 100, 0))
        ingest.run(once=True)
        house.merge()
        assert house.merged() == {"a": 111} and len(rows(spark, ingest.changelog)) == 3
    finally:
        house.close()
