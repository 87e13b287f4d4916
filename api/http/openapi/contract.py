"""What a route takes and answers, declared on its view: the requests are held to it, and :mod:`api.http.openapi.document` shows it.

::

    @reads.get("/stores/<store>/keys")
    @declared(LIMIT, CURSOR, answers={200: Answer("A page", {"application/json": page})})
    def scan(store: str) -> Response: ...

A parameter that is not declared is a 400, so none can be taken that is not in the document. What differs from store to
store is a function of a :class:`Scope`; where that gives None the store has no such parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from flask import request

from api.errors import Problem
from api.http.context import service
from api.http.openapi.schemas import Schema
from statehouse.config.models import Config, Store
from statehouse.fold import Rule

View = TypeVar("View", bound=Callable[..., Any])


@dataclass(frozen=True)
class Scope:
    """What a path is about: a store, as far as its types are known, or a stream, or neither."""

    config: Config
    store: Store | None = None
    rule: Rule | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # that callers see, and their types
    stream: str | None = None

    @property
    def kinds(self) -> list[str] | None:
        """The types of the key's parts; None: not known yet."""
        return list(self.rule.key_types) if self.rule else None


Of = Schema | Callable[[Scope], Schema | None]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    about: str
    schema: Of


@dataclass(frozen=True)
class Body:
    """A request's body; an ``example`` for people."""

    about: str
    mimetype: str
    schema: Of


@dataclass(frozen=True)
class Answer:
    """An answer that is no problem: by content type what is in it."""

    about: str
    content: Mapping[str, Of] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)  # and what they are


@dataclass(frozen=True)
class Operation:
    """All that is declared of a view."""

    parameters: tuple[Parameter, ...]
    headers: tuple[Parameter, ...]
    body: Body | None
    answers: Mapping[int, Answer]
    problems: Mapping[int, str]
    only: Callable[[Scope], bool] | None  # the stores that have it
    closed: bool  # to parameters that are not declared

    def names(self, scope: Scope) -> list[str]:
        """The parameters that there are in a place."""
        return [p.name for p in self.parameters if of(p.schema, scope) is not None]


def of(schema: Of, scope: Scope) -> Schema | None:
    """A schema in a place."""
    return schema(scope) if callable(schema) else schema


def declared(
    *parameters: Parameter,
    answers: Mapping[int, Answer],
    problems: Mapping[int, str] | None = None,
    headers: Sequence[Parameter] = (),
    body: Body | None = None,
    only: Callable[[Scope], bool] | None = None,
    closed: bool = True,
) -> Callable[[View], View]:
    """Declare what a view takes and answers. ``problems`` are those of its own, by status; what every route of its kind may
    answer is added by :mod:`api.http.openapi.document`."""
    operation = Operation(tuple(parameters), tuple(headers), body, answers, problems or {}, only, closed)

    def wrap(view: View) -> View:
        @functools.wraps(view)
        def held(*args: Any, **named: Any) -> Any:
            if closed and request.query_string:
                check(operation, named)
            return view(*args, **named)

        held.operation = operation  # type: ignore[attr-defined]
        return held  # type: ignore[return-value]

    return wrap


def check(operation: Operation, named: Mapping[str, str]) -> None:
    """A problem where the request has a parameter that is not known there, or one twice."""
    try:
        unquote_to_bytes(request.query_string).decode()
    except UnicodeDecodeError:
        detail = "found parameters that are not UTF-8, expected it, percent-encoded"
        raise Problem(400, "bad-parameter", detail) from None
    config = service().config
    if "store" in named and named["store"] not in config.stores:
        return  # the view says so
    known = operation.names(scope_of(named.get("store")))
    for name, values in request.args.lists():
        if name not in known:
            raise Problem(400, "bad-parameter", f"found {name[:100]!r}, expected {' or '.join(known) or 'none'}")
        if len(values) > 1:
            raise Problem(400, "bad-parameter", f"{name}: found it {len(values)} times, expected it once")


def scope_of(store: str | None = None, stream: str | None = None) -> Scope:
    """The place of a store that there is, as it is known now; or of a stream."""
    api = service()
    if store is None:
        return Scope(api.config, stream=stream)
    snapshot = api.replica.snapshot(store)
    defined = snapshot.rule.store if snapshot.rule else api.config.stores[store]
    return Scope(api.config, defined, snapshot.rule, snapshot.shown())
