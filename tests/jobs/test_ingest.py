"""Bad input through a real Kafka: the job goes on, the counts add up, the reason is readable."""

from __future__ import annotations

import threading
import uuid

import pytest
from deltalake import DeltaTable

from jobs.check import problems
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse import kafka
from statehouse.errors import DefinitionChanged, KafkaUnavailable, LakeBusy, TopicRecreated
from statehouse.tables import metadata
from tests.support.records import SCHEMA, Heard, control, create, payload, produce, record, rows, wait

STREAM = """
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING NOT NULL, n INT, d DECIMAL(6,2), flag BOOLEAN, ts TIMESTAMP, day DATE
    time: "nullif(ts, TIMESTAMP '2000-01-01 00:00:00')"
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  last: {{stream: s, key: key, value: agent, reduce: latest}}
  odd: {{stream: s, key: "upper(key)", value: "CAST(100 AS BIGINT) DIV (n - 7)", reduce: latest}}
  cast: {{stream: s, key: key, value: CAST(agent AS INT), reduce: sum}}
  pair: {{stream: s, key: [key, n], reduce: count}}
"""

GOOD = {"key": "k", "agent": "a", "n": 1, "ts": "2024-05-01T10:00:00Z"}
REFUSED = [
    # (Kafka's key, payload, headers, what the reason says)
    ("k", b"", None, "not a JSON object"),
    ("k", b"not json", None, "not a JSON object: found not json"),
    ("k", b'{"key": "k", ', None, "not JSON"),
    ("k", b'{"key": "k", "agent": "a"} tail', None, "found more after the object"),
    ("k", b'{"key": "k", "agent": "a"}{"key": "l", "agent": "a"}', None, "found more after the object"),
    ("k", b"\xff\xfe{}", None, "not UTF-8"),
    ("k", b'{"key": "k", "agent": "a", "x": {"z": NaN}}', None, "not JSON"),
    ("k", b'{"key": "k", "agent": "a",}', None, "not JSON: trailing comma"),
    ("k", b'{"key": "lone\\ud83d", "agent": "a"}', None, "not JSON: found half of a character, \\ud83d"),
    ("k", {**GOOD, "ts": "12:00"}, None, 'ts: found "12:00", expected a time'),
    ("k", b'{"key": "k", "agent": "a", "d": 1e1000000}', None, "d: found 1e1000000, expected DECIMAL(6, 2)"),
    ("k", {"value": 1}, {"statehouse-op": b"\xff", "statehouse-store": "total"}, "found \ufffd, expected set or purge"),
    ("k", b"[1, 2]", None, "not a JSON object: found [1, 2]"),
    ("k", b'"text"', None, "not a JSON object"),
    ("k", b"null", None, "not a JSON object: found null"),
    *(
        ("k", b'{"key": "k", "agent": "a"}' + more, None, "found more after the object")
        for more in (b' {"key": "l"}', b', {"key": "l"}', b"}", b" x}", b"\n]}", b'"{}"')
    ),
    ("k", {**GOOD, "n": "many"}, None, 'n: found "many", expected INT'),
    ("k", {**GOOD, "n": 1.5}, None, "n: found 1.5, expected INT"),
    ("k", {**GOOD, "n": 30_000_000_000}, None, "n: found 30000000000, expected INT"),
    ("k", {**GOOD, "flag": "maybe"}, None, 'flag: found "maybe", expected BOOLEAN'),
    ("k", {**GOOD, "agent": None}, None, "agent: found nothing, expected STRING NOT NULL"),
    ("k", {"key": "k"}, None, "agent: found nothing"),
    ("k", {**GOOD, "ts": "yesterday"}, None, 'ts: found "yesterday", expected a time such as'),
    ("k", {**GOOD, "ts": "+12024-01-01T00:00:00Z"}, None, "ts"),
    ("k", {**GOOD, "ts": "2000-01-01T00:00:00Z"}, None, "found no time in nullif"),  # by SQL, and not by the decoder
    (
        "k",
        {"value": 1},
        {"statehouse-op": "add", "statehouse-store": "total"},
        "found add, expected set or purge",
    ),
    ("k", {"value": 1}, control("set", "nosuch"), "found nosuch, expected one of total, last"),
    ("k", {"value": 1}, control("set"), "without the header statehouse-store"),
    ("k", {"value": "x"}, control("set", "total"), 'value: found "x", expected BIGINT'),
    ("k", {"value": None}, control("set", "total"), "purge it"),
    ("k", {"agent": "a"}, control("set", "total"), "a set whose payload is not a JSON object"),
    ("k", b"junk", control("set", "total"), "a set whose payload is not a JSON object"),
    ("k", {"value": 3}, control("set", "pair"), "expected a key of pair: STRING/INT"),
    (None, None, None, "a purge without a key"),
]
ACCEPTED = [
    ("k", GOOD, None),
    ("k", {**GOOD, "n": 7}, None),  # divides by zero in `odd`
    (None, {**GOOD, "key": None}, None),  # no key: in the changelog, in no store
    ("k", {k: v for k, v in GOOD.items() if k != "key"}, None),
    ("", {**GOOD, "key": ""}, None),
    (b"\xff\x00", GOOD, None),
    ("k", {**GOOD, "ts": None}, None),
    ("k", {**GOOD, "ts": "9999-12-31T23:59:59.999999Z"}, None),
    ("k", {**GOOD, "x": {"y": [{"z": 1}, {}]}}, None),
    ("k", {**GOOD, "x": "} {", "y": "}"}, None),
    ("k", b'\t{"key": "k", "agent": "a", "x": {"z": null}} \r\n', None),
    ("k", {**GOOD, "unknown": {"deep": [1]}}, None),
    ("k", {**GOOD, "n": 2_147_483_647}, None),
    ("big", {**GOOD, "key": "big", "agent": "x" * 5_000_000}, None),
    ("ü \u2603", {**GOOD, "key": "ü \u2603"}, None),
    ("k", {"value": 40}, control("set", "total")),
    ("k/1", {"value": 2}, control("set", "pair")),
    ("gone", None, None),
]


def run_once(ingest):
    ingest.stopping.clear()
    ingest.run(once=True)


@pytest.mark.slow
def test_bad_input_is_refused_with_a_reason_and_stops_nothing(spark, broker, lake):
    topic = f"bad-{uuid.uuid4()}"
    config = lake(STREAM.format(topic=topic), broker.bootstrap)
    kafka.create_topic(config.kafka, topic)
    mixed = [(k, v, h, 0) for k, v, h, _ in REFUSED] + [(k, v, h, 1) for k, v, h in ACCEPTED]
    produce(broker.bootstrap, topic, mixed)
    heard = Heard()
    ingest = Ingest(spark, config, config.streams["s"], progress=heard)
    run_once(ingest)
    assert heard.steps == [["ingesting s", len(mixed), len(mixed)]]
    log, bad = rows(spark, ingest.changelog), rows(spark, ingest.quarantine)
    assert len(log) == len(ACCEPTED), [r["reason"] for r in bad if r["partition"] == 1]
    assert len(log) + len(bad) == len(mixed) == ingest.events + ingest.refused
    reasons = {r["offset"]: r["reason"] for r in bad if r["partition"] == 0}
    for offset, (_, value, _, says) in enumerate(REFUSED):
        assert says in reasons[offset], (value, reasons[offset])
    for r in bad:
        found = r["payload_bytes"] if r["payload"] is None else r["payload"].encode()
        headers = {h["key"]: bytes(h["value"]) for h in r["headers"] or ()}
        _, value, sent, _ = mixed[r["offset"] + r["partition"] * len(REFUSED)]
        assert found == payload(value), "nothing of a refused record is lost"
        assert headers == {n: h if isinstance(h, bytes) else h.encode() for n, h in (sent or {}).items()}

    for store in config.stores.values():
        Merge(spark, config, store).round()
    states = {s: {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/{s}")} for s in config.stores}
    assert set(states["last"]) == {"k", "", "big", "ü \u2603"}
    assert states["total"]["k"] == 40 + 1, "the set replaces all before it; the event of year 9999 is after it"
    assert states["cast"] == {}, "what cannot be cast is null, and nothing more"
    assert states["odd"]["K"] == -16, "a division by zero is null, and not the latest event here"
    assert {(r["key"], r["n"]): r["value"] for r in rows(spark, f"{config.root}/state/pair")}[("k", 1)] > 2


@pytest.mark.slow
def test_few_records_are_ingested_without_sparks_source_and_many_with_it(spark, broker, lake, monkeypatch):
    topic = f"few-{uuid.uuid4()}"
    config = lake(STREAM.format(topic=topic), broker.bootstrap)
    create(broker.bootstrap, topic, 2)
    ingest, start, queries = Ingest(spark, config, config.streams["s"]), Ingest.start, []
    monkeypatch.setattr(Ingest, "start", lambda *of, **with_: queries.append(start(*of, **with_)) or queries[-1])
    monkeypatch.setattr("jobs.spark.consumer.BYTES", 2000)  # so that they are some batches
    produce(broker.bootstrap, topic, [(f"k{n}", GOOD if n % 10 else b"?", None, n % 2) for n in range(100)])
    versions = DeltaTable(ingest.changelog).version()
    run_once(ingest)
    run_once(ingest)  # there is nothing more
    assert (ingest.events, ingest.refused, len(queries)) == (90, 10, 0)
    assert DeltaTable(ingest.changelog).version() > versions + 2
    monkeypatch.setattr("jobs.ingest.FEW", 9)
    produce(broker.bootstrap, topic, [("k", GOOD, None, 0)] * 10)
    run_once(ingest)
    assert (ingest.events, len(queries)) == (100, 1)
    monkeypatch.setattr("jobs.ingest.FEW", 10)
    monkeypatch.setattr("jobs.ingest.read_records", lambda *_: 1 / 0)  # such as a header that its client cannot read
    produce(broker.bootstrap, topic, [("k", GOOD, None, 0)] * 10)
    run_once(ingest)
    assert (ingest.events, len(queries)) == (110, 2)
    places = [(r["_partition"], r["_offset"]) for r in rows(spark, ingest.changelog)]
    assert len(places) == len({*places}) == 110


def test_a_whole_batch_again_changes_nothing(spark, lake):
    config = lake(STREAM.format(topic="t"))
    batch = [
        record("t", 0, o, 10**15 + o, k, v, h) for o, (k, v, h) in enumerate([("k", GOOD, None), ("k", b"?", None)] * 5)
    ]
    frame = spark.createDataFrame(batch, SCHEMA)
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(frame)
    ingest.batch(frame)
    Ingest(spark, config, config.streams["s"]).batch(frame)  # as after a restart
    assert len(rows(spark, ingest.changelog)) == len(rows(spark, ingest.quarantine)) == 5


@pytest.mark.parametrize("after", ["_append_refused", "_append_accepted"])
def test_a_crash_after_each_step_of_the_protocol_leaves_each_event_once(spark, lake, monkeypatch, after):
    config = lake(STREAM.format(topic="t"))
    batch = [
        record("t", 0, o, 10**15 + o, k, v, h) for o, (k, v, h) in enumerate([("k", GOOD, None), ("k", b"?", None)] * 5)
    ]
    ingest = Ingest(spark, config, config.streams["s"])
    step = getattr(ingest, after)

    def dies(*arguments):
        step(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(ingest, after, dies)
    with pytest.raises(KeyboardInterrupt):
        ingest.batch(spark.createDataFrame(batch, SCHEMA))
    again = Ingest(spark, config, config.streams["s"])
    more = [record("t", 0, 10, 10**15, "k", b"?", None), record("t", 0, 11, 10**15, "k", GOOD, None)]
    again.batch(spark.createDataFrame(batch + more, SCHEMA))
    assert sorted(r["_offset"] for r in rows(spark, again.changelog)) == [0, 2, 4, 6, 8, 11]
    assert sorted(r["offset"] for r in rows(spark, again.quarantine)) == [1, 3, 5, 7, 9, 10]


def test_the_position_is_found_in_the_rows_where_the_log_no_longer_has_it(spark, lake, monkeypatch):
    config = lake(STREAM.format(topic="t"))
    batch = [record("t", 0, o, 10**15 + o, "k", GOOD if o % 2 else b"?") for o in range(8)]
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame(batch[:4], SCHEMA))
    ingest.batch(spark.createDataFrame(batch[4:], SCHEMA))
    cleaned = [None, None]  # at the start and before the next commit
    monkeypatch.setattr("jobs.ingest.metadata", lambda *of: cleaned.pop() if cleaned else metadata(*of))
    again = Ingest(spark, config, config.streams["s"])
    assert again.offsets == {0: 8}
    again.batch(spark.createDataFrame([*batch, record("t", 0, 8, 10**15, "k", GOOD)], SCHEMA))
    assert sorted(r["_offset"] for r in rows(spark, again.changelog)) == [1, 3, 5, 7, 8]
    assert sorted(r["offset"] for r in rows(spark, again.quarantine)) == [0, 2, 4, 6]


def test_a_second_writer_is_noticed(spark, lake):
    config = lake(STREAM.format(topic="t"))
    one, other = (Ingest(spark, config, config.streams["s"]) for _ in range(2))
    frame = spark.createDataFrame([record("t", 0, 0, 10**15, "k", GOOD)], SCHEMA)
    one.batch(frame)
    with pytest.raises(LakeBusy):
        other.batch(spark.createDataFrame([record("t", 0, o, 10**15, "k", GOOD) for o in (0, 1)], SCHEMA))
    assert len(rows(spark, one.changelog)) == 1


def test_another_topic_for_a_stream_is_refused(spark, lake):
    config = lake(STREAM.format(topic="t"))
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 0, 10**15, "k", GOOD)], SCHEMA))
    config = lake(STREAM.format(topic="u"))
    with pytest.raises(DefinitionChanged, match="of the topic t, found u"):
        Ingest(spark, config, config.streams["s"])


def test_a_batch_of_nothing_but_rubbish_moves_the_position(spark, lake):
    config = lake(STREAM.format(topic="t"))
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, o, 10**15, "k", b"?") for o in range(3)], SCHEMA))
    assert Ingest(spark, config, config.streams["s"]).offsets == {0: 3}


def test_a_topic_that_is_not_there_yet_is_made_and_one_made_anew_is_refused(spark, broker, lake):
    topic = f"new-{uuid.uuid4()}"
    config = lake(STREAM.format(topic=topic), broker.bootstrap)
    ingest = Ingest(spark, config, config.streams["s"])
    run_once(ingest)
    assert kafka.partitions(config.kafka, topic) and rows(spark, ingest.changelog) == []
    produce(broker.bootstrap, topic, [("k", GOOD, None, 0)])
    run_once(ingest)
    assert len(rows(spark, ingest.changelog)) == 1
    ingest.offsets = {0: 5}
    with pytest.raises(TopicRecreated, match="deleted and made again"):
        ingest.check_topics()


def test_a_column_that_the_schema_gains_is_added_and_another_type_is_refused(spark, lake):
    text = STREAM.format(topic="t")
    config = lake(text)
    first = Ingest(spark, config, config.streams["s"])
    first.batch(spark.createDataFrame([record("t", 0, 0, 10**15, "k", GOOD)], SCHEMA))
    config = lake(text.replace("key STRING,", "key STRING, site STRING,"))
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 1, 10**15, "k", {**GOOD, "site": "x"})], SCHEMA))
    assert [r["site"] for r in sorted(rows(spark, ingest.changelog), key=lambda r: r["_offset"])] == [None, "x"]
    assert Merge(spark, config, config.stores["last"]).round() is not None
    config = lake(text.replace("flag BOOLEAN", "flag STRING"))
    with pytest.raises(DefinitionChanged, match="has flag as boolean, the schema says string"):
        Ingest(spark, config, config.streams["s"])
    config = lake(text)  # the column is dropped from the schema again: it stays, and is null
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 2, 10**15, "k", GOOD)], SCHEMA))
    assert len(rows(spark, ingest.changelog)) == 3


def test_a_store_whose_rule_changed_is_refused_with_what_differs(spark, lake):
    text = STREAM.format(topic="t")
    config = lake(text)
    ingest = Ingest(spark, config, config.streams["s"])
    ingest.batch(spark.createDataFrame([record("t", 0, 0, 10**15, "k", GOOD)], SCHEMA))
    Merge(spark, config, config.stores["total"]).round()
    changed = lake(text.replace("value: n, reduce: sum", "value: n, where: n > 3, reduce: sum"))
    with pytest.raises(DefinitionChanged, match="where: None → 'n > 3'"):
        Merge(spark, changed, changed.stores["total"]).round()


@pytest.mark.slow
def test_kafka_away_at_the_start_and_in_the_middle(spark, java, lake, tmp_path):
    from demo.broker import Broker

    own = Broker(tmp_path / "kafka")
    own.start()
    bootstrap = own.bootstrap
    own.stop()
    config = lake(STREAM.format(topic="t"), bootstrap)
    ingest = Ingest(spark, config, config.streams["s"])
    with pytest.raises(KafkaUnavailable):
        kafka.partitions(config.kafka, "t", timeout=1)
    thread = threading.Thread(target=ingest.run)
    thread.start()
    try:
        own.start()
        wait(lambda: kafka.partitions(config.kafka, "t", timeout=2), what="the topic")
        produce(bootstrap, "t", [("k", GOOD, None, 0)])
        wait(lambda: ingest.events == 1, what="the first event")
        own.kill()
        own.start()
        produce(bootstrap, "t", [("k", GOOD, None, 0)])
        wait(lambda: ingest.events == 2, 120, what="the second event")
    finally:
        ingest.stopping.set()
        thread.join(60)
        own.stop()
    assert not thread.is_alive()
    assert sorted(r["_offset"] for r in rows(spark, ingest.changelog)) == [0, 1]


def test_spark_names_what_is_wrong_with_an_expression(spark, lake):
    text = STREAM.format(topic="t").replace("value: n, reduce: sum", "value: nn, reduce: sum")
    text = text.replace('key: "upper(key)"', 'key: "nosuch(key)"').replace(
        "value: agent, reduce: latest", "value: agent, where: n, reduce: latest"
    )
    found = {path: message for path, message in problems(spark, lake(text))}
    assert "nn" in found[("stores", "total", "value")]
    assert "nosuch" in found[("stores", "odd", "key")]
    assert "expected a BOOLEAN" in found[("stores", "last", "where")]
    assert len(found) == 3
