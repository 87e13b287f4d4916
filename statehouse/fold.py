"""The one fold, as Spark SQL text: events to rows, rows with rows. Spark runs it as it is, DuckDB transpiled.

A store's :class:`Rule` makes three queries, over relations that the caller names:

1. ``project``: changelog rows → the store's events: its key columns, ``_order``, ``_event_time``, ``_op``,
   ``_agent``, ``_value``, ``_reset``. An event whose key is null is not in the store. In a windowed store an event is in each of its
   windows; a purge is of the key's every window, and its own ``window_start`` is null.
   A key or a value that is a time is null outside the years 1 to 9999, for no caller has another, a value that is no number or infinite
   is null, and so is text that is not UTF-8; a window that would begin before those years is not made.
2. ``fold``: events → one row a key (and window), of the reducer's own columns and ``reset``.
3. ``combine``: those rows with the state's rows or, where there are none, the tombstones' → the new rows,
   present or not. ``_conflict`` marks a key whose late reset falls between values that are added up already:
   it has to be folded again from the whole changelog. Before it, in a windowed store, ``spread``: a key's purge, new
   or remembered, becomes the ``reset`` of each of its windows.

It is one module, as all of it is one class of queries that share their columns and their placeholders.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from statehouse.config.models import Store, Stream
from statehouse.payload import LEAST_TIME, Field
from statehouse.reducers import ORDER, ORDER_SQL, RANKED_ORDER_SQL, accumulator, addend, summation
from statehouse.spark_sql import finite, literal, quoted, text_as, valid, value_of, within_years
from statehouse.types import ENCODED, parse_type
from statehouse.values import milliseconds, safe


def gained(stream: Stream, names: Sequence[str], payload: str) -> dict[str, str]:
    """The columns that a stream's schema has gained since its changelog was made: an expression by column, over rows of the changelog,
    whose columns are ``names``. A row from before takes the value from its payload if that was kept, else it is null. ``payload`` names
    a struct of the payload's values for the :func:`gained_columns`."""
    known = [n.lower() for n in names]
    expressions = {}
    for column in gained_columns(stream, names):
        name = quoted(column.name)
        stored = [name] if column.name.lower() in known else []  # a version from before has no such column yet
        expressions[column.name] = f"coalesce({', '.join([*stored, f'{payload}.{name}'])})"
    for lookup in stream.lookups:  # what was looked up is in no payload
        if lookup.name.lower() not in known:
            expressions[lookup.name] = f"CAST(NULL AS {lookup.column.type})"
    return expressions


def gained_columns(stream: Stream, names: Sequence[str]) -> list[Field]:
    """The columns that a stream's schema has gained since its changelog, whose columns are ``names``, was made."""
    known = [n.lower() for n in names]
    old = known[: known.index("_payload")]  # new columns come after the system's own
    return [Field(column.name, parse_type(column.type)) for column in stream.columns if column.name.lower() not in old]


@dataclass(frozen=True)
class Rule:
    """A store with the types that an engine found for its expressions (Spark DDL, such as ``BIGINT``)."""

    store: Store
    key_types: tuple[str, ...]
    value_input: str  # the type of the `value` expression
    own_types: tuple[str, ...] = ()  # of a user's reducer: its columns' types, then its result's
    # Expressions as an engine is given them, by how they are written: see statehouse.alike.given.
    nulled: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    added: tuple[tuple[str, str], ...] = ()  # further key columns, that the events have already, and their types
    ranked: bool = False  # whether the stream has an `order:`, so that events have a `_rank`
    captured: bool = False  # whether its events are changes of a table's rows: then a purge has the columns of the row, not a key as text

    @property
    def types(self) -> tuple[str, ...]:
        """All the types that an engine found."""
        return (*self.key_types, self.value_input, *self.own_types)

    @property
    def event_type(self) -> str:
        """The type of one event's value, and of what a set may give."""
        reducer = self.store.reducer
        return (reducer.event_type or reducer.result_type)(self.value_input)

    @property
    def value_type(self) -> str:
        """The type of the state's ``value``."""
        return self._fill(self.store.reducer.result_type(self.value_input))

    @property
    def own(self) -> dict[str, str]:
        """The reducer's own columns and their types; ``value`` is one of them where it is folded itself."""
        columns = {n: self._fill(t) for n, t in self.store.reducer.columns.items()}
        return {"value": self.value_type, **columns} if "value" in self.store.reducer.fold else columns

    @property
    def keys(self) -> dict[str, str]:
        """The columns that name a row, and their types: the key's, and ``window_start`` where windowed."""
        return {**self.key_columns, **({"window_start": "TIMESTAMP"} if self.store.windows else {})}

    @property
    def key_columns(self) -> dict[str, str]:
        """The key's columns and their types."""
        return {**{k.name: t for k, t in zip(self.store.keys, self.key_types, strict=True)}, **dict(self.added)}

    @property
    def state_columns(self) -> dict[str, str]:
        """The columns of ``state/<store>``."""
        own = {n: t for n, t in self.own.items() if n != "value"}
        times = {"event_time": "TIMESTAMP", "changed_at": "TIMESTAMP", "reset": ORDER}
        return {**self.keys, "value": self.value_type, **own, **times}

    @property
    def tombstone_columns(self) -> dict[str, str]:
        """The columns of ``tombstones/<store>``."""
        memory = {n: self.own[n] for n in self.store.reducer.memory}
        return {**self.keys, **memory, "reset": ORDER, "position": "BIGINT", "log_time": "TIMESTAMP"}

    def _guarded(self, expression: str) -> str:
        """A user's expression as an engine is given it: with the guards of :func:`statehouse.alike.nulled` and
        :func:`statehouse.values.safe`."""
        return safe(dict(self.nulled).get(expression, expression))

    def _fill(self, text: str, side: str = "", cut: str = "") -> str:
        reducer = self.store.reducer
        parts = {
            "T": self.value_input,
            "ACC": accumulator(self.value_input),
            "ADDEND": addend(self.value_input),
            "SUM": summation(self.value_input),
            "s": side,
            "cut": cut,
            **{str(i): literal(a) for i, a in enumerate(self.store.arguments)},
            **{f"sql:{n}": self._guarded(e) for n, e in reducer.written.items()},
        }
        if self.own_types:
            names = [n.removeprefix("fold.") for n in reducer.written if n.startswith("fold.")]
            parts |= {f"type:{n}": t for n, t in zip([*names, "result"], self.own_types, strict=True)}
        if "{V}" in text:
            parts["V"] = self.value_type
        # One pass: what a user wrote may hold braces of its own.
        return re.sub(r"\{([\w:.]+)\}", lambda found: parts.get(found[1], found[0]), text)

    def _key_list(self, table: str = "", windows: bool = True) -> str:
        return ", ".join(f"{table}{quoted(k)}" for k in (self.keys if windows else self.key_columns))

    def matching(self, left: str, right: str) -> str:
        """SQL: rows of two relations have the same key (and window)."""
        return " AND ".join(f"{left}.{quoted(k)} = {right}.{quoted(k)}" for k in self.keys)

    def same(self, left: str, right: str) -> str:
        """SQL: whether two of the state's values are the same. Maps cannot be compared, their text can."""
        if "MAP<" not in self.value_type.upper():
            return f"{left} <=> {right}"
        return f"to_json(struct({left} AS v)) <=> to_json(struct({right} AS v))"

    def bucket(self, count: int) -> str:
        """SQL of Spark: which of so many buckets a row's key is in."""
        return f"pmod(hash({self._key_list(windows=False)}), {count})"

    def control_keys(self) -> list[str]:
        """The key's columns as a set or purge gives them: from Kafka's key as text. A composite key is its
        parts, each percent-encoded, separated by '/'. Null where the text is not such a key."""
        types = list(self.key_columns.values())
        if not self.store.composite:
            return [text_as("_key", types[0])]
        split = "split(_key, '/')"
        # A '+' is no space here, whatever an engine's function thinks.
        parts = (f"{split}[{i}]" for i in range(len(types)))
        decoded = (
            f"CASE WHEN {p} RLIKE '^{ENCODED}$' THEN try_url_decode(replace({p}, '+', '%2B')) END" for p in parts
        )
        return [
            f"CASE WHEN size({split}) = {len(types)} THEN {text_as(d, t)} END"
            for d, t in zip(decoded, types, strict=True)
        ]

    def set_value(self) -> str:
        """The value that a set gives: text in ``_value`` (see :func:`statehouse.payload.text_of`), null where it is not of the
        store's type."""
        return value_of("_value", self.event_type)

    def key_of(self, guard: str = "{}") -> list[str]:
        """The key's columns as expressions over rows of the changelog; ``guard`` as in :meth:`events`."""
        if self.captured:
            return [
                valid(f"CAST({guard.format(self._guarded(k.expression))} AS {t})", t, k.expression)
                for k, t in zip(self.store.keys, self.key_types, strict=True)
            ]
        return [
            f"CASE WHEN _op = 'report' THEN {valid(f'CAST({guard.format(self._guarded(k.expression))} AS {t})', t, k.expression)} ELSE {control} END"
            for k, t, control in zip(self.store.keys, self.key_types, self.control_keys(), strict=True)
        ]

    def concerned(self, guard: str = "{}") -> str:
        """Whether a row of the changelog is for the store; ``guard`` as in :meth:`events`."""
        store = self.store
        controls = "_op = 'purge'" if store.windows else "_op IN ('set', 'purge')"  # a set names no window
        return f"""(_op = 'report' AND ({guard.format(self._guarded(store.where)) if store.where else "TRUE"}))
       OR ({controls} AND (_store IS NULL OR _store = {literal(store.name)}))"""

    def events(self, changelog: str, guard: str = "{}", more: Sequence[str] = ()) -> str:
        """A relation of the store's events out of rows of the changelog, before windows, and also those that have no key;
        with ``more`` of the changelog's columns.

        ``guard`` is put around what a user wrote: DuckDB needs ``TRY({})`` for what Spark makes null by itself.
        """
        store, reducer = self.store, self.store.reducer
        named = zip(self.key_of(guard), self.key_columns, strict=True)
        keys = ",\n    ".join(f"{expression} AS {quoted(name)}" for expression, name in named)
        value = reducer.event_value.replace(
            "{value}", guard.format(self._guarded(store.value)) if store.value else "TRUE"
        )
        value = valid(f"CAST({value} AS {self.event_type})", self.event_type, store.value or "TRUE")
        agent = "''"
        if store.agent:
            agent = f"coalesce({valid(f'CAST({guard.format(self._guarded(store.agent))} AS STRING)', 'STRING', store.agent)}, '')"
        resets = "_op = 'purge' OR (_op = 'set' AND _value IS NOT NULL)" if reducer.additive else "_op = 'purge'"
        columns = {**self.key_columns, "_value": self.event_type}
        # Without an alias that changes nothing: Spark mixes up a checkpoint's constraints then.
        bounded = (
            column if (bounds := finite(within_years(column, kind), kind)) == column else f"{bounds} AS {column}"
            for column, kind in ((name if name == "_value" else quoted(name), kind) for name, kind in columns.items())
        )
        selected = ", ".join([*bounded, "_order", "_event_time", "_op", "_agent", *more])
        return f"""(SELECT {selected}, ({resets}) AS _reset FROM (SELECT
    {keys},
    {RANKED_ORDER_SQL if self.ranked else ORDER_SQL} AS _order, _event_time, _op,
    CASE _op WHEN 'report' THEN {agent} WHEN 'set' THEN coalesce(_agent, 'api') END AS _agent,
    CASE _op WHEN 'report' THEN {value} WHEN 'set' THEN {self.set_value()} END AS _value{"".join(f", {c}" for c in more)}
    FROM {changelog}
    WHERE {self.concerned(guard)}))"""

    @property
    def _unkeyed(self) -> str:
        """Whether an event has no key, or no window: its newest would begin before the year 1."""
        tests = [f"{quoted(k)} IS NULL" for k in self.key_columns]
        if self.store.windows:
            tests.append(f"(_op = 'report' AND {self._newest} < {LEAST_TIME})")
        return f"({' OR '.join(tests)})"

    def late(self, start: str) -> str:
        """Whether the retention of the window that starts at these microseconds is over."""
        if not self.store.windows or not self.store.retention:
            return "FALSE"
        microseconds = self.store.windows[0] + milliseconds(self.store.retention) * 1000
        return f"({start} + {microseconds} <= unix_micros(current_timestamp()))"

    @property
    def _newest(self) -> str:
        """The start of the event's newest window, in microseconds since 1970."""
        assert self.store.windows
        at, step = "unix_micros(_event_time)", self.store.windows[1]
        return f"({at} - (({at} % {step}) + {step}) % {step})"

    @property
    def _starts(self) -> str:
        """The starts of all of the event's windows, the newest first; of a purge, which is of every window, one that says nothing."""
        assert self.store.windows
        size, step = self.store.windows
        oldest = f"greatest(unix_micros(_event_time) - {size} + 1, {LEAST_TIME})"
        # The step is of the starts' type: Spark would work in 32 bits with a small number.
        starts = f"sequence({self._newest}, {oldest}, CAST(-{step} AS BIGINT))"
        return f"CASE WHEN _op = 'report' THEN {starts} ELSE array(CAST(0 AS BIGINT)) END"

    def project(self, changelog: str, guard: str = "{}") -> str:
        """The store's events out of rows of the changelog; ``guard`` as in :meth:`events`."""
        return self.placed(self.events(changelog, guard))

    def placed(self, events: str, more: Sequence[str] = ()) -> str:
        """Those of the :meth:`events` that have a key, each in its windows; with ``more`` of their columns."""
        columns = ", ".join(["_order, _event_time, _op, _agent, _value, _reset", *more])
        if not self.store.windows:
            return f"\n  SELECT {self._key_list()}, {columns} FROM {events} WHERE NOT {self._unkeyed}"
        return f"""
  SELECT {self._key_list(windows=False)}, CASE WHEN _op = 'report' THEN timestamp_micros(_start) END AS window_start, {columns}
  FROM (SELECT *, explode({self._starts}) AS _start FROM {events} WHERE NOT {self._unkeyed})
  WHERE _op <> 'report' OR NOT {self.late("_start")}"""

    @property
    def counts(self) -> dict[str, str]:
        """Aggregates of the :meth:`events`: how many there are, how many of them are ``resets``, how many more have no key, and
        how many more came after the retention of their windows."""
        late = f"(_op = 'report' AND {self.late(self._newest)})" if self.store.windows else "FALSE"
        return {
            "events": f"count_if(NOT {self._unkeyed} AND NOT {late})",
            "resets": f"count_if(_reset AND NOT {self._unkeyed})",
            "unkeyed": f"count_if({self._unkeyed})",
            "late": f"count_if(NOT {self._unkeyed} AND {late})",
        }

    def folds(self, cut: str) -> dict[str, str]:
        """The reducer's aggregates of events, by the column that keeps each; ``cut`` is the order of the reset that they come after."""
        reducer = self.store.reducer
        aggregates = {**reducer.fold, **reducer.ranked_fold} if self.ranked else reducer.fold
        return {c: self._fill(e, cut=cut) for c, e in aggregates.items()}

    def fold(self, events: str, resets: bool = True) -> str:
        """One row a key out of the store's events; ``resets=False`` promises that none of them is a reset."""
        reducer = self.store.reducer
        keys = self._key_list()
        none = f"CAST(NULL AS {ORDER})"
        after = "max(_after)" if resets else none  # as reset, but also of a windowed store
        folds = ", ".join(f"{expression} AS {quoted(c)}" for c, expression in self.folds(after).items())
        cut = "max(CASE WHEN _reset THEN _order END)" if resets else none
        if reducer.per_agent:
            time = "max_by(_event_time, _order)" if self.ranked else "max(_event_time)"
            agents = f"""SELECT {keys}, _agent, max_by(_value, _order) AS _value, {time} AS _event_time,
    max(_order) AS _order, {cut} AS _cut FROM {events} GROUP BY {keys}, _agent"""
            pruned = ", ".join(f"{self._fill(reducer.prune[c], 'f')} AS {quoted(c)}" for c in self.own)
            return f"""
  SELECT {keys}, {pruned}, _reset AS reset
  FROM (SELECT {keys}, {folds}, max(_cut) AS _reset FROM ({agents}) GROUP BY {keys}) AS f"""
        standing = events
        if reducer.additive and resets:  # a windowed store's resets are of the key
            of = self._key_list(windows=False)
            standing = f"""(SELECT _e.*, _r._cut AS _after FROM {events} AS _e LEFT JOIN
    (SELECT {of}, max(_order) AS _cut FROM {events} WHERE _reset GROUP BY {of}) AS _r USING ({of})
    WHERE _r._cut IS NULL OR _e._order >= _r._cut)"""
        if not reducer.written:
            return f"\n  SELECT {keys}, {folds}, {cut} AS reset FROM {standing} GROUP BY {keys}"
        # A user's aggregates see values only, and under plain names.
        named = f"(SELECT *, _value AS value, _event_time AS event_time, _agent AS agent FROM {standing})"
        values = f"SELECT {keys}, {folds} FROM {named} WHERE _value IS NOT NULL GROUP BY {keys}"
        if not resets:
            return f"\n  SELECT *, {none} AS reset FROM ({values})"
        return f"""
  SELECT {keys}, {", ".join(map(quoted, reducer.fold))}, _cut AS reset
  FROM (SELECT {keys}, {cut} AS _cut FROM {events} GROUP BY {keys}) AS _r LEFT JOIN ({values}) AS _v USING ({keys})"""

    def spread(self, rows: str, state: str | None, tombstones: str | None) -> str:
        """The folded rows of a windowed store, in which the purge of a key is the ``reset`` of each of its windows: of the windows in
        ``rows`` and, where ``state`` is given, of those that only the state has. Without windows these are the ``rows``."""
        if not self.store.windows:
            return rows
        of, keys = self._key_list(windows=False), self._key_list()
        own = ", ".join(map(quoted, self.own))
        purges = f"SELECT {of}, reset FROM {rows} WHERE window_start IS NULL"
        remembered = f" UNION ALL SELECT {of}, reset FROM {tombstones} WHERE window_start IS NULL" if tombstones else ""
        nothing = ", ".join(f"CAST(NULL AS {t}) AS {quoted(c)}" for c, t in {**self.own, "reset": ORDER}.items())
        others = f"""
    UNION ALL SELECT {self._key_list("_s.")}, {nothing} FROM {state} AS _s
      JOIN (SELECT DISTINCT {of} FROM ({purges})) AS _q USING ({of})
      LEFT JOIN (SELECT {keys}, TRUE AS _new FROM {rows}) AS _r USING ({keys}) WHERE _new IS NULL"""
        return f"""(SELECT {keys}, {own}, greatest(reset, _purged) AS reset
    FROM (SELECT {keys}, {own}, reset FROM {rows}{others if state else ""}) AS _n
    LEFT JOIN (SELECT {of}, max(reset) AS _purged FROM ({purges}{remembered}) GROUP BY {of}) AS _p USING ({of}))"""

    def combine(
        self,
        rows: str,
        state: str,
        tombstones: str | None,
        again: bool = False,
        of_state: Sequence[str] = (),
        of_rows: Sequence[str] = (),
    ) -> str:
        """The new rows of the keys in ``rows``: the state's columns, ``_present``, ``_here`` (the state has the key) and ``_conflict``.
        ``of_state`` and ``of_rows`` are columns to carry along unchanged. ``again``: ``rows`` are folded from the whole changelog, and
        replace the state's instead of being combined with them."""
        reducer, keys, own = self.store.reducer, self._key_list(), self.own
        # The key's first column is never null where there is a row: it tells whether there is one.
        first = quoted(next(iter(self.keys)))

        def older(column: str, kind: str) -> str:
            remembered = (
                f"_t.{quoted(column)}" if tombstones and column in self.tombstone_columns else f"CAST(NULL AS {kind})"
            )
            if again:
                return f"CAST(NULL AS {kind})"
            return f"CASE WHEN _s.{first} IS NOT NULL THEN _s.{quoted(column)} ELSE {remembered} END"

        def struct(make: dict[str, str]) -> str:
            return "struct(" + ", ".join(f"{e} AS {quoted(c)}" for c, e in make.items()) + ")"

        def pruned(side: str) -> str:
            return struct({c: self._fill(reducer.prune.get(c, f"{side}.{quoted(c)}"), side) for c in own})

        split = " OR ".join(f"coalesce({s}._first < _reset AND {s}._last >= _reset, FALSE)" for s in "ab")
        combine = {**reducer.combine, **reducer.ranked_combine} if self.ranked else reducer.combine
        combined = ", ".join(f"{self._fill(combine[c])} AS {quoted(c)}" for c in own)
        value = self._fill(reducer.value)
        if reducer.additive:  # the others' is one of the events'
            value = finite(value, self.value_type)
        results = {"value": value, **{c: quoted(c) for c in own if c != "value"}}
        joined = (
            f"LEFT JOIN {self._latest_tombstones(tombstones)} AS _t USING ({keys})" if tombstones and not again else ""
        )
        more = "".join(f", {column}" for column in (*of_state, *of_rows))
        carried = "".join([*(f", _s.{column}" for column in of_state), *(f", _n.{column}" for column in of_rows)])
        # Aliases begin with '_', and the key has such names while there are `a` and `b`: a column may have any other name.
        packed = {f"_key{number}": quoted(key) for number, key in enumerate(self.keys)}
        of = ", ".join(packed)
        return f"""
  SELECT {", ".join(f"{name} AS {key}" for name, key in packed.items())}, {", ".join(f"{e} AS {quoted(c)}" for c, e in results.items())},
    {self._fill(reducer.event_time)} AS event_time,
    CASE WHEN _here AND {self.same("_old", value)} THEN _old_changed ELSE current_timestamp() END AS changed_at,
    reset, coalesce({self._fill(reducer.present)}, FALSE) AS _present, _here, _conflict{more}
  FROM (SELECT {of}, {combined}, _reset AS reset, _conflict, _old, _old_changed, _here{more}
    FROM (SELECT {of}, {pruned("a")} AS a, {pruned("b")} AS b, _reset, _old, _old_changed, _here{more},
        {split if reducer.additive else "FALSE"} AS _conflict
      FROM (SELECT {", ".join(f"_n.{key} AS {name}" for name, key in packed.items())},
          {struct({c: older(c, k) for c, k in own.items()})} AS a, {struct({c: f"_n.{quoted(c)}" for c in own})} AS b,
          greatest({older("reset", ORDER)}, _n.reset) AS _reset,
          _s.value AS _old, _s.changed_at AS _old_changed, _s.{first} IS NOT NULL AS _here{carried}
        FROM {rows} AS _n LEFT JOIN {state} AS _s USING ({keys}) {joined})))"""

    def _latest_tombstones(self, tombstones: str) -> str:
        """A key's latest tombstone says all that the earlier ones did: each was made from the row before it."""
        columns = [c for c in self.tombstone_columns if c not in self.keys and c not in ("position", "log_time")]
        fields = ", ".join(f"{quoted(c)} AS {quoted(c)}" for c in columns)
        back = ", ".join(f"_last_one.{quoted(c)} AS {quoted(c)}" for c in columns)
        return f"""(SELECT {self._key_list()}, {back} FROM (SELECT {self._key_list()},
      max_by(struct({fields}), position) AS _last_one FROM {tombstones} GROUP BY {self._key_list()}))"""

    def remembered(self) -> str:
        """The memory columns of a row that is absent now, as a select list for the tombstones."""
        memory = {c: self._fill(e) for c, e in self.store.reducer.memory.items()}
        return ", ".join([self._key_list(), *(f"{e} AS {quoted(c)}" for c, e in memory.items()), "reset"])
