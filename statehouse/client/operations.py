"""The requests of both clients, each written once as a flow: :class:`Client` waits for it, :class:`AsyncClient` awaits it.

Each may raise :class:`~statehouse.client.errors.Problem` where the service refuses it, and ``Unreachable`` where nobody answers.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from statehouse.client.core import ARROW, IDEMPOTENCY, NDJSON, Core, store_path
from statehouse.client.errors import BadRequest, ClientError, NotFound, library
from statehouse.client.results import AskedTask, State, Store, Table, Written, state_of, store_of
from statehouse.client.steps import Flow
from statehouse.client.values import as_parts, encode, key_body, moment
from statehouse.partitioner import text_of

LOOKED_UP = 1000  # keys at once
LINES, BYTES = (
    5000,
    900_000,
)  # of a bulk write at once: the service takes 10,000 lines, and `max_body`, by default 1,000,000 bytes
LARGE = 413


def get(
    core: Core,
    store: str,
    *key: Any,
    at: dt.datetime | str | None = None,
    version: int | None = None,
    freshness: str | None = None,
    after: str | None = None,
    wait: float | None = None,
    start: dt.datetime | str | None = None,
    to: dt.datetime | str | None = None,
) -> Flow[State | None]:
    """The state of a key, given by its parts; None where there is none.

    ``at``: as the events up to this event time make it; ``version``: as that version of the state's table had it. ``freshness="changelog"``:
    without what only the topic has. ``after``: a write's token, which is waited for, for ``wait`` seconds (default 10); in a session
    its own writes are. ``start`` (included) and ``to`` (not): of a store with windows those that begin in between.

    Raises NotYet where a write is not there in time.
    """
    shape = yield from core.shape(store)
    tokens = [after] if after else [None]
    if core.writes and not after and version is None:
        tokens = [*core.writes.before(store, shape.identity(key))] or [None]
    past = {"at": at and text_of(at), "version": version, "freshness": freshness}
    windows = {"from": start and text_of(start), "to": to and text_of(to)}
    for token in tokens:  # a bulk write has one for each partition: the last answer has them all
        waiting = {"after": token, "timeout": wait if token else None}
        try:
            document = yield from core.document(
                "GET", store_path(store, key), query={**past, **windows, **waiting}, key=key
            )
        except NotFound as error:
            if error.kind != "unknown-key":
                raise
            document = None
    return None if document is None else state_of(document, shape)


def get_many(core: Core, store: str, keys: Iterable[Any], freshness: str | None = None) -> Flow[list[State | None]]:
    """The states of many keys, in their order; None for those that are not there. A composite key is a tuple."""
    shape = yield from core.shape(store)
    yield from core.wait(store)
    found: list[State | None] = []
    path, query, rest, size = (
        f"{store_path(store)}/lookup",
        {"freshness": freshness},
        [key_body(k) for k in keys],
        LOOKED_UP,
    )
    while rest:
        asked = rest[:size]
        try:
            document = yield from core.document("POST", path, encode({"keys": asked}), query=query)
        except BadRequest as error:
            if error.status != LARGE or len(asked) == 1:
                raise
            size = len(asked) // 2
            continue
        rest = rest[size:]
        missing = {encode(key) for key in document["missing"]}
        rows = iter(document["rows"])
        about = {name: document[name] for name in ("position", "provisional", "offsets") if name in document}
        found += (None if encode(key) in missing else state_of({**next(rows), **about}, shape) for key in asked)
    return found


def put(
    core: Core, store: str, *key: Any, value: Any, agent: str | None = None, idempotency_key: str | None = None
) -> Flow[Written]:
    """Set a key, in the name of an agent where the store has them. Done when Kafka has acknowledged the event; its token.

    It may be repeated with the same ``idempotency_key``, also by another process, and stays one event; by default each call has its own.
    """
    _check(value)
    body = {"value": value} if agent is None else {"value": value, "agent": agent}
    return (yield from _write(core, "PUT", store, key, encode(body), idempotency_key))


def delete(core: Core, store: str, *key: Any, idempotency_key: str | None = None) -> Flow[Written]:
    """Purge a key, also one that is not there. As :func:`put`."""
    return (yield from _write(core, "DELETE", store, key, None, idempotency_key))


def bulk(
    core: Core,
    store: str,
    lines: Iterable[Mapping[str, Any]],
    size: int = BYTES,
    idempotency_key: str | None = None,
) -> Flow[Written]:
    """Set and purge many keys: ``{"key": …, "value": …, "agent": …}`` or ``{"key": …, "delete": True}`` each, a composite key as a
    tuple. They are sent in requests of 5,000, or ``size`` bytes.

    Where one of these fails, those before it are done: ``acknowledged`` of the error counts their events.
    """
    shape = yield from core.shape(store)
    events, mark = 0, idempotency_key or uuid.uuid4().hex
    tokens: dict[str, str] = {}
    for number, (keys, body) in enumerate(_chunks(lines, size)):
        headers = {"Content-Type": NDJSON, IDEMPOTENCY: f"{mark}-{number}"}
        try:
            document = yield from core.document("POST", f"{store_path(store)}/keys", body, headers=headers)
        except ClientError as error:
            error.acknowledged = events
            raise
        events += document["events"]
        tokens.update((token.rpartition(":")[0], token) for token in document["tokens"])
        if core.writes:
            core.writes.note(store, [shape.identity(as_parts(key)) for key in keys], document["tokens"])
    return Written(events, tuple(tokens.values()))


def stores(core: Core) -> Flow[list[Store]]:
    """Every store."""
    document = yield from core.document("GET", "/stores")
    return [store_of(store) for store in document["stores"]]


def streams(core: Core) -> Flow[list[dict[str, Any]]]:
    """Every stream, as ``GET /streams`` tells it: topic, schema, events, refused records."""
    document = yield from core.document("GET", "/streams")
    return document["streams"]


def ask_task(
    core: Core,
    *,
    send: Mapping[str, Any] | None = None,
    set: Mapping[str, Any] | None = None,
    due: dt.datetime | str | None = None,
    after: str | None = None,
    only_while: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Flow[AskedTask]:
    """Ask for a message (``send``: topic, key, value) or a ``set`` (store, key, value) at a time, ``due``, or ``after`` a duration such as
    ``5 minutes``. ``only_while`` (store, key, value): it is cancelled when the key has another value. Done when Kafka has it."""
    given = {"send": send, "set": _keyed(set), "due": due and text_of(due), "after": after, "while": _keyed(only_while)}
    body = {name: value for name, value in given.items() if value is not None}
    headers = {IDEMPOTENCY: idempotency_key or uuid.uuid4().hex}
    document = yield from core.document("POST", "/tasks", encode(body), headers=headers)
    return AskedTask(document["id"], moment(document["due"]))


def cancel_task(core: Core, id: str) -> Flow[None]:
    """Cancel a task, also one of a rule, by its id. Raises Conflict where it does not wait any more."""
    headers = {IDEMPOTENCY: uuid.uuid4().hex}
    yield from core.ask("DELETE", f"/tasks/{quote(id, safe='')}", headers=headers)


def sql(core: Core, statement: str) -> Flow[Table]:
    """The rows of one SELECT in DuckDB's SQL over ``state.<store>``, ``changelog.<stream>`` and so on: all of them, or BadRequest (413)
    where they are larger than the service's ``max_answer``. The table's ``versions`` are those that were read."""
    pa = library("pyarrow")
    headers = {"Accept": ARROW, "Content-Type": "application/json"}
    answer = yield from core.ask("POST", "/sql", body=encode({"sql": statement}), headers=headers)
    versions = json.loads(answer.headers["Statehouse-Versions"])
    return Table(in_utc(pa.ipc.open_stream(answer.content).read_all()), versions)


def tables(core: Core) -> Flow[dict[str, dict[str, str]]]:
    """Every table that :func:`sql` can read, such as ``state.<store>``: its columns with their types."""
    document = yield from core.document("GET", "/sql")
    found: dict[str, dict[str, str]] = {}
    for row in document["rows"]:
        found.setdefault(row["table"], {})[row["column"]] = row["type"]
    return found


def in_utc(table: Any) -> Any:
    """An Arrow table whose times say that they are in UTC."""
    pa = library("pyarrow")
    kinds = (pa.timestamp(f.type.unit, "UTC") if pa.types.is_timestamp(f.type) else f.type for f in table.schema)
    return table.cast(pa.schema([f.with_type(kind) for f, kind in zip(table.schema, kinds, strict=True)]))


def _check(value: Any) -> None:
    """ValueError for what JSON has no number for, and would be written as null."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"found {value}, expected a number that JSON has")


def _keyed(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A part of a task with its key as a body has it."""
    return {**part, "key": key_body(part["key"])} if part and "key" in part else part


def _write(
    core: Core, method: str, store: str, key: Sequence[Any], body: bytes | None, idempotency_key: str | None
) -> Flow[Written]:
    shape = yield from core.shape(store)
    headers = {IDEMPOTENCY: idempotency_key or uuid.uuid4().hex}
    document = yield from core.document(method, store_path(store, key), body, headers=headers, key=key)
    if core.writes:
        core.writes.note(store, [shape.identity(key)], [document["token"]])
    return Written(1, (document["token"],))


def _chunks(lines: Iterable[Mapping[str, Any]], size: int) -> Iterator[tuple[list[Any], bytes]]:
    """The keys and the bodies of as many requests as it takes."""
    keys: list[Any] = []
    body = bytearray()
    for line in lines:
        _check(line.get("value"))
        text = encode({**line, "key": key_body(line["key"])}) + b"\n"
        if keys and (len(keys) == LINES or len(body) + len(text) > size):
            yield keys, bytes(body)
            keys, body = [], bytearray()
        keys.append(line["key"])
        body += text
    if keys:
        yield keys, bytes(body)
