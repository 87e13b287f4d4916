"""What the changelog's change data feed brings after a snapshot's position, folded onto it: the same fold as in Spark.

Only the keys that the new events touch are looked at: their rows are taken from the snapshot, folded in DuckDB, and put
into its overlay. By the law the result is what the next MERGE will make of the same events.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Any

import duckdb
import pyarrow as pa

from api.delta import pin, unpin
from api.duck import quoted
from api.fold import GUARD, Fold
from api.lake import CHANGELOG, attach, filled
from api.snapshot import Snapshot, casts
from statehouse.config import Config
from statehouse.fold import quoted as spark_quoted
from statehouse.tables import generation, opened, table
from statehouse.transpile import to_duckdb

_numbers = itertools.count()


class Tail:
    """The fold that goes on from a snapshot. Raises sqlglot's or DuckDB's error where DuckDB has no words for the rule."""

    def __init__(self, db: duckdb.DuckDBPyConnection, snapshot: Snapshot, config: Config) -> None:
        assert snapshot.rule is not None
        self.db, self.config, self.snapshot, self.rule = db, config, snapshot, snapshot.rule
        self.stream = config.streams[self.rule.store.stream]
        self.changelog = table(config, "changelog", self.stream.name)
        tombstones = table(config, "tombstones", self.rule.store.name)
        self.name = f"tail{next(_numbers)}"
        self.fold = Fold(db, self.rule, self.name)
        kept = opened(tombstones)
        self.ready = (generation(kept) if kept else 0) == snapshot.generation  # else a recovery is not finished yet
        if kept and self.ready and kept.version() > 0:
            columns = ", ".join(map(quoted, self.rule.tombstone_columns))
            scan = pin(db, tombstones, kept.version(), "_remembered")
            db.execute(f"INSERT INTO {quoted(self.fold.tombstones)} ({columns}) SELECT {columns} FROM {scan}")
            unpin(db, "_remembered")

    def apply(self, events: pa.Table, head: int) -> Collection[tuple[Any, ...]]:
        """Fold the changelog's rows of (the snapshot's position, head]; the keys (and windows) that they touch."""
        if events.num_rows:
            self.db.register("_events", events)
            try:
                return self._apply(filled("_events", self.stream, events.column_names), head)
            finally:
                self.db.unregister("_events")
                unpin(self.db, CHANGELOG)
        self.snapshot.change({}, head)
        return ()

    def close(self) -> None:
        """Drop the fold's tables."""
        for name in (self.fold.state, self.fold.tombstones):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")

    def _apply(self, events: str, head: int) -> Collection[tuple[Any, ...]]:
        snapshot, keys = self.snapshot, ", ".join(map(quoted, self.rule.key_columns))
        of = ", ".join(map(spark_quoted, self.rule.key_columns))
        touched = to_duckdb(f"SELECT DISTINCT {of} FROM ({self.rule.project(events, guard=GUARD)})")
        self.db.execute(f"CREATE OR REPLACE TEMP TABLE _touched AS {touched}")
        key = casts({name: snapshot.types[name] for name in self.rule.key_columns})
        found = [
            tuple(row.values()) for row in self.db.execute(f"SELECT {key} FROM _touched").to_arrow_table().to_pylist()
        ]
        places = {snapshot.key_at(place): place for place in snapshot.places(found)}
        self._fetch([place for key, place in places.items() if key not in snapshot.overlay])
        self.fold.apply(events, lambda: attach(self.db, self.config, self.stream, head), head)
        made = self.db.execute(
            f"SELECT {casts(snapshot.types)} FROM {quoted(self.fold.state)} WHERE ({keys}) IN (SELECT {keys} FROM _touched)"
        ).to_arrow_table()
        columns = {n: made[n].combine_chunks() for n in snapshot.types}
        now = snapshot.rows(columns)
        known = found
        if self.rule.store.windows:  # each key that was touched, with the windows that it had
            known = [*places, *(changed for key in found for changed in snapshot.changed_windows(key))]
        changed: dict[tuple[Any, ...], Any] = dict.fromkeys(known)
        changed |= {tuple(row[k] for k in self.rule.keys): row for row in now}
        snapshot.change(changed, head)
        return tuple(changed)

    def _fetch(self, places: list[int]) -> None:
        """Bring rows that only the snapshot's version has into the fold's table; those that changed are there."""
        if not places:
            return
        chosen = pa.array(places)
        rows = pa.table({name: column.take(chosen) for name, column in self.snapshot.columns.items()})
        self.db.register("_rows", rows)
        try:
            self.db.execute(f"INSERT INTO {quoted(self.fold.state)} BY NAME SELECT * FROM _rows")
        finally:
            self.db.unregister("_rows")
