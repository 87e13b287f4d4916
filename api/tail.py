"""What the changelog's change data feed brings after a snapshot's position, folded onto it: the same fold as in Spark.

Only the keys that the new events touch are looked at: their rows are taken from the snapshot, folded in DuckDB, and put
into its overlay. By the law the result is what the next MERGE will make of the same events.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import duckdb
import pyarrow as pa

from api.delta import pin, unpin
from api.duck import quoted
from api.fold import GUARD, Fold
from api.lake import CHANGELOG, attach, filled
from api.overlay import Key, keys_of
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
        self.name = f"tail{next(_numbers)}"
        self.fold = Fold(db, self.rule, self.name)
        self._begun = False
        self.begun()

    def begun(self) -> bool:
        """Whether it can go on: not before a recovery has written the store's tombstones, too."""
        if self._begun:
            return True
        tombstones = table(self.config, "tombstones", self.rule.store.name)
        kept = opened(tombstones)
        self._begun = (generation(kept) if kept else 0) == self.snapshot.generation
        if kept and self._begun and kept.version() > 0:
            columns = ", ".join(map(quoted, self.rule.tombstone_columns))
            scan = pin(self.db, tombstones, kept.version(), "_remembered")
            self.db.execute(f"INSERT INTO {quoted(self.fold.tombstones)} ({columns}) SELECT {columns} FROM {scan}")
            unpin(self.db, "_remembered")
        return self._begun

    def apply(self, events: pa.Table, head: int) -> Collection[Key]:
        """Fold the changelog's rows of (the snapshot's position, head]; the keys (and windows) that they touch."""
        if events.num_rows:
            self.db.register("_events", events)
            try:
                return self._apply(filled("_events", self.stream, events.column_names), head)
            finally:
                self.db.unregister("_events")
                unpin(self.db, CHANGELOG)
        self.snapshot.change((), (), {}, {}, head)
        return ()

    def close(self) -> None:
        """Drop the fold's tables."""
        for name in (self.fold.state, self.fold.tombstones):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")

    def _apply(self, events: str, head: int) -> Collection[Key]:
        snapshot = self.snapshot
        of = ", ".join(map(spark_quoted, self.rule.key_columns))
        touched = to_duckdb(f"SELECT DISTINCT {of} FROM ({self.rule.project(events, guard=GUARD)})")
        key = casts({name: snapshot.types[name] for name in self.rule.key_columns})
        found = keys_of(self.db.execute(f"SELECT {key} FROM ({touched})").to_arrow_table().columns)
        spots, rows = snapshot.present(found)
        made = self.fold.apply(pa.table(rows), events, lambda: attach(self.db, self.config, self.stream, head), head)
        whole = "window_start IS NOT NULL" if self.rule.store.windows else "TRUE"  # a purge is remembered by its key
        changed = self.db.execute(
            f"SELECT {casts(snapshot.types)}, _present FROM {quoted(made)} WHERE {whole}"
        ).to_arrow_table()
        keys, present = keys_of(changed[name] for name in self.rule.keys), changed["_present"]
        now = changed.filter(present)
        columns = {name: now[name].combine_chunks() for name in snapshot.types}
        snapshot.change(keys, present.to_pylist(), columns, spots, head)
        return keys
