"""A real registry: Apicurio, which speaks Confluent's protocol below `/apis/ccompat/v7`, with its database in memory.

Its application (142 MB) comes from Maven Central, once for each user. 2.6 is the newest that runs on Java 17.
"""

from __future__ import annotations

import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import fetched_once
from tests.support.records import free_port

VERSION = "2.6.13.Final"
NAME = f"apicurio-registry-app-{VERSION}"
FROM = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/{NAME}-all.tar.gz"
PATIENCE = 180  # seconds; a start takes 13 on two busy cores


def application() -> Path:
    """The folder of its jars."""
    return fetched_once(NAME, _fetch)


def _fetch(folder: Path) -> None:
    with urllib.request.urlopen(FROM, timeout=60) as answer, tarfile.open(fileobj=answer, mode="r|gz") as files:
        files.extractall(folder, filter="data")


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Its address, for producers and for ``registry: {url: ...}``; what it says is in the folder's ``registry.log``."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    settings = ["-Xmx384m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    command = ["java", *settings, "-jar", f"{NAME}-runner.jar"]
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=application(), stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                urllib.request.urlopen(f"{url}/subjects", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, (folder / "registry.log").read_text()[
                    -2000:
                ]
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(30)
