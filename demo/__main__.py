"""The main job on embedded defaults, in one command: Kafka, agents and tills, the jobs, the API.

Runs until Ctrl-C, or for ``DEMO_SECONDS``; then lets the jobs catch up and says what was done. ``DEMO_RATE`` is in
events a second. The lake and Kafka's data stay in ``lake/``, so that the next demo goes on from there.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from demo.broker import Broker
from demo.simulate import Simulator
from statehouse import kafka
from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.errors import BrokerError, StatehouseError
from statehouse.headers import SOURCE_HEADER
from statehouse.status import published_status, route_status, store_status, stream_status
from statehouse.tables import opened, rows_and_bytes, select, table

PORT = int(os.environ.get("DEMO_PORT", "8080"))
LIMIT = float(os.environ.get("DEMO_SECONDS", "inf"))
RATE = float(os.environ.get("DEMO_RATE", "200"))
CATCH_UP = 180.0  # seconds that the jobs get at the end


def main() -> int:
    """Run the demo; exit code 0 when every count is consistent at the end."""
    stopping = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    config = load("statehouse.yaml")
    root = Path(config.root)
    broker = _broker(root / "_kafka")
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        os.environ["STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS"] = broker.bootstrap
        config = load("statehouse.yaml")
        for stream in config.streams.values():
            kafka.create_topic(config.kafka, stream.topic)
        simulator = Simulator(broker.bootstrap, RATE)
        simulator.start()
        print(f"Kafka on {broker.bootstrap}; agents and tills send {RATE:.0f} events a second", flush=True)
        # The service first: it answers while Spark starts.
        with _command("serve", "--port", str(PORT)) as api, _command("run") as jobs:
            freshness: list[float] = []
            began = time.monotonic()
            try:
                if _await(lambda: _get("/healthz"), stopping, jobs, api):
                    _guide()
                if _await(lambda: _keys() is not None, stopping, jobs, api):
                    print(f"the first states are there, after {time.monotonic() - began:.0f} s", flush=True)
                    stack.enter_context(_archive())
                while not stopping.wait(1) and time.monotonic() - began < LIMIT:
                    if dead := [p.args for p in (jobs, api) if p.poll() is not None]:
                        print(f"stopped by itself: {dead}", file=sys.stderr)
                        return 1
                    _probe(freshness)
            finally:
                simulator.stop()
            stopping.set()
            print("\nstopping: the jobs finish what was sent, a minute or two; Ctrl-C again leaves at once", flush=True)
            _catch_up(config)
            return _summary(config, simulator, freshness)


def _broker(folder: Path) -> Broker:
    """On 9092, as in statehouse.yaml, so that other terminals find it; on a free port where that is taken."""
    try:
        broker = Broker(folder, port=9092)
        broker.start()
    except BrokerError as error:
        if "9092" not in str(error):
            raise
        broker = Broker(folder, port=0)
        broker.start()
        print(f"port 9092 is taken. In other terminals: export STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS={broker.bootstrap}")
    return broker


@contextlib.contextmanager
def _command(*words: str) -> Any:
    """A ``statehouse`` command as its own process; asked to stop at the end, and waited for."""
    process = subprocess.Popen([sys.executable, "-m", "statehouse.cli", *words], start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()


def _get(path: str) -> Any:
    """The API's answer, or None while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=5) as answer:
            return json.load(answer)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None


def _await(come: Callable[[], Any], stopping: threading.Event, *processes: subprocess.Popen[bytes]) -> bool:
    """Wait until something has come (or the demo is to stop)."""
    until = time.monotonic() + min(LIMIT, 300)
    while not stopping.wait(0.2) and time.monotonic() < until and all(p.poll() is None for p in processes):
        if come():
            return True
    return False


def _keys() -> int | None:
    """How many keys the first store has, once it has some."""
    found = _get("/stores")
    return found["stores"][0]["keys"] or None if found else None


@contextlib.contextmanager
def _archive() -> Any:
    """Where there is none yet, the archive with which Spark starts in half the time is made meanwhile (:mod:`demo.classes`)."""
    command = ["nice", "-n", "19", sys.executable, "-m", "demo.classes"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _guide() -> None:
    base = f"http://127.0.0.1:{PORT}"
    print(f"""
The console:  {base}/   (its stores fill as soon as Spark is up)
Try in another terminal:
  curl {base}/stores
  curl {base}/stores/device_status/keys/device-007
  curl '{base}/stores/rewards/keys?limit=5'
  curl {base}/stores/till_invoices/keys/STR100/POS1
  curl -X PUT {base}/stores/any_alarm/keys/device-007 -H 'Content-Type: application/json' -d '{{"value": "alarm"}}'
  .venv/bin/statehouse status
Ctrl-C stops.
""", flush=True)  # fmt: skip


def _probe(freshness: list[float]) -> None:
    """How old is what the API shows: the age of the newest event in any row of a page."""
    page = _get("/stores/device_status/keys?limit=1000")
    times = [row["event_time"] for row in page["rows"]] if page else []
    if times:
        newest = time.strptime(max(times)[:19], "%Y-%m-%dT%H:%M:%S")
        freshness.append(max(0.0, time.time() - calendar.timegm(newest)))


def _catch_up(config: Config) -> None:
    """Wait until everything in Kafka is in the changelog, the states and the API's answers."""
    until = time.monotonic() + CATCH_UP
    while time.monotonic() < until:
        with contextlib.suppress(StatehouseError):
            states = [store_status(config, n) for n in config.stores]
            served = {s["name"]: s for s in (_get("/stores") or {"stores": []})["stores"]}
            if (
                all(stream_status(config, n)["behind"] == 0 for n in config.streams)
                and all(s["position"] == s["head"] for s in states)
                and all(served.get(s["name"], {}).get("position") == s["position"] for s in states)
                and all(s["position"] == s["head"] for s in _sent(config))
            ):
                return
        time.sleep(0.5)


def _sent(config: Config) -> list[dict[str, Any]]:
    """How far the routes and the published stores are."""
    told = [published_status(config, n) for n, store in config.stores.items() if store.publish]
    return [*(route_status(config, n) for n in config.routes), *told]


def _newest(config: Config, topic: str) -> str:
    """How many messages a topic has, and one of the newest."""
    ends = kafka.end_offsets(config.kafka, topic)
    partition, (_, end) = max(ends.items(), key=lambda item: item[1])
    consumer = Consumer({**kafka.librdkafka(config.kafka), "group.id": "statehouse-demo", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, max(0, end - 1))])
        found = consumer.poll(10)
    finally:
        consumer.close()
    shown = f"{(found.key() or b'').decode()} → {(found.value() or b'').decode()}" if found else "nothing"
    return f"{sum(high - low for low, high in ends.values())} messages, such as {shown}"


def _notified(config: Config) -> int:
    """Print whether each invoice of a customer with a card has its one notification, and whether their totals add up; 1 where not."""
    route = config.routes["notification"]
    assert route.to.topic
    ends = kafka.end_offsets(config.kafka, route.to.topic)
    places = [TopicPartition(route.to.topic, partition, low) for partition, (low, _) in ends.items()]
    left, told, totals, wrong = sum(high - low for low, high in ends.values()), set(), {}, 0
    consumer = Consumer({**kafka.librdkafka(config.kafka), "group.id": "statehouse-demo", "enable.auto.commit": False})
    try:
        consumer.assign(places)
        while left and (messages := consumer.consume(min(left, 10_000), 30)):
            left -= len(messages)
            for message in messages:
                source = dict(message.headers() or [])[SOURCE_HEADER]
                if source in told:  # after a crash one may be sent again
                    continue
                told.add(source)
                found = json.loads(message.value() or b"null", parse_float=Decimal)
                earned, had, total = (Decimal(found[name]) for name in ("earned", "had", "total"))
                # In the order of its card's events, which a set or a purge may have come between.
                wrong += had + earned != total
                totals[found["card"]] = total
    finally:
        consumer.close()
    changelog = opened(table(config, "changelog", config.stream_of(route)))
    position = route_status(config, route.name)["position"]
    if changelog and position is not None:
        changelog.load_as_version(position)  # what came since, the next run sends
    query = 'SELECT count(*) AS n FROM found WHERE "CustomerType" = \'PRIME\' AND "CustomerCardNo" IS NOT NULL AND "_op" = \'report\''
    invoices = select(changelog, query)[0]["n"] if changelog else 0
    same = len(told) == invoices and not left and not wrong
    print(
        f"rewards: {invoices} PRIME invoices, {len(told)} notifications, {wrong} totals that do not add up: {_yes(same)}"
    )
    return 0 if same else 1


def _passed_on(config: Config) -> int:
    """Print what went to other topics and tables; how many of them are not complete."""
    wrong = 0
    for sent in _sent(config):
        kind, name = sent["to"].split()
        rows = rows_and_bytes(table(config, "routes", name))[0]
        said = _newest(config, name) if kind == "topic" else f"{rows} rows"
        same = sent["position"] == sent["head"]
        wrong += not same
        print(f"{sent['from']} → {sent['to']}: {said}: {'complete' if same else 'NOT COMPLETE'}")
    return wrong


def _summary(config: Config, simulator: Simulator, freshness: list[float]) -> int:
    """Print what was done; 0 when the counts add up."""
    served = {s["name"]: s for s in (_get("/stores") or {"stores": []})["stores"]}
    wrong = simulator.failed
    print(f"\nsent in this run: {sum(simulator.sent.values())} events, {simulator.failed} not acknowledged")
    for name, stream in config.streams.items():
        found = stream_status(config, name)
        held = sum(high - low for low, high in kafka.end_offsets(config.kafka, stream.topic).values())
        same = held == found["events"] + found["quarantined"]
        wrong += not same
        print(
            f"{name}: {held} in Kafka = {found['events']} in the changelog + {found['quarantined']} refused: {_yes(same)}"
        )
    for name in config.stores:
        found = store_status(config, name)
        api = served.get(name, {})
        merged = found["position"] == found["head"]
        same = merged and (found["keys"], found["position"]) == (api.get("keys"), api.get("position"))
        wrong += not same
        said = (
            _yes(same)
            if merged
            else f"not merged after {CATCH_UP} s, up to {found['head']}; the next run goes on from there"
        )
        print(
            f"{name}: {found['keys']} keys at version {found['position']}; the API says {api.get('keys')} at {api.get('position')}: {said}"
        )
    wrong += _passed_on(config) + _notified(config)
    if freshness:
        ordered = sorted(freshness)
        print(
            f"freshness: the newest event shown was {ordered[len(ordered) // 2]:.0f} s old in the median, {ordered[-1]:.0f} s at worst"
        )
    else:
        print("freshness: not measured, the demo was stopped before the first merge")
    return 1 if wrong else 0


def _yes(same: bool) -> str:
    return "consistent" if same else "NOT CONSISTENT"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StatehouseError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("left; nothing is lost: the next demo goes on from here")
