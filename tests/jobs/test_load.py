"""History from files: each row once, whatever the format, however often it is called, beside the live stream."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import random
import subprocess
import sys
from decimal import Decimal

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from jobs import load as loading
from jobs.ingest import Ingest
from jobs.load import load
from jobs.merge import Merge
from jobs.spark import change_feed
from statehouse.cli import main
from statehouse.errors import StatehouseError
from statehouse.formats.avro_files import records_of
from statehouse.status import stream_status
from tests.support.oracle import fold
from tests.support.records import SCHEMA, Heard, iso, record, rows

CONFIG = """
streams:
  s:
    topic: t
    schema: key STRING, n BIGINT, d DECIMAL(8,2), flag BOOLEAN, tags ARRAY<STRING>, ts TIMESTAMP
    time: ts
  timeless: {topic: u, schema: key STRING}
stores:
  total: {stream: s, key: key, value: n, reduce: sum}
  last: {stream: s, key: key, value: n, reduce: latest}
"""
T0 = 1_700_000_000_000_000


def loaded(spark, config, file):
    return load(spark, config, config.streams["s"], file)


def state(spark, config, store):
    Merge(spark, config, config.stores[store]).round()
    return {r["key"]: r["value"] for r in rows(spark, f"{config.root}/state/{store}")}


@pytest.mark.slow
def test_json_lines_once_a_file(spark, lake, tmp_path):
    config = lake(CONFIG)
    lines = [{"key": "a", "n": i, "ts": iso(T0)} for i in range(5)]
    text = "\n".join([json.dumps(line) for line in lines] + ["", "not json", '{"key": "b", "n": 1}', '{"n": "x"}', ""])
    (tmp_path / "old.jsonl").write_text(text)
    (tmp_path / "copy.jsonl").write_text(text)
    heard = Heard()
    done = load(spark, config, config.streams["s"], tmp_path / "old.jsonl", heard)
    assert (done.events, done.refused) == (5, 3)
    assert heard.steps == [["reading old.jsonl", None, 0], ["loading old.jsonl", 9, 0]], "an empty line among them"
    for file in ("old.jsonl", "copy.jsonl"):
        assert loaded(spark, config, tmp_path / file).events is None, "known by its content"
    reasons = {r["payload"]: r["reason"] for r in rows(spark, f"{config.root}/quarantine/s")}
    assert reasons["not json"] == "not a JSON object: found not json"
    assert reasons['{"key": "b", "n": 1}'].startswith("found no time")
    assert reasons['{"n": "x"}'] == 'n: found "x", expected BIGINT'
    assert state(spark, config, "last") == {"a": 4}, "of rows with the same time the file's last is the latest"
    with gzip.open(tmp_path / "more.ndjson.gz", "wt") as file:
        file.write(json.dumps({"key": "a", "n": 100, "ts": iso(T0)}))
    assert loaded(spark, config, tmp_path / "more.ndjson.gz").events == 1
    assert state(spark, config, "total") == {"a": 110}
    coordinates = [(r["_topic"], r["_partition"], r["_offset"]) for r in rows(spark, f"{config.root}/changelog/s")]
    assert {(t, p) for t, p, _ in coordinates} == {("t", -1)} and len(set(coordinates)) == 6
    refused = [(r["partition"], r["offset"]) for r in rows(spark, f"{config.root}/quarantine/s")]
    assert not {(p, o) for _, p, o in coordinates} & set(refused)


@pytest.mark.slow
def test_csv_and_parquet_rows_are_what_a_producer_would_have_sent(spark, lake, tmp_path):
    config = lake(CONFIG)
    (tmp_path / "old.csv").write_text(
        "KEY,n,d,flag,tags,ts,extra\n"
        'a,007,1.50,TRUE,"[""x"",""y""]",2024-01-01T00:00:00Z,?\n'
        '"b, ""c""",+3,,false,,2024-01-01 00:00:01,\n'
        "c,many,1,true,,2024-01-01,\n"
        "d,1,1,perhaps,,2024-01-01,\n"
    )
    done = loaded(spark, config, tmp_path / "old.csv")
    found = {r["key"]: r for r in rows(spark, f"{config.root}/changelog/s")}
    assert (done.events, done.refused) == (2, 2)
    assert (found["a"]["n"], found["a"]["d"], found["a"]["flag"]) == (7, Decimal("1.50"), True)
    assert found["a"]["tags"] == ["x", "y"] and found['b, "c"']["n"] == 3 and found['b, "c"']["d"] is None
    reasons = sorted(r["reason"] for r in rows(spark, f"{config.root}/quarantine/s"))
    assert reasons == ['flag: found "perhaps", expected BOOLEAN', 'n: found "many", expected BIGINT']
    columns = {
        "key": ["p", "q", None],
        "n": pa.array([2**60, None, 1], pa.int64()),
        "d": pa.array([Decimal("3.25"), None, None], pa.decimal128(8, 2)),
        "tags": [["ü"], [], None],
        "ts": pa.array([T0, T0 + 1, T0 + 2], pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), tmp_path / "old.parquet")
    assert loaded(spark, config, tmp_path / "old.parquet").events == 3
    found = {r["key"]: r for r in rows(spark, f"{config.root}/changelog/s")}
    assert (found["p"]["n"], found["p"]["d"], found["p"]["tags"]) == (2**60, Decimal("3.25"), ["ü"])
    assert iso(T0 + 1).startswith(found["q"]["_event_time"].isoformat()) and found["q"]["n"] is None
    assert state(spark, config, "total") == {"a": 7, 'b, "c"': 3, "p": 2**60}


@pytest.mark.slow
def test_files_and_the_live_stream_in_any_order_give_the_same(spark, lake, tmp_path):
    """Some events come by files and some by Kafka, in a random order, with repetitions and a crash in each file's middle."""
    dice = random.Random(5)
    config = lake(CONFIG)
    events, batches, offset = {}, [], 0
    for number in range(6):
        lines, records = [], []
        for _ in range(30):
            made = {"key": dice.choice("abc"), "n": dice.randrange(9), "ts": iso(T0 + dice.randrange(40) * 10**6)}
            if number % 2:
                lines.append(made)
            else:
                records.append(record("t", 0, offset, T0, made["key"], made))
                offset += 1
        if lines:
            file = tmp_path / f"{number}.json"
            file.write_text("\n".join(map(json.dumps, lines)) + "\nrubbish\n")
            batches.append(file)
        else:
            batches.append(records)
    dice.shuffle(batches)
    ingest = Ingest(spark, config, config.streams["s"])
    append = loading.accepted_rows
    for batch in batches:
        if isinstance(batch, list):
            ingest.offsets = {}  # Kafka's own batches out of order, as in the test of the law
            ingest.batch(spark.createDataFrame(batch, SCHEMA))
            continue
        with pytest.MonkeyPatch.context() as crash:
            crash.setattr(loading, "accepted_rows", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                loaded(spark, config, batch)
        assert loading.accepted_rows is append
        for _ in range(2):
            loaded(spark, config, batch)
        state(spark, config, "total")
    for row in rows(spark, f"{config.root}/changelog/s"):
        time = int((row["_event_time"] - row["_event_time"].__class__(1970, 1, 1)).total_seconds() * 10**6)
        event = {"op": "report", "value": row["n"], "order": (time, row["_partition"], row["_offset"])}
        events.setdefault(row["key"], []).append(event)
    assert sum(map(len, events.values())) == 180 and len(rows(spark, f"{config.root}/quarantine/s")) == 3
    assert {p for e in events.values() for (_, p, _) in (x["order"] for x in e)} == {-1, 0}
    assert state(spark, config, "total") == {k: fold("sum", e)[0] for k, e in events.items()}
    assert state(spark, config, "last") == {k: fold("latest", e)[0] for k, e in events.items()}
    assert Ingest(spark, config, config.streams["s"]).offsets == {0: 90}, "ingestion's own position"
    status = stream_status(config, "s")
    assert (status["events"], status["quarantined"], status["offsets"]) == (180, 3, {"0": 90})


def test_what_cannot_be_loaded_is_said(spark, lake, tmp_path, capsys):
    config = lake(CONFIG)
    with pytest.raises(StatehouseError, match="no such file"):
        loaded(spark, config, tmp_path / "nosuch.csv")
    (tmp_path / "old.xlsx").write_text("?")
    with pytest.raises(StatehouseError, match=r"found the ending '.xlsx', expected one of .json"):
        loaded(spark, config, tmp_path / "old.xlsx")
    for name in ("broken.parquet", "broken.json.gz"):
        (tmp_path / name).write_bytes(b"rubbish")
        with pytest.raises(StatehouseError, match=f"{name}: cannot be read: "):
            loaded(spark, config, tmp_path / name)
    with pytest.raises(StatehouseError, match="timeless: found no 'time'"):
        load(spark, config, config.streams["timeless"], tmp_path / "old.xlsx")
    assert main(["load", "-c", str(tmp_path / "statehouse.yaml"), "nosuch", "old.csv"]) == 2
    assert "found the stream 'nosuch', expected one of s, timeless" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_avro_whatever_the_stream_is_written_in(spark, lake, tmp_path, codec):
    config = lake(CONFIG)
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "key", "type": ["null", "string"]}, {"name": "n", "type": ["string", "int", "long"]}, {"name": "d", "type": decimal},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "more", "type": "boolean"}]}  # fmt: skip
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
    good = [
        {"key": f"k{i % 3}", "n": i, "d": Decimal(i) / 4, "tags": ["x"] * (i % 3), "ts": moment, "more": True}
        for i in range(2500)
    ]
    bad = {**good[0], "n": "many"}
    file = tmp_path / "old.avro"
    with file.open("wb") as out:
        fastavro.writer(out, schema, [*good, bad], codec=codec, sync_interval=1000)
    done = loaded(spark, config, file)
    assert (done.events, done.refused) == (2500, 1)
    assert loaded(spark, config, file).events is None
    found = sorted(rows(spark, f"{config.root}/changelog/s"), key=lambda r: r["_offset"])
    assert [(r["key"], r["n"], r["d"], r["tags"]) for r in found] == [
        (r["key"], r["n"], r["d"], r["tags"]) for r in good
    ]
    assert {r["_event_time"] for r in found} == {moment.replace(tzinfo=None)} and found[0]["flag"] is None
    (refused,) = rows(spark, f"{config.root}/quarantine/s")
    assert refused["reason"].startswith("n: found")
    assert state(spark, config, "total") == {f"k{k}": sum(range(k, 2500, 3)) for k in range(3)}


def in_avro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy", "zstandard", "lz4"])
def test_records_of_avro_are_read_as_they_are(tmp_path, codec):
    values, schema = [None, 7, 2**62, "x"], ["null", "long", "string"]
    with (tmp_path / "x.avro").open("wb") as out:
        fastavro.writer(out, schema, values, codec=codec)
    assert [*records_of(tmp_path / "x.avro")] == [in_avro(schema, value) for value in values]


def test_a_record_that_is_too_deep_does_not_end_the_process(tmp_path):
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}, [])
    header, data = out.getvalue(), b"\x02" * 20_000 + b"\0"
    (tmp_path / "x.avro").write_bytes(header + in_avro("long", 1) + in_avro("long", len(data)) + data + header[-16:])
    with pytest.raises(RecursionError):
        [*records_of(tmp_path / "x.avro")]


def test_what_executors_get_needs_no_more_than_they_have():
    script = """
import pickle, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pydantic", "sqlglot", "delta", "deltalake", "jobs"):
            raise ImportError(f"an executor has no {name}")
sys.meta_path.insert(0, Absent())
for function in pickle.load(sys.stdin.buffer):
    list(function([]))
"""
    functions = [loading._read_avro(), change_feed._add_gained(())]
    subprocess.run([sys.executable, "-c", script], input=cloudpickle.dumps(functions), check=True)


def test_changes_of_a_table_are_not_loaded_from_avro(spark, lake, tmp_path):
    config = lake("streams:\n  s: {topic: t, format: debezium, schema: id INT}\n")
    (tmp_path / "old.avro").write_bytes(b"")
    with pytest.raises(StatehouseError, match=r"old\.avro: found Avro, expected changes of a table as JSON lines"):
        loaded(spark, config, tmp_path / "old.avro")


@pytest.mark.parametrize("content", [b"", b"{}", b"Obj\x01", "cut"])
def test_a_broken_avro_file_is_said_and_nothing_is_loaded(spark, lake, tmp_path, content):
    config, file = lake(CONFIG), tmp_path / "old.avro"
    if content == "cut":
        out = io.BytesIO()
        fastavro.writer(out, "long", range(1000))
        content = out.getvalue()[:-30]
    file.write_bytes(content)
    with pytest.raises(StatehouseError, match=r"old\.avro: cannot be read: (cannot read header|\w*Error)"):
        loaded(spark, config, file)
    assert rows(spark, f"{config.root}/changelog/s") == []
