"""Memory that is free goes back to the machine."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FREED = """
import ctypes
from api.engine.memory import give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(4096) for _ in range(25_000)]
for block in blocks:
    ctypes.memset(block, 1, 4096)
for block in blocks[:-1]:  # the last one keeps the end of the heap
    libc.free(block)
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another libc than glibc")
def test_what_is_free_amid_the_heap_is_given_back():
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80_000_000  # of 100 MB
