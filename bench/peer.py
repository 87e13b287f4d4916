"""Kafka Streams, for comparison in the same run: ``Peer.java`` and ``PeerReads.java``, its jars fetched once with pyspark's Ivy
(93 MB)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from bench.recovery import watched
from demo.jars import KAFKA

CACHE = Path.home() / ".cache" / "statehouse" / f"kafka-streams-{KAFKA}"
GUARANTEES = ("exactly_once_v2", "at_least_once")


def jars() -> Path:
    """The folder of its jars; fetches them where they are missing."""
    if not CACHE.is_dir():
        work = CACHE.with_suffix(".part")
        work.mkdir(parents=True, exist_ok=True)
        ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
        wanted = f"-dependency org.apache.kafka kafka-streams {KAFKA} -confs default -types jar bundle".split()
        words = ["-cache", "cache", *wanted, "-retrieve", "jars/[artifact]-[revision].[ext]"]
        subprocess.run(["java", "-jar", str(ivy), *words], cwd=work, check=True, stdout=subprocess.DEVNULL)
        (work / "jars").rename(CACHE)
    return CACHE


def measured(folder: Path, bootstrap: str, guarantee: str, events: int, told: str = "") -> tuple[float, float]:
    """Sum the events of the topic ``t``, and send each with the sums before and after it to the topic ``told`` where one is given:
    seconds from the start of the process to its end, and seconds of the processor."""
    words = [bootstrap, "t", str(folder / "peer"), guarantee, str(events), *([told] if told else [])]
    took, _, spent = watched([*_java("Peer.java"), *words], folder)
    return took, spent


@contextmanager
def serving(folder: Path, bootstrap: str, keys: int) -> Iterator[tuple[str, float]]:
    """Serve the newest values of the topic ``t``, which has that many keys: the address, and seconds from the start of the process
    until it has them all."""
    words = [*_java("PeerReads.java"), bootstrap, "t", str(folder / "peer"), str(keys)]
    began = time.monotonic()
    with (folder / "peer.log").open("ab") as log:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdin and process.stdout
    try:
        port = process.stdout.readline().strip()
        yield f"http://127.0.0.1:{port}", time.monotonic() - began
    finally:
        process.stdin.close()
        process.wait()


def _java(source: str) -> list[str]:
    nodelay = "-Dsun.net.httpserver.nodelay=true"  # the JDK's server waits with small answers otherwise
    return ["java", "-Xmx3g", nodelay, "-cp", f"{jars()}/*", str(Path(__file__).with_name(source))]
