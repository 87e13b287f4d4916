"""A run that would find nothing new does not start Spark; and whatever is new, is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.idle import Idle
from jobs.load import load as load_file
from jobs.run import PARTS, Jobs
from statehouse.config.file import load
from statehouse.tables import table
from tests.support.records import create, produce, recreate

CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT", time: _timestamp}}
stores:
  total: {{stream: s, key: key, value: {value}, reduce: sum, publish: {{topic: {topic}-total}}}}
routes:
  out: {{from: s, select: [key, n], to: {{table: out}}}}
tasks: {{}}
"""


@pytest.mark.slow
def test_a_run_that_would_find_nothing_starts_no_spark(spark, broker, tmp_path):
    file, topic = tmp_path / "statehouse.yaml", f"idle-{tmp_path.name}"

    def config(value="n"):
        file.write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=topic, value=value))
        return load(file, {})

    def idle():
        return Idle(load(file, {}), PARTS).lasts()

    def run():
        Jobs(load(file, {})).run(once=True)

    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [("k", {"key": "k", "n": 1}, None, 0)])
    found = config()
    assert not idle(), "nothing has run"
    run()
    assert idle()
    assert not Idle(found, ("merge",)).lasts(), "another run's note"
    without_java = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("statehouse")), "run", "--once", "-c", str(file)]
    done = subprocess.run(command, env=without_java, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "nothing new" in done.stderr, done.stderr

    produce(broker.bootstrap, topic, [("k", {"key": "k", "n": 1}, None, 0)])
    assert not idle(), "an event"
    run()
    assert idle()
    rows = tmp_path / "more.jsonl"
    rows.write_text('{"key": "k", "n": 5}\n')
    load_file(spark, found, found.streams["s"], rows)
    assert not idle(), "a file"
    run()
    assert idle()
    config(value="2 * n")
    assert not idle(), "another rule"
    config()
    assert idle()
    noted = Idle(found, PARTS)
    noted.note(noted.changelogs(), due=time.time())
    assert not idle(), "a task that has fallen due"
    run()
    assert idle()
    recreate(broker.bootstrap, topic)
    assert not idle(), "another topic"


@pytest.mark.slow
def test_what_is_little_is_done_without_compiling_it(spark, broker, tmp_path, monkeypatch):
    file, topic = tmp_path / "statehouse.yaml", f"little-{tmp_path.name}"
    timed = CONFIG.replace("n BIGINT", "n BIGINT, at TIMESTAMP").replace("_timestamp", "at")
    file.write_text(timed.format(bootstrap=broker.bootstrap, topic=topic, value="n"))
    config = load(file, {})

    def event(key, n):
        return {"key": key, "n": n, "at": "2024-01-01T00:00:00Z"}

    def little():
        return Idle(load(file, {}), PARTS).is_little()

    create(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [(f"k{n % 3}", event(f"k{n % 3}", n), None, 0) for n in range(20)])
    assert not little(), "nothing has run: all may be much"
    Jobs(config).run(once=True)
    assert little()
    rows = tmp_path / "more.jsonl"
    rows.write_text("".join(json.dumps(event("k0", 1)) + "\n" for _ in range(4)))
    load_file(spark, config, config.streams["s"], rows)
    produce(broker.bootstrap, topic, [("k1", event("k1", 100), None, 0), ("k2", "not JSON", None, 0)])
    assert little()
    for most, expected in ((5, False), (6, True)):
        monkeypatch.setattr("jobs.idle.FEW", most)
        assert little() == expected, "four of a file, and two in Kafka"
    with monkeypatch.context() as patched:
        patched.setattr("jobs.idle.SMALL", 100)
        assert not little(), "a large state is read, and that is much"
    file.write_text(file.read_text().replace("key, value: n", "key, value: 2 * n"))
    assert not little(), "another rule folds all anew"
    file.write_text(file.read_text().replace("2 * n", "n"))

    # In a process of its own, whose Spark and whose Java have the settings.
    command = [str(Path(sys.executable).with_name("statehouse")), "run", "--once", "-c", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    totals = spark.read.format("delta").load(table(config, "state", "total")).select("key", "value").collect()
    assert {row["key"]: int(row["value"]) for row in totals} == {"k0": 63 + 4, "k1": 70 + 100, "k2": 57}
    assert spark.read.format("delta").load(table(config, "quarantine", "s")).count() == 1
    assert Idle(load(file, {}), PARTS).lasts()
