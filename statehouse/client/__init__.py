"""The client of a service: :class:`Client`, and :class:`AsyncClient` for asyncio. It needs ``statehouse[client]``, neither Spark nor Flask.

Requests are written once, as flows of steps (:mod:`~statehouse.client.steps`) without I/O, which each client does in its own way.
"""

from statehouse.client.changes import AsyncChanges, Changes
from statehouse.client.clients import AsyncClient, Client
from statehouse.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    Incomplete,
    MissingLibrary,
    NotAllowed,
    NotFound,
    NotYet,
    Problem,
    Unavailable,
    Unreachable,
)
from statehouse.client.results import AskedTask, Change, Event, Report, State, Store, Table, Task, Written

__all__ = [
    "AskedTask",
    "AsyncChanges",
    "AsyncClient",
    "BadRequest",
    "Change",
    "Changes",
    "Client",
    "ClientError",
    "Conflict",
    "Event",
    "Incomplete",
    "MissingLibrary",
    "NotAllowed",
    "NotFound",
    "NotYet",
    "Problem",
    "Report",
    "State",
    "Store",
    "Table",
    "Task",
    "Unavailable",
    "Unreachable",
    "Written",
]
