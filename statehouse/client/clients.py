"""The two clients: the same requests, waited for or awaited."""

from __future__ import annotations

import copy
import datetime as dt
import functools
import inspect
import math
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from statehouse.client import operations, pages
from statehouse.client.changes import AsyncChanges, Changes, Follower
from statehouse.client.core import Core
from statehouse.client.pages import AsyncRows, Rows, Source
from statehouse.client.results import State
from statehouse.client.steps import AsyncDriver, Driver, Flow

P = ParamSpec("P")
T = TypeVar("T")
LIMITS = httpx.Limits(max_connections=None, keepalive_expiry=30.0)  # the service closes what is idle for 65 seconds
URL, TIMEOUT, RETRIES = "http://127.0.0.1:8080", 65.0, 5


def _like(method: Callable[P, T], origin: Callable[..., Any], result: str) -> Callable[P, T]:
    """A method that shows what it takes as its origin does, and what it gives in place of ``Flow[…]`` or ``Source[…]``."""
    functools.update_wrapper(method, origin)
    signature = inspect.signature(origin)
    inner = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    method.__signature__ = signature.replace(return_annotation=result.format(inner))  # type: ignore[attr-defined]
    return method


def run_flow(flow: Callable[Concatenate[Core, P], Flow[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method of :class:`Client` that does what a flow says."""

    def method(self: Client, /, *args: P.args, **named: P.kwargs) -> T:
        return self._driver.run(flow(self._core, *args, **named))

    return _like(method, flow, "{}")


def await_flow(
    flow: Callable[Concatenate[Core, P], Flow[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """The same of :class:`AsyncClient`."""

    async def method(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> T:
        return await self._driver.run(flow(self._core, *args, **named))

    return _like(method, flow, "{}")


def list_rows(source: Callable[Concatenate[Core, P], Source[T]]) -> Callable[Concatenate[Client, P], Rows[T]]:
    """A method of :class:`Client` whose rows come in pages."""

    def method(self: Client, /, *args: P.args, **named: P.kwargs) -> Rows[T]:
        return Rows(source(self._core, *args, **named), self._driver.run)

    return _like(method, source, "Rows[{}]")


def list_rows_async(
    source: Callable[Concatenate[Core, P], Source[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncRows[T]]:
    """The same of :class:`AsyncClient`."""

    def method(self: AsyncClient, /, *args: P.args, **named: P.kwargs) -> AsyncRows[T]:
        return AsyncRows(source(self._core, *args, **named), self._driver.run)

    return _like(method, source, "AsyncRows[{}]")


class Past:
    """The states as the events up to a moment make them."""

    def __init__(self, client: Client, moment: dt.datetime | str) -> None:
        self._client, self.moment = client, moment

    def get(self, store: str, *key: Any) -> State | None:
        """The state of a key as of then; None where there was none."""
        return self._client.get(store, *key, at=self.moment)


class AsyncPast:
    """The same, awaited."""

    def __init__(self, client: AsyncClient, moment: dt.datetime | str) -> None:
        self._client, self.moment = client, moment

    async def get(self, store: str, *key: Any) -> State | None:
        """The state of a key as of then; None where there was none."""
        return await self._client.get(store, *key, at=self.moment)


class Client:
    """A client of a service: ``with Client("http://127.0.0.1:8080") as client: client.get("device_status", "device-007")``.

    ``token`` is sent as the caller's. ``timeout``: seconds without an answer after which a request failed, and for which a call may be
    repeated, up to ``retries`` times. ``verify``: an ``ssl.SSLContext``, or False to trust anyone. May be used by several threads at once.
    """

    get = run_flow(operations.get)
    get_many = run_flow(operations.get_many)
    put = run_flow(operations.put)
    delete = run_flow(operations.delete)
    bulk = run_flow(operations.bulk)
    stores = run_flow(operations.stores)
    streams = run_flow(operations.streams)
    ask_task = run_flow(operations.ask_task)
    cancel_task = run_flow(operations.cancel_task)
    sql = run_flow(operations.sql)
    tables = run_flow(operations.tables)
    scan = list_rows(pages.scan)
    history = list_rows(pages.history)
    tasks = list_rows(pages.tasks)

    def __init__(
        self,
        url: str = URL,
        token: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._core, self._timeout = Core(url, token, timeout, retries), timeout
        self._verify = trust(url, verify)
        self._open()

    def _open(self) -> None:
        self._http = httpx.Client(verify=self._verify, limits=LIMITS)
        self._driver = Driver(self._http, self._timeout)

    def session(self) -> Client:
        """A client whose reads have all that it has written: it remembers the tokens of its writes, and waits for them.

        It has connections of its own, so that one worker answers what one thread asks.
        """
        client = copy.copy(self)
        client._core = self._core.in_session()
        client._open()
        return client

    def at(self, moment: dt.datetime | str) -> Past:
        """The states as of a moment."""
        return Past(self, moment)

    def changes(
        self, store: str, position: str | int | None = None, seconds: float | None = None, patience: float = math.inf
    ) -> Changes:
        """Each key's state as it changes, from now on, or after a scan's or a change's ``position``.

        It goes on by itself where a connection ends, for as long as nobody answers for less than ``patience`` seconds: then every key
        that has changed meanwhile comes, with its state as it is by then. It ends after ``seconds``.
        """
        return Changes(Follower(self._core, store, position, seconds, patience), self._driver.run)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio: ``async with AsyncClient() as client: await client.get("device_status", "device-007")``."""

    get = await_flow(operations.get)
    get_many = await_flow(operations.get_many)
    put = await_flow(operations.put)
    delete = await_flow(operations.delete)
    bulk = await_flow(operations.bulk)
    stores = await_flow(operations.stores)
    streams = await_flow(operations.streams)
    ask_task = await_flow(operations.ask_task)
    cancel_task = await_flow(operations.cancel_task)
    sql = await_flow(operations.sql)
    tables = await_flow(operations.tables)
    scan = list_rows_async(pages.scan)
    history = list_rows_async(pages.history)
    tasks = list_rows_async(pages.tasks)

    def __init__(
        self,
        url: str = URL,
        token: str | None = None,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._core, self._timeout = Core(url, token, timeout, retries), timeout
        self._verify = trust(url, verify)
        self._open()

    def _open(self) -> None:
        self._http = httpx.AsyncClient(verify=self._verify, limits=LIMITS)
        self._driver = AsyncDriver(self._http, self._timeout)

    def session(self) -> AsyncClient:
        """As :meth:`Client.session`."""
        client = copy.copy(self)
        client._core = self._core.in_session()
        client._open()
        return client

    def at(self, moment: dt.datetime | str) -> AsyncPast:
        """The states as of a moment."""
        return AsyncPast(self, moment)

    def changes(
        self, store: str, position: str | int | None = None, seconds: float | None = None, patience: float = math.inf
    ) -> AsyncChanges:
        """As :meth:`Client.changes`."""
        return AsyncChanges(Follower(self._core, store, position, seconds, patience), self._driver.run)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def trust(url: str, verify: ssl.SSLContext | bool) -> ssl.SSLContext | bool:
    """Whom to trust: made once, since it takes long; where there is no TLS, not at all."""
    if verify is True and url.startswith("https:"):
        return httpx.create_ssl_context()
    return verify if isinstance(verify, ssl.SSLContext) else False
