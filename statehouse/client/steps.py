"""What the client does, as steps: written once, done by a blocking driver or by an asynchronous one.

A :data:`Flow` is a generator that yields steps and is sent their outcomes: for a :class:`Request` an :class:`Answer`, for :class:`Open`
an answer whose body is read on in chunks by :class:`Read`. A flow does no I/O itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import httpx

from statehouse.client.errors import ClientError

T = TypeVar("T")
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Request:
    """A request whose answer is read whole. ``path`` is percent-encoded; ``silence`` are the seconds without a byte after which it failed."""

    method: str
    base: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    silence: float | None = None


@dataclass(frozen=True)
class Open(Request):
    """The same for an answer without an end."""


class Answer(NamedTuple):
    """What came back; ``stream`` where the body is still to be read."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    stream: Stream | None = None


@dataclass(frozen=True)
class Stream:
    """An open answer."""

    response: httpx.Response
    chunks: Any


class Read(NamedTuple):
    """The next bytes of a stream; none at its end."""

    stream: Stream


class Close(NamedTuple):
    """The end of a stream, from our side."""

    stream: Stream


class Pause(NamedTuple):
    """Some seconds."""

    seconds: float


Step = Request | Read | Close | Pause
Flow = Generator[Step, Any, T]


class Unanswered(Exception):
    """A request has no answer. ``sent``: it may have arrived all the same."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


@contextmanager
def failures() -> Iterator[None]:
    """httpx's failures as ours."""
    try:
        yield
    except httpx.InvalidURL as error:
        raise ClientError(f"{error}") from error
    except httpx.RequestError as error:
        sent = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
        raise Unanswered(f"{type(error).__name__}: {error}", sent) from error


def _arguments(step: Request, timeout: float) -> dict[str, Any]:
    seconds = httpx.Timeout(step.silence or timeout, connect=CONNECT_SECONDS, pool=None)
    return {
        "method": step.method,
        "url": step.base + step.path,
        "headers": step.headers,
        "content": step.body,
        "timeout": seconds,
    }


class Driver:
    """Does steps one after the other, in the calling thread."""

    def __init__(self, http: httpx.Client, timeout: float) -> None:
        self._http, self._timeout = http, timeout

    def run(self, flow: Flow[T]) -> T:
        """What a flow returns."""
        outcome: Any = None
        failure: Unanswered | None = None
        while True:
            try:
                step = flow.throw(failure) if failure else flow.send(outcome)
            except StopIteration as end:
                return end.value
            failure = None
            try:
                with failures():
                    outcome = self._do(step)
            except Unanswered as error:
                failure = error

    def _do(self, step: Step) -> Any:
        if isinstance(step, Open):
            response = self._http.send(self._http.build_request(**_arguments(step, self._timeout)), stream=True)
            if response.status_code == 200:
                return Answer(200, response.headers, b"", Stream(response, response.iter_bytes()))
            content = response.read()  # which closes it
            return Answer(response.status_code, response.headers, content)
        if isinstance(step, Request):
            response = self._http.request(**_arguments(step, self._timeout))
            return Answer(response.status_code, response.headers, response.content)
        if isinstance(step, Read):
            return next(step.stream.chunks, b"")
        if isinstance(step, Close):
            return step.stream.response.close()
        return time.sleep(step.seconds)


class AsyncDriver:
    """The same, awaited."""

    def __init__(self, http: httpx.AsyncClient, timeout: float) -> None:
        self._http, self._timeout = http, timeout

    async def run(self, flow: Flow[T]) -> T:
        """What a flow returns."""
        outcome: Any = None
        failure: Unanswered | None = None
        while True:
            try:
                step = flow.throw(failure) if failure else flow.send(outcome)
            except StopIteration as end:
                return end.value
            failure = None
            try:
                with failures():
                    outcome = await self._do(step)
            except Unanswered as error:
                failure = error

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Open):
            response = await self._http.send(self._http.build_request(**_arguments(step, self._timeout)), stream=True)
            if response.status_code == 200:
                return Answer(200, response.headers, b"", Stream(response, response.aiter_bytes()))
            content = await response.aread()
            return Answer(response.status_code, response.headers, content)
        if isinstance(step, Request):
            response = await self._http.request(**_arguments(step, self._timeout))
            return Answer(response.status_code, response.headers, response.content)
        if isinstance(step, Read):
            chunks: AsyncIterator[bytes] = step.stream.chunks
            return await anext(chunks, b"")
        if isinstance(step, Close):
            return await step.stream.response.aclose()
        return await asyncio.sleep(step.seconds)
