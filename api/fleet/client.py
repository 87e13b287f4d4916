"""What an instance asks another one: a request in the place of its caller, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import urllib3
from urllib3.util import Timeout

from api.engine.media_types import JSON
from api.errors import TITLES, Problem
from api.fleet.membership import Fleet

SHARDS = "Statehouse-Shards"  # a header: numbers, separated by commas
PLACE = "Statehouse-Position"  # the header of a scan that says where to follow the changes from
OFFSETS = "Statehouse-Offsets"  # of an answer that is ahead of its position, up to where
WITH = ("Authorization", "If-None-Match")
BACK = ("Content-Type", "ETag", "Retry-After", "Allow", "WWW-Authenticate", PLACE)
CONNECT = 1.0  # seconds
BESIDE = 5.0  # seconds that an answer may take longer than it should
ELSEWHERE = 421
Headers = Mapping[str, str]
FAILURES = (urllib3.exceptions.HTTPError, OSError)


@dataclass(frozen=True)
class FleetRequest:
    """The request at hand, as far as it concerns other instances. ``fleet``: None where this instance has every key."""

    fleet: Fleet | None
    headers: Headers  # those of `WITH` that it has
    shards: str | None  # its header `SHARDS`: it is another instance's
    query: str  # as it was sent
    parameters: Mapping[str, str]  # the same
    most: int  # bytes of its answer

    @property
    def token(self) -> dict[str, str]:
        """The header with the caller's token, for what is asked when the request is no longer at hand."""
        return {name: self.headers[name] for name in WITH[:1] if name in self.headers}


class Reply(NamedTuple):
    """Another instance's answer, for who asked this one."""

    body: bytes
    status: int
    headers: dict[str, str]


def position_headers(position: int | None, offsets: Mapping[str, int]) -> dict[str, str]:
    """Headers that tell another instance what an answer reflects."""
    return {OFFSETS: json.dumps({"position": position, "offsets": offsets})}


def as_problem(response: urllib3.HTTPResponse) -> Problem:
    """Another instance's problem as our own."""
    document = json.loads(response.data)
    kind = str(document.get("type", "")).removeprefix("urn:statehouse:")
    headers = {name: response.headers[name] for name in BACK[2:] if name in response.headers}
    return Problem(response.status, kind if kind in TITLES else "busy", document.get("detail", ""), headers)


def ask_instance(
    request: FleetRequest, address: str, method: str, path: str, shards: Collection[int], body: bytes | None = None
) -> urllib3.HTTPResponse | None:
    """Another instance's whole answer to what the request at hand asks, with its query; None as of :func:`_send`."""
    assert request.fleet is not None
    headers = dict(request.headers)
    if body is not None:
        headers["Content-Type"] = JSON
    path = f"{path}?{request.query}" if request.query else path
    return _send(request.fleet, address, method, path, shards, headers, body)


def open_stream(
    fleet: Fleet, address: str, path: str, shards: Collection[int], headers: Headers, silence: float | None = None
) -> urllib3.HTTPResponse | None:
    """Another instance's answer as it comes, None as of :func:`_send`, which has ``silence``; its problem as our own."""
    response = _send(fleet, address, "GET", path, shards, headers, None, whole=False, silence=silence)
    if response is not None and response.status != 200:
        with response:
            raise as_problem(response)
    return response


def _send(
    fleet: Fleet,
    address: str,
    method: str,
    path: str,
    shards: Collection[int],
    headers: Headers,
    body: bytes | None,
    whole: bool = True,
    silence: float | None = None,
) -> urllib3.HTTPResponse | None:
    """Another instance's answer; None where it does not answer (or in the midst of it is silent for so many seconds), or does not
    have the shards any more: another one may be asked."""
    numbers = ",".join(map(str, shards))
    timeout = Timeout(connect=CONNECT, read=silence or fleet.limits.max_time / 1000 + BESIDE)
    sent: dict[str, Any] = {"headers": {**headers, SHARDS: numbers}, "body": body, "timeout": timeout}
    ask = partial(
        fleet.http.request, method, address + path, **sent, preload_content=whole, redirect=False, retries=False
    )
    try:
        try:
            response = ask()
        except FAILURES as error:
            # A connection that was kept may be closed at the very moment that it is used again, and all that is asked here may be
            # asked twice. But not one who hangs: it was hung up on.
            if isinstance(error, urllib3.exceptions.TimeoutError) or not fleet.up(address):
                raise
            response = ask()
    except FAILURES:
        fleet.lost(address)
        return None
    if response.status == ELSEWHERE:
        response.close()
        fleet.gone(address, shards)
        return None
    assert isinstance(response, urllib3.HTTPResponse)
    return response
