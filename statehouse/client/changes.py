"""A store's changes, as server-sent events that go on by themselves where a connection ends."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from statehouse.client.core import Core, Patience, store_path
from statehouse.client.errors import Conflict
from statehouse.client.results import Change, change_of
from statehouse.client.steps import Close, Flow, Pause, Read, Stream, Unanswered
from statehouse.client.values import Shape, decode

GONE = 410
LAST = "Last-Event-ID"


class Follower:
    """What a connection after the other tells of a store; ``position`` is where the last change that was given ends."""

    def __init__(
        self, core: Core, store: str, position: str | int | None, seconds: float | None, patience: float
    ) -> None:
        self._core, self._store, self._patience = core, store, patience
        self.position = None if position is None else str(position)
        self._until = math.inf if seconds is None else time.monotonic() + seconds
        self._last = self.position  # of what was read, and is given soon
        self._ready: deque[Change] = deque()
        self._stream: Stream | None = None
        self._rest = b""
        self._connected = self._gone = False

    def change(self) -> Flow[Change | None]:
        """The next change; None when the time is over. Raises as any request where the first connection fails, and Unreachable where
        nobody answers for as long as the patience lasts."""
        shape: Shape = yield from self._core.shape(self._store)
        while not self._ready:
            if time.monotonic() >= self._until:
                yield from self.close()
                return None
            if self._stream is None:
                yield from self._connect()
                continue
            try:
                chunk = yield Read(self._stream)
            except Unanswered:
                chunk = b""
            if chunk:
                self._take(chunk, shape)
                continue
            yield from self.close()
            yield Pause(random.uniform(0.05, 0.2))
        next_change = self._ready.popleft()
        self.position = next_change.position or self.position
        return next_change

    def close(self) -> Flow[None]:
        """End the connection."""
        stream, self._stream, self._rest = self._stream, None, b""
        if stream is not None:
            yield Close(stream)

    def _connect(self) -> Flow[None]:
        left = self._until - time.monotonic()
        query = {"timeout": None if math.isinf(left) else f"{min(max(left, 0), 86_400):.3f}"}
        headers = {"Accept": "text/event-stream", **({LAST: self._last} if self._last else {})}
        patience = Patience(math.inf, self._patience) if self._connected else None
        path = f"{store_path(self._store)}/changes"
        try:
            answer = yield from self._core.ask("GET", path, query, headers=headers, patience=patience, open=True)
        except Conflict as error:
            if error.status != GONE:
                raise
            self._last, self._gone = None, True  # from now on, and what was before has to be read anew
            return
        self._stream, self._connected = answer.stream, True

    def _take(self, chunk: bytes, shape: Shape) -> None:
        """Bytes of the stream. Only '\\n' ends a line, whatever else a text may have."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if line and not line.startswith(b":"))
            position = fields[b"id"].decode() if b"id" in fields else None
            self._last = position or self._last
            kind = fields.get(b"event", b"").decode()
            if kind == "position" and self._gone:
                kind, self._gone = "reset", False
            if kind in ("state", "purge", "reset"):
                self._ready.append(change_of(kind, decode(fields[b"data"]), position, shape))
            elif position and not self._ready:
                self.position = position


class Changes:
    """A store's changes, one after the other: to iterate over, until it is closed or the time is over."""

    def __init__(self, follower: Follower, run: Callable[[Flow[Any]], Any]) -> None:
        self._follower, self._run = follower, run

    @property
    def position(self) -> str | None:
        """Where to go on from after what was given so far, also in another process: ``changes(store, position=…)``."""
        return self._follower.position

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> Change:
        change = self._run(self._follower.change())
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the connection."""
        self._run(self._follower.close())

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncChanges:
    """The same with ``async for``."""

    def __init__(self, follower: Follower, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._follower, self._run = follower, run

    @property
    def position(self) -> str | None:
        """Where to go on from after what was given so far."""
        return self._follower.position

    def __aiter__(self) -> AsyncChanges:
        return self

    async def __anext__(self) -> Change:
        change = await self._run(self._follower.change())
        if change is None:
            raise StopAsyncIteration
        return change

    async def close(self) -> None:
        """End the connection."""
        await self._run(self._follower.close())

    async def __aenter__(self) -> AsyncChanges:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
