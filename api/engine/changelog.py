"""A stream's changelog as a relation of DuckDB's: a version of it, whole or in parts, with the columns that the stream has gained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from api.engine.delta import Which, parts
from api.engine.duck import Connection, quoted
from statehouse.config.models import Config, Stream
from statehouse.decoder import in_payloads
from statehouse.fold import gained, gained_columns
from statehouse.payload import Field
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.tables import table
from statehouse.transpile import duckdb_type

CHANGELOG = "_changelog"


def attach(db: Connection, config: Config, stream: Stream, version: int) -> str:
    """Pin a whole changelog as of a version, until it is unpinned; a relation in Spark's words, with the columns that
    the stream has gained."""
    return next(attached(db, config, stream, version, None))


def attached(
    db: Connection, config: Config, stream: Stream, version: int, at_once: int | None, which: Which | None = None
) -> Iterator[str]:
    """The same in parts, each of so many files of it; of those ``which`` are wanted."""
    for part in parts(db, table(config, "changelog", stream.name), version, CHANGELOG, at_once, which):
        yield filled(db, part, stream, [row[0] for row in db.execute(f"DESCRIBE SELECT * FROM {part}").fetchall()])


def may_have(values: Mapping[str, Any], files: pa.Table) -> pa.Array:
    """Of each file of a changelog whether it may have an event of a key, whose columns have these values: not where all are reports,
    and one of the values is less than the least or more than the greatest there."""
    candidates = pa.array([True] * files.num_rows, pa.bool_())  # of no files, too
    if not {"min._op", "max._op"} <= set(files.column_names):
        return candidates
    reports = pc.and_(pc.equal(files["min._op"], "report"), pc.equal(files["max._op"], "report"))
    for name, value in values.items():
        least, most = f"min.{name}", f"max.{name}"
        if isinstance(value, (str, int)) and {least, most} <= set(files.column_names):
            outside = pc.or_(pc.greater(files[least], value), pc.less(files[most], value))
            candidates = pc.and_(candidates, pc.invert(pc.fill_null(pc.and_(reports, outside), False)))
    return candidates


def filled(db: Connection, relation: str, stream: Stream, names: list[str]) -> str:
    """A relation of changelog rows whose columns are ``names``, with those that the stream has gained; in Spark's words."""
    new = gained_columns(stream, names)
    more = gained(stream, names, f"{_taken(db, new)}(_payload)" if new else "")
    if not more:
        return relation
    columns = [spark_quoted(n) for n in names if n not in more] + [f"{e} AS {spark_quoted(n)}" for n, e in more.items()]
    return f"(SELECT {', '.join(columns)} FROM {relation})"


def _taken(db: Connection, fields: Sequence[Field]) -> str:
    """The function of a database that takes some columns out of payloads; it is made where there is none."""
    kind = ", ".join(f"{quoted(field.name)} {duckdb_type(field.kind.ddl)}" for field in fields)
    name = f"_taken_{hashlib.sha256(kind.encode()).hexdigest()[:16]}"

    def taken(texts: pa.ChunkedArray) -> pa.Array:
        return in_payloads(fields, texts.to_pylist())

    how: dict[str, Any] = {"type": "arrow", "null_handling": "special"}
    with suppress(duckdb.NotImplementedException):  # it is there
        db.create_function(name, taken, ["VARCHAR"], duckdb.type(f"STRUCT({kind})"), **how)
    return name
