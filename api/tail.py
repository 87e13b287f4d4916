"""What the changelog's change data feed brings after a snapshot's position, folded onto it: the same fold as in Spark.

Only the keys that the new events touch are looked at: their rows are taken from the snapshot, folded in DuckDB, and put
into its overlay. By the law the result is what the next MERGE will make of the same events.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from api.ahead import Ahead, changed, keys_touched
from api.columns import Columns
from api.delta import pin, unpin
from api.duck import quoted
from api.fold import Fold
from api.lake import CHANGELOG, attach, filled
from api.overlay import Key, keys_of
from api.snapshot import Snapshot
from statehouse.config import Config
from statehouse.fold import quoted as spark_quoted
from statehouse.tables import EVENT_COLUMNS, generation, opened, table

TOUCHED = "_touched"
_numbers = itertools.count()


class Tail:
    """The fold that goes on from a snapshot. Raises sqlglot's or DuckDB's error where DuckDB has no words for the rule."""

    def __init__(self, db: duckdb.DuckDBPyConnection, snapshot: Snapshot, config: Config) -> None:
        assert snapshot.rule is not None
        self.db, self.config, self.snapshot, self.rule = db.cursor(), config, snapshot, snapshot.rule
        self.stream = config.streams[self.rule.store.stream]
        self.changelog = table(config, "changelog", self.stream.name)
        self.name = f"tail{next(_numbers)}"
        self.fold = Fold(self.db, self.rule, self.name)
        self._ahead: Ahead | None = None
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

    def lay(self, pending: pa.Table, new: pa.Table | None, ahead: dict[str, int]) -> None:
        """Show what events will make of their keys that the changelog does not have yet, the ``pending`` ones, which Kafka has up
        to some offsets: again from all of them, or only of the keys of some ``new`` ones among them.

        Nothing is kept of that but the rows that are shown: it is always the changelog's state with the pending events on top.
        """
        some = pending if new is None else new
        self._ahead = mine = self._ahead or Ahead(self.fold, self.stream, self.snapshot.types, self.name)
        if new is None:
            mine.pending.clear()
        if not some.num_rows:
            self.snapshot.lay((), (), {}, {}, ahead, None if new is None else ())
            return
        mine.new.clear()
        mine.before.clear()
        mine.pending.add(some)
        mine.new.add(some)
        touched = mine.keys()
        spots, rows = self.snapshot.present(touched)
        mine.before.add(pa.table(rows))
        found = mine.rows()
        if pc.any(found["_conflict"]).as_py():
            found = self._again(touched, rows)
        keys, present, columns = self._split(found)
        self.snapshot.lay(keys, present, columns, spots, ahead, None if new is None else touched)

    def close(self) -> None:
        """Drop the fold's tables."""
        for name in (self.fold.state, self.fold.tombstones):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        if self._ahead:
            self._ahead.close()
        self.db.close()

    def _apply(self, events: str, head: int) -> Collection[Key]:
        spots, rows = self.snapshot.present(self._touched(events))
        made = self.fold.apply(pa.table(rows), events, lambda: self._attached(head), head)
        keys, present, columns = self._split(self._found(made))
        self.snapshot.change(keys, present, columns, spots, head)
        return keys

    def _touched(self, events: str) -> list[Key]:
        """The keys of the store that some events touch, without windows."""
        query = keys_touched(self.rule, self.snapshot.types, events)
        return keys_of(self.db.execute(query).to_arrow_table().columns)

    def _found(self, made: str) -> pa.Table:
        """What a fold made, as a table's rows."""
        return self.db.execute(changed(self.rule, self.snapshot.types, quoted(made))).to_arrow_table()

    def _split(self, found: pa.Table) -> tuple[list[Key], list[bool], Columns]:
        """The keys (and windows), which of them are present, and the rows of those."""
        keys, present = keys_of(found[name] for name in self.rule.keys), found["_present"]
        now = found.filter(present)
        return keys, present.to_pylist(), {name: now[name].combine_chunks() for name in self.snapshot.types}

    def _again(self, touched: list[Key], rows: Columns) -> pa.Table:
        """The same from the whole changelog and what is pending, where a late reset tore a key."""
        assert self._ahead is not None
        columns = dict(zip(self.rule.key_columns, zip(*touched, strict=True), strict=True))
        self.db.register(TOUCHED, pa.table({name: list(values) for name, values in columns.items()}))
        try:
            pending = self._ahead.pending.name
            return self._found(self.fold.over(pa.table(rows), pending, lambda: self._all(pending), TOUCHED))
        finally:
            self.db.unregister(TOUCHED)
            unpin(self.db, CHANGELOG)

    def _attached(self, head: int) -> str:
        return attach(self.db, self.config, self.stream, head)

    def _all(self, pending: str) -> str:
        """The changelog as far as it is folded, and then the pending events."""
        columns = ", ".join(map(spark_quoted, (*(c.name for c in self.stream.columns), *EVENT_COLUMNS)))
        log = self._attached(self.snapshot.position or 0)
        return f"(SELECT {columns} FROM {log} UNION ALL SELECT {columns} FROM {pending})"
