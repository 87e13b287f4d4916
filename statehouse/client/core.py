"""How the service is asked: by which instance, how often, and by whom. The same for both clients; all of it flows."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from statehouse.client.errors import ClientError, NotFound, Unreachable, problem_of
from statehouse.client.routing import Routes
from statehouse.client.session import Writes
from statehouse.client.steps import Answer, Flow, Open, Pause, Request, Unanswered
from statehouse.client.values import Shape, decode, key_path

IDEMPOTENCY = "Idempotency-Key"
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
AGAIN = (429, 502, 503)  # what another try may change, but for a question that takes too long
FIRST_WAIT, LONGEST_WAIT, LONGEST_ASKED = 0.1, 5.0, 30.0  # seconds: of our own, and of a Retry-After
PROCESSORS_SECONDS = 2.0
SILENT_SECONDS = 15.0  # of a stream, which has a sign of life every five


class Patience(NamedTuple):
    """How often a request is repeated, and the seconds after which no repeat is begun."""

    repeats: float
    seconds: float


class Core:
    """What a client knows: the instances, the stores' columns, and what a session has written."""

    def __init__(self, url: str, token: str | None, timeout: float, retries: int) -> None:
        self.headers = {"Accept": JSON, **({"Authorization": f"Bearer {token}"} if token else {})}
        self.patience, self.routes = Patience(retries, timeout), Routes(url)
        self.writes: Writes | None = None
        self._shapes: dict[str, Shape] = {}

    def in_session(self) -> Core:
        """The same for a session, which remembers its writes."""
        core = copy.copy(self)
        core.writes = Writes()
        return core

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        key: Sequence[Any] | None = None,
        patience: Patience | None = None,
        open: bool = False,
    ) -> Flow[Answer]:
        """An answer that is no error, of an instance that has the key if it may be.

        A request that was not answered, or that the service cannot answer now, is repeated: as often as the patience allows. Raises
        the problem of the last answer, or Unreachable.
        """
        asked = {name: value for name, value in (query or {}).items() if value is not None}
        path = f"{path}?{urlencode(asked, quote_via=quote)}" if asked else path
        patience, began, tries, base = patience or self.patience, time.monotonic(), 0, ""
        while True:
            yield from self._look()
            candidates = self.routes.candidates(key)
            base = base if base in candidates else candidates[0]
            kind, silence = (Open, SILENT_SECONDS) if open else (Request, None)
            try:
                answer: Answer = yield kind(method, base, path, {**self.headers, **(headers or {})}, body, silence)
            except Unanswered as error:
                wait = self._note_failure(base, tries, error.sent)
                failure: ClientError = Unreachable(f"{base} does not answer: {error}")
                # What may have arrived goes to the same instance, which knows its Idempotency-Key; a question only once.
                base = base if error.sent and (not tries or IDEMPOTENCY in (headers or {})) else ""
            else:
                if answer.status < 300:
                    return answer
                problem = problem_of(answer.status, answer.content)
                if answer.status not in AGAIN or problem.kind == "too-slow":
                    raise problem
                failure, wait = problem, _wait_asked(answer, tries)
            tries += 1
            if tries > patience.repeats or time.monotonic() + wait - began > patience.seconds:
                raise failure
            yield Pause(wait)

    def document(self, method: str, path: str, body: bytes | None = None, **more: Any) -> Flow[Any]:
        """An answer's JSON; ``body`` is JSON too where no header says otherwise."""
        if body is not None:
            more["headers"] = {"Content-Type": JSON, **more.get("headers", {})}
        answer = yield from self.ask(method, path, body=body, **more)
        return decode(answer.content)

    def shape(self, store: str) -> Flow[Shape]:
        """The columns of a store, asked for once; again as long as none is known."""
        known = self._shapes.get(store)
        if known is None or not known.columns:
            document = yield from self.document("GET", store_path(store))
            known = self._shapes[store] = Shape.of(document)
        return known

    def wait(self, store: str) -> Flow[None]:
        """Wait until all that the session has written to a store is in the answers."""
        for token, key in self.writes.of_store(store) if self.writes else ():
            try:
                yield from self.ask("GET", store_path(store, key), {"after": token}, key=key)
            except NotFound:  # a purge that is in the answers
                continue

    def _look(self) -> Flow[None]:
        """Ask who has which shard, if that is due."""
        if not self.routes.due:
            return
        self.routes.learn(None)  # what other threads ask meanwhile need not wait
        for base in self.routes.candidates(None):
            try:
                answer = yield Request("GET", base, "/processors", self.headers, None, PROCESSORS_SECONDS)
            except Unanswered:
                self.routes.lose(base)
                continue
            return self.routes.learn(answer.content)

    def _note_failure(self, base: str, tries: int, sent: bool) -> float:
        """How long to wait after no answer."""
        if not sent or tries:
            self.routes.lose(base)
        if sent and not tries:  # a connection that was kept may be closed at the very moment that it is used again
            return 0.0
        return _back_off(tries) if self.routes.all_lost() else 0.0


def store_path(store: str, key: Sequence[Any] | None = None, below: str = "") -> str:
    """The path of a store, or of a key of it."""
    path = f"/stores/{quote(store, safe='')}"
    return path if key is None else f"{path}/keys/{key_path(key)}{below}"


def _back_off(tries: int) -> float:
    """Seconds, ever more, and not the same for all who wait."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(tries, 9))


def _wait_asked(answer: Answer, tries: int) -> float:
    """What the service asks to wait, and a bit more, or all would come back at once."""
    text = answer.headers.get("Retry-After", "")
    return min(LONGEST_ASKED, int(text)) * random.uniform(1.0, 1.1) if text.isdecimal() else _back_off(tries)
