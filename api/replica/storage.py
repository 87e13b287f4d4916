"""Where a version of a state's table is read from: the table itself, or with ``replica: disk`` a file of this machine, mapped into memory.

With the file a process that starts maps what the last one wrote and folds what the changelog brought since, instead of reading the state's
table; and the workers of one machine share the pages. The file is an Arrow file: DuckDB's own would have to be copied out of
it for the same searches. It is only ever replaced as a whole, and whatever is wrong with it, the table is read instead.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable

from api.engine import duck
from api.engine.delta import pinned
from api.engine.duck import Connection, cast, casts, quoted
from api.engine.shards import Shards
from api.replica.snapshot import Snapshot
from statehouse.config.models import Config, Store
from statehouse.errors import StatehouseError
from statehouse.fold import Rule
from statehouse.spark_sql import TIMES, within_years
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.tables import definition_of, folded, generation, stored_rule, table
from statehouse.transpile import to_duckdb

SOME = 100_000  # rows of a chunk, where few are expected
Read = TypeVar("Read", bound=Snapshot)
log = logging.getLogger("statehouse.api")


def folder(config: Config) -> Path:
    """Where the files are: ``api: cache``, or a folder of the lake's own in the user's cache."""
    if config.api.cache:
        return Path(config.api.cache)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "statehouse", hashlib.sha256(config.root.encode()).hexdigest()[:16])


def read_file(
    config: Config, store: Store, version: int, shards: Shards | None, least: int | None = None
) -> Snapshot | None:
    """What the file has, if it is of the same table, rule and shards as this version of the state's table: this version or an
    earlier one, no earlier than ``least``."""
    try:
        with pa.memory_map(str(_file(config, store))) as source:
            rows = pa.ipc.open_file(source).read_all()
        metadata = json.loads(rows.schema.metadata[b"statehouse"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None
    delta = DeltaTable(table(config, "state", store.name), version=version)
    rule = stored_rule(delta, store.name)
    if rule is None or metadata["of"] != _contents(epoch_of(delta), rule, shards):
        return None
    if not (least or 0) <= metadata["version"] <= version:
        return None
    snapshot = of_table(rows, rule, metadata["types"])
    return placed(snapshot, delta, metadata["version"], metadata["position"], shards)


def load_by_file(db: Connection, config: Config, store: Store, version: int, shards: Shards | None) -> Snapshot:
    """A version of the state's table, by way of the file. Where that cannot be written, it is in memory as always.

    One process of a machine reads the table, the others wait for its file.
    """
    snapshot = None
    try:
        with _locked(config, store):
            if mapped := read_file(config, store, version, shards, version):
                return mapped
            snapshot = load(db, config, store, version, shards=shards)
            _write(config, store, snapshot)
            return read_file(config, store, version, shards, version) or snapshot
    except OSError as error:
        log.warning("store %s is kept in memory: %s", store.name, error)
        return snapshot or load(db, config, store, version, shards=shards)


def _write(config: Config, store: Store, snapshot: Snapshot) -> None:
    assert snapshot.rule is not None
    metadata = {
        "of": _contents(snapshot.epoch, snapshot.rule, snapshot.shards),
        "version": snapshot.version,
        "position": snapshot.position,
        "types": snapshot.types,
    }
    batch = pa.record_batch(list(snapshot.columns.values()), names=list(snapshot.columns))
    schema = batch.schema.with_metadata({"statehouse": json.dumps(metadata)})
    file = _file(config, store)
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        with pa.OSFile(str(fresh), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def _contents(epoch: str, rule: Rule, shards: Shards | None) -> list[Any]:
    """What a file's rows are of."""
    return [epoch, definition_of(rule), [shards.count, *sorted(shards.numbers)] if shards else None]


def _file(config: Config, store: Store) -> Path:
    return folder(config) / f"{store.name}.arrow"


@contextmanager
def _locked(config: Config, store: Store) -> Iterator[None]:
    file = _file(config, store).with_suffix(".lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of with the file, also by a process that is killed
        yield


def load(
    db: Connection, config: Config, store: Store, version: int, wanted: str | None = None, shards: Shards | None = None
) -> Snapshot:
    """A version of a store's state table, copied into memory; of ``wanted``, a table of keys, only those, and only those in some
    ``shards``. The connection is for this alone then."""
    path = table(config, "state", store.name)
    delta = DeltaTable(path, version=version)
    rule = rule_of(delta, path, store)
    names = ", ".join(map(quoted, rule.key_columns))
    tests = within(rule)
    if wanted:
        tests.append(f"({names}) IN (SELECT {names} FROM {wanted})")
    with pinned(db, path, version, "lake"):
        types = duck.types(db, "lake")
        order = ", ".join(map(quoted, rule.keys))
        # Moments are made plain UTC below: DuckDB asks its calendar for each of them, half of the time that this takes.
        columns = casts(types, but="TIMESTAMP")
        chunk = SOME
        if shards:
            shards.declare(db, "_here")
            tests = [f"_here({', '.join(cast(name, types[name]) for name in rule.key_columns)})", *within(rule)]
        elif not wanted:  # all as one chunk, or they would have to be copied together; but it is allocated at once
            ((rows,),) = db.execute("SELECT count(*) FROM lake").fetchall()
            chunk = max(1, rows)
        where = f"WHERE {' AND '.join(tests)}" if tests else ""
        table_rows = db.execute(f"SELECT {columns} FROM lake {where} ORDER BY {order}").to_arrow_table(chunk)
    return placed(of_table(table_rows, rule, types), delta, version, folded(delta), shards)


def placed(snapshot: Read, delta: DeltaTable, version: int, position: int | None, shards: Shards | None) -> Read:
    """A snapshot of some rows, which is told what they are of."""
    snapshot.version, snapshot.position, snapshot.shards = version, position, shards
    snapshot.generation, snapshot.epoch = generation(delta), epoch_of(delta)
    return snapshot


def rule_of(delta: DeltaTable, path: str, store: Store) -> Rule:
    """The rule that a table's states are folded by. Raises StatehouseError where the table is not one of ours."""
    rule = stored_rule(delta, store.name)
    if rule is None:
        raise StatehouseError(f"{path} has no definition: it was not made by statehouse")
    return rule


def within(rule: Rule) -> list[str]:
    """DuckDB's tests that a row of a state has a key that callers can have: the rows of an earlier version may have windows that begin
    before the year 1."""
    kinds = {name: kind for name, kind in rule.keys.items() if kind in TIMES}
    return [to_duckdb(f"{within_years(spark_quoted(name), kind)} IS NOT NULL") for name, kind in kinds.items()]


def epoch_of(delta: DeltaTable) -> str:
    """What names the state that a table holds: a recovery puts another one in its place, and so does who makes it anew."""
    return f"{delta.metadata().id:.8}.{generation(delta)}"


def of_table(rows: pa.Table, rule: Rule, types: dict[str, str]) -> Snapshot:
    """Rows in the order of their keys as a snapshot; a column's moments, if not plain UTC, are made so."""
    arrays = {name: _one(rows[name]) for name in types}
    return Snapshot(rule, keys=rows.num_rows, columns=arrays, types=types)


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return array.view(pa.timestamp(array.type.unit)) if pa.types.is_timestamp(array.type) else array
