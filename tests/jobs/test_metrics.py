"""The jobs' ``/metrics``: of `statehouse run` on a real topic, and where its address is taken."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from jobs.run import Jobs
from tests.support.records import produce, wait

CONFIG = """
jobs: {{metrics: 127.0.0.1:{port}}}
merge_every: 100 milliseconds
streams:
  counted: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
  idle: {{topic: {topic}-idle, schema: "key STRING"}}
stores:
  counted_total: {{stream: counted, key: key, value: n, reduce: sum}}
"""


@pytest.mark.slow
def test_a_run_counts_what_it_commits(spark, broker, lake, caplog):
    """In this process, whose numbers are those of all its runs: the streams and the store have names of their own."""
    topic = f"metrics-{os.getpid()}"
    produce(broker.bootstrap, topic, [("k", {"key": "k", "n": n}, None, n % 2) for n in range(7)])
    produce(broker.bootstrap, topic, [("k", b"rubbish", None, 0)] * 2)
    began = time.time()
    with caplog.at_level("INFO", "statehouse"):
        jobs = Jobs(lake(CONFIG.format(port=0, topic=topic), broker.bootstrap))
    url = re.search(r"http://127.0.0.1:\d+/metrics", caplog.text)[0]

    def value(name, **labels):
        found = text_string_to_metric_families(requests.get(url, timeout=5).text)
        return {s.name: s.value for f in found for s in f.samples if s.labels == labels}.get(name)

    assert value("statehouse_events_total", stream="counted") == 0, "there from the start"
    assert value("statehouse_merge_seconds_count", store="counted_total") == 0
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(jobs.run)
        try:
            wait(lambda: value("statehouse_merged_events_total", store="counted_total") == 7, 120, what="the merge")
            assert value("statehouse_events_total", stream="counted") == 7
            assert value("statehouse_quarantined_total", stream="counted") == 2
            assert value("statehouse_merge_seconds_count", store="counted_total") >= 1
            assert 0 < value("statehouse_merge_seconds_sum", store="counted_total") < 120
            wait(lambda: value("statehouse_offsets_behind", stream="counted") == 0, what="Spark's report")
            assert value("statehouse_batch_seconds_count", stream="counted") >= 1
            assert 0 < value("statehouse_batch_seconds_sum", stream="counted") < 120
            assert began < value("statehouse_progress_timestamp_seconds", stream="counted") <= time.time()
            wait(lambda: value("statehouse_progress_timestamp_seconds", stream="idle"), what="a report of no news")
            assert value("statehouse_batch_seconds_count", stream="idle") == 0
            produce(broker.bootstrap, topic, [("k", {"key": "k", "n": 1}, None, 0)])
            wait(lambda: value("statehouse_events_total", stream="counted") == 8, what="one more")
        finally:
            jobs.stop()
        running.result(120)
    with pytest.raises(requests.ConnectionError):
        value("statehouse_events_total", stream="counted")


def test_an_address_that_is_taken_is_said_before_spark_is_started(lake, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        lake(CONFIG.format(port=port, topic="t"))
        command = [sys.executable, "-m", "statehouse.cli", "merge", "--once"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"jobs.metrics: found 127.0.0.1:{port}, which cannot be listened on: Address already in use" in done.stderr
    assert "starting Spark" not in done.stderr


@pytest.mark.parametrize(
    ("ended", "latest", "ahead"),
    [
        ('{"t": {"0": 5, "1": 2}}', '{"t": {"0": 9, "1": 2}}', 4),
        ('{"t": {"0": 5}}', '{"t": {"0": 5, "1": 3}}', 3),  # a partition that was added
        ('{"t": {"0": 5}}', '{"t": {"0": 4}}', 0),
        ('{"t": {"0": 5}}', None, None),
        ("null", '{"t": {"0": 4}}', 4),
    ],
)
def test_how_far_a_batch_is_behind(java, ended, latest, ahead):
    from types import SimpleNamespace

    from jobs.metrics import behind

    assert behind([SimpleNamespace(endOffset=ended, latestOffset=latest)]) == ahead
