"""The real services, once a test run: a Spark session and an embedded Kafka."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess

import pytest

from statehouse.config.file import load
from statehouse.config.models import Config
from tests.support import balance, depth, slow
from tests.support.lakes import base, filled
from tests.support.records import free_port
from tests.support.services import tried

depth.load_profile()
# Of the processor's time that a JVM takes for the few steps of one test, half goes into compiling them for speed. So
# told, it keeps 48 MB of compiled code, which three tests fill: then it would throw away what it needs again. The
# session that all tests share lasts: after two minutes a round of merges takes it three quarters of the time.
ROOM = "-XX:ReservedCodeCacheSize=512m"
if not depth.FULL:
    os.environ.setdefault("JAVA_TOOL_OPTIONS", f"-XX:TieredStopAtLevel=1 {ROOM}")
__all__ = ["base", "filled", "tried"]  # fixtures


def pytest_configure(config: pytest.Config) -> None:
    """The clock of the tests that are not slow: in the process that hears of all of them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(slow.Clock())


@pytest.hookimpl(optionalhook=True)  # there may be no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Two processes share the work in groups."""
    return balance.scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, where processes share the work."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        balance.sort(items)


def pytest_collection_finish() -> None:
    """What there is by now stays: the API, which looks for garbage whenever it has read a version, need not look through all tests."""
    gc.collect()
    gc.freeze()


def _java() -> bool:
    try:
        return subprocess.run(["java", "-version"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture(scope="session")
def java():
    """Java, or a skip on a laptop without it; in CI a missing one is a failure."""
    if not _java():
        assert os.environ.get("CI") != "true", "CI needs Java 17+"
        pytest.skip("needs Java 17+")


@pytest.fixture(scope="session")
def spark(java, tmp_path_factory):
    """One session for the run, or for each of its processes: UTC, no UI; two cores, or one where two processes share them."""
    from jobs.spark.session import ADAPTIVE, session
    from tests.support.ivy import alone

    for noisy in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    cores = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
    with alone(), pytest.MonkeyPatch.context() as compiled:
        compiled.setenv("JAVA_TOOL_OPTIONS", ROOM)
        # Tests have few rows. The jobs that they start as processes of their own adapt their plans, as all do.
        shared = session("tests", log, **{"spark.master": f"local[{cores}]", ADAPTIVE: "false"})
    shared.sparkContext.setLogLevel("ERROR")
    return shared


@pytest.fixture(scope="session")
def broker(java, tmp_path_factory):
    """One real Kafka for the run."""
    from demo.broker import Broker

    with Broker(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def lake(tmp_path):
    """A function that writes a statehouse.yaml beside a fresh ``root`` and loads it."""

    def make(text: str, bootstrap: str = "127.0.0.1:1") -> Config:
        file = tmp_path / "statehouse.yaml"
        file.write_text(f"root: ./lake\nkafka:\n  bootstrap.servers: {bootstrap}\n{text}")
        return load(file, {})

    yield make
    shutil.rmtree(tmp_path / "lake", ignore_errors=True)


@pytest.fixture
def unused_tcp_port():
    """A loopback port that was free a moment ago."""
    return free_port()
