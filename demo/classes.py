"""Make the archive of Spark's classes (:mod:`jobs.spark.class_archive`) where the user has none for these versions yet:
``python -m demo.classes``, called by ``make demo`` and ``make test``; ``--again`` makes it anew.

A few events go through an embedded Kafka and all of the jobs, and what the JVM has loaded by then is the archive.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark import SparkContext

from demo.broker import Broker
from jobs.run import Jobs
from jobs.spark.class_archive import Archive
from jobs.spark.class_archive import archive as archive_of
from jobs.spark.session import defaults, session
from statehouse import kafka
from statehouse.config.file import load
from statehouse.headers import OP_HEADER

EVENTS = 1000
CONFIG = """
root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  s: {{topic: t, schema: "key STRING, agent STRING, n BIGINT, ts TIMESTAMP", time: ts}}
stores:
  total: {{stream: s, key: key, value: n, reduce: sum, publish: told}}
  status: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority}}
routes:
  sent: {{from: s, select: [key, n], to: {{topic: sent, key: key}}}}
  kept: {{from: s, select: [key, n], to: {{table: kept}}}}
"""


def main(again: bool = False) -> None:
    """Make the archive if it is not there, or ``again``. A second process waits for the first one, which makes it."""
    settings = {**defaults(), "spark.master": f"local[{os.cpu_count()}]"}
    archive = archive_of(settings)
    if archive.complete and not again:
        return
    archive.folder.parent.mkdir(parents=True, exist_ok=True)
    with archive.folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if again or not archive.complete:
            print("making an archive of the classes that Spark loads, so that jobs start faster; a minute, once ...")
            make(archive, settings)


def make(archive: Archive, settings: dict[str, str]) -> None:
    """Lay out the jars, then run jobs with them in a JVM that writes down what it has loaded."""
    with tempfile.TemporaryDirectory() as name, Broker(Path(name) / "kafka") as broker:
        folder, part = Path(name), archive.classes.with_suffix(".part")
        archive.classes.unlink(missing_ok=True)  # from now on nobody takes it
        jars = (
            session("classes", folder / "spark.log", **settings).sparkContext.getConf().get("spark.jars", "").split(",")
        )
        end()
        archive.lay_out([Path(jar.removeprefix("file://")) for jar in jars])
        os.environ["SPARK_HOME"] = str(archive.home)
        session("classes", folder / "spark.log", **archive.settings(settings, f"-XX:ArchiveClassesAtExit={part}"))
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
        kafka.create_topic({"bootstrap.servers": broker.bootstrap}, "t")
        config = load(folder / "statehouse.yaml", {})
        for _ in range(2):  # the second merge has a state to go on from
            send(broker.bootstrap)
            Jobs(config).run(once=True)
        end()
        part.rename(archive.classes)


def send(bootstrap: str) -> None:
    """Some events of each kind."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(EVENTS):
        key = f"k{n % 100}"
        event = {"key": key, "agent": f"a{n % 7}", "n": n, "ts": f"2024-05-01T{n % 24:02}:00:00Z"}
        producer.produce("t", key=key, value=json.dumps(event) if n % 50 else "none")
        if n % 60 == 0:
            producer.produce("t", key="k1", headers={OP_HEADER: b"purge"})
    producer.flush(30)


def end() -> None:
    """End Spark and its JVM, and wait for it."""
    gateway: Any = SparkContext._gateway
    session("classes").stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(300)  # it writes the archive now
    SparkContext._gateway = SparkContext._jvm = None


if __name__ == "__main__":
    main(again="--again" in sys.argv[1:])
