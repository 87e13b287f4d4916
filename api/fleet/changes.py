"""What changes in a store, of a whole fleet: the streams of all who have a part of it, as one.

Each of them tells its own keys' changes, and how far it is. The caller is told how far the least of them is: who goes on from there
may be told something twice, and misses nothing. One that ends amid it, as its instance is gone or has given up the shards, is
asked of another instance from where it was.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import urllib3

from api.errors import Problem
from api.fleet.client import FAILURES, open_stream
from api.fleet.membership import Fleet
from api.fleet.routing import assign

HEARTBEAT = 5.0  # seconds; every instance's stream has one
AGAIN = 0.5  # seconds after which it is looked again who has some shards
Begin = Callable[[Sequence[int]], Iterable[bytes]]


@dataclass(eq=False)
class Part:
    """The stream of some shards, and the id of its last event that had one; None before that."""

    shards: Sequence[int]
    blocks: Iterable[bytes]
    place: str | None = None


@dataclass
class Gathered:
    """The streams of a store's changes from a place on (None: from now on), as one; ``held`` are the shards that are here, and
    ``begin`` opens their stream. Raises a problem where nobody has a shard."""

    store: str
    held: Sequence[int]
    begin: Begin
    place: str | None
    fleet: Fleet
    headers: Mapping[str, str]  # with which others are asked

    def __post_init__(self) -> None:
        self._said: queue.Queue[tuple[Part, bytes | None]] = queue.Queue(1000)
        self._closed = threading.Event()
        others = set(range(self.fleet.count)) - set(self.held)
        self._parts = [Part(self.held, self.begin(self.held))] if self.held else []
        theirs = assign(self.fleet, others)
        self._parts += [self._theirs(address, shards, self.place) for address, shards in theirs.items()]

    def events(self, seconds: float) -> Iterator[bytes]:
        """The events, for so many seconds, or until nobody has a shard any more."""
        until, told = time.monotonic() + seconds, ""
        heard = time.monotonic()
        before: list[bytes] | None = []  # what is told before everyone has said where it begins
        for part in self._parts:
            self._read(part)
        try:
            yield b"retry: 1000\n\n"
            while (left := until - time.monotonic()) > 0:
                try:
                    message = self._said.get(timeout=min(HEARTBEAT, left))
                except queue.Empty:
                    message = None
                if time.monotonic() - heard > HEARTBEAT:
                    yield b": \n\n"
                    heard = time.monotonic()
                if message is None:
                    continue
                part, block = message
                if block is None:
                    if not self._go_on(part):
                        return
                    continue
                fields = dict(line.partition(": ")[::2] for line in block.decode().split("\n") if ": " in line)
                part.place = fields.get("id", part.place)
                pieces = []
                if fields.get("event") in ("reset", "state", "purge"):
                    pieces.append(f"event: {fields['event']}\ndata: {fields['data']}\n\n".encode())
                least = self._least()
                if before is not None:
                    before += pieces
                    if least is None:
                        continue
                    position = least.partition("-")[0]
                    yield f'id: {least}\nevent: position\ndata: {{"position":{position}}}\n\n'.encode()
                    pieces, told, before = before, least, None
                yield from pieces
                if least and least != told:
                    yield f"id: {least}\n\n".encode()
                    told = least
        finally:
            self._closed.set()

    def _least(self) -> str | None:
        """The place of who is the least far; None where one has not said it yet."""
        places = [part.place for part in self._parts]
        known = [place for place in places if place is not None]
        return min(known, key=lambda place: int(place.partition("-")[0])) if len(known) == len(places) else None

    def _go_on(self, part: Part) -> bool:
        """Ask others for the shards of a stream that has ended; whether there are any."""
        self._parts.remove(part)
        until = time.monotonic() + HEARTBEAT
        left = list(part.shards)
        while left and not self._closed.is_set():
            try:
                for address, shards in assign(self.fleet, left).items():
                    more = self._theirs(address, shards, part.place)
                    more.place = part.place
                    self._parts.append(more)
                    self._read(more)
                    left = [shard for shard in left if shard not in shards]
            except Problem:
                if time.monotonic() > until:
                    return False
                self._closed.wait(AGAIN)
        return True

    def _theirs(self, address: str, shards: Sequence[int], place: str | None) -> Part:
        headers = {**self.headers, **({"Last-Event-ID": place} if place else {})}
        path = f"/stores/{quote(self.store)}/changes"
        response = open_stream(self.fleet, address, path, shards, headers, silence=3 * HEARTBEAT)
        if response is None:
            raise Problem(503, "not-ready", f"{address} does not answer any more")
        return Part(shards, _pieces(response))

    def _read(self, part: Part) -> None:
        threading.Thread(target=self._follow, args=(part,), name="changes", daemon=True).start()

    def _follow(self, part: Part) -> None:
        left = b""
        try:
            for piece in part.blocks:
                *blocks, left = (left + piece).split(b"\n\n")
                for block in blocks:
                    self._tell(part, block)
                if self._closed.is_set():
                    return
        except FAILURES:
            pass
        finally:
            getattr(part.blocks, "close", lambda: None)()
            self._tell(part, None)

    def _tell(self, part: Part, block: bytes | None) -> None:
        while not self._closed.is_set():
            try:
                self._said.put((part, block), timeout=HEARTBEAT)
                return
            except queue.Full:  # the caller is slow, or gone
                continue


def _pieces(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    with response:
        yield from response.read_chunked() if response.chunked else response.stream(1)
