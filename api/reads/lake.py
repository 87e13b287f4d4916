"""Reads of the lake itself, for what the replica does not hold: a key's history, the past, what was refused.

Each scans a table, so they are for a person's question and not for traffic: one at a time, with a connection of
their own that is made anew every so often, as DuckDB's extension leaks a little with each. Only so many may wait for their
turn, and none takes longer than ``api: max_time``, waiting included.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from sqlglot import exp

from api.engine import duck
from api.engine.cells import rows_of
from api.engine.change_feed import batches
from api.engine.changelog import CHANGELOG, attached, filled, may_have
from api.engine.columns import Key, fitting, keys_of
from api.engine.deadline import AGAIN, LOOK, Deadline
from api.engine.delta import pinned, unpin
from api.engine.duck import ROWS, Connection, casts, literal, quoted
from api.engine.fold import Fold, project, spoken, touched
from api.engine.places import Places
from api.engine.prepared import ArrowSource
from api.errors import Problem
from api.replica.pending import after
from api.replica.snapshot import Snapshot
from api.replica.sorted_version import Row
from api.replica.storage import load, of_table
from statehouse.config.models import Config, Store
from statehouse.fold import Rule
from statehouse.kinds import Differs
from statehouse.numbering import Numbering
from statehouse.requeue import KIND
from statehouse.spark_sql import quoted as spark_quoted
from statehouse.tables import LOADED, TASK_COLUMNS, changelog_columns, metadata, offsets_at, opened, table, tasks_table
from statehouse.transpile import to_duckdb
from statehouse.values import parse_expression

SCANS = 100  # of one connection: a question of the past leaves 0.05 MiB behind, and a new connection takes 0.1 s
FILES = 64  # of a changelog that are read at once
VERSIONS, MOST = 10_000, 1_000_000  # of the changelog that are read to tell what changed: some seconds
CHANGES = ("added", "gone", "changed")  # what a key can have done between two versions
WAITING = 32  # requests that wait for their turn
T = TypeVar("T")
Question = Callable[[Connection], T]
Gone = Callable[[], Callable[[], bool]]  # gives, to who asks, what tells any thread whether its caller is gone
# An answer, the position of the changelog that it reflects, and up to which offsets what is provisional in it is ahead of that.
Past = tuple[T, int | None, Mapping[str, int]]
# The key that is asked for, its events, and rows of the changelog that are pending.
WANTED, EVENTS, PENDING = "_wanted", "_events_of_key", "_pending_of_key"


class SerialConnection:
    """A connection for the requests that wait in line for it, and the one thread that uses it.

    One thread, as each that ever ran a query keeps some of the memory that it took: dozens of them 60 MiB more.
    """

    def __init__(self, config: Config, gone: Gone) -> None:
        self._config, self._gone = config, gone
        self._places = Places(1 + WAITING, f"found {WAITING} requests that wait to read the lake, expected fewer")
        self._thread = ThreadPoolExecutor(1, "lake")
        self._connection: Connection | None = None
        self._scans = 0

    def ask(self, question: Question[T]) -> T:
        """What a function makes of the connection, which is for one request at a time and not for longer than it may take."""
        with self._places:
            asked = self._thread.submit(self._answer, question)
            deadline = Deadline(self._config.api.max_time / 1000, self._gone())
            while not wait([asked], min(LOOK, deadline.left)).done and deadline.left:
                pass
            late = not asked.done()
            if late and not asked.cancel():
                while not wait([asked], AGAIN).done:
                    # Its thread may have closed it meanwhile, having heard of it.
                    if connection := self._connection:
                        with suppress(duckdb.ConnectionException):
                            connection.interrupt()
            try:
                return asked.result()
            except (CancelledError, duckdb.Error):
                if not late:
                    raise
                raise deadline.problem() from None

    def _answer(self, question: Question[T]) -> T:
        if self._connection is None or self._scans >= SCANS:
            self._close()
            self._connection, self._scans = duck.connect(root=self._config.root), 0
        self._scans += 1
        try:
            return question(self._connection)
        except duckdb.Error:
            self._close()  # something may still be attached
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Page(NamedTuple):
    """Some rows, and whether there are more of them."""

    rows: list[Row]
    more: bool


class Lake:
    """The tables of a configuration, read directly. Raises what DuckDB raises where a version is gone, and a problem (503)
    where a read takes too long or too many wait."""

    def __init__(self, config: Config, gone: Gone = lambda: lambda: False) -> None:
        self.config = config
        # What looks through all of a changelog does not keep others waiting.
        self._changelogs, self._tables = SerialConnection(config, gone), SerialConnection(config, gone)

    def history(self, snapshot: Snapshot, key: Sequence[str], before: int | None, limit: int) -> Past[Page]:
        """The events of a key, newest first, before an order key where one is given: what the store makes of each, also of those that are
        pending, which are ``provisional``. At most ``limit``, and as many as ``api: max_answer`` has room for, like the next ones."""
        assert snapshot.rule is not None
        rule = _unwindowed(snapshot.rule)
        bound = f"_order < {int(before)}" if before is not None else "TRUE"

        def read(db: Connection) -> pa.Table:
            return db.execute(
                f"SELECT _order, CAST(_event_time AS TIMESTAMP) AS event_time, _op AS op, _agent AS agent, _value AS value, _provisional "
                f"FROM {EVENTS} WHERE {bound} ORDER BY _order DESC LIMIT {int(limit) + 1}"
            ).to_arrow_table(ROWS)

        events, position, offsets = self._read(snapshot, rule, key, read)
        page, stream = self._page(events, limit), self.config.streams[rule.store.stream]
        known = metadata(table(self.config, "changelog", stream.name), "offsets") if stream.several else None
        places = Numbering.of(stream, known or {}).places
        return Page([_event(row, places) for row in page.rows], page.more), position, offsets

    def at(self, snapshot: Snapshot, key: Sequence[str], moment: dt.datetime) -> Past[Row | None]:
        """The state of a key as its events up to an event time (naive, UTC) make it, also those that are pending."""
        rule = snapshot.rule
        assert rule is not None

        def read(db: Connection) -> pa.Table:
            db.execute(f"DELETE FROM {EVENTS} WHERE _event_time > {literal(moment.isoformat())}::TIMESTAMPTZ")
            folded = Fold(db, rule, "at").alone(EVENTS)
            provisional = f"(SELECT bool_or(_provisional) FROM {EVENTS}) AS _provisional"
            rows = f"SELECT {casts(snapshot.types)}, {provisional} FROM {quoted(folded)} WHERE _present ORDER BY ALL"
            return db.execute(rows).to_arrow_table(ROWS)

        state, position, offsets = self._read(snapshot, rule, key, read)
        ahead = offsets if pc.any(state["_provisional"]).as_py() else {}
        return of_table(state, rule, snapshot.types).get(key), position, ahead

    def version(
        self, store: Store, key: Sequence[str], snapshot: Snapshot, version: int
    ) -> tuple[Row | None, int | None]:
        """The state of a key as a version of the table has it, and that version's position."""
        newest = opened(table(self.config, "state", store.name))
        # Not left to deltalake to find out, which goes through all the numbers up to there: for minutes.
        if newest is None or version > newest.version():
            raise DeltaError(f"state/{store.name} has no version {version} yet")

        def read(db: Connection) -> Snapshot:
            self._want(db, snapshot, key)
            return load(db, self.config, store, version, WANTED)

        loaded = self._tables.ask(read)
        return loaded.get(key), loaded.position

    def quarantine(self, stream: str, before: tuple[int, int] | None, reason: str | None, limit: int) -> Page:
        """What was refused of a stream (for a reason, or one of a kind), newest first by partition and offset, and what it came back as
        where it was sent again."""
        path, again = (table(self.config, kind, stream) for kind in ("quarantine", "requeued"))
        if (delta := opened(path)) is None:
            return Page([], False)
        bound = "TRUE" if before is None else f'(partition, "offset") < ({int(before[0])}, {int(before[1])})'
        given = [] if reason is None else [reason]
        if given:
            bound += f" AND ? IN (reason, {KIND})"

        def read(db: Connection) -> pa.Table:
            with ExitStack() as pins:
                refused, requeued = (
                    pins.enter_context(pinned(db, path, delta.version(), "_quarantine")),
                    "(SELECT NULL)",
                )
                if (sent := opened(again)) is not None:
                    rows = pins.enter_context(pinned(db, again, sent.version(), "_requeued"))
                    requeued = (
                        f'(SELECT min(sent_as) FROM {rows} WHERE partition = q.partition AND "offset" = q."offset")'
                    )
                query = f"""SELECT topic, partition, "offset", CAST(timestamp AS TIMESTAMP) AS timestamp, key, payload, payload_bytes,
                    reason, CAST(log_time AS TIMESTAMP) AS log_time, CAST({requeued} AS VARCHAR) AS requeued
                FROM (FROM {refused} WHERE {bound} ORDER BY partition DESC, "offset" DESC LIMIT {int(limit) + 1}) q
                ORDER BY partition DESC, "offset" DESC"""
                return db.execute(query, given).to_arrow_table(ROWS)

        return self._page(self._tables.ask(read), limit)

    def tasks(self, wanted: Mapping[str, str], after: tuple[int, str] | None, limit: int) -> Page:
        """Tasks of which columns have the values that are wanted, by due (after so many microseconds since 1970, and an id) and id."""
        tests = [f"{quoted(column)} = ?" for column in wanted]
        values: list[Any] = list(wanted.values())
        if after is not None:
            tests.append("(epoch_us(due), id) > (?, ?)")
            values += after
        return self._tasks(" AND ".join(tests) or "TRUE", values, limit)

    def task(self, name: str) -> Row | None:
        """The task of an id."""
        rows = self._tasks("id = ?", [name], 1).rows
        return rows[0] if rows else None

    def _tasks(self, where: str, values: list[Any], limit: int) -> Page:
        path = tasks_table(self.config)
        if (delta := opened(path)) is None:
            return Page([], False)
        columns = casts({name: kind for name, kind in TASK_COLUMNS.items() if name != "position"})

        def read(db: Connection) -> pa.Table:
            with pinned(db, path, delta.version(), "_tasks") as known:
                query = f"SELECT {columns} FROM {known} WHERE {where} ORDER BY due, id LIMIT {int(limit) + 1}"
                return db.execute(query, values).to_arrow_table(ROWS)

        return self._page(self._tables.ask(read), limit)

    def diff(self, snapshot: Snapshot, old: int, new: int, limit: int) -> tuple[Page, dict[str, int]]:
        """The keys (and windows) of which two versions of a state's table have another value, each with both (``before`` and
        ``after``) and which of the two have it (``change``); in the order of the key. And how many of all were ``added``, are ``gone``
        and have ``changed``. Raises what DuckDB and deltalake raise where a version is gone."""
        rule = snapshot.rule
        assert rule is not None
        path = table(self.config, "state", rule.store.name)
        keys = {name: snapshot.types[name] for name in rule.keys}
        names = ", ".join(map(quoted, keys))
        packed = ", ".join(f"{quoted(name)} := {quoted(name)}" for name in keys)
        counts = ", ".join(f"count(*) FILTER (change = '{change}') OVER () AS {change}" for change in CHANGES)
        query = f"""WITH before AS (SELECT {casts({**keys, "value": snapshot.types["value"]})}, TRUE AS _here FROM {{old}}),
            after AS (SELECT {casts({**keys, "value": snapshot.types["value"]})}, TRUE AS _here FROM {{new}}),
            differing AS (SELECT struct_pack({packed}) AS key, CASE WHEN before._here IS NULL THEN 'added' WHEN after._here IS NULL THEN 'gone' ELSE 'changed' END AS change,
                before.value AS before, after.value AS after
            FROM before FULL JOIN after USING ({names}) WHERE before._here IS NULL OR after._here IS NULL OR before.value IS DISTINCT FROM after.value)
            SELECT *, {counts} FROM differing ORDER BY key LIMIT {int(limit) + 1}"""

        def read(db: Connection) -> pa.Table:
            with pinned(db, path, old, "_old") as before, pinned(db, path, new, "_new") as after:
                return db.execute(query.format(old=before, new=after)).to_arrow_table(ROWS)

        rows = self._tables.ask(read)
        totals = {change: rows[change][0].as_py() if rows.num_rows else 0 for change in CHANGES}
        return self._page(rows.drop_columns(list(CHANGES)), limit), totals

    def _page(self, table: pa.Table, limit: int) -> Page:
        """The first rows of a table, at most so many, and as many as an answer has room for."""
        columns = {name: table[name] for name in table.column_names}
        fit = fitting(columns, limit, self.config.api.max_answer, some=True)
        return Page(rows_of({name: column[:fit] for name, column in columns.items()}), fit < table.num_rows)

    def touched(self, snapshot: Snapshot, start: int, head: int) -> list[Key]:
        """The keys that the changelog's versions (start, head] touch. In a windowed store they have the window, or None for
        the key's every window.

        Raises a problem where the log no longer has them, and where they are too many to read for one who asks.
        """
        rule = snapshot.rule
        assert rule is not None
        if head - start > VERSIONS:
            raise _gone(
                f"found {head - start:,} versions of the changelog since {start}, expected at most {VERSIONS:,}"
            )
        stream, types = self.config.streams[rule.store.stream], [snapshot.types[k] for k in rule.keys]
        rule = spoken(rule, stream)
        columns = ", ".join(f"{quoted(k)} {t}" for k, t in zip(rule.keys, types, strict=True))

        def read(db: Connection) -> pa.Table:
            rows = 0
            db.execute(f"CREATE OR REPLACE TEMP TABLE _touched ({columns})")
            try:
                for batch in batches(table(self.config, "changelog", stream.name), start, head):
                    if (rows := rows + batch.num_rows) > MOST:
                        raise _gone(f"found more than {MOST:,} events since version {start} of the changelog")
                    db.register("_events", batch)
                    events = filled(db, "_events", stream, batch.column_names)
                    db.execute(f"INSERT INTO _touched {touched(rule, events, rule.keys, snapshot.types)}")
                    db.unregister("_events")
            except (DeltaError, pa.ArrowException) as error:  # the latter for a file of it
                raise _gone(f"the changelog no longer has what came after version {start}") from error
            found = db.execute("SELECT DISTINCT * FROM _touched ORDER BY ALL").to_arrow_table(ROWS)
            db.execute("DROP TABLE _touched")
            return found

        return keys_of(self._changelogs.ask(read).columns)

    def _read(self, snapshot: Snapshot, rule: Rule, key: Sequence[str], read: Question[pa.Table]) -> Past[pa.Table]:
        """What a query of a key's events, the table :data:`EVENTS`, gives: of those that the changelog has at the snapshot's position, and
        of those that are pending on top of it, which are ``_provisional``. Where the files of that version are gone, since it was compacted
        and vacuumed, the newest one is asked, with what is pending after that."""
        stream = self.config.streams[rule.store.stream]
        try:
            rule = spoken(rule, stream)
        except Differs as error:
            advice = f"ask for a version of its table, or Spark: {error}"
            detail = f"the events of {rule.store.name} cannot be told apart here; {advice}"
            raise Problem(501, "not-computed", detail) from None
        changelog = table(self.config, "changelog", stream.name)
        position, pending, offsets = snapshot.pending_of(key)

        def asked(db: Connection) -> pa.Table:
            wanted = self._want(db, snapshot, key)
            at = {column: wanted[name] for name, column in self._plain(rule).items()}
            how = f"CREATE OR REPLACE TEMP TABLE {EVENTS} AS"

            def add(relation: str, provisional: bool) -> None:
                nonlocal how
                db.execute(f"{how} SELECT *, {provisional} AS _provisional FROM ({self._events(rule, relation)})")
                how = f"INSERT INTO {EVENTS}"

            try:
                if position is not None:
                    for relation in attached(db, self.config, stream, position, FILES, partial(may_have, at)):
                        add(relation, provisional=False)
                if pending is not None or position is None:
                    rows = ArrowSource(db, PENDING, changelog_columns(stream))
                    if pending is not None:
                        rows.put(pending)
                    add(PENDING, provisional=True)
            finally:
                unpin(db, CHANGELOG)
                db.unregister(PENDING)
            return read(db)

        while True:
            try:
                return self._changelogs.ask(asked), position, offsets
            except (duckdb.Error, DeltaError):
                newest = opened(changelog)
                if newest is None or newest.version() <= (position or 0):
                    raise
                position = newest.version()
                covered = offsets_at(changelog, position)
                pending = after(pending, covered) if pending is not None and covered is not None else None

    def _events(self, rule: Rule, changelog: str) -> str:
        """DuckDB's SQL: the store's events of the key that is wanted."""
        # Of a key that is a column's value, only the rows that have it get through the scan.
        pairs = {spark_quoted(column): spark_quoted(name) for name, column in self._plain(rule).items()}
        plain = [f"{column} = (SELECT {name} FROM {WANTED})" for column, name in pairs.items()]
        if plain:
            changelog = f"(SELECT * FROM {changelog} WHERE _op <> 'report' OR ({' AND '.join(plain)}))"
        return to_duckdb(project(rule, changelog, WANTED))

    def _plain(self, rule: Rule) -> dict[str, str]:
        """The key's columns that are a column of the stream's as it is, and which."""
        types = {column.name.lower(): column.type.upper() for column in self.config.streams[rule.store.stream].columns}
        columns = {}
        for key, kind in zip(rule.store.keys, rule.key_types, strict=True):
            column = parse_expression(key.expression)
            if isinstance(column, exp.Column) and not column.table and types.get(column.name.lower()) == kind.upper():
                columns[key.name] = column.name
        return columns

    def _want(self, db: Connection, snapshot: Snapshot, wanted: Sequence[str]) -> dict[str, Any]:
        """Have a key as the relation :data:`WANTED`; its columns' values."""
        assert snapshot.rule is not None
        key = dict(zip(snapshot.rule.key_columns, snapshot.key(wanted), strict=True))
        db.register("_key_asked_for", pa.table({name: [value] for name, value in key.items()}))
        columns = casts({name: snapshot.types[name] for name in key})
        db.execute(f"CREATE OR REPLACE TEMP TABLE {WANTED} AS SELECT {columns} FROM _key_asked_for")
        db.unregister("_key_asked_for")
        return key


def _gone(detail: str) -> Problem:
    return Problem(410, "changes-gone", f"{detail}: read the whole store again, and go on from there")


def _unwindowed(rule: Rule) -> Rule:
    """The same rule without windows: an event once, and not in each of its windows."""
    definition = {k: v for k, v in rule.store.definition.items() if k not in ("window", "retention")}
    store = Store.model_validate({**definition, "name": rule.store.name})
    return replace(rule, store=store)


def _event(row: Row, places: Mapping[int, Row]) -> Row:
    """An event as callers see it, and its ``_order``, in which its place is packed: see statehouse.reducers.ORDER."""
    order, provisional = int(row.pop("_order")), row.pop("_provisional")
    number, offset = order // 10**15 % 10**5 + LOADED, order % 10**15
    place = {**places.get(number, {}), "partition": number, "offset": offset}
    return {"_order": order, **row, **place, **({"provisional": True} if provisional else {})}
