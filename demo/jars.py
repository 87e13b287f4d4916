"""Kafka's jars, from Maven Central: some 50 files, several at a time, each checked by its SHA-256 (``kafka.txt``).

The list is what Ivy makes of `org.apache.kafka:kafka_2.13` and of a logger, without which it is mute. To resolve it anew at
each first start takes ten times as long as to fetch it.
"""

from __future__ import annotations

import fcntl
import hashlib
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from statehouse.errors import BrokerError, first_line
from statehouse.places import cache_folder

KAFKA = "4.1.2"
CENTRAL = "https://repo1.maven.org/maven2"
LIST = Path(__file__).with_name("kafka.txt")
ATTEMPTS, AT_ONCE, TIMEOUT = 3, 8, 60


def kafka_jars() -> Path:
    """The folder of Kafka's jars in the user's cache; fetches them where they are missing. Raises BrokerError.

    The folder appears by a rename when all of it is there. The lock makes a second process wait for the first
    one's download; what an interrupted download leaves behind is the next one's head start.
    """
    cache = cache_folder()
    jars = cache / f"kafka_2.13-{KAFKA}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            part = jars.with_name(f"{jars.name}.fetched")
            part.mkdir(exist_ok=True)
            _fetch(part)
            part.rename(jars)
    return jars


def _fetch(folder: Path) -> None:
    """Fetch all jars of the list that are not there yet."""
    wanted = [line.split() for line in LIST.read_text().splitlines()]
    print(f"fetching Kafka {KAFKA} (43 MB, once) ...", file=sys.stderr, flush=True)
    shown, fetched = sys.stderr.isatty(), 0
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for number, done in enumerate(as_completed([pool.submit(_one, folder, *line) for line in wanted]), 1):
            fetched += done.result()
            if shown:
                print(
                    f"\r{fetched / 1e6:4.0f} MB, {number} of {len(wanted)} files", end="", file=sys.stderr, flush=True
                )
    finally:
        pool.shutdown(cancel_futures=True)
        if shown:
            print(file=sys.stderr)


def _one(folder: Path, digest: str, path: str) -> int:
    """Fetch one jar, if it is not there: its bytes."""
    file, url = folder / path.rpartition("/")[2], f"{CENTRAL}/{path}"
    attempt = 0
    while not file.is_file():
        attempt += 1
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                content: bytes = answer.read()
            if (found := hashlib.sha256(content).hexdigest()) != digest:
                raise OSError(f"found the SHA-256 {found}, expected {digest}")
            file.with_suffix(".part").write_bytes(content)
            file.with_suffix(".part").rename(file)
        except OSError as error:  # urllib's are such, too
            if attempt == ATTEMPTS:
                raise BrokerError(
                    f"Kafka {KAFKA} could not be fetched in {ATTEMPTS} attempts: {url}: {first_line(error)}"
                ) from None
            time.sleep(attempt)  # what is temporary should have time to pass
    return file.stat().st_size
