"""Memory that is free goes back to the machine, so that a worker takes as much as it needs, and not as much as it ever needed."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

# Memory that one of so many threads has freed is for all of them, or for other processes. Left alone, each allocator keeps some
# for each thread: glibc and Arrow arenas, DuckDB's and deltalake's jemalloc up to 0.8 MB of blocks of more than 4 KiB;
# and glibc keeps what is smaller than the largest block so far, up to 32 MiB, even if little of it is used.
ALLOCATORS = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "DUCKDB_JE_MALLOC_CONF": "tcache_max:4096",
    "_RJEM_MALLOC_CONF": "tcache_max:4096,narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:1000",
}

# Objects more than before, until Python looks for such as refer to each other and to which nothing else does: among the newest,
# and in every so many such looks among the older ones. By its defaults it looked through all of some 200,000 keys every few
# seconds, 0.2 to 0.5 s each time, and every request waited for it.
THRESHOLDS = 20_000, 20, 20


def begun() -> None:
    """What there is by now stays as long as the process: Python need not look through it for what nobody refers to any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def give_back() -> None:
    """What nobody refers to any more, and then what is free between other things: glibc gives back by itself only what is free at the
    end of its heap. After a version of a state was outgrown that is up to 60 MiB; it takes some milliseconds."""
    gc.collect()  # by the thresholds above it may be minutes until Python looks through the older ones
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
