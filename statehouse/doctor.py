"""What ``statehouse doctor`` looks at: all that statehouse needs from the machine, from Kafka and from the lake.

Nothing is changed. Whether the lake takes a file is tried with a small one, which is removed again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from statehouse import kafka, tables
from statehouse.config.file import load
from statehouse.config.models import Config, Stream
from statehouse.errors import KafkaUnavailable, RegistryUnavailable, StatehouseError, first_line
from statehouse.numbering import Numbering, topic_names
from statehouse.places import remote

OLDEST_JAVA, NEWEST_JAVA = 17, 22  # later ones lack Subject.getSubject, which Hadoop calls
JAVA_MODULE = "jdk.incubator.vector"  # Spark asks for it; cut-down runtimes lack it
GIB = 1 << 30
# Bytes. Spark's driver may take 3 GiB (spark-defaults.conf); with less it is slow, or killed.
LEAST_MEMORY, WANTED_MEMORY = 2 * GIB, 4 * GIB
LEAST_DISK, WANTED_DISK = GIB // 4, 5 * GIB
CLOCK_SECONDS = 5.0  # that two clocks may differ
NO_TOPICS = "see whether the pattern is right; one that is made later is read from its beginning"
KAFKA_SECONDS = 5.0  # that Kafka may take for an answer
HALVES = {
    "jobs": "pyspark",
    "api": "flask",
}  # extras of setup.cfg, and the package that says whether one is meant to be here


class Check(NamedTuple):
    """One thing that was looked at: ``ok``, ``warn``, ``bad`` or ``skip``; what was found; and for the middle two what to do."""

    name: str
    level: str
    found: str
    advice: str = ""


def examine(file: str | Path | None = None) -> Iterator[Check]:
    """Every check in turn. What needs the settings is left out where the file is wrong."""
    yield python()
    yield java()
    yield packages()
    yield memory()
    try:
        config = load(file)
    except StatehouseError as error:
        more = len(str(error).splitlines()) - 1
        yield Check(
            "settings",
            "bad",
            str(error).splitlines()[0] + (f" (and {more} more)" if more else ""),
            error.advice
            if isinstance(error, RegistryUnavailable)
            else "correct it, then `statehouse check`; `statehouse init` writes a new file",
        )
        yield Check("disk, lake, Kafka, topics, clock", "skip", "they are named by the settings")
        return
    yield Check("settings", "ok", f"{len(config.streams)} streams, {len(config.stores)} stores")
    yield disk(config)
    yield from lake(config)
    yield from topics(config)
    yield clock(config)


# --- the machine -----------------------------------------------------------------------------------------------------------------


def python() -> Check:
    """Python itself."""
    # An older one than setup.cfg allows does not get here: it cannot read the code.
    return Check("Python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def java() -> Check:
    """Whether Java is one that Spark runs on."""
    if not _installed_version("pyspark"):
        return Check("Java", "skip", "this machine has no pyspark: it runs no jobs")
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    needed = f"install Java {OLDEST_JAVA} to {NEWEST_JAVA} (on Debian: apt-get install openjdk-17-jre-headless)"
    words = [command, "--add-modules", JAVA_MODULE, "-version"]
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}  # Java repeats them
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=environ, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("Java", "bad", f"{command}: {getattr(error, 'strerror', None) or 'no answer'}", needed)
    version = re.search(r' version "(\d+)([^"]*)"', done.stderr)
    if version is None:
        lacks = f"has no module {JAVA_MODULE}" if JAVA_MODULE in done.stderr + done.stdout else "does not start"
        return Check("Java", "bad", f"{command} {lacks}", f"{needed}, with all its modules")
    version_text = f"{version[1]}{version[2]} ({command})"
    if not OLDEST_JAVA <= int(version[1]) <= NEWEST_JAVA:
        return Check("Java", "bad", version_text, f"{needed}, and set JAVA_HOME to it if another comes first")
    return Check("Java", "ok", version_text)


def packages() -> Check:
    """Whether the versions of the packages are those that work together, as ``setup.cfg`` pins them."""
    try:
        needed = [Requirement(line) for line in metadata.requires("statehouse") or ()]
    except metadata.PackageNotFoundError:
        return Check("packages", "skip", "statehouse itself is not installed as a package, so its pins are not known")
    extras = ["", *(extra for extra, leader in HALVES.items() if _installed_version(leader))]
    wrong, count = [], 0
    for requirement in needed:
        # A requirement of no half has no marker.
        if any(requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras):
            count += 1
            version = _installed_version(requirement.name)
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"{requirement.name} {version or 'missing'}, expected {requirement.specifier}")
    halves = ", ".join(extra for extra in extras if extra) or "neither jobs nor api"
    if wrong:
        return Check(
            "packages", "bad", "; ".join(wrong), f"pip install --upgrade 'statehouse[{halves.replace(' ', '')}]'"
        )
    return Check("packages", "ok", f"{count} fit together ({halves})")


def _installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def memory() -> Check:
    """How much memory this process may have: the machine's, or what its container is given."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return Check("memory", "skip", "this system does not say")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    if total < LEAST_MEMORY:
        return Check("memory", "bad", _size(total), "use a machine with 4 GiB or more")
    if total < WANTED_MEMORY:
        advice = "lower spark.driver.memory in spark-defaults.conf (3g), or use a machine with 4 GiB or more"
        return Check("memory", "warn", _size(total), advice)
    return Check("memory", "ok", _size(total))


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.1f} {unit}" if unit != "bytes" else f"{count:.0f} bytes"
        count /= 1024
    raise AssertionError


# --- the lake --------------------------------------------------------------------------------------------------------------------


def _folder(root: str) -> Path:
    """The lake, or where it is not made yet the nearest folder above it."""
    path = Path(root).absolute()
    while not path.exists():
        path = path.parent
    return path


def disk(config: Config) -> Check:
    """How much room the lake's disk has."""
    if remote(config.root):
        return Check("disk", "skip", f"{config.root} is an object store")
    usage = shutil.disk_usage(_folder(config.root))
    room = f"{_size(usage.free)} free of {_size(usage.total)}, at {config.root}"
    if usage.free < LEAST_DISK:
        return Check("disk", "bad", room, "make room, or give the lake another root")
    if usage.free < WANTED_DISK:
        return Check("disk", "warn", room, "make room; `statehouse maintain --once` removes old versions")
    return Check("disk", "ok", room)


def lake(config: Config) -> Iterator[Check]:
    """Whether the lake's tables can be read, and files be written there."""
    paths = [tables.table(config, "changelog", name) for name in config.streams]
    paths += [tables.table(config, "state", name) for name in config.stores]
    try:
        count = sum(tables.opened(path) is not None for path in paths)
    except Exception as error:  # of the object store's client, or of a log that is broken: they have many words
        yield Check("lake can be read", "bad", first_line(error), f"look at {config.root}, and at who may read it")
    else:
        tables_there = (
            f"{count} of {len(paths)} tables are there" if count else "no tables yet: `statehouse run` makes them"
        )
        yield Check("lake can be read", "ok", f"{tables_there}, at {config.root}")
    if remote(config.root):
        yield Check("lake can be written", "skip", "it is not tried on an object store")
        return
    folder = _folder(config.root)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="_doctor"):
            pass
    except OSError as error:
        yield Check(
            "lake can be written", "bad", f"{folder}: {error.strerror}", "permit it, or give the lake another root"
        )
    else:
        yield Check("lake can be written", "ok", str(folder))


def clock(config: Config) -> Check:
    """Whether this machine's clock agrees with that of the disk, which may be another machine's, and with the newest commits."""
    differences = []
    if not remote(config.root):
        try:
            with tempfile.NamedTemporaryFile(dir=_folder(config.root), prefix="_doctor") as file:
                differences.append(os.stat(file.name).st_mtime - time.time())
        except OSError:
            pass
    for name in config.streams:
        path = tables.table(config, "changelog", name)
        try:
            if (log := tables.opened(path)) and (committed := tables.commit_time(path, log.version())) is not None:
                # A commit of the past says nothing; one of the future was made by a clock that is ahead of this one.
                differences.append(max(0.0, committed / 1000 - time.time()))
        except Exception:  # the check of the lake says why
            continue
    if not differences:
        return Check("clock", "skip", "there is nothing yet to compare it with")
    worst = max(differences, key=abs)
    if abs(worst) > CLOCK_SECONDS:
        ahead = "behind" if worst > 0 else "ahead of"
        advice = "set the clocks of all machines by NTP: sets and purges are ordered by time"
        return Check("clock", "warn", f"{abs(worst):.0f} s {ahead} the clock that the lake is written by", advice)
    return Check("clock", "ok", "it agrees with the lake's")


# --- Kafka -----------------------------------------------------------------------------------------------------------------------


def topics(config: Config) -> Iterator[Check]:
    """Whether Kafka answers, and has the topics."""
    servers = config.kafka.get("bootstrap.servers")
    began = time.monotonic()
    for number, stream in enumerate(config.streams.values()):
        try:
            names = topic_names(config.kafka, stream)
            current = kafka.find_topics(config.kafka, names, KAFKA_SECONDS)
        except KafkaUnavailable as error:
            if number == 0:
                yield Check("Kafka", "bad", str(error), error.advice)
                yield Check("topics", "skip", "Kafka does not answer")
                return
            yield Check(f"topic {stream.topic_text}", "bad", str(error), error.advice)
            continue
        if number == 0:
            yield Check("Kafka", "ok", f"{servers} answers in {(time.monotonic() - began) * 1000:.0f} ms")
        if not names:
            yield Check(f"topics {stream.topic_text}", "warn", "there are none yet", NO_TOPICS)
        ids = _known_ids(config, stream)
        for name in names:
            yield _topic(name, ids.get(name), current.get(name))


def _known_ids(config: Config, stream: Stream) -> Mapping[str, str]:
    """The ids of the topics that a stream's changelog is of, by name."""
    try:
        position = tables.metadata(tables.table(config, "changelog", stream.name), "offsets") or {}
        return Numbering.of(stream, position).ids
    except Exception:  # the check of the lake says why
        return {}


def _topic(topic: str, known: str | None, current: kafka.Topic | None) -> Check:
    name = f"topic {topic}"
    if current is None:
        advice = (
            "make it with as many partitions as you want; else `statehouse run` makes it with the broker's defaults"
        )
        return Check(name, "warn", "there is none yet", advice)
    if error := kafka.recreated(topic, known, current):
        return Check(name, "bad", error, "give the stream a new name")
    return Check(name, "ok", f"{len(current.partitions)} partitions")
