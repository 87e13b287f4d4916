"""The Spark session that every job runs in, and the lock that keeps a lake to one writer a job."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from pyspark import java_gateway
from pyspark.sql import DataFrame, SparkSession

from jobs.spark import databricks
from jobs.spark.class_archive import OPTIONS, archive_for
from statehouse import stopping
from statehouse.config.models import Config
from statehouse.errors import LakeBusy
from statehouse.places import spark_settings

DEFAULTS = "spark-defaults.conf"
ADAPTIVE = "spark.sql.adaptive.enabled"  # plan a query again after each stage: of few rows there is nothing to adapt to


def defaults() -> dict[str, str]:
    """The settings of ``spark-defaults.conf``: the working directory's, else the one beside the ``jobs`` folder."""
    here = Path(DEFAULTS)
    file = here if here.is_file() else Path(__file__).parents[2] / DEFAULTS
    lines = (line.strip() for line in file.read_text().splitlines())
    return dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))


def brief() -> dict[str, str]:
    """Settings of a session for a few events. Their plans take longer to compile than to interpret, also by Java, which has its first
    compiler only. And each commit leaves a checksum: without that of the one before, a process computes it of the whole log when it first
    writes to a table; one that lives on has it in memory."""
    options = f"{defaults().get(OPTIONS, '')} -XX:TieredStopAtLevel=1"
    return {
        ADAPTIVE: "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.databricks.delta.writeChecksumFile.enabled": "true",
        "spark.databricks.delta.allFilesInCrc.enabled": "false",
        OPTIONS: options,
    }


def session(app: str, log: Path | None = None, root: str = "", **settings: str) -> SparkSession:
    """The running session, or a new local one with :func:`defaults`, what a ``root`` needs, and ``settings`` on top.

    Under ``spark-submit`` there is a master already: it is kept, and so is what was set there. For Databricks see
    :mod:`jobs.spark.databricks`.
    ``log`` is where the noise of Spark and of its JVM goes.
    """
    if databricks.here():
        return databricks.session(root)
    if active := SparkSession.getActiveSession():
        return active
    options: dict[str, Any] = defaults()
    options |= {**spark_settings(root, options.get("spark.jars.packages", "")), **settings}
    archive = None
    if "SPARK_ENV_LOADED" not in os.environ and "PYSPARK_GATEWAY_PORT" not in os.environ:
        options.setdefault("spark.master", f"local[{os.cpu_count()}]")
        if options["spark.master"].startswith("local"):
            archive = archive_for(options)
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # which has what the workers need
            options.setdefault("spark.python.daemon.module", "jobs.spark.daemon")
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        options.setdefault("spark.sql.warehouse.dir", str(log.parent / "warehouse"))  # not a folder wherever one stands
    # pyspark imports it with the first rows that it is given, which takes as long as the JVM does to start.
    threading.Thread(target=importlib.import_module, args=("pandas",)).start()
    builder = SparkSession.builder.appName(app)
    for name, value in (archive.settings(options) if archive else options).items():
        builder = builder.config(name, value)
    # The JVM is started here and keeps these as its own.
    home, console = _home(archive.home) if archive else nullcontext(), _Redirection(log) if log else nullcontext()
    with _own_jvm(), home, console:
        spark = builder.getOrCreate()
    # It would print a stack where the JVM ends first, as it does when this process waits for it.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore
    return spark


def sql(spark: SparkSession, query: str, **views: DataFrame) -> DataFrame:
    """The result of a query that names frames. The names become temporary views of the session: one thread at a time may do that."""
    for name, frame in views.items():
        frame.createOrReplaceTempView(name)
    return spark.sql(query)


def observed(rows: DataFrame, name: str) -> Any:
    """The row of metrics that was observed under a name while the plan of some rows ran; None where the plan has no such part, as Spark
    leaves one out that has no rows. (A lost executor may have counted some twice.)"""
    # Not by an Observation: that waits for a listener, and for good where the plan is of SQL.
    row = rows._jdf.queryExecution().observedMetrics().get(name)
    return row.get() if row.isDefined() else None


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Spark is started from a folder; what this process starts afterwards is not."""
    os.environ["SPARK_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


@contextmanager
def _own_jvm() -> Iterator[None]:
    """The JVM that is started meanwhile is a :class:`_Jvm`."""
    java_gateway.Popen = _Jvm  # type: ignore
    try:
        yield
    finally:
        java_gateway.Popen = subprocess.Popen  # type: ignore


class _Jvm(subprocess.Popen):
    """Spark's JVM. Signals that are sent to all processes at once are for Python, which finishes what is in hand; the JVM ends with
    it, however that ends, as it reads its pipe. (pyspark keeps Ctrl-C from it only.)"""

    def __init__(self, command: list[str], **settings: Any) -> None:
        stopping.children.append(self)
        super().__init__(command, **{**settings, "preexec_fn": _ignore_signals})


def _ignore_signals() -> None:
    for number in stopping.SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class _Redirection:
    """File descriptors 1 and 2 point at a file, for what a child process inherits."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> None:
        self.saved = os.dup(1), os.dup(2)
        target = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.close(target)

    def __exit__(self, *_: object) -> None:
        for saved, own in zip(self.saved, (1, 2), strict=True):
            os.dup2(saved, own)
            os.close(saved)


def new_session(spark: SparkSession) -> SparkSession:
    """A session of its own, so that its settings are no one else's (``txnAppId`` must never leak)."""
    return databricks.prepare(spark.newSession())


@contextmanager
def lock(spark: SparkSession, config: Config, name: str, patience: float = 20.0) -> Iterator[None]:
    """Hold the lake's lock ``name``; wait ``patience`` seconds for another holder, then LakeBusy.

    The JVM holds it and not Python: after a ``kill -9`` of Python the JVM may still be finishing a commit, and
    a successor must not read the position before that. Only on a file system; an object store has no locks, and
    there one writer a lake is the operator's duty.
    """
    if databricks.has_no_locks(config.root):
        yield
        return
    file = Path(config.root) / "_locks" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    java: Any = spark._jvm.java.io.RandomAccessFile(str(file), "rw")  # type: ignore[union-attr]
    try:
        channel, until = java.getChannel(), time.monotonic() + patience
        while not _try_lock(channel, config, name):
            if time.monotonic() > until:
                raise LakeBusy(
                    f"{config.root}: another process runs '{name}' on this lake; one writer a table: stop it first"
                )
            time.sleep(0.2)
        yield
    finally:
        java.close()


def _try_lock(channel: Any, config: Config, name: str) -> bool:
    try:
        return channel.tryLock() is not None
    except Exception as error:  # this very JVM holds it
        raise LakeBusy(f"{config.root}: '{name}' runs twice in one process") from error
