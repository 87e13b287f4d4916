"""A state whose replaced rows are marked and not written anew: the same rows to every reader, in every version."""

from __future__ import annotations

import json
import random
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from api.engine import delta, duck
from jobs.maintain import Maintain
from jobs.merge import Merge
from jobs.spark import keyed, vectors
from jobs.spark.session import new_session
from statehouse.errors import StatehouseError
from statehouse.tables import MARKING, VECTORS, deleted_rows, files, folded, opened, position, rows_and_bytes, select
from tests.support.depth import deep, first, sized
from tests.support.lakes import drawn, more, right, state, written
from tests.support.records import record, rows

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def marking(monkeypatch):
    """As in a state that is not small."""
    monkeypatch.setattr("jobs.spark.small.SMALL", 0)


ROWS = "count(*) AS n, count(value) AS v, max(key) AS k"


def of_every_reader(spark, path, version):
    """What each reader counts in a version."""
    by_spark = spark.read.format("delta").option("versionAsOf", version).load(path).selectExpr(ROWS.split(", "))
    found = {
        "Spark": by_spark.collect()[0].asDict(),
        "deltalake": select(DeltaTable(path, version=version), f"SELECT {ROWS} FROM found")[0],
    }
    with duck.connect() as db:
        view = delta.pin(db, path, version, "lake")
        found["the API"] = db.execute(f"SELECT {ROWS} FROM {view}").to_arrow_table().to_pylist()[0]
        delta.unpin(db, "lake")
        scan = f"delta_scan('{path}', version = {version})"
        found["DuckDB"] = db.execute(f"SELECT {ROWS} FROM {scan}").to_arrow_table().to_pylist()[0]
    return found


def test_every_reader_has_the_same_rows_in_every_version(spark, lake):
    config, known = written(lake), []
    path = f"{config.root}/state/total"
    marked = 0
    for batch in range(sized(4, 12)):
        if batch == 2:  # a MERGE over rows that are marked
            config = config.model_copy(update={"deletion_vectors": False})
        if batch == 3:
            config = config.model_copy(update={"deletion_vectors": True})
        records, events = drawn(60 + batch, 4 if batch else 60, first=60 * batch, resets=batch < 2)
        known += events
        more(spark, config, records, "total")
        assert state(spark, config, "total") == right(known, "total"), batch
        marked = max(marked, sum(map(len, deleted_rows(opened(path)).values())))
    assert marked, "rows were marked"
    Maintain(spark, config).store(Merge(spark, config, config.stores["total"]))
    for version in range(opened(path).version() + 1):
        found = of_every_reader(spark, path, version)
        assert len({tuple(rows.values()) for rows in found.values()}) == 1, (version, found)
        assert rows_and_bytes(path, version)[0] == found["Spark"]["n"]


def test_a_commit_costs_its_rows_and_leaves_the_other_files(spark, lake):
    config = written(lake)
    path = f"{config.root}/state/total"

    def add(first, keys):
        events = [record("t", 0, first + n, 10**15, key, {"key": key, "n": 1}) for n, key in enumerate(keys)]
        more(spark, config, events, "total")
        return set(DeltaTable(path).file_uris())

    before = add(0, [f"key-{n}" for n in range(200)])
    size = rows_and_bytes(path)[1]
    after = add(200, ["key-7", "key-8", "new"])
    assert before < after and rows_and_bytes(path) == (201, pytest.approx(size, rel=1))
    assert sum(map(len, deleted_rows(opened(path)).values())) == 2
    done = opened(path).history(1)[0]["operationMetrics"]
    assert [int(done[f"numTargetRows{name}"]) for name in ("Inserted", "Updated", "Deleted")] == [1, 2, 0]
    assert MARKING in opened(path).protocol().reader_features


@pytest.mark.parametrize("size", [0, 8 << 20], ids=["marked", "small"])
def test_rows_of_a_version_that_is_no_longer_the_newest_are_not_written(spark, lake, monkeypatch, size):
    monkeypatch.setattr("jobs.spark.small.SMALL", size)
    config = written(lake)
    more(spark, config, [record("t", 0, 0, 10**15, "a", {"key": "a", "n": 1})], "total")
    path = f"{config.root}/state/total"
    keep, before = Merge._keep, position(path)

    def somebody_else_writes(merge, rows):
        spark.sql(f"DELETE FROM delta.`{path}`")
        return keep(merge, rows)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Merge, "_keep", somebody_else_writes)
        with pytest.raises(StatehouseError, match="one writer a table"):
            more(spark, config, [record("t", 0, 1, 10**15, "a", {"key": "a", "n": 1})], "total")
    assert rows_and_bytes(path)[0] == 0 and position(path) == before


STORES = {"key": "key", "big": "big", "at": "at", "text_first": "[key, part]"}
KEYED = """
streams:
  s: {topic: t, schema: "key STRING, big BIGINT, at TIMESTAMP, part DOUBLE, n BIGINT"}
stores:
""" + "".join(f"  {name}: {{stream: s, key: {key}, value: n, reduce: sum}}\n" for name, key in STORES.items())


@pytest.mark.parametrize("engine", first(1, ["Polars", "Spark"]))
def test_the_keys_of_a_batch_are_found_by_their_values_or_by_a_join(spark, lake, monkeypatch, engine):
    monkeypatch.setattr("jobs.merge.NAMED", 5)
    if engine == "Spark":  # as where it has other machines
        monkeypatch.setattr("jobs.spark.keyed.rows_of_keys", lambda *_: None)
    config, offset = lake(KEYED), count(0)

    def event(n):
        name, day = "it's \\" * (n % 2) + f"ü {n}", f"2024-05-{n % 28 + 1:02}T00:00:00Z"
        return {"key": name, "big": n - 2**62, "at": day, "part": n / 4, "n": n + 1}

    def values(store):
        table = rows(spark, f"{config.root}/state/{store}")
        named = [part.strip("[] ") for part in STORES[store].split(",")] if "[" in STORES[store] else ["key"]
        return {tuple(row[part] for part in named): row["value"] for row in table}

    batches = [range(40), [3, 39, 39, 100], range(30, 45)]
    for batch in batches:
        more(spark, config, [record("t", 0, next(offset), 10**15, "k", event(n)) for n in batch])
    sent = [n for batch in batches for n in batch]
    for store in config.stores:
        totals = values(store)
        assert sum(totals.values()) == sum(n + 1 for n in sent), store
        assert len(totals) == (28 if store == "at" else len({*sent})), store
    assert values("big") == {(n - 2**62,): (n + 1) * sent.count(n) for n in {*sent}}


KINDS = {  # of a column, and SQL of a row's number that gives values at their ends
    "text": "concat('ü', id)",
    "small": "CAST(2147483648 - id AS INT)",
    "exact": "CAST(concat('-', repeat('9', 28), '.', id) AS DECIMAL(38, 10))",
    "part": "element_at(array(0D, -0D, double('NaN'), double('-Infinity'), 4.9E-324D), CAST(id % 5 + 1 AS INT))",
    "single": "CAST(id AS FLOAT)",
    "yes": "id % 2 = 0",
    "day": "date_add(DATE'0001-01-01', CAST(id AS INT))",
    "at": "timestamp_micros(id - 62135596800000000)",
    "bytes": "unhex('00FF')",
    "list": "array(CAST(id AS STRING), null)",
    "by_name": "map('a', struct(timestamp_micros(id) AS t, CAST(null AS DECIMAL(9, 2)) AS d))",
    "order": "if(id % 3 = 0, null, struct(timestamp_micros(id) AS t, 0 AS p, id AS o))",
}


@pytest.mark.parametrize("column", ["key", "text", "small"])
def test_the_rows_of_keys_are_those_that_spark_finds(spark, tmp_path, column):
    """With values of every type, in several groups of several files, of which some rows are deleted."""
    path = str(tmp_path / "a [b] ü")
    session = spark.newSession()
    session.conf.set("parquet.block.size", 20_000)
    rows_of_all = session.range(4000, numPartitions=2).selectExpr(
        "id AS key", *(f"{e} AS {n}" for n, e in KINDS.items())
    )
    write = rows_of_all.writeTo(f"delta.`{path}`").using("delta").tableProperty(VECTORS, "true")
    write.create()
    session.sql(f"DELETE FROM delta.`{path}` WHERE key % 7 = 0")
    table = opened(path)
    assert max(pq.read_metadata(file).num_row_groups for file in Path(path).glob("*.parquet")) > 1
    ids = random.sample(range(4000), 500)
    wanted = session.createDataFrame([(one,) for one in [*ids, -1]], "id BIGINT").selectExpr(
        f"{KINDS.get(column, 'id')} AS k"
    )
    keys = wanted.toArrow()["k"]
    by_spark = vectors.with_place(session.read.format("delta").load(path), table).where(
        F.col(column).isin(keys.to_pylist())
    )
    by_arrow = keyed.rows_of_keys(session, path, table, column, keys, 1 << 20)
    assert by_arrow.schema.simpleString() == by_spark.schema.simpleString()

    def texts(frame):  # which tell NaN from null, and 0 from -0
        return sorted(row[0] for row in frame.selectExpr("to_json(struct(*))").collect())

    assert texts(by_arrow) == texts(by_spark) and by_arrow.count() == sum(one % 7 > 0 for one in ids)
    assert keyed.rows_of_keys(session, path, table, column, keys, 1000) is None, "they have more bytes"
    session.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (later STRING)")
    assert keyed.rows_of_keys(session, path, opened(path), column, keys, 1 << 20) is None, "no file has all columns"


@pytest.fixture
def small(monkeypatch, marking):
    monkeypatch.setattr("jobs.spark.small.SMALL", 8 << 20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("root", first(1, ["./a [b] {c,d} ü*", "by deltalake", "./lake"]))
def test_a_small_state_is_written_anew_as_a_whole(spark, lake, root, monkeypatch):
    if root == "by deltalake":  # as it reads and writes files of an object store
        monkeypatch.setattr("jobs.spark.small.remote", lambda path: True)
    config = written(lake)
    config = config.model_copy(update={"root": str(Path(config.root).parent / root)})
    path, offset = f"{config.root}/state/total", count(0)

    def add(keys, time=10**15):
        events = [record("t", 0, next(offset), time, key, {"key": key, "n": n}) for key, n in keys]
        more(spark, config, events, "total")
        return set(DeltaTable(path).get_add_actions(flatten=True)["path"].to_pylist())

    before = add([(f"key-{n}", 1) for n in range(200)])
    after = add([("key-7", 5), ("key-8", 5), ("new", 5)])
    assert len(after) == 1 and not before & after
    done = opened(path).history(1)[0]["operationMetrics"]
    counted = {name: int(done[f"numTargetRows{name}"]) for name in ("Inserted", "Updated", "Deleted", "Copied")}
    assert counted == {"Inserted": 1, "Updated": 2, "Deleted": 0, "Copied": 198}
    assert int(done["numTargetFilesRemoved"]) == len(before) and int(done["numTargetBytesRemoved"]) > 0
    values = {**{f"key-{n}": 6 if n in (7, 8) else 1 for n in range(200)}, "new": 5}
    assert state(spark, config, "total") == values
    purge = [record("t", 0, next(offset), 2 * 10**15, f"key-{n}", None) for n in range(200)]
    more(spark, config, [*purge, record("t", 0, next(offset), 2 * 10**15, "new", None)], "total")
    assert state(spark, config, "total") == {} and rows_and_bytes(path)[0] == 0
    assert not add([("key-7", 2)], 3 * 10**15) & after and state(spark, config, "total") == {"key-7": 2}
    for version in range(opened(path).version() + 1):
        counts = of_every_reader(spark, path, version)
        assert len({tuple(rows.values()) for rows in counts.values()}) == 1, (version, counts)


@pytest.mark.parametrize(("room", "engine"), [(8 << 20, "delta-rs"), pytest.param(1000, "Apache-Spark", marks=deep)])
def test_a_first_batch_is_written_by_one_process_if_it_is_little(spark, lake, monkeypatch, room, engine):
    monkeypatch.setattr("jobs.spark.small.SMALL", room)
    config = written(lake)
    records, known = drawn(7, 60)
    more(spark, config, records)
    for name in config.stores:
        path = f"{config.root}/state/{name}"
        commits = opened(path).history(1)
        assert commits[0]["engineInfo"].startswith(engine), (name, commits)
        assert folded(opened(path)) == 1 and state(spark, config, name) == right(known, name)
    records, events = drawn(8, 60, first=60, resets=False)
    more(spark, config, records)
    for name in config.stores:
        assert state(spark, config, name) == right([*known, *events], name)


@pytest.mark.usefixtures("small")
def test_a_small_state_of_large_rows_is_not_held_by_one_process(spark, lake, monkeypatch):
    config = lake("""
streams: {s: {topic: t, schema: "key STRING, n BIGINT"}}
stores:
  text: {stream: s, key: key, value: "repeat(key, n)", reduce: latest}
  nested: {stream: s, key: key, value: "array(named_struct('a', repeat(key, n), 'b', n))", reduce: latest}
""")

    def add(offset, *events):
        records = [record("t", 0, offset + n, 10**15 + offset + n, *event) for n, event in enumerate(events)]
        more(spark, config, records)
        return {name: opened(f"{config.root}/state/{name}").history(1)[0]["operation"] for name in config.stores}

    add(0, ("a", {"key": "a", "n": 1}), ("b", {"key": "b", "n": 1}))
    monkeypatch.setattr("jobs.spark.state.ROOM", 10_000)
    assert add(2, ("a", {"key": "a", "n": 10})) == {"text": "WRITE", "nested": "WRITE"}
    large = [(f"k{n}", {"key": f"k{n}", "n": 1000}) for n in range(9)]
    assert add(3, *large) == {"text": "MERGE", "nested": "MERGE"}
    of_rows = rows(spark, f"{config.root}/state/text"), rows(spark, f"{config.root}/state/nested")
    values = {"a": "a" * 10, "b": "b", **{key: key * 1000 for key, _ in large}}
    assert {r["key"]: r["value"] for r in of_rows[0]} == values
    assert {r["key"]: r["value"][0]["a"] for r in of_rows[1]} == values


@pytest.mark.usefixtures("small")
def test_a_column_that_somebody_has_added_to_a_small_state_stays(spark, lake):
    config, path = written(lake), None
    for offset, key in enumerate("abca"):
        more(spark, config, [record("t", 0, offset, 10**15, key, {"key": key, "n": 1})], "total")
        if offset == 1:
            path = f"{config.root}/state/total"
            spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note STRING)")
            spark.sql(f"UPDATE delta.`{path}` SET note = 'of ' || key")
    assert {r["key"]: (r["value"], r["note"]) for r in rows(spark, path)} == {
        "a": (2, "of a"),
        "b": (1, "of b"),
        "c": (1, None),
    }


@pytest.mark.usefixtures("small")
def test_a_time_of_long_ago_is_what_it_was_to_every_spark(spark, lake):
    config = lake("""
streams: {s: {topic: t, schema: "key STRING, at TIMESTAMP"}}
stores: {last: {stream: s, key: key, value: at, reduce: latest}}
""")
    path = f"{config.root}/state/last"
    for offset, at in enumerate(["0001-01-01T00:00:00Z", "1582-10-04T00:00:00Z", "9999-12-31T23:59:59Z"]):
        more(spark, config, [record("t", 0, offset, 10**15, "k", {"key": f"k{offset}", "at": at})])
    other = new_session(spark)
    for mode in ("EXCEPTION", "LEGACY", "CORRECTED"):  # of a file that does not say which calendar it has
        other.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
        years = other.read.format("delta").load(path).selectExpr("year(value) AS year").collect()
        assert sorted(row["year"] for row in years) == [1, 1582, 9999]


@pytest.mark.parametrize("size", [0, 8 << 20], ids=["marked", "small"])
def test_a_state_that_somebody_has_given_a_constraint_is_merged_on(spark, lake, monkeypatch, size):
    monkeypatch.setattr("jobs.spark.small.SMALL", size)
    config = written(lake, where="n > 3")
    path, events = f"{config.root}/state/total", [("a", 4), ("b", 5), ("a", 6), ("a", 1), ("b", 7)]
    for offset, (key, n) in enumerate(events):
        more(spark, config, [record("t", 0, offset, 10**15, key, {"key": key, "n": n})], "total")
        if not offset:
            spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT named CHECK (key <> '')")
        assert position(path) == offset + 1
    assert state(spark, config, "total") == {"a": 10, "b": 12}
    assert "checkConstraints" in opened(path).protocol().writer_features


def test_a_slice_without_an_event_of_the_store_moves_its_position_alone(spark, lake):
    config = written(lake, where="n > 3")
    more(spark, config, [record("t", 0, 0, 10**15, "a", {"key": "a", "n": 4})], "total")
    path = f"{config.root}/state/total"
    delta, before = opened(path), position(path)
    more(spark, config, [record("t", 0, 1, 10**15, "a", {"key": "a", "n": 3})], "total")
    assert position(path) == before + 1 and opened(path).version() == delta.version() + 1
    assert opened(path).file_uris() == delta.file_uris() and state(spark, config, "total") == {"a": 4}


@pytest.mark.parametrize("size", first(1, [0, 8 << 20]), ids=["marked", "small"])
def test_a_checkpoint_of_the_log_has_what_the_commits_have(spark, lake, monkeypatch, size):
    monkeypatch.setattr("jobs.spark.small.SMALL", size)
    config, path, known = written(lake), None, []
    for batch in range(5):
        records, events = drawn(80 + batch, 20, first=20 * batch, resets=batch == 1)
        if batch == 3:  # of no store: positions alone are moved
            records, events = [record("t", 0, 60, 10**15, "k", {"key": None, "n": 1})], []
        known += events
        more(spark, config, records, "total")
        path = f"{config.root}/state/total"
        if not batch:
            spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
        elif opened(path).version() > 3:
            newest = f"{opened(path).version():020}"
            assert Path(path, "_delta_log", f"{newest}.checkpoint.parquet").is_file()
            for commit in Path(path, "_delta_log").glob("*.json"):
                if commit.stem != newest:
                    commit.unlink()
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            counts = of_every_reader(spark, path, opened(path).version())
            assert len({tuple(rows.values()) for rows in counts.values()}) == 1, counts
        assert state(spark, config, "total") == right(known, "total"), batch


def test_what_a_commits_checksum_says_is_so(spark, lake, monkeypatch):
    def with_checksums(spark):
        session = new_session(spark)
        session.conf.set("spark.databricks.delta.writeChecksumFile.enabled", "true")
        return session

    monkeypatch.setattr("jobs.merge.new_session", with_checksums)
    config = written(lake)
    path = f"{config.root}/state/total"
    for batch in range(4):
        more(spark, config, drawn(60 + batch, 4 if batch else 60, first=60 * batch, resets=batch == 1)[0], "total")
        table = opened(path)
        sizes = files(table)["size_bytes"].to_pylist()
        checksum = json.loads(Path(path, "_delta_log", f"{table.version():020}.crc").read_text())
        assert (checksum["numFiles"], checksum["tableSizeBytes"]) == (len(sizes), sum(sizes)), batch
        assert checksum["numDeletedRecordsOpt"] == sum(map(len, deleted_rows(table).values()))
        assert {t["version"] for t in checksum["setTransactions"]} == {folded(table)}
