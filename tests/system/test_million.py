"""Events in a random order, in random batches, through a real Kafka and `statehouse run` processes that are killed, against
one run in the order of events: the same states, row for row, and the oracle's.

At full depth only, with a million events, twenty batches and five kills: `test_crash.py` has fewer of each.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pyspark.sql import functions as F

from jobs.recover import recover
from statehouse import kafka
from statehouse.config.file import load
from statehouse.tables import metadata
from tests.support.depth import deep
from tests.support.million import CONFIG, EVENTS, REDUCE, drawn, producer_of, right, send_all
from tests.support.processes import statehouse
from tests.support.records import wait

BATCHES, KILLS = 20, 5


def lake_of(folder, bootstrap, topic):
    folder.mkdir()
    (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=bootstrap, topic=topic))
    config = load(folder / "statehouse.yaml", {})
    kafka.create_topic(config.kafka, topic)
    return config


def shuffled_and_killed(folder, config, events, dice):
    """The first lake: batch after batch is sent and ingested, and in some of them the process is killed."""
    shuffled = dice.sample(events, len(events))
    cuts = [0, *sorted(dice.sample(range(1, EVENTS), BATCHES - 1)), EVENTS]
    fatal = set(dice.sample(range(BATCHES), KILLS))
    producer = producer_of(config.kafka["bootstrap.servers"])
    command = [sys.executable, "-m", "statehouse.cli", "run"]
    process, killed = None, 0
    with open(folder / "run.log", "ab") as log:
        for number in range(BATCHES):
            process = process or subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            send_all(producer, config.streams["s"].topic, shuffled[cuts[number] : cuts[number + 1]], dice)
            if number in fatal:
                time.sleep(dice.uniform(0.1, 12))  # anywhere from its start to well into the merges
                process.send_signal(signal.SIGKILL)
                process.wait()
                process, killed = None, killed + 1
                if killed == 1:
                    shutil.rmtree(f"{config.root}/_checkpoints", ignore_errors=True)
                continue

            def ingested(sent=cuts[number + 1], process=process):
                assert process.poll() is None, (folder / "run.log").read_text()[-3000:]
                kept = metadata(f"{config.root}/changelog/s", "offsets")
                return kept and sum(kept["offsets"].values()) == sent

            wait(ingested, 300, 0.2, "the batch in the changelog")
        if process:
            process.terminate()
            assert process.wait(120) == 0
    assert killed == KILLS
    statehouse(folder, "run", "--once")


def comparable(spark, config, store):
    """A state's rows without what is outside the law, and with orders as times: the coordinates differ between the topics,
    and no two events have the same time."""
    rows = spark.read.format("delta").load(f"{config.root}/state/{store}").drop("changed_at")
    made = []
    for field in rows.schema:
        if field.dataType.simpleString() == "decimal(38,0)" and field.name in ("reset", "_first", "_last"):
            made.append(F.expr(f"CAST({field.name} / 100000000000000000000 AS BIGINT) AS {field.name}"))
        elif field.name == "reports":
            made.append(F.expr("array_sort(transform(map_entries(reports), r -> struct(r.key, r.value.value, r.value.event_time))) AS reports"))  # fmt: skip
        else:
            made.append(F.col(field.name))
    return rows.select(*made)


@deep
@pytest.mark.slow
@pytest.mark.crash
def test_random_order_batches_and_kills_give_the_same_rows_as_one_run_in_order(broker, spark, tmp_path):
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    dice, events = random.Random(seed), list(drawn(seed))
    one = lake_of(tmp_path / "one", broker.bootstrap, f"ordered-{os.getpid()}")
    producer = producer_of(broker.bootstrap)
    send_all(producer, one.streams["s"].topic, events, dice)
    statehouse(tmp_path / "one", "run", "--once")
    other = lake_of(tmp_path / "other", broker.bootstrap, f"shuffled-{os.getpid()}")
    shuffled_and_killed(tmp_path / "other", other, events, dice)
    for config in (one, other):
        assert spark.read.format("delta").load(f"{config.root}/changelog/s").count() == EVENTS, "each event once"
    for store in REDUCE:
        a, b = comparable(spark, one, store), comparable(spark, other, store)
        assert a.count() == b.count() > 0
        assert a.exceptAll(b).count() == b.exceptAll(a).count() == 0, store
        start = "unix_micros(window_start)" if store == "hours" else "CAST(NULL AS BIGINT)"
        table = spark.read.format("delta").load(f"{other.root}/state/{store}").selectExpr("key", start, "value")
        found = {r[0] if r[1] is None else (r[0], r[1]): r[2] for r in table.collect()}
        assert found == right(events, store), store
    for store in REDUCE:  # and folded anew from the changelog they are what they were
        before = comparable(spark, other, store).localCheckpoint()
        found = recover(spark, other, other.stores[store])
        assert (found.added, found.gone, found.changed, found.swapped) == (0, 0, 0, True)
        after = comparable(spark, other, store)
        assert before.exceptAll(after).count() == after.exceptAll(before).count() == 0, store
