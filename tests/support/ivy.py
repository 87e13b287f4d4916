"""Two processes that fetch Spark's packages at the same time spoil Ivy's cache."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from jobs.spark.class_archive import archive_for
from jobs.spark.session import defaults
from statehouse.places import cache_folder


@contextmanager
def alone() -> Iterator[None]:
    """One process of this user at a time; at once where Spark's jars are in the cache, so that nothing is fetched."""
    if archive_for(defaults()):
        yield
        return
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
