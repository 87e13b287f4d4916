"""Pages of the console over many keys, and what an open one takes of point reads: `python -m bench.console [KEYS]`; needs `wrk`.

A state table of that many keys is written, and `statehouse serve` started on it. Each page is asked for again and again. Then wrk
asks for random keys in turns, with and without a browser on the store's page, which asks for its rows again every two seconds, and
with one on the first page. At last 10,000 events/s change random keys, and what a browser costs is the processor's time that the worker takes more:
the browser's own is of another machine.
"""

from __future__ import annotations

import json
import os
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

from bench.live import Flow, started
from bench.reads import CONFIG, ready, write, wrk
from bench.soak import children
from demo.broker import Broker
from statehouse import kafka

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
CHANGES = 10_000  # a second


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


def busy(process: int, seconds: float) -> float:
    """The share of a core that the children of a process take for so long."""

    def ticks() -> int:
        stats = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children(process)]
        return sum(int(stat[11]) + int(stat[12]) for stat in stats)

    began, before = time.monotonic(), ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def beside(folder: Path, keys: int) -> None:
    """What a browser on a store costs while its keys change."""
    with Broker(folder / "kafka") as broker:
        properties = {"bootstrap.servers": broker.bootstrap}
        kafka.create_topic(properties, "t")
        (folder / "statehouse.yaml").write_text(f"kafka: {json.dumps(properties)}\n{CONFIG}")
        began = time.monotonic()
        # Without the jobs what is pending would be too much after half a minute, and the worker would step aside.
        with started(folder, "run"), started(folder, "serve", "--port", "0") as api:
            assert api.stdout
            url = api.stdout.readline().split()[-1]
            ready(url, f"key-{keys - 1}", began)
            flow = Flow(broker.bootstrap, keys)
            flow.rate = CHANGES
            time.sleep(SECONDS)
            found: dict[str | None, list[float]] = {None: [], "/stores/total/keys": [], "/": []}
            for _ in range(TURNS):
                for path, shares in found.items():
                    with browser(url, path):
                        time.sleep(2)
                        shares.append(busy(api.pid, SECONDS))
            sent = flow.sent / (time.monotonic() - began)
            flow.stop()
    alone = statistics.median(found.pop(None))
    print(f"{sent:,.0f} events/s take {alone:.3f} of a core")
    for path, shares in found.items():
        print(f"with a browser on {path}: {statistics.median(shares) - alone:.3f} more")


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
        beside(folder, keys)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
