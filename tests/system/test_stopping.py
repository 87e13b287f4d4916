"""`run`, `serve` and `broker` as processes of their own, stopped at several moments by a signal to all of their group."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from py4j import java_gateway

from statehouse import logs
from tests.support.processes import kill_all, session_of
from tests.support.records import wait

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
CONFIG = """root: ./lake
kafka: {bootstrap.servers: "127.0.0.1:1"}
streams: {s: {topic: t, schema: "key STRING, n BIGINT, ts TIMESTAMP", time: ts}}
stores: {total: {stream: s, key: key, value: n, reduce: sum}}
"""
READY = {"serve": b"serving on", "broker": b"bootstrap.servers="}
PORT = {"serve": ["--port", "0"], "broker": ["--port", "0"]}


def catches(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def children(pid: int) -> str:
    return "".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "moment", "number"),
    [
        *((command, "begun", signal.SIGTERM) for command in ("run", "serve", "broker")),
        ("run", "child", signal.SIGTERM),  # before Spark is up
        ("serve", "child", signal.SIGINT),
        ("serve", "ready", signal.SIGTERM),
        ("serve", "resumed", signal.SIGTERM),  # another thread than the main one is given it
        ("broker", "child", signal.SIGTERM),
        ("broker", "ready", signal.SIGINT),
    ],
)
def test_a_signal_to_all_of_a_command_ends_it_with_0_and_leaves_no_process(java, tmp_path, command, moment, number):
    (tmp_path / "statehouse.yaml").write_text(CONFIG)
    words = [sys.executable, "-m", "statehouse.cli", command, *PORT.get(command, [])]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)

    def reached() -> bool:
        assert process.poll() is None, (tmp_path / "log").read_text()
        if moment in ("ready", "resumed"):
            return READY[command] in (tmp_path / "log").read_bytes()
        return bool(children(process.pid)) if moment == "child" else catches(process.pid)

    try:
        wait(reached, what=f"{command} {moment}")
        for each in (signal.SIGSTOP, signal.SIGCONT, number) if moment == "resumed" else ():
            os.kill(process.pid, each)  # to it alone: the end of a worker would be noticed
        if moment != "resumed":
            os.killpg(process.pid, number)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
        assert "Traceback" not in (tmp_path / "log").read_text()
        wait(lambda: not session_of(process.pid), seconds=5, what="the end of all its processes")
    finally:
        kill_all(process)


@pytest.mark.slow
def test_spark_ends_with_its_python_whatever_ends_that(java, tmp_path):
    (tmp_path / "statehouse.yaml").write_text(CONFIG)
    with (tmp_path / "log").open("wb") as log:
        words = [sys.executable, "-m", "statehouse.cli", "check"]
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        wait(lambda: children(process.pid), what="Spark's JVM")
        [jvm] = map(int, children(process.pid).split())
        wait(lambda: b"java" in Path(f"/proc/{jvm}/cmdline").read_bytes().split(b"\0")[0], what="Java itself")
        os.kill(jvm, signal.SIGTERM)  # as what is sent to all processes of a unit: it takes no notice
        process.kill()
        process.wait()
        assert session_of(process.pid) == [jvm]
        wait(lambda: not session_of(process.pid), seconds=60, what="the end of Spark's JVM")
    finally:
        kill_all(process)


def test_what_py4j_logs_where_its_jvm_has_ended_is_not_shown(caplog):
    logs.to_stderr()
    said = logging.LogRecord(
        "root", logging.ERROR, java_gateway.__file__, 1, "Exception while sending command.", (), None
    )
    logging.getLogger().handle(said)
    logging.getLogger().error("said by another")
    assert caplog.messages == ["said by another"]
