"""Point reads beside a flow of events, in turns with Kafka Streams: `python -m bench.beside [KEYS] [SECONDS] [ROUNDS]`; needs `wrk`.

In each round the API with one worker, with two, and Kafka Streams are started on the same state, and asked for random keys at eight
connections, idle and while 5,000 events/s flow; no job runs. A machine is faster at one time than at another, so what counts is the
ratio within a round.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench import peer
from bench.live import CONFIG, Flow, loaded, started
from bench.reads import LUA, OURS, PEERS, fill, wrk
from demo.broker import Broker

RATE = 5000
SERVERS = {"one worker": 1, "two workers": 2, "Kafka Streams": 0}


def measured(lake: Path, workers: int, keys: int, seconds: int) -> list[str]:
    """What `wrk` says, idle and beside the flow, of the API with so many workers, or of Kafka Streams."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(Broker(folder / "kafka"))
        script = folder / "keys.lua"
        if workers:
            shutil.copytree(lake, folder / "lake")
            (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap))
            script.write_text(LUA % (OURS.replace("total", "last"), keys - 1))
            api = stack.enter_context(started(folder, "serve", "--port", "0", "--workers", str(workers)))
            assert api.stdout
            url = api.stdout.readline().split()[-1]
        else:
            fill(broker.bootstrap, keys)
            script.write_text(LUA % (PEERS, keys - 1))
            url, _ = stack.enter_context(peer.serving(folder, broker.bootstrap, keys))
        flow = Flow(broker.bootstrap, keys)
        stack.callback(flow.stop)
        found = []
        for rate in (0, RATE):
            flow.rate = rate
            time.sleep(5)  # all workers are there, and warm
            found.append(wrk(url, script, seconds))
        return found


def main(keys: int = 1_000_000, seconds: int = 10, rounds: int = 5) -> None:
    """Print a line for each figure, and how many requests there were for one of Kafka Streams': of each round, and the median."""
    ratios: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap="127.0.0.1:1"))
        loaded(folder, keys)
        for _ in range(rounds):
            found = {what: measured(folder / "lake", workers, keys, seconds) for what, workers in SERVERS.items()}
            for number, when in enumerate(("idle", f"{RATE:,} events/s")):
                theirs = rate_of(found["Kafka Streams"][number])
                for what, said in found.items():
                    ratio = rate_of(said[number]) / theirs
                    ratios.setdefault((what, when), []).append(ratio)
                    print(f"{when:15} {what:15} {said[number]} {ratio:.2f} (load {os.getloadavg()[0]:.1f})", flush=True)
    for (what, when), each in ratios.items():
        print(
            f"{when:15} {what:15} {statistics.median(each):.2f} of Kafka Streams ({min(each):.2f} to {max(each):.2f})"
        )


def rate_of(said: str) -> float:
    """Requests per second in a line of :func:`bench.reads.wrk`."""
    return float(said.split("/")[0].replace(",", ""))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
