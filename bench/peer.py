"""Kafka Streams, for comparison in the same run: ``Peer.java``, its jars fetched once with pyspark's Ivy (93 MB)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark

from bench.recovery import watched
from demo.broker import IVY_SETTINGS, KAFKA

CACHE = Path.home() / ".cache" / "statehouse" / f"kafka-streams-{KAFKA}"
GUARANTEES = ("exactly_once_v2", "at_least_once")


def jars() -> Path:
    """The folder of its jars; fetches them where they are missing."""
    if not CACHE.is_dir():
        work = CACHE.with_suffix(".part")
        work.mkdir(parents=True, exist_ok=True)
        (work / "settings.xml").write_text(IVY_SETTINGS)
        ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
        wanted = f"-dependency org.apache.kafka kafka-streams {KAFKA} -confs default -types jar bundle".split()
        words = ["-settings", "settings.xml", *wanted, "-retrieve", "jars/[artifact]-[revision].[ext]"]
        subprocess.run(["java", "-jar", str(ivy), *words], cwd=work, check=True, stdout=subprocess.DEVNULL)
        (work / "jars").rename(CACHE)
    return CACHE


def measured(folder: Path, bootstrap: str, guarantee: str, events: int) -> tuple[float, float]:
    """Sum the events of the topic ``t``: seconds from the start of the process to its end, and seconds of the processor."""
    words = ["java", "-Xmx3g", "-cp", f"{jars()}/*", str(Path(__file__).with_name("Peer.java"))]
    took, _, spent = watched([*words, bootstrap, "t", str(folder / "peer"), guarantee, str(events)], folder)
    return took, spent
