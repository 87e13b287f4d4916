"""History from files → ``changelog/<stream>`` and ``quarantine/<stream>``: each file once, known by its content.

A row of a file becomes a record such as a producer would have sent, and goes through the same parser as Kafka's. Its
coordinates are partition -1, which is before every other in the order of events, and the next offsets there. In two
steps, each of which is passed over where it was done before, by the ``txn`` action ``load:<SHA-256 of the file>``:

1. Append what is refused to the quarantine. *The file comes again; its refused rows are there already.*
2. Append what is accepted to the changelog. *The file is done.*
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from json import dumps
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from jobs.spark import parquet
from jobs.spark.expressions import rule_of
from jobs.spark.guard import Guard
from jobs.spark.kafka_sink import json
from jobs.spark.lookup import Lookups
from jobs.spark.parse import accepted_rows, parse, refused_rows, time_reason
from jobs.spark.tables import create_stream, next_offsets
from statehouse.config.models import Config, Stream
from statehouse.errors import StatehouseError, first_line
from statehouse.formats.format import AVRO, IN_FILE, Format
from statehouse.progress import SILENT, Progress
from statehouse.records import decoder_for
from statehouse.spark_sql import literal, quoted
from statehouse.tables import LOADED, opened, table
from statehouse.types import NUMBERS
from statehouse.values import Column

NESTED = ("ARRAY", "MAP", "STRUCT")
JSON_LINES = (".json", ".jsonl", ".ndjson")
ENDINGS = (*JSON_LINES, ".csv", ".parquet", ".avro")
MANY = 1000  # records of Avro that are handed to Spark at once


@dataclass(frozen=True)
class Loaded:
    """What became of a file: rows accepted and refused; None: it was loaded before."""

    file: str
    events: int | None
    refused: int | None


def load(spark: SparkSession, config: Config, stream: Stream, file: str | Path, progress: Progress = SILENT) -> Loaded:
    """Append a file's rows to the stream, once however often it is called: JSON lines (``.json``, ``.jsonl``,
    ``.ndjson``), CSV with a header, Parquet, Avro; the text formats also compressed (``.gz``, ``.bz2``).

    Raises StatehouseError for a file that is none of these, or a stream without a ``time``. The caller holds the
    lake's lock ``load``; ingestion may go on beside it.
    """
    path = Path(file)
    if stream.time is None:
        raise StatehouseError(
            f"stream {stream.name}: found no 'time', expected one: a file's rows have no time of Kafka's"
        )
    if not path.is_file():
        raise StatehouseError(f"{path}: found no such file, expected JSON lines, CSV, Parquet or Avro")
    progress.begin(f"reading {path.name}")
    create_stream(spark, config, stream)
    done = f"load:{_digest(path)}"
    changelog, quarantine = table(config, "changelog", stream.name), table(config, "quarantine", stream.name)
    log = opened(changelog)
    if log and log.transaction_version(done) is not None:
        return Loaded(str(path), None, None)
    read = _reader(path)
    stores = config.stores_of(stream.name)
    rules = [rule_of(spark, config, store) for store in stores]
    decoder = decoder_for(stream, stores, rules, format=_format(stream, path))
    first = _next(changelog, quarantine)
    try:
        records, count = _number_rows(read(spark, stream, path), stream, first)
    except Exception as error:  # not what its name says, or broken: Spark has many words for it
        raise StatehouseError(f"{path}: cannot be read: {first_line(error)}") from error
    lookups = Lookups(spark, config, stream) if stream.lookups else None
    guard = Guard(str(path))
    progress.begin(f"loading {path.name}", lambda: count)

    def parse_and_count() -> tuple[DataFrame, Row]:
        parsed = parse(records, stream, decoder, lookups, guard.text).persist()
        return parsed, parsed.selectExpr("count_if(_reason IS NULL)", "count(_reason)").collect()[0]

    parsed, (events, bad) = guard.run(spark, parse_and_count)
    try:
        once = {"txnAppId": done, "txnVersion": "1"}
        if bad:
            refused_rows(parsed, stream, time_reason(parsed, stream)).write.format("delta").mode("append").options(
                **once
            ).save(quarantine)
        accepted_rows(parsed, stream).write.format("delta").mode("append").options(**once).save(changelog)
    finally:
        parsed.unpersist()
    return Loaded(str(path), events, bad)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _next(changelog: str, quarantine: str) -> int:
    """The next offset of the files' partition."""
    return max(next_offsets(path, f"= {LOADED}").get(LOADED, 0) for path in (changelog, quarantine))


def _number_rows(payloads: DataFrame, stream: Stream, first: int) -> tuple[DataFrame, int]:
    """Payloads, of which one that is null is none, as Kafka's records, with offsets from ``first`` on in the file's order; and how many there are.

    A row's place is its Spark partition and its place in that; how many rows came in the partitions before is counted.
    """
    placed = payloads.selectExpr(
        "value", "spark_partition_id() AS part", "monotonically_increasing_id() & 8589934591L AS place"
    )
    before, starts = first, []
    for part, count in sorted(placed.groupBy("part").count().collect()):
        starts.append(f"WHEN {part} THEN {before}")
        before += count
    start = f"CASE part {' '.join(starts)} ELSE 0 END" if starts else "0"
    records = placed.where("value IS NOT NULL").selectExpr(
        f"{'CAST(NULL AS STRING)' if stream.several else literal(stream.topic)} AS topic",
        f"{LOADED} AS partition",
        "CAST(NULL AS INT) AS topic_partition",
        f"CAST({start} + place AS BIGINT) AS offset",
        "CAST(NULL AS TIMESTAMP) AS timestamp",
        "CAST(NULL AS BINARY) AS key",
        "value",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
    )
    return records, before - first


def _reader(path: Path) -> Callable[[SparkSession, Stream, Path], DataFrame]:
    name = path.name.lower().removesuffix(".gz").removesuffix(".bz2")
    if name.endswith(JSON_LINES):
        return lambda spark, _, path: _encoded(spark.read.text(_local(path)), "value")
    if name.endswith(".csv"):
        return _csv
    if path.name.lower().endswith(".parquet"):
        return lambda spark, _, path: _encoded(
            parquet.read(spark, str(path.absolute())).select(json(["*"]).alias("row")), "row"
        )
    if path.name.lower().endswith(".avro"):
        return lambda spark, _, path: spark.createDataFrame([(str(path.absolute()),)], "path STRING").mapInArrow(
            _read_avro(), "value BINARY"
        )
    raise StatehouseError(f"{path}: found the ending {path.suffix!r}, expected one of {', '.join(ENDINGS)}")


def _format(stream: Stream, path: Path) -> Format | None:
    """What a file's payloads are written in; None: what the stream's are."""
    if not path.name.lower().endswith(".avro"):
        # Rows are given as JSON; of a table's changes they are such changes.
        return None if stream.captured else Format()
    if stream.captured:
        raise StatehouseError(f"{path}: found Avro, expected changes of a table as JSON lines")
    try:
        from statehouse.formats.avro_files import schema_of  # with a package of its own

        return Format(AVRO, schemas=((IN_FILE, schema_of(path)),))
    except ImportError as error:
        raise StatehouseError(
            f"{path}: found no package {error.name!r}, expected it: pip install 'statehouse[formats]'"
        ) from None
    except Exception as error:  # fastavro raises whatever it trips over
        raise StatehouseError(f"{path}: cannot be read: {first_line(error)}") from None


def _read_avro() -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """What gives the records of Avro's files, whose paths are given, on an executor. A function of its own, so that it is sent as it is:
    an executor need not have all that this module imports."""

    def records(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        from itertools import islice

        from statehouse.formats.avro_files import records_of

        for batch in batches:
            for path in batch.column("path").to_pylist():
                payloads = records_of(path)
                while some := list(islice(payloads, MANY)):
                    yield pa.record_batch([pa.array(some, pa.binary())], names=["value"])

    return records


def _encoded(texts: DataFrame, column: str) -> DataFrame:
    """Text as payloads; of an empty line there is none."""
    return texts.selectExpr(f"CASE WHEN trim({column}) <> '' THEN encode({column}, 'UTF-8') END AS value")


def _local(path: Path) -> str:
    return path.absolute().as_uri()


def _csv(spark: SparkSession, stream: Stream, path: Path) -> DataFrame:
    """A row as the JSON that a producer would have sent."""
    rows = spark.read.csv(_local(path), header=True, escape='"', encoding="UTF-8", multiLine=True)
    known = {c.name.lower(): c for c in stream.columns}
    fields = ", ".join(_field(name, known.get(name.strip().lower())) for name in rows.columns)
    return _encoded(rows.selectExpr(f"concat('{{', concat_ws(',', {fields}), '}}') AS line"), "line")


def _field(name: str, column: Column | None) -> str:
    """SQL: a cell as ``"name":value``, null where it is empty. A number, a boolean or a nested value stands bare where it
    is one; what is not one is quoted, and then refused by the parser with its reason."""
    cell, kind = quoted(name), column.type.upper() if column else "STRING"
    label = literal(dumps(column.name if column else name.strip()) + ":")
    trimmed, text = f"trim({cell})", f"to_json(array({cell}))"
    text = f"substring({text}, 2, length({text}) - 2)"
    if kind.startswith(NUMBERS):
        test = f"{trimmed} RLIKE '^[-+]?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$'"
        trimmed = f"regexp_replace({trimmed}, '^(-?)[+]?0*([0-9])', '$1$2')"  # JSON has no 007
    elif kind == "BOOLEAN":
        test, trimmed = f"lower({trimmed}) IN ('true', 'false')", f"lower({trimmed})"
    elif kind.startswith(NESTED):
        test = f"{trimmed} RLIKE '^[\\\\[{{]'"
    else:
        test = "FALSE"
    return f"{label} || CASE WHEN {test} THEN {trimmed} ELSE CASE WHEN {cell} IS NOT NULL THEN {text} END END"
