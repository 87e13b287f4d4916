"""What the client returns. Times are aware datetimes in UTC, DECIMALs are Decimals; ``raw`` is what the service sent, as Python reads JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from statehouse.client.errors import library
from statehouse.client.values import Shape, convert, moment

Row = dict[str, Any]


class Report(NamedTuple):
    """What an agent last reported of a key, and the time of that event."""

    value: Any
    event_time: dt.datetime | None


@dataclass(frozen=True)
class State:
    """The state of a key.

    ``key`` is the key, of a composite one a tuple of its parts. ``columns`` has every column by name, ``reports`` each agent's report
    where the store has agents. Of a store with windows a point read has them in ``windows``, and a scan gives one state for each, with its
    ``window_start``. ``position`` is the version of the changelog that is reflected (None in a scan, which has one itself). ``provisional``: it
    has events that the changelog does not have yet; ``offsets`` are then the next ones of each partition.
    """

    key: Any
    value: Any
    event_time: dt.datetime | None
    columns: Row = field(repr=False)
    raw: Row = field(repr=False)
    reports: dict[str, Report] | None = None
    window_start: dt.datetime | None = None
    windows: tuple[State, ...] = ()
    position: int | None = None
    provisional: bool = False
    offsets: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    """An event behind a state: ``op`` is report, set or purge. A ``provisional`` one is not in the changelog yet."""

    event_time: dt.datetime | None
    op: str
    agent: str | None
    value: Any
    partition: int
    offset: int
    provisional: bool
    raw: Row = field(repr=False)


@dataclass(frozen=True)
class Change:
    """What changed: ``kind`` is ``state`` (``state`` is the key's state now), ``purge`` (the key is gone; of a store with windows the one at
    ``window_start``, or all of them), or ``reset`` (read the whole store again; what follows comes after that).

    ``position``, where it has one, is where to go on from after this change.
    """

    kind: str
    key: Any = None
    state: State | None = None
    window_start: dt.datetime | None = None
    position: str | None = None


@dataclass(frozen=True)
class Written:
    """Events that Kafka has acknowledged: how many, and the last token of each partition, such as ``topic:0:17``."""

    events: int
    tokens: tuple[str, ...]

    @property
    def token(self) -> str:
        """The token of a write of one event."""
        return self.tokens[-1]


@dataclass(frozen=True)
class Task:
    """A task: ``status`` is waiting, sent, cancelled or failed; ``task`` the rule's name, None where it was asked for."""

    id: str
    task: str | None
    store: str | None
    key: str | None
    status: str
    due: dt.datetime | None
    reason: str | None
    raw: Row = field(repr=False)


class AskedTask(NamedTuple):
    """A task that Kafka has: it is in the list when the job has seen it."""

    id: str
    due: dt.datetime


@dataclass(frozen=True)
class Store:
    """A store: its columns with their types in Spark's DDL, its number of keys, and how far it is."""

    name: str
    stream: str
    columns: dict[str, str]
    keys: int
    position: int | None
    lag_ms: int | None
    raw: Row = field(repr=False)


class Table(Sequence[Row]):
    """The rows of a statement: dicts by index, or all of them in the library of your choice."""

    def __init__(self, arrow: Any, versions: Mapping[str, int]) -> None:
        self._arrow, self.versions = arrow, versions
        self._rows: list[Row] | None = None

    def __len__(self) -> int:
        return self._arrow.num_rows

    def __getitem__(self, place: Any) -> Any:
        if self._rows is None:
            self._rows = self._arrow.to_pylist()
        return self._rows[place]

    def __iter__(self) -> Iterator[Row]:
        return (self[place] for place in range(len(self)))

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return self._arrow

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. MissingLibrary where pandas is not installed."""
        library("pandas")
        return self._arrow.to_pandas()

    def to_polars(self) -> Any:
        """A polars.DataFrame. MissingLibrary where polars is not installed."""
        return library("polars").from_arrow(self._arrow)


def state_of(document: Mapping[str, Any], shape: Shape) -> State:
    """A row, or the answer of a point read."""
    row = dict(document)
    about = {name: row.pop(name, None) for name in ("position", "provisional", "offsets") if name not in shape.columns}
    windows = row.pop("windows", None) if "windows" not in shape.columns else None
    columns = convert(row, shape.columns)
    named = {name: row[name] for name in shape.keys if name in row}
    reports = columns.get("reports")
    if isinstance(reports, dict):
        reports = {agent: Report(r["value"], moment(r["event_time"])) for agent, r in reports.items()}
    else:
        reports = None
    return State(
        key=key_of(columns, shape),
        value=columns.get("value"),
        event_time=columns.get("event_time"),
        columns=columns,
        raw=dict(document),
        reports=reports,
        window_start=moment(columns.get("window_start")),
        windows=tuple(state_of({**named, **window}, shape) for window in windows or ()),
        position=about.get("position"),
        provisional=bool(about.get("provisional")),
        offsets={int(p): o for p, o in (about.get("offsets") or {}).items()},
    )


def key_of(columns: Mapping[str, Any], shape: Shape) -> Any:
    """The key of a row: its only part, or a tuple of them."""
    parts = tuple(columns.get(name) for name in shape.keys or ("key",))
    return parts if len(parts) > 1 else parts[0]


def event_of(document: Row, shape: Shape) -> Event:
    """An event of a key's history."""
    value = convert({"value": document["value"]}, shape.columns)["value"]
    return Event(
        event_time=moment(document["event_time"]),
        op=document["op"],
        agent=document["agent"],
        value=value,
        partition=document["partition"],
        offset=document["offset"],
        provisional=bool(document.get("provisional")),
        raw=document,
    )


def change_of(kind: str, data: Row, position: str | None, shape: Shape) -> Change:
    """An event of a store's changes."""
    if kind == "state":
        state = state_of(data, shape)
        return Change(kind, state.key, state, state.window_start, position)
    if kind == "purge":
        columns = convert(data, shape.columns)
        return Change(kind, key_of(columns, shape), None, moment(columns.get("window_start")), position)
    return Change(kind, position=position)


def task_of(document: Row) -> Task:
    """A row of the tasks."""
    names = ("id", "task", "store", "key", "status", "reason")
    return Task(**{name: document[name] for name in names}, due=moment(document["due"]), raw=document)


def store_of(document: Row) -> Store:
    """A store as the service tells it."""
    names = ("name", "stream", "columns", "keys", "position", "lag_ms")
    return Store(**{name: document[name] for name in names}, raw=document)
