"""Tasks: what is sent when a key's state has been so for a while, against a few lines of plain Python."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import time
from urllib.parse import quote

import pytest

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.recover import recover
from jobs.tasks.deliver import deliver
from jobs.tasks.job import Tasks
from statehouse import kafka
from statehouse.errors import ConfigError, TopicUnavailable
from tests.support.depth import deep, sized
from tests.support.lakes import T0, drawn, merged, right
from tests.support.records import SCHEMA, control, iso, produce, record, rows, stamp
from tests.support.tasks import STATUS
from tests.support.topics import messages

MINUTE = 60_000_000
RULES = {  # store, when, after in minutes
    "high": ("total", lambda value: value > 3, 20),
    "one": ("votes", lambda value: value == 1, 0),
    "busy": ("hours", lambda value: value >= 2, 5),
}
CONFIG = """
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING, n BIGINT, ts TIMESTAMP
    time: ts
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  votes: {{stream: s, key: key, agent: agent, value: n % 3, reduce: majority}}
  hours: {{stream: s, key: key, value: n, window: 1 hour, reduce: count}}
tasks:
  high: {{store: total, when: value > 3, after: 20 minutes, send: {{topic: {topic}-high}}}}
  one: {{store: votes, when: value = 1, send: {{topic: {topic}-one, key: "upper(key)", value: value}}}}
  busy: {{store: hours, when: value >= 2, after: 5 minutes, send: {{topic: {topic}-busy, value: "struct(value, since)"}}}}
"""


def runs(events, store, holds, after):
    """The oracle: of each run that lasts, by its id without the rule's name: key, since, the value when it was last so."""
    found = {}
    for key in {key for key, *_ in events}:
        mine = [e for e in events if e[0] == key and store in e[1]]
        open_ = {}
        for step, (_, _, event) in enumerate(mine, 1):
            at = event["order"][0]
            state = {k: v for k, v in right(mine[:step], store).items() if holds(v)}
            for k in open_.keys() - state.keys():
                since, place, value = open_.pop(k)
                if at - since >= after * MINUTE:
                    found[place] = since, value
            for k, value in state.items():
                text = "/".join(quote(p, safe="") for p in (k[0], iso(k[1]))) if isinstance(k, tuple) else k
                place = f"{text}@{event['order'][1]}:{event['order'][2]}"
                since, place, _ = open_.get(k, (at, place, None))
                open_[k] = since, place, value
        found |= {place: (since, value) for since, place, value in open_.values()}
    return found


class Alarms:
    """A lake with tasks, a clock, and what was sent."""

    def __init__(self, spark, config, bootstrap, topic):
        self.spark, self.config, self.bootstrap, self.topic = spark, config, bootstrap, topic
        self.clock, self.known, self.offset = T0 / 1e6, [], 0
        self.tasks = self.started()

    def started(self):
        return Tasks(self.spark, self.config, lambda: self.clock)

    def more(self, seed, count=30):
        records, events = drawn(seed, count, first=self.offset)
        self.offset += count
        self.known += events
        self.ingest(records)

    def ingest(self, records):
        Ingest(self.spark, self.config, self.config.streams["s"]).batch(self.spark.createDataFrame(records, SCHEMA))

    def merge(self, *stores):
        merged(self.spark, self.config, *stores)

    def sent(self, rule):
        """What is in a rule's topic: partition, id, key and value of each message, in their order."""
        return [
            (m.partition(), dict(m.headers())["task-id"].decode(), *(x and x.decode() for x in (m.key(), m.value())))
            for m in messages(self.bootstrap, f"{self.topic}-{rule}")
        ]

    def table(self):
        return {r["id"]: r for r in rows(self.spark, f"{self.config.root}/tasks")}


@pytest.fixture
def alarms(lake, broker, spark):
    topic = f"tasks-{os.getpid()}-{random.randrange(10**9)}"
    return Alarms(spark, lake(CONFIG.format(topic=topic), broker.bootstrap), broker.bootstrap, topic)


@pytest.mark.slow
def test_each_run_that_lasts_is_one_message_however_the_events_are_merged(alarms, monkeypatch):
    monkeypatch.setattr("jobs.spark.steps.PASS", sized(10**6, random.choice([1, 10**6])))  # a flat tree, or a deep one
    alarms.tasks.round()
    for seed in sized((2, random.randrange(10**6)), (random.randrange(10**6), 2, 3)):
        alarms.more(seed)
        if seed != 2:  # two batches in one merge
            alarms.merge()
        if seed == 2:
            alarms.tasks = alarms.started()
        assert alarms.tasks.round() is None or alarms.clock > T0 / 1e6
    alarms.clock += 24 * 3600
    alarms.tasks.round()
    for rule, (store, holds, after) in RULES.items():
        expected, found = runs(alarms.known, store, holds, after), alarms.sent(rule)
        assert sorted(i for _, i, *_ in found) == sorted(f"{rule}/{place}" for place in expected)
        due = [(partition, expected[i.removeprefix(f"{rule}/")][0]) for partition, i, *_ in found]
        assert sorted(due, key=lambda d: d[0]) == sorted(due), "in due order"
        for _, i, key, value in found:
            since, last = expected[i.removeprefix(f"{rule}/")]
            if rule == "high":
                body = json.loads(value)
                assert (body["key"], body["value"]) == (key, last) and body["task"] == rule
                assert dt.datetime.fromisoformat(body["since"]) == dt.datetime.fromisoformat(iso(since))
            elif rule == "one":
                assert key.startswith("K") and value == str(last)
            else:
                assert json.loads(value)["value"] == last
    assert alarms.tasks.round() is None


DOWN = "down: {{store: status, when: value = 'down', after: 5 minutes, send: {{topic: {topic}-down, value: value}}}}"
AWAY = "127.0.0.1:1"


class Devices(Alarms):
    """A lake with what devices say of themselves; times are minutes."""

    def __init__(self, spark, lake, broker, rules):
        topic = f"devices-{os.getpid()}-{random.randrange(10**9)}"
        self.lake = lake
        made = self.configured(topic, broker.bootstrap, rules)
        super().__init__(spark, made, broker.bootstrap, topic)
        self.tasks.round()

    def configured(self, topic, bootstrap, rules):
        return self.lake(STATUS.format(topic=topic, rules=rules.format(topic=topic)), bootstrap)

    def change(self, rules):
        self.config = self.configured(self.topic, self.bootstrap, rules)
        self.tasks = self.started()

    def say(self, *said):
        """Events (minute, key, value), or (minute, key, body, headers) as they are; merged."""
        records = []
        for minute, key, value, *headers in said:
            at = T0 + round(minute * MINUTE)
            body = value if headers else {"key": key, "value": value, "ts": iso(at)}
            records.append(record(self.topic, 0, self.offset, at, key, body, *headers))
            self.offset += 1
        self.ingest(records)
        self.merge()

    def at(self, minute):
        """A round at that time; what it sent."""
        self.clock = T0 / 1e6 + minute * 60
        done = self.tasks.round()
        return done.count if done else 0


@pytest.fixture
def devices(spark, lake, broker):
    return lambda rules=f"{{{{{DOWN}}}}}": Devices(spark, lake, broker, rules)


@pytest.mark.slow
def test_a_device_that_stays_down_for_five_minutes_is_told_once_and_one_that_came_back_for_a_second_is_not(devices):
    d = devices()
    d.say((0, "a", "down"), (0, "b", "down"), (0, "c", "up"))
    assert d.at(1) == 0
    d.say((2, "b", "up"), (2 + 1 / 60, "b", "down"), (3, "a", "down"), (3, "c", "down"))
    assert d.at(4.9) == 0
    assert d.at(5) == 1 and [i for _, i, *_ in d.sent("down")] == ["down/a@0:0"]
    assert d.at(6.9) == 0 and d.at(7.5) == 1, "b, since it went down again"
    d.say((8.5, "c", "up"), (9, "a", "up"), (9.5, "a", "down"))  # c was due before, as the jobs would have seen
    assert d.at(100) == 2, "c, and a again"
    assert [i for _, i, *_ in d.sent("down")] == ["down/a@0:0", "down/b@0:4", "down/c@0:6", "down/a@0:9"]
    table = d.table()
    assert (table["down/b@0:1"]["status"], table["down/b@0:1"]["reason"]) == ("cancelled", "the state has changed")
    assert table["down/a@0:0"]["ended"] == stamp(T0 + 9 * MINUTE)


@pytest.mark.slow
def test_a_crash_at_any_step_loses_nothing_and_what_is_sent_again_has_the_same_id(devices, monkeypatch):
    d = devices()
    d.say((0, "a", "down"), (1, "b", "down"))

    def crash_in(name, *after):
        with monkeypatch.context() as patch:
            patch.setattr(f"jobs.tasks.table.TaskTable.{name}", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                d.tasks.round()
        d.tasks = d.started()

    d.clock = T0 / 1e6 + 3 * 60
    crash_in("merge")
    assert d.at(3) == 0 and set(d.table()) == {"down/a@0:0", "down/b@0:1"}
    d.say((4, "a", "up"), (4.1, "a", "down"))
    crash_in("merge")
    d.clock = T0 / 1e6 + 20 * 60
    crash_in("commit")  # they were sent
    d.tasks.round()
    assert [i for _, i, *_ in d.sent("down")] == ["down/b@0:1", "down/a@0:3"] * 2
    assert d.at(30) == 0


@pytest.mark.slow
def test_what_is_asked_for_is_sent_at_its_time_unless_the_value_changes_or_it_is_cancelled(devices):
    d = devices("{{topics: ['*-asked']}}")

    def ask(minute, key, store=None, due=10, **task):
        body = {
            "due": iso(T0 + due * MINUTE),
            **(task or {"send": {"topic": f"{d.topic}-asked", "key": key, "value": {"k": key}}}),
        }
        return minute, key, body, control("task", store)

    later = {"send": {"topic": f"{d.topic}-asked", "value": "text"}}
    d.say((0, "a", "down"), (0, "b", "down"), (0, "c", "down"))
    d.at(1)
    d.say(
        ask(1, "x"), ask(1, "y"),
        ask(1, "a", "status", value="down", **later),
        ask(1, "b", "status", value="down", **later), (1.5, "b", "up"), (1.6, "b", "down"),
        ask(1, "c", "status", value="up", **later),
        ask(1, "d", "status", value="down", **later),
        ask(1, "z", set={"store": "acks", "key": "z", "value": "on it"}, due=2),
    )  # fmt: skip
    assert d.at(1.2) == 0
    of = {name: f"{d.topic}:0:{offset}" for name, offset in zip("xyab", (3, 4, 5, 6), strict=True)}
    c, unknown, z = (f"{d.topic}:0:{offset}" for offset in (9, 10, 11))
    table = d.table()
    cancelled = {i for i, row in table.items() if row["status"] == "cancelled"}
    assert cancelled == {of["b"], c, unknown} and len(table) == 7
    assert all(table[i]["reason"] == "the state has changed" for i in cancelled)
    d.say(
        (3, None, {"id": of["y"]}, control("cancel")),
        ask(3, "w"),
        (3, None, {"id": f"{d.topic}:0:13"}, control("cancel")),
    )
    assert d.at(4) == 1, "z"
    [message] = messages(d.bootstrap, d.topic)
    heads = {name: value.decode() for name, value in message.headers()}
    assert heads == {"task-id": z, "statehouse-op": "set", "statehouse-store": "acks"} and message.key() == b"z"
    assert json.loads(message.value())["value"] == "on it"
    assert d.at(11) == 2
    assert {(i, key, value) for _, i, key, value in d.sent("asked")} == {
        (of["x"], "x", '{"k":"x"}'),
        (of["a"], None, "text"),
    }
    table = d.table()
    assert (table[of["y"]]["status"], table[of["y"]]["reason"]) == ("cancelled", "as asked for")
    assert table[f"{d.topic}:0:13"]["status"] == "cancelled"


@deep
def test_what_was_asked_for_and_is_forgotten_is_not_sent_again_where_the_log_has_forgotten_it_too(devices, monkeypatch):
    d = devices("{{topics: ['*-asked']}}")

    def ask(minute, key):
        body = {"due": iso(T0 + minute * MINUTE), "send": {"topic": f"{d.topic}-asked", "key": key}}
        return minute, key, body, control("task")

    def lost(*_):
        raise RuntimeError("[DELTA_MISSING_CHANGE_DATA]")

    d.say(ask(1, "x"))
    assert d.at(2) == 1 and d.table()
    later = 400 * 24 * 60
    d.tasks = d.started()
    assert d.at(later) == 0 and not d.table(), "it is forgotten"
    d.say(ask(later, "y"))
    monkeypatch.setattr("jobs.spark.change_feed.changes", lost)
    assert d.at(later + 1) == 1 and [key for _, _, key, _ in d.sent("asked")] == ["x", "y"]


@deep
def test_again_and_again_and_at_a_time_of_the_day(devices):
    rules = """
  again: {{store: status, when: value = 'down', after: 5 minutes, every: 10 minutes, send: {{topic: {topic}-again, value: value}}}}
  daily: {{store: status, when: value <> 'gone', at: "30 6 * * *", set: {{store: acks, key: "concat('day-', key)", value: upper(value)}}}}
"""
    d = devices(rules)
    d.say((0, "a", "down"), (0, "b", "up"), (0, "c", "gone"))
    assert [d.at(minute) for minute in (1, 5, 14.9, 15, 16, 47, 54)] == [0, 1, 0, 1, 0, 1, 0], "what was missed is one"
    d.say((58, "a", "up"))  # after 55
    assert d.at(70) == 1 and d.at(200) == 0
    assert [i for _, i, *_ in d.sent("again")] == ["again/a@0:0", *(f"again/a@0:0#{n}" for n in (1, 2, 3))]
    morning = dt.datetime(2023, 11, 15, 6, 30, tzinfo=dt.timezone.utc)
    day = (morning.timestamp() - T0 / 1e6) / 60
    assert d.at(day - 1) == 0 and d.at(day + 0.01) == 2 and d.at(day + 1) == 0
    sent = {
        (m.key().decode(), json.loads(m.value())["value"], dict(m.headers())["task-id"])
        for m in messages(d.bootstrap, d.topic)
    }
    due = morning.isoformat()
    assert sent == {(f"day-{k}", "UP", f"daily@{due}/{k}".encode()) for k in "ab"}
    assert d.at(day + 3 * 24 * 60 + 60) == 2 and d.table()["daily"]["due"] == dt.datetime(2023, 11, 19, 6, 30)


@pytest.mark.slow
def test_nothing_is_sent_before_the_states_know_what_was_in_the_topic_when_it_was_due(devices):
    d = devices()
    kafka.create_topic(d.config.kafka, d.topic)
    d.say((0, "a", "down"), (0, "b", "down"))
    produce(d.bootstrap, d.topic, [("k", {}, None, 0)] * 2)  # these two
    d.at(1)
    d.clock = time.time() + 10
    produce(d.bootstrap, d.topic, [("a", {}, None, 0)])  # in the topic, long after it was due
    assert d.tasks.round().count == 2

    d.change("{{down: {{store: status, when: value = 'down', after: 10 seconds, send: {{topic: {topic}-down}}}}}}")
    produce(d.bootstrap, d.topic, [("c", {}, None, 0)])  # what the states do not know: it may be that c is up again
    d.say(((time.time() * 1e6 - T0) / MINUTE, "c", "down"))
    d.clock = time.time() + 60
    assert d.tasks.round() is None
    d.say(((time.time() * 1e6 - T0) / MINUTE, "x", "up"))  # now they do
    assert d.tasks.round().count == 1 and d.sent("down")[-1][2] == "c"


@deep
def test_a_rule_that_is_changed_goes_on_with_what_waits_and_one_that_is_gone_sends_nothing(devices):
    d = devices()
    d.say((0, "a", "down"), (0, "b", "down"))
    assert d.at(5) == 2
    d.say((6, "c", "down"), (6, "d", "down"))
    d.at(7)
    d.change(f"{{{{{DOWN}}}}}".replace("value: value", "value: upper(value)").replace("5 minutes", "6 minutes"))
    assert d.at(11.9) == 0, "nobody is told twice"
    d.say((11.95, "d", "up"))
    assert d.at(12) == 1 and d.sent("down")[-1][1:] == ("down/c@0:2", "c", "DOWN")
    d.say((13, "e", "down"))
    d.at(14)
    d.change("{{}}")
    assert d.at(30) == 0
    row = d.table()["down/e@0:5"]
    assert (row["status"], row["reason"]) == ("cancelled", "there is no such rule any more")


@pytest.mark.slow
def test_a_lost_feed_or_a_recovered_state_keeps_what_waits_and_is_still_so(devices, monkeypatch, spark):
    d = devices()
    d.say((0, "a", "down"), (0, "b", "down"), (0, "c", "down"))
    d.at(1)
    d.say((2, "b", "up"))
    with monkeypatch.context() as patch:
        patch.setattr(
            "jobs.spark.steps.Steps.between",
            lambda *_: (_ for _ in ()).throw(RuntimeError("DELTA_MISSING_CHANGE_DATA")),
        )
        assert d.at(3) == 0
    recover(spark, d.config, d.config.stores["status"], swap=True)
    d.say((4, "c", "up"))
    assert d.at(20) == 1 and [i for _, i, *_ in d.sent("down")] == ["down/a@0:0"]
    assert {r["key"] for r in d.table().values() if r["status"] == "cancelled"} == {"b", "c"}


@pytest.mark.slow
def test_a_message_that_its_topic_does_not_take_fails_and_keeps_no_other(devices):
    d = devices(
        "{{down: {{store: status, when: value = 'down', send: {{topic: {topic}-down, value: \"if(key = 'a', repeat('x', 2000), key)\"}}}}}}"
    )
    kafka.create_topic(d.config.kafka, f"{d.topic}-down", {"max.message.bytes": "1000"})
    d.say((0, "a", "down"), (1, "b", "down"))
    assert d.at(5) == 1 and [value for *_, value in d.sent("down")] == ["b"]
    row = d.table()["down/a@0:0"]
    assert row["status"] == "failed" and "Message size too large" in row["reason"]


@pytest.mark.slow
def test_a_message_that_cannot_be_computed_is_null_and_keeps_no_other(devices):
    thrown = "element_at(split('a', ','), if(key = 'a', 0, 1))"  # of 0 it throws, also where ANSI mode is off
    sends = "down: {{store: status, when: value = 'down', send: {{topic: {topic}-down, value: THROWN}}}}"
    sets = "acked: {{store: status, when: value = 'down', set: {{store: acks, value: THROWN}}}}"
    d = devices(f"{{{{{sends}, {sets}}}}}".replace("THROWN", f'"{thrown}"'))
    d.say((0, "a", "down"), (1, "b", "down"))
    assert d.at(5) == 4 and {(key, value) for *_, key, value in d.sent("down")} == {("a", None), ("b", "a")}
    acked = {m.key(): json.loads(m.value())["value"] for m in messages(d.bootstrap, d.topic)}
    assert acked == {b"a": None, b"b": "a"}


@pytest.mark.slow
def test_what_its_topic_refuses_is_a_failed_task_and_what_a_topic_cannot_take_now_waits_and_neither_keeps_another(
    devices, monkeypatch
):
    monkeypatch.setattr("jobs.tasks.deliver.PATIENCE", 2.0)
    daily = "daily: {{store: status, at: '30 6 * * *', send: {{topic: {topic}-compact, key: \"if(key = 'a', NULL, key)\"}}}}"
    d = devices(f"{{{{topics: ['*'], {daily}}}}}")
    compact, taken, stuck, clash = (f"{d.topic}-{name}" for name in ("compact", "asked", "stuck", "cla.sh"))
    kafka.create_topic(d.config.kafka, compact, {"cleanup.policy": "compact"})
    kafka.create_topic(d.config.kafka, clash.replace(".", "_"))  # Kafka makes no topic of a name that differs in this

    def partly(properties, messages, size):
        """As if what leads one of the topics were away."""
        there = [deliver(properties, [m for m in messages if m.topic != stuck], size)]
        there.append(deliver({"bootstrap.servers": AWAY}, [m for m in messages if m.topic == stuck], size))
        return [there[m.topic == stuck].pop(0) for m in messages]

    monkeypatch.setattr("jobs.tasks.sending.deliver", partly)

    def ask(topic, key=None):
        send = {"topic": topic, "value": "v", **({"key": key} if key else {})}
        return 0, "k", {"due": iso(T0), "send": send}, control("task")

    d.say(
        *(ask(topic) for topic in (compact, taken, clash, stuck)),
        ask(compact, "k"),
        ask(taken),
        (0, "a", "up"),
        (0, "b", "up"),
    )
    with pytest.raises(TopicUnavailable, match=stuck):
        d.at(1)
    assert len(d.sent("asked")) == 2 and [key for _, _, key, _ in d.sent("compact")] == ["k"]
    rows = [d.table()[f"{d.topic}:0:{offset}"] for offset in range(6)]
    assert [row["status"] for row in rows] == ["failed", "sent", "failed", "waiting", "sent", "sent"]
    assert "cla.sh" in rows[2]["reason"] and compact in rows[0]["reason"]
    rest = d.tasks.sending.rests["topic", stuck]
    assert rest.failures == 1
    d.tasks.sending.rests["topic", stuck] = rest._replace(until=float("inf"))  # it is of two seconds

    day = (dt.datetime(2023, 11, 15, 6, 30, tzinfo=dt.timezone.utc).timestamp() - T0 / 1e6) / 60
    assert d.at(day + 1) == 1 and [key for _, _, key, _ in d.sent("compact")][1:] == ["b"], "a's has no key"
    assert "1 messages were refused" in d.table()["daily"]["reason"]
    monkeypatch.setattr("jobs.tasks.sending.FEW", 0)  # Spark sends all at once, and fails: some may be sent again
    assert d.at(day + 24 * 60 + 1) == 1 and {key for _, _, key, _ in d.sent("compact")} == {"k", "b"}
    assert d.table()["daily"]["sent"] == 2


def test_what_is_wrong_with_a_task_is_a_reason_in_the_quarantine(devices, spark):
    d = devices("{{topics: [told, 'ops-*']}}")
    good = {"due": iso(T0), "send": {"topic": "told"}}

    def to(topic):
        return {**good, "send": {"topic": topic}}, None

    wrong = {
        "due: found tomorrow, expected a time": ({**good, "due": "tomorrow"}, None),
        "due: found nothing": ({"send": good["send"]}, None),
        "a task without send.topic and set.store, or with both": ({**good, "set": {"store": "acks"}}, None),
        "send.topic: found a b, expected letters, digits": to("a b"),
        "send.topic: found .., expected letters, digits": to(".."),
        "send.topic: found xxx": to("x" * 250),
        "send.topic: found __consumer_offsets, expected no topic of Kafka's own": to("__consumer_offsets"),
        "send.topic: found alerts, expected one that tasks may send to: told, ops-*": to("alerts"),
        "set.store: found no, expected one of status, acks": ({"due": iso(T0), "set": {"store": "no"}}, None),
        "set: found no key or no value": ({"due": iso(T0), "set": {"store": "acks", "key": "k"}}, None),
        "value: found one, expected the header statehouse-store too": ({**good, "value": 1}, None),
        "value: found null": ({**good, "value": None}, "status"),
        "found no, expected one of status, acks": (good, "no"),
    }
    d.say(*((0, "k", body, control("task", store)) for body, store in wrong.values()), (0, "k", {}, control("cancel")))
    found = [r["reason"] for r in rows(spark, f"{d.config.root}/quarantine/s")]
    for expected in [*wrong, "a cancel whose payload is not a JSON object"]:
        assert any(expected in reason for reason in found), (expected, found)
    assert len(found) == len(wrong) + 1


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{store: status}", r"tasks.x: found neither, expected one of send: and set:"),
        ("{store: status, send: {topic: a}, set: {store: acks, value: value}}", r"tasks.x: found both"),
        ("{store: status, after: 5 minutes, at: 0 6 * * *, send: {topic: a}}", r"tasks.x: found at: with after:"),
        ("{store: status, at: 61 * * * *, send: {topic: a}}", r"tasks.x.at: found '61 \* \* \* \*', expected minute, hour"),
        ("{store: status, after: soon, send: {topic: a}}", r"tasks.x.after: found 'soon', expected a duration"),
        ("{store: nope, send: {topic: a}}", r"tasks.x.store: found store 'nope', expected one of status, acks"),
        ("{store: status, set: {store: nope, value: value}}", r"tasks.x.set.store: found store 'nope', expected one of status"),
        ("{store: status, send: {topic: ..}}", r"tasks.x.send.topic: found '..', expected letters, digits"),
        ("{store: status, send: {topic: a, text: b}}", r"tasks.x.send.text: found 'text', expected one of key, topic, value"),
        ("{store: status, when: value, send: {topic: a}}", r"tasks.x.when: found 'value' of type STRING, expected a BOOLEAN"),
        ("{store: status, when: since > now(), send: {topic: a}}", r"tasks.x.when: found 'since > now\(\)': .*since"),
        ("{store: status, send: {topic: a, value: other}}", r"tasks.x.send.value: found 'other': .*other"),
        ("{store: status, set: {store: acks, value: other}}", r"tasks.x.set.value: found 'other': .*other"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_rule_is_said_with_its_place(lake, spark, rule, said):
    try:
        wrong = problems(spark, lake(STATUS.format(topic="t", rules=f"{{x: {rule}}}")))
    except ConfigError as error:
        assert re.search(said, str(error))
    else:
        ((where, message),) = wrong
        assert re.search(said, ".".join(where) + ": " + message)


def test_topics_among_the_rules_are_those_that_tasks_may_be_asked_to_send_to(lake):
    def topics(rules, more=""):
        return lake(STATUS.format(topic="t", rules=rules) + more).askable_topics

    routed = "routes: {r: {from: s, to: {topic: routed}}, k: {from: s, to: {table: k}}}\n"
    rule = "x: {store: status, send: {topic: told}}"
    assert topics(f"{{{rule}}}", routed) == ("told", "routed"), "what the rules and the routes name"
    assert topics(f"{{topics: alerts, {rule}}}") == ("alerts",)
    assert topics("{}") == topics("{topics: []}", routed) == ()
    assert list(lake(STATUS.format(topic="t", rules=f"{{topics: ['*'], {rule}}}")).tasks) == ["x"]
    for rules, said in {
        "{topics: {store: status, send: {topic: told}}}": "13: tasks.topics: found a rule of this name, expected the topics",
        "{topics: [a b]}": r"13: tasks.topics.0: found 'a b', expected a topic",
    }.items():
        with pytest.raises(ConfigError, match=said):
            topics(rules)
