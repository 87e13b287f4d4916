"""Pages of the console over many keys, and what an open one takes of point reads: `python -m bench.console [KEYS]`; needs `wrk`.

A state table of that many keys is written, and `statehouse serve` started on it. Each page is asked for again and again. Then wrk
asks for random keys in turns, with and without a browser on the store's page, which asks for its rows again every two seconds, and
with one on the first page.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.live import started
from bench.reads import ready, write, wrk

PAGES = (
    "/",
    "/stores/total/keys",
    "/stores/total/keys?where=value+%3E+10",
    "/stores/total/keys/key-7",
    "/tables",
    "/sql",
    "/docs",
)
TIMES, TURNS, SECONDS = 50, 5, 8


def page(url: str, path: str) -> str:
    """Milliseconds of a page: the first time, the median, the slowest of the others."""
    took = []
    for _ in range(TIMES):
        began = time.perf_counter()
        with urllib.request.urlopen(urllib.request.Request(url + path, headers={"Accept": "text/html"})) as answer:
            size = len(answer.read())
        took.append(1000 * (time.perf_counter() - began))
    return f"{took[0]:6.0f} ms first, then {statistics.median(took[1:]):5.1f}, at most {max(took[1:]):5.1f} ({size / 1024:.0f} KiB)"


@contextmanager
def browser(url: str, path: str | None) -> Iterator[None]:
    """Chromium with a page open; none where there is no path."""
    if path is None:
        yield
        return
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        opened.new_page().goto(url + path)
        yield
        opened.close()


def rate(said: str) -> float:
    """Requests per second of what :func:`bench.reads.wrk` says."""
    return float(re.sub(r"[ ,]", "", said.partition("/s")[0]))


def main(keys: int = 1_000_000) -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, keys)
        began = time.monotonic()
        with started(folder, "serve", "--port", "0") as api:
            assert api.stdout
            url = api.stdout.readline().split()[-1]
            ready(url, f"key-{keys - 1}", began)
            for path in PAGES:
                print(f"{path:45} {page(url, path)}", flush=True)
            found: dict[str | None, list[float]] = {None: [], "/stores/total/keys": [], "/": []}
            for _ in range(TURNS):
                for path, rates in found.items():
                    with browser(url, path):
                        time.sleep(2)
                        rates.append(rate(wrk(url, folder / "keys.lua", SECONDS)))
            alone = statistics.median(found.pop(None))
            print(f"point reads alone {alone:,.0f}/s")
            for path, rates in found.items():
                print(f"with a browser on {path}: {statistics.median(rates) / alone:.3f} of that")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
