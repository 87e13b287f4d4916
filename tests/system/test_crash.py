"""`statehouse run` as its own process, killed with -9 while events flow: changelog and states equal the oracle's."""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import requests

from jobs.spark.session import lock
from statehouse.config.file import load
from tests.support import pages
from tests.support.depth import sized
from tests.support.lean import lean
from tests.support.oracle import fold
from tests.support.pages import folder
from tests.support.processes import kill_all, session_of, signal_all
from tests.support.records import control, iso, payload, rows, wait
from tests.support.topics import messages, topic_of

__all__ = ["folder"]  # a fixture
CONFIG = """root: ./lake
kafka:
  bootstrap.servers: {bootstrap}
merge_every: 100 milliseconds
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING, value STRING, n BIGINT, ts TIMESTAMP
    time: ts
lookups:
  rates: {{stream: s, table: rates.csv, key: agent, schema: "agent STRING, rate BIGINT"}}
stores:
  status: {{stream: s, key: key, agent: agent, value: value, reduce: majority, publish: {topic}-status}}
  total: {{stream: s, key: key, value: n, reduce: sum}}
  points: {{stream: s, key: key, value: n * rates.rate, reduce: sum}}
routes:
  seen: {{from: s, where: n > 0, select: [key, n], to: {{topic: {topic}-seen, key: key}}}}
  kept: {{from: s, where: n > 0, select: [key, n], to: {{table: kept}}}}
  sums: {{from: {{store: total}}, select: &sums [key, _partition AS part, _offset AS at, before.value AS had, after.value AS has], to: {{table: sums}}}}
  told: {{from: {{store: total}}, select: *sums, to: {{topic: {topic}-told, key: key}}}}
tasks:
  high: {{store: total, when: value > 20, after: 2 seconds, send: {{topic: {topic}-high, value: value}}}}
"""
REDUCE = {"status": ("majority", "value"), "total": ("sum", "n"), "points": ("sum", "points")}
# Commits that each process makes at least before it is killed.
MORE = sized((3,), (0, 0, 1, 1, 2, 2, 3, 3, 5, 8))


class Source(threading.Thread):
    """Sends random events until stopped, and keeps what Kafka acknowledged, with its coordinates, for the oracle."""

    def __init__(self, bootstrap, topic, seed):
        super().__init__(daemon=True)
        from confluent_kafka import Producer

        # A retry without idempotence would be a second event.
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True})
        self.topic, self.dice, self.stopping = topic, random.Random(seed), threading.Event()
        self.acknowledged, self.rate = [], 0

    def one(self):
        dice = self.dice
        key, agent, kind = f"k{dice.randrange(40)}", dice.choice("pqr"), dice.random()
        at = int(time.time() * 1_000_000) - dice.choice([0, 0, 0, 30_000_000])
        event = {"key": key, "agent": agent, "value": dice.choice("abc"), "n": dice.randrange(-9, 10)}
        if kind < 0.02:
            return key, None, None, {"op": "purge", "key": key, "stores": list(REDUCE)}
        if kind < 0.04:
            body = {"value": event["n"], "agent": "x"}
            return key, body, control("set", "total"), {"op": "set", **event, "stores": ["total"]}
        if kind < 0.06:
            return key, b"rubbish", None, None
        return key, {**event, "ts": iso(at)}, None, {"op": "report", **event, "at": at, "stores": list(REDUCE)}

    def run(self):
        while not self.stopping.wait(0.05):
            for _ in range(3):
                key, body, headers, event = self.one()
                rate = self.rate

                def delivered(error, message, event=event, rate=rate):
                    assert error is None
                    time_us = (event or {}).get("at", message.timestamp()[1] * 1000)
                    order = (time_us, message.partition(), message.offset())
                    found = event or {"op": "rubbish", "stores": []}
                    self.acknowledged.append({**found, "order": order, "rate": rate})

                self.producer.produce(
                    self.topic, key=key, value=payload(body), headers=headers or {}, on_delivery=delivered
                )
            self.producer.poll(0)
        self.producer.flush(30)


def commits(folder):
    """How many commits the tables of the lake have."""
    return sum(1 for _ in folder.glob("lake/**/_delta_log/*.json"))


def expected(events, store):
    """The oracle's state of a store."""
    name, column = REDUCE[store]
    by_key = {}
    for event in events:
        if store in event["stores"]:
            made = {"op": event["op"], "agent": event.get("agent"), "value": event.get(column), "order": event["order"]}
            by_key.setdefault(event["key"], []).append(made)
    return {key: found[0] for key, found in ((k, fold(name, e)) for k, e in by_key.items()) if found}


def looked_up(log_rows, events, last):
    """Each report has a rate that the table had since it was sent, one agent has none; the oracle goes on with what it has."""
    rates = {(r["_partition"], r["_offset"]): r["rates"] and r["rates"]["rate"] for r in log_rows}
    for event in events:
        if event["op"] == "report":
            rate = rates[event["order"][1:]]
            assert rate is None if event["agent"] == "r" else event["rate"] <= rate <= last, (rate, event)
            event["points"] = rate and event["n"] * rate
    return len(set(rates.values()))


def passed_on(bootstrap, spark, config, topic, events):
    """What the routes and the published store have passed on is right."""
    reports = [e for e in events if e["op"] == "report" and e["n"] > 0]
    sent, again = topic_of(bootstrap, f"{topic}-seen")
    expected_of = {(":".join(map(str, (topic, *e["order"][1:]))), "0"): (e["key"], e["n"]) for e in reports}
    assert {place: (key, value["n"]) for place, (key, value) in sent.items()} == expected_of
    print(f"{again} of {len(sent)} messages were sent again")
    kept = Counter((r["key"], r["n"]) for r in rows(spark, f"{config.root}/routes/kept"))
    assert kept == Counter((e["key"], e["n"]) for e in reports), "each once"
    last = {
        m.key().decode(): m.value() and json.loads(m.value())["value"] for m in messages(bootstrap, f"{topic}-status")
    }
    assert {key: value for key, value in last.items() if value} == expected(events, "status")


def walk(spark, config):
    """The oracle: each event of the totals in the order of the log, with its key, its place, and the states before and after it."""
    changes = spark.read.format("delta").option("readChangeFeed", True).option("startingVersion", 1)
    log = changes.load(f"{config.root}/changelog/s").where("_op = 'report' OR _op = 'purge' OR _store = 'total'")
    epoch, events, before = dt.datetime(1970, 1, 1), {}, {}
    for r in log.orderBy("_commit_version", "_partition", "_offset").collect():
        time_us = (r["_event_time"] - epoch) // dt.timedelta(microseconds=1)
        value = r["n"] if r["_op"] == "report" else r["_value"] and int(r["_value"])
        key, place = r["_key"], f"{r['_partition']}:{r['_offset']}"
        order = (time_us, r["_partition"], r["_offset"])
        events.setdefault(key, []).append({"op": r["_op"], "agent": None, "value": value, "order": order})
        after = fold("sum", events[key])
        yield key, place, time_us, before.get(key), after
        before[key] = after


def runs(spark, config):
    """The oracle: of each run of a total above 20 its id, and for how many microseconds it lasted (None: it still does)."""
    found, open_ = {}, {}
    for key, place, time_us, _, state in walk(spark, config):
        if state and state[0] > 20:
            if key not in open_:
                open_[key], found[f"high/{key}@{place}"] = (f"high/{key}@{place}", time_us), None
        elif key in open_:
            name, since = open_.pop(key)
            found[name] = time_us - since
    return found


def told_with_states(bootstrap, spark, config, topic):
    """Each event is told with the states that it met and left: once in the table, and in the topic always the same."""
    expected = {
        place: (key, before and before[0], after and after[0]) for key, place, _, before, after in walk(spark, config)
    }
    kept = rows(spark, f"{config.root}/routes/sums")
    assert len(kept) == len(expected), "each once"
    assert {f"{r['part']}:{r['at']}": (r["key"], r["had"], r["has"]) for r in kept} == expected
    sent, again = topic_of(bootstrap, f"{topic}-told")
    assert {(f"{topic}:{place}", "0") for place in expected} == set(sent)
    assert {f"{v['part']}:{v['at']}": (v["key"], v.get("had"), v.get("has")) for _, v in sent.values()} == expected
    print(f"{again} of {len(sent)} messages with states were sent again")


def told_in_time(bootstrap, spark, config, topic):
    """Each run that has lasted for two seconds is told, at least once and by one id. (One that was shorter may be, where the event
    that ended it came late.)"""
    found, sent = runs(spark, config), Counter()
    for message in messages(bootstrap, f"{topic}-high"):
        sent[dict(message.headers())["task-id"].decode()] += 1
    lasted = {name for name, length in found.items() if length is None or length >= 2_000_000}
    assert lasted <= set(sent) <= set(found), (lasted - set(sent), set(sent) - set(found))
    print(f"{len(lasted)} of {len(found)} runs were told, {sum(sent.values()) - len(sent)} messages were sent again")


@pytest.mark.slow
@pytest.mark.crash
def test_killed_again_and_again_while_events_flow(broker, spark, folder):
    topic, tmp_path = f"crash-{os.getpid()}", folder
    (tmp_path / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=topic))
    config = load(tmp_path / "statehouse.yaml", {})
    dice = random.Random()
    source = Source(broker.bootstrap, topic, dice.random())

    def rated(rate):
        """Replace the table that is looked up, at once: it is read at any moment."""
        (tmp_path / "rates.new").write_text(f"agent,rate\np,{rate}\nq,{rate}\n")
        (tmp_path / "rates.new").rename(tmp_path / "rates.csv")
        source.rate = rate

    rated(1)
    source.start()
    log = open(tmp_path / "run.log", "ab")  # noqa: SIM115 (it outlives each process)
    reached = []
    try:
        for more in dice.sample(MORE, len(MORE)):
            process = subprocess.Popen(
                [sys.executable, "-m", "statehouse.cli", "run"],
                cwd=tmp_path,
                stdout=log,
                stderr=log,
                env=lean("jobs"),
            )
            started = (tmp_path / "run.log").stat().st_size

            def busy(process=process, started=started):
                assert process.poll() is None, (tmp_path / "run.log").read_text()[-2000:]
                return b"running: " in (tmp_path / "run.log").read_bytes()[started:]

            wait(busy, what="the jobs")
            # From before the first batch to well into the merges and what they are passed on to, by the work that is done and not
            # by the time, which differs from machine to machine; where exactly is left to chance.
            goal, until = commits(tmp_path) + more, time.monotonic() + 180
            while commits(tmp_path) < goal and time.monotonic() < until:
                rated(source.rate + 1)
                time.sleep(0.2)
            time.sleep(dice.uniform(0, 1))
            reached.append(commits(tmp_path))
            process.send_signal(signal.SIGKILL)
            process.wait()
    finally:
        source.stopping.set()
        source.join(60)
        log.close()
    print(f"commits before each kill: {reached}")
    assert len(reached) == len(MORE) and len(set(reached)) > len(MORE) / 2
    versions = []
    for _ in range(2):  # the second time without any checkpoint, and with nothing to do
        code, output = pages.statehouse(["run", "--once"], {})
        assert code == 0, output[-3000:]
        status = json.loads(pages.statehouse(["status", "--json"], {})[1])
        stream = status["streams"][0]
        assert stream["behind"] == 0
        assert stream["events"] + stream["quarantined"] == len(source.acknowledged)
        log_rows = rows(spark, f"{config.root}/changelog/s")
        bad_rows = rows(spark, f"{config.root}/quarantine/s")
        coordinates = [(r["_partition"], r["_offset"]) for r in log_rows]
        coordinates += [(r["partition"], r["offset"]) for r in bad_rows]
        assert sorted(coordinates) == sorted(e["order"][1:] for e in source.acknowledged), "each event once"
        print(f"{looked_up(log_rows, source.acknowledged, source.rate)} rates of {source.rate}")
        for store in REDUCE:
            found = {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/{store}")}
            assert found == expected(source.acknowledged, store)
        passed_on(broker.bootstrap, spark, config, topic, source.acknowledged)
        told_in_time(broker.bootstrap, spark, config, topic)
        told_with_states(broker.bootstrap, spark, config, topic)
        versions.append({s["name"]: s["version"] for s in status["stores"]})
        subprocess.run(["rm", "-rf", f"{config.root}/_checkpoints"], check=True)
    assert versions[0] == versions[1], "nothing new: no new state version"


@pytest.mark.slow
def test_sigterm_to_all_finishes_the_batch_in_hand_and_exits_0_and_a_second_run_is_refused(
    broker, spark, folder, monkeypatch
):
    """The second run is one of this process, in the session that the tests share: it meets the lock of the first one's JVM. It has
    less patience than the twenty seconds that a predecessor is given to end in."""
    topic, tmp_path = f"term-{os.getpid()}", folder
    (tmp_path / "rates.csv").write_text("agent,rate\np,1\n")
    metered = CONFIG.format(bootstrap=broker.bootstrap, topic=topic) + "jobs: {metrics: 127.0.0.1:0}\n"
    (tmp_path / "statehouse.yaml").write_text(metered)
    command = [sys.executable, "-m", "statehouse.cli", "run"]
    source = Source(broker.bootstrap, topic, 1)
    source.start()
    with open(tmp_path / "run.log", "wb") as log:
        first = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        wait(lambda: b"running: " in (tmp_path / "run.log").read_bytes(), what="the jobs")
        url = re.search(r"http://127.0.0.1:\d+/metrics", (tmp_path / "run.log").read_text())[0]
        assert 'statehouse_events_total{stream="s"}' in requests.get(url, timeout=5).text
        monkeypatch.setattr("jobs.run.lock", functools.partial(lock, patience=2))
        code, said = pages.statehouse(["run"], {})
        assert code == 1
        assert "another process runs 'ingest' on this lake" in said
        before = commits(tmp_path)
        wait(lambda: commits(tmp_path) > before, what="a batch, and the next one in hand")
        signal_all(first, signal.SIGTERM)  # Spark's JVM and its Python workers too
        assert first.wait(120) == 0
        said = (tmp_path / "run.log").read_text()
        assert "Traceback" not in said and "trying again" not in said, said[-3000:]
        assert "Exception in task" not in (tmp_path / "lake/_logs/spark.log").read_text()
        wait(lambda: not session_of(first.pid), seconds=5, what="the end of all its processes")
    finally:
        source.stopping.set()
        source.join(60)
        kill_all(first)
