"""Rows as Arrow columns: as callers see them, and as JSON text, a column at a time.

What :mod:`api.engine.exact_json` makes of one value is made here of thousands in the time of a few. A property test holds that the text is
the same; what Arrow writes otherwise, or does not know, is written by ``dumps``.
"""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.engine.cells import EPOCH, TEXT, TEXTS, values
from api.engine.exact_json import dumps, time

REPORT = ("value", "event_time")  # what is shown of an agent's report
PLAIN_SCALE = 6  # beyond it Arrow may write a decimal with an exponent
ESCAPED = r'["\\\x00-\x1f]'
MICROSECOND = 10**20  # what a microsecond is in the packed order key, see statehouse.reducers.ORDER
Columns = dict[str, pa.Array]
Key = tuple[Any, ...]


def rank_in(order: Decimal) -> int:
    """The rank in a packed order key, or the microseconds."""
    return int(order) // MICROSECOND


def time_of(order: Decimal) -> str:
    """The event time in a packed order key."""
    micros = rank_in(order)
    try:
        return time(EPOCH + dt.timedelta(microseconds=micros))
    except OverflowError:
        return str(micros)


def public(
    columns: Mapping[str, pa.Array], floats: Iterable[str] = (), per_agent: bool = False, ranked: bool = False
) -> Columns:
    """Columns as callers see them: none of the reducer's own; ``floats`` as the shortest numbers that they are (1.1), not as
    the doubles next to them (1.100000023841858); of reports, where the reducer is over agents, those that stand; of a reset its time, or
    where events are ``ranked`` its rank."""
    shown = {name: column for name, column in columns.items() if not name.startswith("_")}
    for name in floats:
        shown[name] = shown[name].cast(pa.string()).cast(pa.float64())
    if "reset" in shown:
        orders = shown["reset"].to_pylist() if shown["reset"].null_count < len(shown["reset"]) else ()
        resets = [None if order is None else rank_in(order) if ranked else time_of(order) for order in orders]
        kind = pa.int64() if ranked else pa.string()
        shown["reset"] = pa.array(resets, kind) if resets else pa.nulls(len(shown["reset"]), kind)
    if per_agent:
        shown["reports"] = _standing(shown["reports"])
    return shown


def lines(columns: Mapping[str, pa.Array]) -> list[str]:
    """Each row as a JSON object."""
    rows: list[str] = _objects(columns).to_pylist()
    return rows


def ndjson(columns: Mapping[str, pa.Array]) -> bytes:
    """Each row as a JSON object, and a newline after each."""
    return _text(columns, "}\n")


def listed(columns: Mapping[str, pa.Array]) -> bytes:
    """Each row as a JSON object, and a comma between any two."""
    return _text(columns, "},", less=1)


def _text(columns: Mapping[str, pa.Array], end: str, less: int = 0) -> bytes:
    rows = _objects(columns, end)
    _, ends, text = rows.buffers()  # one value is there right after the other
    return text.slice(0, memoryview(ends).cast("q")[len(rows)] - less).to_pybytes() if len(rows) else b""


def _objects(columns: Mapping[str, pa.Array], end: str = "}") -> pa.Array:
    pieces: list[pa.Array | pa.Scalar] = []
    for name, column in columns.items():
        begin = ("," if pieces else "{") + dumps(name) + ":"
        pieces += [pa.scalar(begin, TEXT), texts(column)]
    return _joined(*pieces, pa.scalar(end, TEXT))


def texts(column: pa.Array) -> pa.Array:
    """Each value as JSON text; null is ``null``."""
    kind = column.type
    is_plain_decimal = pa.types.is_decimal128(kind) and 0 <= kind.scale <= PLAIN_SCALE
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_plain_decimal:
        text = column.cast(TEXT)
    elif kind in TEXTS:
        if pc.any(pc.match_substring_regex(column, ESCAPED)).as_py():
            return _one_by_one(column)
        text = _quoted(column.cast(TEXT))
    elif pa.types.is_date32(kind):
        text = _quoted(column.cast(TEXT))
    elif pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is None:
        # "2024-01-01 00:00:00.000000": where there is no fraction it is not written, and only there is it six zeros.
        text = pc.replace_substring(pc.replace_substring(column.cast(TEXT), " ", "T"), ".000000", "")
        text = _quoted(text, end='Z"')
    elif pa.types.is_map(kind) and kind.key_type in TEXTS:
        keys, items = column.keys, column.items
        text = _listed(column, lambda of: _joined(texts(keys[of]), pa.scalar(":", TEXT), texts(items[of])), "{}")
    elif pa.types.is_list(kind):
        text = _listed(column, lambda of: texts(column.values[of]), "[]")
    elif pa.types.is_struct(kind) and kind.num_fields:
        fields = dict(zip((field.name for field in kind), column.flatten(), strict=True))
        text = _objects(fields)
    else:
        return _one_by_one(column)
    return pc.if_else(column.is_valid(), text, pa.scalar("null", TEXT)) if column.null_count else text


def joined(parts: Sequence[Mapping[str, pa.Array]]) -> Columns:
    """The rows of some columns, one after the other."""
    if len(parts) == 1:
        return dict(parts[0])
    return _columns(pa.concat_batches([_batch(part, parts[0]) for part in parts]))


def taken(
    columns: Mapping[str, pa.Array], places: Sequence[int] | np.ndarray, names: Iterable[str] | None = None
) -> Columns:
    """The rows of some columns at these places; of all of the columns, or of those named."""
    return _columns(_batch(columns, columns if names is None else names).take(pa.array(places, pa.int64())))


def _batch(columns: Mapping[str, pa.Array], names: Iterable[str]) -> pa.RecordBatch:
    """Some columns as one: what Arrow does with it is one call, and a thread that gives the interpreter away for each column waits
    for it after each."""
    return pa.record_batch({name: columns[name] for name in names})


def _columns(batch: pa.RecordBatch) -> Columns:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def count(columns: Mapping[str, pa.Array]) -> int:
    """How many rows some columns have."""
    return len(next(iter(columns.values()), ()))


def size(columns: Mapping[str, pa.Array]) -> int:
    """The bytes of some columns' values."""
    return sum(column.nbytes for column in columns.values())


def fitting(columns: Mapping[str, pa.Array], most: int, room: int, some: bool) -> int:
    """How many of the first rows of some columns, at most so many, have no more than so many bytes; at least one if there have to be
    ``some``."""
    rows = min(count(columns), most)
    if not rows or size(columns) <= room:
        return rows
    fit = bisect.bisect_right(range(1, rows + 1), room, key=lambda n: size({k: c[:n] for k, c in columns.items()}))
    return max(fit, int(some))


def _one_by_one(column: pa.Array) -> pa.Array:
    return pa.array([dumps(value) for value in values(column)], TEXT)


def _joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, pa.scalar("", TEXT))


def _quoted(column: pa.Array, end: str = '"') -> pa.Array:
    return _joined(pa.scalar('"', TEXT), column, pa.scalar(end, TEXT))


def _listed(column: pa.Array, make: Callable[[slice], pa.Array], brackets: str) -> pa.Array:
    """A list's or a map's values between its brackets; ``make`` gives the texts of some of them."""
    offsets, of = _inside(column)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), make(of))
    begin, end = (pa.scalar(bracket, TEXT) for bracket in brackets)
    return _joined(begin, pc.binary_join(lists, pa.scalar(",", TEXT)), end)


def _standing(reports: pa.MapArray) -> pa.MapArray:
    """Without the reports of null, which are withdrawn ones: they are in the row only so that a late one does not bring them
    back. A row without reports has an empty map."""
    offsets, of = _inside(reports)
    keys, items = reports.keys[of], reports.items[of]
    fields = {field.name: values for field, values in zip(items.type, items.flatten(), strict=True)}
    stands = fields["value"].is_valid().to_numpy(zero_copy_only=False)
    stands = stands & np.repeat(reports.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets))
    ends = np.concatenate([[0], np.cumsum(stands)])[offsets]
    chosen = pa.array(stands)
    shown = pa.StructArray.from_arrays([fields[name].filter(chosen) for name in REPORT], REPORT)
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys.filter(chosen).cast(pa.string()), shown)


def _inside(column: pa.Array) -> tuple[np.ndarray, slice]:
    """Where each list of a column begins and ends, and where all of them are among its values: more of those than are its
    own, where it is a part of another."""
    offsets = column.offsets.to_numpy()
    first, last = (int(offsets[0]), int(offsets[-1])) if len(column) else (0, 0)
    return (offsets if len(column) else np.zeros(1, np.int64)) - first, slice(first, last)


def keys_of(columns: Iterable[pa.Array | pa.ChunkedArray]) -> list[Key]:
    """The keys that some columns hold."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
