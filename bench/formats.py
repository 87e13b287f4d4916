"""What a format costs beside JSON: `python -m bench.formats [EVENTS] [KEYS]`.

The same random events, each with five columns and a struct, are in a topic for each format. `statehouse run --once` takes each topic into a
changelog and a sum in a process of its own; then the API's parser takes them in memory, 2,000 at once, as it does where they are shown ahead of
the changelog. The registry is a real one (Apicurio).
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from api.engine import duck
from api.replica.arrivals import Parser, record, table
from bench.recovery import watched
from demo.broker import Broker
from statehouse.config.file import load
from statehouse.formats.wire import ids_of
from statehouse.status import stream_status
from tests.support import apicurio
from tests.support.proto import compile_module

AVRO = {
    "type": "record",
    "name": "Report",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "agent", "type": "string"},
        {"name": "n", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "at",
            "type": {
                "type": "record",
                "name": "At",
                "fields": [{"name": "site", "type": "string"}, {"name": "floor", "type": "int"}],
            },
        },
        {"name": "firmware", "type": ["null", "string"]},
    ],
}
PROTO = """syntax = "proto3"; package bench; import "google/protobuf/timestamp.proto";
message Report { string device = 1; string agent = 2; int64 n = 3; google.protobuf.Timestamp ts = 4; At at = 5; optional string firmware = 6; }
message At { string site = 1; int32 floor = 2; }
"""
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
JSON = {
    "type": "object",
    "properties": {
        **{"device": TEXT, "agent": TEXT, "n": NUMBER, "ts": {"type": "string", "format": "date-time"}},
        **{"at": {"type": "object", "properties": {"site": TEXT, "floor": NUMBER}}, "firmware": TEXT},
    },
}
COLUMNS = "device STRING, agent STRING, n BIGINT, ts TIMESTAMP, at STRUCT<site: STRING, floor: BIGINT>, firmware STRING"
# The settings of a stream, and what the registry knows of it.
FORMATS: dict[str, tuple[str, tuple[str, str] | None]] = {
    "json": (f"format: json, schema: '{COLUMNS}'", None),
    "avro": ("format: avro", (json.dumps(AVRO), "AVRO")),
    "protobuf": ("format: protobuf", (PROTO, "PROTOBUF")),
    "json_schema": ("format: json_schema", (json.dumps(JSON), "JSON")),
    "csv": (f"format: csv, schema: '{COLUMNS}'", None),
}
AT_ONCE, PARSED = 2000, 100_000


def event(number: int, dice: random.Random, keys: int) -> dict[str, Any]:
    """A report; its time in microseconds since 1970."""
    return {
        "device": f"device-{dice.randrange(keys):08d}",
        "agent": f"agent-{number % 100:03d}",
        "n": number % 1000,
        "ts": 1_714_521_600_000_000 + number * 1_000_003,
        "at": {"site": f"hall-{number % 20:02d}", "floor": number % 7},
        "firmware": f"4.11.{number % 30}-stable-2024-04" if number % 3 else None,
    }


def as_json(found: dict[str, Any]) -> bytes:
    """It as one JSON object, its time in ISO 8601."""
    seconds, micros = divmod(found["ts"], 1_000_000)
    shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return json.dumps({**found, "ts": f"{shown}.{micros:06d}Z"}, separators=(",", ":")).encode()


def as_csv(found: dict[str, Any]) -> bytes:
    """It as a line, the struct as a quoted cell."""
    cells = json.loads(as_json(found))
    at = json.dumps(cells["at"]).replace('"', '""')
    return f'{cells["device"]},{cells["agent"]},{cells["n"]},{cells["ts"]},"{at}",{cells["firmware"] or ""}'.encode()


def writers(ids: dict[str, int]) -> dict[str, Callable[[dict[str, Any]], bytes]]:
    """Of each format what makes a payload of an event."""
    schema, made = fastavro.parse_schema(AVRO), compile_module(PROTO, "bench_report")

    def avro(found: dict[str, Any]) -> bytes:
        out = io.BytesIO(struct.pack(">bI", 0, ids["avro"]))
        out.seek(5)
        fastavro.schemaless_writer(out, schema, found)
        return out.getvalue()

    def protobuf(found: dict[str, Any]) -> bytes:
        report = made.Report(**{n: found[n] for n in ("device", "agent", "n")}, at=made.At(**found["at"]))
        if found["firmware"] is not None:
            report.firmware = found["firmware"]
        report.ts.FromMicroseconds(found["ts"])
        return struct.pack(">bI", 0, ids["protobuf"]) + b"\0" + bytes(report.SerializeToString())

    def framed(found: dict[str, Any]) -> bytes:
        return struct.pack(">bI", 0, ids["json_schema"]) + as_json({n: v for n, v in found.items() if v is not None})

    return {"json": as_json, "avro": avro, "protobuf": protobuf, "json_schema": framed, "csv": as_csv}


def parsing(config: Any, payloads: list[bytes]) -> float:
    """Seconds of the processor that the API's parser takes for payloads."""
    stream = config.streams["s"]
    rows = [(stream.topic, 0, n, 1_714_521_600_000, None, payload, None) for n, payload in enumerate(payloads)]
    tables = [
        table((*record(*row), 0) for row in rows[start : start + AT_ONCE]) for start in range(0, len(rows), AT_ONCE)
    ]
    with duck.connect() as db:
        parser = Parser(db, stream, [], [])
        if stream.registered:
            parser.learn(ids_of((payload, None) for payload in payloads[:1]))
        parser.parse(tables[0])
        began = time.process_time()
        taken = sum(parser.parse(found).num_rows for found in tables)
        spent = time.process_time() - began
    assert taken == len(payloads), taken
    return spent


def main(events: int = 1_000_000, keys: int = 100_000) -> None:
    """Print a line for each format, and its ratios to JSON."""
    with (
        tempfile.TemporaryDirectory() as name,
        Broker(Path(name) / "kafka", partitions=2) as broker,
        apicurio.running(Path(name)) as url,
    ):
        client, ids = SchemaRegistryClient({"url": url}), {}
        for format, (_, known) in FORMATS.items():
            if known:
                ids[format] = client.register_schema(f"{format}-value", Schema(*known))
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
        first: dict[str, list[bytes]] = {}
        for format, write in writers(ids).items():
            dice = random.Random(1)
            first[format] = []
            for number in range(events):
                payload = write(event(number, dice, keys))
                if number < PARSED:
                    first[format].append(payload)
                producer.produce(format, payload, partition=number % 2)
                if not number % 10_000:
                    producer.flush()
            producer.flush()
        base: tuple[float, float, float] | None = None
        for format, (setting, _) in FORMATS.items():
            folder = Path(name) / format
            folder.mkdir()
            (folder / "statehouse.yaml").write_text(
                f"kafka: {{bootstrap.servers: '{broker.bootstrap}'}}\nregistry: {{url: '{url}'}}\n"
                f"streams:\n  s: {{topic: {format}, time: ts, {setting}}}\n"
                "stores:\n  total: {stream: s, key: device, value: n, reduce: sum}\n"
            )
            took, _, spent = watched([sys.executable, "-m", "statehouse.cli", "run", "--once"], folder)
            config = load(folder / "statehouse.yaml", {})
            status = stream_status(config, "s")
            assert (status["events"], status["quarantined"]) == (events, 0), status
            parsed = parsing(config, first[format])
            base = base or (took, spent, parsed)
            print(
                f"{format:12} {sum(map(len, first[format])) / len(first[format]):5.0f} bytes; run --once {took:5.0f} s"
                f" ({base[0] / took:.2f} of JSON's speed), processor {spent:5.0f} s; ahead of the changelog"
                f" {1e6 * parsed / len(first[format]):5.1f} µs a record ({base[2] / parsed:.2f} of JSON's speed)",
                flush=True,
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
