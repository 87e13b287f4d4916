"""What comes in pages: scans, histories and tasks. A page is asked for when its first row is wanted."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from statehouse.client.core import ARROW, Core, store_path
from statehouse.client.errors import Incomplete, NotFound, library
from statehouse.client.operations import in_utc
from statehouse.client.results import Event, State, Task, event_of, state_of, task_of
from statehouse.client.steps import Flow
from statehouse.client.values import decode, key_bound

T = TypeVar("T")
POSITION = "Statehouse-Position"


@dataclass
class Source(Generic[T]):
    """Where rows come from: the page after a cursor, and all of them as an Arrow table; ``places`` are the positions of a scan's answers."""

    page: Callable[[str | None], Flow[tuple[list[T], str | None]]]
    arrow: Callable[[], Flow[Any]]
    limit: int | None = None
    places: tuple[str, ...] = ()

    @property
    def position(self) -> str | None:
        """The least of them; None before the first answer, and where a recovery has replaced the state in between."""
        if len({place.partition("-")[2] for place in self.places}) != 1:
            return None
        return min(self.places, key=lambda place: int(place.partition("-")[0]))


class Rows(Generic[T]):
    """Rows to iterate over, each time anew, or all of them at once as a table."""

    def __init__(self, source: Source[T], run: Callable[[Flow[Any]], Any]) -> None:
        self._source, self._run = source, run

    @property
    def position(self) -> str | None:
        """Of a scan with ``freshness="changelog"``, after it was read: where to follow the changes from. None: read it once more."""
        return self._source.position

    def __iter__(self) -> Iterator[T]:
        return itertools.islice(self._all(), self._source.limit)

    def _all(self) -> Iterator[T]:
        cursor = None
        while True:
            rows, cursor = self._run(self._source.page(cursor))
            yield from rows
            if cursor is None:
                return

    def to_arrow(self) -> Any:
        """A pyarrow.Table. Raises Incomplete where the service cut it off."""
        return self._run(self._source.arrow())

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. MissingLibrary where pandas is not installed."""
        library("pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A polars.DataFrame. MissingLibrary where polars is not installed."""
        return library("polars").from_arrow(self.to_arrow())


class AsyncRows(Generic[T]):
    """The same with ``async for``, and with ``await`` for a table."""

    def __init__(self, source: Source[T], run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._source, self._run = source, run

    @property
    def position(self) -> str | None:
        """As of :class:`Rows`."""
        return self._source.position

    async def __aiter__(self) -> AsyncIterator[T]:
        cursor, left = None, self._source.limit
        while left is None or left > 0:
            rows, cursor = await self._run(self._source.page(cursor))
            for row in rows[:left]:
                yield row
            left = None if left is None else left - len(rows)
            if cursor is None:
                return

    async def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return await self._run(self._source.arrow())

    async def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        library("pandas")
        return (await self.to_arrow()).to_pandas()

    async def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return library("polars").from_arrow(await self.to_arrow())


def scan(
    core: Core,
    store: str,
    *,
    prefix: Any = None,
    start: Any = None,
    to: Any = None,
    where: str | None = None,
    freshness: str | None = None,
    limit: int | None = None,
    page: int | None = None,
) -> Source[State]:
    """The states of a store in the order of their keys.

    ``prefix``: what the key begins with; ``start`` (included) and ``to`` (not): keys. Of a composite key each may be a tuple of the first
    parts. ``where``: columns compared with literals, such as ``value > 10``. ``limit``: rows in all; ``page``: rows in a request (default 1,000).
    """
    bounds = {
        name: None if key is None else key_bound(key) for name, key in (("prefix", prefix), ("from", start), ("to", to))
    }
    query = {**bounds, "where": where, "freshness": freshness, "limit": page or (limit and min(limit, 1000))}
    path = f"{store_path(store)}/keys"

    def of_page(cursor: str | None) -> Flow[tuple[list[State], str | None]]:
        shape = yield from core.shape(store)
        if cursor is None:
            yield from core.wait(store)
            source.places = ()
        answer = yield from core.ask("GET", path, {**query, "cursor": cursor})
        source.places += (answer.headers[POSITION],) if POSITION in answer.headers else ()
        document = decode(answer.content)
        return [state_of(row, shape) for row in document["rows"]], document["cursor"]

    def of_all() -> Flow[Any]:
        pa = library("pyarrow")
        yield from core.wait(store)
        answer = yield from core.ask("GET", path, {**query, "limit": limit}, headers={"Accept": ARROW})
        source.places = (answer.headers[POSITION],) if POSITION in answer.headers else ()
        try:
            return in_utc(pa.ipc.open_stream(answer.content).read_all())
        except (pa.ArrowException, OSError) as error:
            raise Incomplete(f"the scan of {store} was cut off: {error}") from error

    source = Source(of_page, of_all, limit)
    return source


def history(core: Core, store: str, *key: Any, freshness: str | None = None, page: int = 100) -> Source[Event]:
    """Every event behind a key's state, newest first; none where the key has none. ``page``: events in a request."""
    query = {"limit": page, "freshness": freshness}

    def of_page(cursor: str | None) -> Flow[tuple[list[Event], str | None]]:
        shape = yield from core.shape(store)
        if cursor is None:
            yield from core.wait(store)
        try:
            path = store_path(store, key, "/history")
            document = yield from core.document("GET", path, query={**query, "cursor": cursor}, key=key)
        except NotFound as error:
            if error.kind != "unknown-key":
                raise
            return [], None
        return [event_of(event, shape) for event in document["events"]], document["cursor"]

    return Source(of_page, partial(_table, of_page))


def tasks(
    core: Core,
    status: str | None = None,
    task: str | None = None,
    store: str | None = None,
    key: str | None = None,
    page: int = 100,
) -> Source[Task]:
    """The tasks, the first due first; ``status`` (waiting, sent, cancelled, failed), ``task`` (a rule's name), ``store`` and ``key`` (its text
    in Kafka) are those of which."""
    query = {"status": status, "task": task, "store": store, "key": key, "limit": page}

    def of_page(cursor: str | None) -> Flow[tuple[list[Task], str | None]]:
        document = yield from core.document("GET", "/tasks", query={**query, "cursor": cursor})
        return [task_of(row) for row in document["rows"]], document["cursor"]

    return Source(of_page, partial(_table, of_page))


def _table(page: Callable[[str | None], Flow[tuple[list[Any], str | None]]]) -> Flow[Any]:
    """All rows of some pages as an Arrow table, as they were sent but for their times, values and keys."""
    rows, cursor = yield from page(None)
    while cursor is not None:
        more, cursor = yield from page(cursor)
        rows += more
    return library("pyarrow").Table.from_pylist([{**row.raw, **_typed(row)} for row in rows])


def _typed(row: Event | Task) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("event_time", "value", "due") if hasattr(row, name)}
