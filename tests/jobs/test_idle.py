"""A run that would find nothing new does not start Spark; and whatever is new, is seen."""

from __future__ import annotations

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
