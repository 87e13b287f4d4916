"""``replica: none``: nothing is kept in memory, each read is a query of the state's table. For what is larger than the machine.

Answers are the same, at the MERGE's freshness. What a read costs depends on the table's files: DuckDB leaves out those, and
those parts of them, whose statistics say that a key is not there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from api.engine import duck
from api.engine.columns import Columns, Key, count, fitting, keys_of
from api.engine.deadline import Deadline
from api.engine.duck import ROWS, casts, quoted
from api.engine.exact_json import dumps
from api.engine.pool import Pool
from api.replica.snapshot import ALL, BYTES, After, Selection, Snapshot
from api.replica.sorted_version import Row
from api.replica.storage import placed, rule_of, within
from statehouse.config.models import Config, Store
from statehouse.tables import folded, rows_and_bytes, table


@dataclass(eq=False)
class ReadThrough(Snapshot):
    """A version of a store's table that stays where it is; its methods are a snapshot's."""

    pool: Pool | None = None
    path: str = ""

    def get(self, parts: Sequence[str]) -> Row | None:
        return self._find_all([parts])[0]

    def at_once(self, parts: Sequence[str]) -> None:
        """As :meth:`Snapshot.at_once`: each read is a query, which takes its time."""
        return None

    def lookup(self, keys: Sequence[Sequence[str]]) -> list[str | None]:
        """As :meth:`Snapshot.lookup`, in one query."""
        return [dumps(row) if row else None for row in self._find_all(keys)]

    def _find_all(self, keys: Sequence[Sequence[str]]) -> list[Row | None]:
        if self.rule is None or not keys:
            return [None] * len(keys)
        names = list(self.rule.key_columns)
        wanted = [self.key(parts) for parts in keys]
        marks = ", ".join(f"({', '.join('?' * len(names))})" for _ in wanted)
        of = ", ".join(map(quoted, names))
        condition = f"({of}) IN ({marks})" if len(wanted) > 1 else f"({of}) = {marks}"
        rows: dict[Key, list[Row]] = {}
        for row in self.rows(self._select([condition], [value for key in wanted for value in key])):
            rows.setdefault(tuple(row[n] for n in names), []).append(self.shown_row(row))
        if self.rule.store.windows:
            return [self.windowed(rows.get(key, [])) for key in wanted]
        return [rows[key][0] if key in rows else None for key in wanted]

    def page(
        self, after: After, limit: int, of: Selection = ALL, deadline: Deadline | None = None
    ) -> tuple[Columns, bool]:
        if self.rule is None:
            return {}, False
        conditions: list[str] = []
        bound: list[Any] = []
        for key, operator in ((of.least, ">="), (self.key(after) if after is not None else (), ">")):
            if key:
                names = ", ".join(map(quoted, list(self.rule.keys)[: len(key)]))
                conditions.append(f"({names}) {operator} ({', '.join('?' * len(key))})")
                bound += key
        if of.where:
            conditions.append(of.where.sql)
            bound += of.where.bound
        selected = self._select(conditions, bound, limit, deadline)
        fit = fitting(selected, limit, BYTES, some=True)
        more = count(selected) == limit or fit < count(selected)
        rows = self.public({name: column[:fit] for name, column in selected.items()})
        if of.inside is not None:
            ends = sum(1 for _ in itertools.takewhile(of.inside, keys_of(rows[name] for name in self.rule.keys)))
            more = more and ends == count(rows)
            rows = {name: column[:ends] for name, column in rows.items()}
        return rows, more

    def _select(
        self,
        conditions: Sequence[str],
        bound: Sequence[Any],
        limit: int | None = None,
        deadline: Deadline | None = None,
    ) -> Columns:
        assert self.rule is not None and self.pool is not None and self.version is not None
        tests = [*conditions, *within(self.rule)]
        text = f"WHERE {' AND '.join(tests)}" if tests else ""
        order = f"ORDER BY {', '.join(map(quoted, self.rule.keys))}" + (f" LIMIT {int(limit)}" if limit else "")
        with self.pool.table(self.path, self.version) as (db, name), deadline.over(db) if deadline else nullcontext():
            rows = db.execute(f"SELECT {casts(self.types)} FROM {name} {text} {order}", bound).to_arrow_table(ROWS)
        return {name: rows[name].combine_chunks() for name in self.types}


def of_table(pool: Pool, config: Config, store: Store, version: int) -> ReadThrough:
    """A version of a store's table as what callers read. Raises StatehouseError where it is not one of ours."""
    path = table(config, "state", store.name)
    delta = DeltaTable(path, version=version)
    rule = rule_of(delta, path, store)
    with pool.table(path, version) as (db, name):
        types = duck.types(db, name)
        none = db.execute(f"SELECT {casts(types)} FROM {name} LIMIT 0").to_arrow_table(ROWS)
    columns, keys = {n: pa.array([], none[n].type) for n in types}, rows_and_bytes(path, version)[0]
    snapshot = ReadThrough(rule, keys=keys, columns=columns, types=types, pool=pool, path=path)
    return placed(snapshot, delta, version, folded(delta), None)
