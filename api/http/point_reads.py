"""Point reads in front of Flask: the same answer, byte for byte, in a third of the time.

Flask spends more on a request than the read itself costs. So a plain GET of a key that is there is answered here; everything
else (parameters, a conditional or cross-origin request, a key that is absent or wrong, a caller who may not read) goes on to
Flask's route, which says the same of the plain ones: a test holds that.

It is asked twice: in the event loop (:mod:`api.server.protocol`), where nothing may be waited for, and in a thread in front of Flask,
where a read may wait for a fold or a query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from api.engine.media_types import HTML, JSON
from api.engine.shards import listed
from api.http import paths
from api.http.access import Gate
from api.http.compress import LEAST
from api.http.metrics import Reads
from api.http.stores import point
from api.replica.priority import FOLD_PRIORITY
from api.replica.replica import Replica

OTHERS = ("HTTP_IF_NONE_MATCH", "HTTP_ORIGIN", "HTTP_TRANSFER_ENCODING")
ROUTES = ("/history", "/reports")  # of Flask's; what they are about is for it to say
OF_SHARDS = "HTTP_STATEHOUSE_SHARDS"  # has a request from another instance of a fleet
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Fast:
    """A WSGI app around another, and what the event loop asks instead of it."""

    def __init__(self, slow: Wsgi, replica: Replica, gate: Gate, reads: Reads) -> None:
        self.slow, self._replica, self._gate, self._took, self.count = slow, replica, gate, reads.took, reads.count
        self._crosses = bool(gate.limits.cors)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a point read, or hand the request on."""
        answer = None
        plain = (
            environ["REQUEST_METHOD"] == "GET" and not environ.get("QUERY_STRING") and environ.keys().isdisjoint(OTHERS)
        )
        if plain and HTML not in environ.get("HTTP_ACCEPT", ""):
            path, authorization = paths.raw_path(environ), environ.get("HTTP_AUTHORIZATION", "")
            packed = "HTTP_ACCEPT_ENCODING" in environ
            if path is not None and listed(environ.get(OF_SHARDS, "0")) is not None:
                answer = self.answer(path, authorization, environ.get("REMOTE_ADDR"), packed, waits=True)
        if answer is None:
            return self.slow(environ, start_response)
        body, tag = answer
        length, vary = ("Content-Length", str(len(body))), ("Vary", "Accept-Encoding")
        start_response("200 OK", [("Content-Type", JSON), length, ("ETag", f'W/"{tag}"'), vary])
        return [body]

    def answer(
        self, path: str, authorization: str, address: str | None, packed: bool, waits: bool = False
    ) -> tuple[bytes, str] | None:
        """The body and the tag of a plain GET's answer; None when Flask must answer. ``path`` is as it was sent, ``packed`` says that
        the caller can read fewer bytes. Only who ``waits`` may wait for other threads, or for the lake; the event loop only lets a
        fold go first that it would hold up."""
        begun = time.perf_counter()
        if not waits:
            FOLD_PRIORITY.yield_to_fold()
        try:
            answer = self._read(path, authorization, address, packed, waits)
        except Exception:  # a wrong key, or what nobody foresaw: Flask comes to the same, and says so
            return None
        if answer is not None:
            self._took(time.perf_counter() - begun)
        return answer

    def _read(
        self, path: str, authorization: str, address: str | None, packed: bool, waits: bool
    ) -> tuple[bytes, str] | None:
        named = paths.store_and_key(path)
        if named is None or self._crosses:
            return None
        store = self._replica.config.stores.get(named[0])
        if store is None or paths.decoded(path).endswith(ROUTES) or len(path) > self._gate.limits.max_key:
            return None
        caller = self._gate.reader(authorization, address)
        if caller is None:
            return None
        snapshot = self._replica.snapshot(store.name)
        if snapshot.rule is None:
            return None
        parts = paths.of_path(named[1], snapshot.rule.store, snapshot.rule)
        position = snapshot.position  # before the row: it may be newer than it says, never older
        if waits:
            row, offsets = snapshot.get(parts), snapshot.offsets(parts)
        else:
            row, offsets = snapshot.at_once(parts) or (None, None)
        if row is None:
            return None
        body, tag = point(row, position, offsets)
        if packed and len(body) > LEAST:
            return None
        return (body, tag) if self._gate.wait(caller) == 0 else None
