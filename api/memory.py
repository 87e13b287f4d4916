"""Memory that is free goes back to the machine, so that a worker takes as much as it needs, and not as much as it ever needed."""

from __future__ import annotations

import ctypes
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


def give_back() -> None:
    """What is free between other things: glibc gives back by itself only what is free at the end of its heap. After a version of a
    state was outgrown that is up to 60 MiB; it takes some milliseconds."""
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
