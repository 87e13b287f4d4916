"""What is fetched once for each user, and kept beside the jars in the cache."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

from statehouse.places import cache_folder


def fetched_once(name: str, fetch: Callable[[Path], object]) -> Path:
    """The folder of that name in the cache; it is there when all of it is: where it is not, ``fetch`` fills another first."""
    cache = cache_folder()
    folder = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            fetch(part)
            part.rename(folder)
    return folder
