"""The reducers: how a key's events become a row, and how two rows of a key combine. Rules as data.

Each is a small set of Spark SQL expressions in one registry, :data:`REDUCERS`; :mod:`statehouse.fold` puts
them together into whole queries, Spark runs those as they are, DuckDB transpiled. An entry here is all
that the engines need; CONTRIBUTING lists what else names each reducer.

The columns that the expressions see:

* ``fold`` aggregates events: ``_order`` (the order key, see :data:`ORDER`), ``_event_time``, ``_agent``,
  ``_value``. Of an ``additive`` reducer only what is not before the key's last reset, whose order is ``{cut}``.
* ``prune`` takes from a row ``{s}`` what is before ``_reset``, the greater reset of the two rows that meet.
* ``combine`` sees the two rows as ``a`` (the older state, or a tombstone) and ``b``, both pruned; any column may
  be null where there is no such row. It must be commutative, associative, and ``b`` applied to nothing is ``b``.
* ``value``, ``event_time`` and ``present`` make the public columns from the reducer's own.
* ``memory`` is what of the row has to be remembered while the key is absent: nothing that adds up.

A user's own reducer (:class:`Own`) becomes such an entry by :func:`own`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from statehouse.types import INTEGERS

# The order of events, (event time, partition, offset), packed into one number of fixed width: microseconds,
# then five digits of partition + 1 (0 is for loaded files), then fifteen of offset. Strings and structs would make
# both engines sort where this hashes. In a stream with ``order:`` the event's rank, of at most eighteen digits, is in the place of its time.
ORDER = "DECIMAL(38,0)"
_FIRST = "CAST({} AS DECIMAL(38,0)) * CAST(100000000000000000000 AS DECIMAL(38,0))"
_AT = _FIRST.replace("{}", "unix_micros({})")
_PLACE = (
    " + CAST(_partition + 1 AS DECIMAL(38,0)) * CAST(1000000000000000 AS DECIMAL(38,0))"
    " + CAST(_offset AS DECIMAL(38,0))"
)
ORDER_SQL = _AT.format("_event_time") + _PLACE
RANKED_ORDER_SQL = _FIRST.format("_rank") + _PLACE

ROOMY = 28  # digits of decimals of which any number of events can be added up in 38


def accumulator(value_type: str) -> str:
    """The type in which values of a type are added up: exact for integers and decimals."""
    if value_type.upper() in INTEGERS:
        return ORDER
    scale = re.fullmatch(r"DECIMAL\(\d+,\s*(\d+)\)", value_type.upper())
    return f"DECIMAL(38,{scale[1]})" if scale else "DOUBLE"


def addend(value_type: str) -> str:
    """The type in which two such sums are added to one of the :func:`accumulator`: of a decimal a digit less, or Spark would make
    room for a digit more and take it from the decimals. What does not fit is null."""
    return accumulator(value_type).replace("DECIMAL(38,", "DECIMAL(37,")


def summation(value_type: str) -> str:
    """The aggregate that adds up events' values; null where one of them, or the sum, does not fit the :func:`addend`."""
    plain = f"sum(CAST(_value AS {accumulator(value_type)}))"
    digits = re.fullmatch(r"DECIMAL\((\d+),.*\)", value_type.upper())
    if not digits or int(digits[1]) <= ROOMY:
        return plain
    narrow = addend(value_type)
    fit = f"count(_value) = count(try_cast(_value AS {narrow}))"
    return f"CASE WHEN {fit} THEN CAST(try_cast(try_{plain} AS {narrow}) AS {accumulator(value_type)}) END"


def _sum_type(value_type: str) -> str:
    return "BIGINT" if value_type.upper() in INTEGERS else accumulator(value_type)


@dataclass(frozen=True)
class Reducer:
    """One rule. ``{T}`` in a type or an expression is the value's type, ``{ACC}`` its :func:`accumulator`
    (``{ADDEND}`` and ``{SUM}`` likewise), ``{V}`` the result's, ``{0}``, ``{1}`` the reducer's arguments as SQL literals; ``{sql:x}`` and ``{type:x}`` are
    what a user wrote for ``x``, and its type."""

    name: str
    about: str
    columns: dict[str, str]  # the reducer's own state columns and their types
    fold: dict[str, str]
    combine: dict[str, str]
    value: str
    present: str
    event_time: str
    memory: dict[str, str] = field(default_factory=dict)
    prune: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    result_type: Callable[[str], str] = lambda t: t
    event_type: Callable[[str], str] | None = None  # of one event's value, also of a set; default: the result's
    event_value: str = "{value}"  # what one event contributes
    per_agent: bool = False  # events are first reduced to each agent's latest
    additive: bool = False  # what was added cannot be taken out again: a late reset means folding the key anew
    value_optional: bool = False
    written: dict[str, str] = field(default_factory=dict)  # what a user wrote, by the name in ``{sql:name}``
    # In the place of some of ``fold`` and ``combine`` in a stream with ``order:``, where the later event may have the earlier time.
    ranked_fold: dict[str, str] = field(default_factory=dict)
    ranked_combine: dict[str, str] = field(default_factory=dict)


def _additive(
    name: str,
    about: str,
    columns: dict[str, str],
    fold: dict[str, str],
    combine: dict[str, str],
    value: str,
    result_type: Callable[[str], str] = lambda t: t,
    event_type: Callable[[str], str] | None = None,
    event_value: str = "{value}",
    value_optional: bool = False,
    written: dict[str, str] | None = None,
    exact: bool = False,
) -> Reducer:
    """A reducer over all values since the last reset. ``_first`` and ``_last`` say whether a late reset cuts them.

    They are the least and the greatest order of the microseconds that the values are from, so that no reset
    that cuts them is taken for one that does not; for one of just that microsecond they may be folded again for nothing. Spark's decimals are
    slow, and so there is one a key and not one an event. ``exact``: ``_first`` is the least event's own.
    """
    columns = {**columns, "_first": ORDER, "_last": ORDER, "_time": "TIMESTAMP"}
    counted = "FILTER (WHERE _value IS NOT NULL)"
    first, last = (_AT.format(f"{end}(_event_time) {counted}") for end in ("min", "max"))
    fold = {
        **fold,
        # Not before the reset that it stands after.
        "_first": f"min(_order) {counted}"
        if exact
        else f"CASE WHEN count(_value) > 0 THEN greatest({first}, {{cut}}) END",
        "_last": f"{last} + CAST(99999999999999999999 AS DECIMAL(38,0))",
        "_time": f"max(_event_time) {counted}",
    }
    combine = {
        **combine,
        "_first": "least(a._first, b._first)",
        "_last": "greatest(a._last, b._last)",
        "_time": "greatest(a._time, b._time)",
    }
    return Reducer(
        name=name,
        about=about,
        columns=columns,
        fold=fold,
        combine=combine,
        value=value,
        present="_last IS NOT NULL",
        event_time="_time",
        prune={c: f"CASE WHEN _reset IS NULL OR {{s}}._first >= _reset THEN {{s}}.`{c}` END" for c in columns},
        result_type=result_type,
        event_type=event_type,
        event_value=event_value,
        additive=True,
        value_optional=value_optional,
        written=written or {},
        ranked_fold={"_first": f"min(_order) {counted}", "_last": f"max(_order) {counted}"},
    )


# A sum that did not fit stays null.
_BOTH = "CASE WHEN a._last IS NULL THEN b.{c} WHEN b._last IS NULL THEN a.{c} ELSE {sum} END"
_PLUS = _BOTH.replace("{sum}", "CAST(try_cast(a.{c} AS {ADDEND}) + try_cast(b.{c} AS {ADDEND}) AS {ACC})")
_COUNT_PLUS = _BOTH.replace("{sum}", "try_add(a.{c}, b.{c})")
_REPORTS = "MAP<STRING, STRUCT<value: {T}, event_time: TIMESTAMP, _order: DECIMAL(38,0)>>"


def _reports(name: str, about: str, value: str, arguments: tuple[str, ...] = ()) -> Reducer:
    """A reducer over each agent's latest report; a null one withdraws the agent's, and is remembered."""
    standing = "filter(map_values(_reports), r -> r.value IS NOT NULL)"
    return Reducer(
        name=name,
        about=about,
        arguments=arguments,
        columns={"reports": _REPORTS},
        fold={
            "reports": "map_from_entries(collect_list(struct(_agent AS key, "
            "struct(_value AS value, _event_time AS event_time, _order AS _order) AS value)) "
            "FILTER (WHERE _agent IS NOT NULL))"
        },
        prune={"reports": "map_filter({s}.reports, (k, r) -> _reset IS NULL OR r._order > _reset)"},
        combine={
            "reports": "CASE WHEN a.reports IS NULL THEN b.reports WHEN b.reports IS NULL THEN a.reports ELSE "
            "map_zip_with(a.reports, b.reports, "
            "(k, x, y) -> CASE WHEN y._order IS NULL OR x._order > y._order THEN x ELSE y END) END"
        },
        value=value.replace("{standing}", standing.replace("_reports", "reports")),
        present="exists(map_values(reports), r -> r.value IS NOT NULL)",
        event_time=f"array_max(transform({standing.replace('_reports', 'reports')}, r -> r.event_time))",
        memory={"reports": "map_filter(reports, (k, r) -> r.value IS NULL)"},
        per_agent=True,
    )


REDUCERS: dict[str, Reducer] = {
    r.name: r
    for r in (
        Reducer(
            name="latest",
            about="the value of the greatest event; a null value makes the key absent",
            columns={"_last": ORDER, "_time": "TIMESTAMP"},
            fold={
                "value": "max_by(_value, _order)",
                "_last": "max(_order)",
                "_time": "max(_event_time)",
            },
            combine={
                "value": "CASE WHEN b._last IS NULL OR a._last > b._last THEN a.value ELSE b.value END",
                "_last": "greatest(a._last, b._last)",
                "_time": "greatest(a._time, b._time)",
            },
            # A purge is an event of null like any other, except where it comes from outside a window.
            prune={"value": "CASE WHEN _reset IS NULL OR {s}._last >= _reset THEN {s}.value END"},
            value="value",
            present="value IS NOT NULL",
            event_time="_time",
            memory={"_last": "_last", "_time": "_time"},
            ranked_fold={"_time": "max_by(_event_time, _order)"},
            ranked_combine={"_time": "CASE WHEN b._last IS NULL OR a._last > b._last THEN a._time ELSE b._time END"},
        ),
        _reports(
            "majority",
            "the value that most agents' latest reports give; a tie goes to the tied value reported last",
            "array_max(transform({standing}, r -> struct("
            "size(filter({standing}, s -> s.value = r.value)) AS n, r._order AS o, r.value AS v))).v",
        ),
        _reports(
            "at_least_one",
            "`v` while any agent's latest report is `v`, else `w`",
            "CASE WHEN exists({standing}, r -> r.value = CAST({0} AS {T})) "
            "THEN CAST({0} AS {T}) ELSE CAST({1} AS {T}) END",
            arguments=("value", "otherwise"),
        ),
        _additive(
            "sum",
            "the sum of the values; exact for integers and decimals",
            columns={"total": "{ACC}"},
            fold={"total": "{SUM}"},
            combine={"total": _PLUS.replace("{c}", "total")},
            value="try_cast(total AS {V})",
            result_type=_sum_type,
        ),
        _additive(
            "count",
            "the number of non-null values; of events where no `value` is given",
            columns={"total": "BIGINT"},
            fold={"total": "try_cast(try_sum(_value) AS BIGINT)"},
            combine={"total": _COUNT_PLUS.replace("{c}", "total")},
            value="total",
            result_type=lambda t: "BIGINT",
            event_value="CASE WHEN ({value}) IS NOT NULL THEN 1 END",
            value_optional=True,
        ),
        _additive(
            "avg",
            "the mean of the values, a double",
            columns={"total": "{ACC}", "n": "BIGINT"},
            fold={"total": "{SUM}", "n": "count(_value)"},
            combine={"total": _PLUS.replace("{c}", "total"), "n": _COUNT_PLUS.replace("{c}", "n")},
            # By its text: DuckDB makes a double of a decimal by a division of two others, each of which may be rounded.
            value="CAST(CAST(total AS STRING) AS DOUBLE) / n",
            result_type=lambda t: "DOUBLE",
            event_type=lambda t: t,
        ),
        _additive(
            "min",
            "the least value",
            columns={"total": "{T}"},
            fold={"total": "min(_value)"},
            combine={"total": "least(a.total, b.total)"},
            value="total",
        ),
        _additive(
            "max",
            "the greatest value",
            columns={"total": "{T}"},
            fold={"total": "max(_value)"},
            combine={"total": "greatest(a.total, b.total)"},
            value="total",
        ),
        _additive(
            "first",
            "the value of the least event",
            columns={"total": "{T}"},
            fold={"total": "min_by(_value, _order) FILTER (WHERE _value IS NOT NULL)"},
            combine={"total": "CASE WHEN b._first IS NULL OR a._first <= b._first THEN a.total ELSE b.total END"},
            value="total",
            exact=True,
        ),
    )
}


def own(fold: dict[str, str], combine: dict[str, str], result: str) -> Reducer:
    """A user's reducer over the non-null values since the last reset: ``fold`` aggregates ``value``, ``event_time`` and
    ``agent`` to columns, ``combine`` makes them of two rows ``a`` and ``b`` that both have values, ``result`` is the value.

    That ``combine`` is commutative and associative, and agrees with ``fold``, is tried by :mod:`jobs.law`.
    """
    combinations = {c: f"CAST(({{sql:combine.{c}}}) AS {{type:{c}}})" for c in fold}
    return _additive(
        "own",
        "a user's own",
        columns={c: f"{{type:{c}}}" for c in fold},
        fold={c: f"CAST(({{sql:fold.{c}}}) AS {{type:{c}}})" for c in fold},
        combine={
            c: f"CASE WHEN a._last IS NULL THEN b.`{c}` WHEN b._last IS NULL THEN a.`{c}` ELSE {e} END"
            for c, e in combinations.items()
        },
        value="CAST(({sql:result}) AS {V})",
        result_type=lambda t: "{type:result}",
        event_type=lambda t: t,
        value_optional=True,
        written={
            **{f"fold.{c}": e for c, e in fold.items()},
            **{f"combine.{c}": e for c, e in combine.items()},
            "result": result,
        },
    )


def parse_reduce(text: str) -> tuple[str, list[str]]:
    """``at_least_one(alarm, ok)`` as its name and arguments; quotes around an argument are optional."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not match:
        raise ValueError(f"found reduce: {text!r}, expected a reducer's name, with its arguments in brackets")
    parts = [p.strip() for p in match[2].split(",")] if match[2] and match[2].strip() else []
    return match[1], [p[1:-1] if len(p) > 1 and p[0] == p[-1] and p[0] in "'\"" else p for p in parts]
