"""Several instances that share the keys: which of them are there, which should have a shard, and which have it.

Every instance asks every other one, twice a second, for its ``/processors``: so it is known who is there and what shards they
have. Who should have a shard is for each to see for itself, by rendezvous hashing [1]_ of the instances: the ``copies`` with the
highest weights. A request goes to one that *has* the shard. An instance that should have more reads them and only then says so;
it gives up what it should not have when all who should do have it. So a shard moves without a moment at which nobody has it.

.. [1] Thaler, Ravishankar: Using Name-Based Mappings to Increase Hit Rates, IEEE/ACM Transactions on Networking 6 (1998).
"""

from __future__ import annotations

import hashlib
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import MaxRetryError, NewConnectionError, TimeoutError
from urllib3.util import Retry, Timeout

from api.engine.shards import Shards
from api.fleet import connections
from statehouse.config.models import Api

ASK_SECONDS, ANSWER_SECONDS = 0.5, 1.0  # between two questions, and for the answer to one
LOST_SECONDS = 1.5  # for which an instance may not answer before others take its place
BEGIN_SECONDS = 30.0  # for which those that have not answered yet are counted in: a whole fleet may be starting
AGAIN_SECONDS = 0.05
CONNECTIONS = 64  # to each, that are kept
# A connection that was kept may be closed at the very moment that it is used again.
ONCE_MORE = Retry(1, connect=0, read=1, redirect=0, status=0, other=0, allowed_methods=None)
log = logging.getLogger("statehouse.api")


@dataclass
class Peer:
    """Another instance, and what it said last. Fields are replaced as wholes."""

    address: str
    up: bool = False
    heard: float | None = None  # when it answered, on the monotonic clock
    holds: frozenset[int] = frozenset()
    knows: frozenset[str] | None = None  # who is there, as it says; None: it has just begun, too
    error: str | None = None


@dataclass
class Fleet:
    """The instances as this one sees them. ``start`` it once; a thread of its own looks after it.

    ``held`` says what is here, ``hold`` is told what should be.
    """

    limits: Api
    held: Callable[[], frozenset[int]]
    hold: Callable[[Shards], None]
    http: urllib3.PoolManager = field(default_factory=lambda: connections.manager(CONNECTIONS))

    def __post_init__(self) -> None:
        assert self.limits.address is not None
        self.address, self.count = self.limits.address, self.limits.shards
        self._peers: dict[str, Peer] = {}
        self._asking: dict[str, threading.Thread] = {}
        self._wanted: frozenset[int] = frozenset()
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._error = ""

    def start(self) -> None:
        """Find the others, say what should be here, and go on so in the background."""
        self._begun = time.monotonic()
        self._look()
        threading.Thread(target=self._run, name="fleet", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def owners(self, shard: int) -> list[str]:
        """Who should have a shard, the first one first."""
        return ranked(shard, self._members())[: self.limits.copies]

    def holders(self, shard: int) -> list[str]:
        """The other instances that have a shard and answer, those that should have it first."""
        return ranked(shard, [p.address for p in self._peers.values() if p.up and shard in p.holds])

    def found(self, shards: Collection[int]) -> dict[int, list[str]]:
        """The :meth:`holders` of each of some shards; where there are none just now they are waited for, for as long as it takes
        to see that nobody comes."""
        until = time.monotonic() + LOST_SECONDS
        while True:
            holders = {shard: self.holders(shard) for shard in shards}
            if all(holders.values()) or time.monotonic() > until or self._stop.wait(AGAIN_SECONDS):
                return holders

    def up(self, address: str) -> bool:
        """Whether an instance answers, as far as is known."""
        peer = self._peers.get(address)
        return peer is not None and peer.up

    def lost(self, address: str) -> None:
        """An instance did not answer: it is not asked again before it has said that it is there."""
        if peer := self._peers.get(address):
            peer.up = False

    def gone(self, address: str, shards: Collection[int]) -> None:
        """An instance does not have some of these shards any more: it is not asked for them before it says that it does."""
        if peer := self._peers.get(address):
            peer.holds -= frozenset(shards)

    def processors(self) -> dict[str, Any]:
        """What ``GET /processors`` says: ``map`` has for each shard the instances that have it, best first; ``settled``: it has been
        up for long enough to know who is there."""
        here = self.held()
        holders = [ranked(s, [*self.holders(s), *([self.address] if s in here else ())]) for s in range(self.count)]
        members = self._members()
        owned = {a: [s for s in range(self.count) if a in self.owners(s)] for a in members}
        instances = [{"address": self.address, "up": True, "owns": owned[self.address], "holds": sorted(here)}]
        for peer in list(self._peers.values()):
            error = {"error": peer.error} if peer.error else {}
            shards = {"owns": owned.get(peer.address, []), "holds": sorted(peer.holds) if peer.up else []}
            instances.append({"address": peer.address, "up": peer.up, **shards, **error})
        return {
            "shards": self.count,
            "copies": self.limits.copies,
            "partitioner": "murmur2",
            "address": self.address,
            "settled": self._settled(),
            "instances": sorted(instances, key=lambda i: str(i["address"])),
            "map": holders,
        }

    def _members(self) -> list[str]:
        now, peers = time.monotonic(), list(self._peers.values())
        known = [peer.knows for peer in peers if peer.up and peer.knows is not None]

        def counts(peer: Peer) -> bool:
            if peer.heard is not None:
                return peer.up or now - peer.heard < LOST_SECONDS
            return not self._settled() and not any(peer.address not in knows for knows in known)

        return [self.address, *(peer.address for peer in peers if counts(peer))]

    def _settled(self) -> bool:
        return time.monotonic() - self._begun > BEGIN_SECONDS

    def _run(self) -> None:
        while not self._stop.wait(ASK_SECONDS):
            try:
                self._look()
            except Exception as error:  # the next time may do
                self._say(f"the fleet: {type(error).__name__}: {error}")

    def _look(self) -> None:
        try:
            addresses = self._addresses()
        except OSError as error:  # the name server: those that are known still are
            self._say(f"{self.limits.discover}: {error}")
            addresses = set(self._peers)
        known = {a: self._peers.get(a) or Peer(a) for a in sorted(addresses)}
        self._peers = known
        # One that hangs is asked again when it has not answered, and the others meanwhile.
        self._asking = {a: thread for a, thread in self._asking.items() if thread.is_alive()}
        until = time.monotonic() + ANSWER_SECONDS
        for address, peer in known.items():
            if address not in self._asking:
                self._asking[address] = threading.Thread(target=self._ask, args=(peer,), daemon=True)
                self._asking[address].start()
        for thread in self._asking.values():
            thread.join(max(0.0, until - time.monotonic()))
        self._share()

    def _addresses(self) -> set[str]:
        addresses = set(self.limits.peers)
        if self.limits.discover:
            url = urlsplit(self.limits.discover)
            for *_, place in socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM):
                host, port = str(place[0]), int(place[1])
                addresses.add(f"{url.scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        return addresses - {self.address}

    def _ask(self, peer: Peer) -> None:
        try:
            url, timeout = f"{peer.address}/processors", Timeout(ANSWER_SECONDS)
            answer = self.http.request("GET", url, timeout=timeout, retries=ONCE_MORE)
            body = answer.json()
            if answer.status != 200 or body["shards"] != self.count:
                raise ValueError(
                    f"found {body.get('shards')} shards, expected {self.count}: its configuration is another"
                )
            if body["address"] != peer.address:  # who should have a shard is found by it: all have to call it the same
                raise ValueError(f"found one that calls itself {body['address']}, expected that as its `api: address`")
            holds = next(i["holds"] for i in body["instances"] if i["address"] == body["address"])
            knows = frozenset(i["address"] for i in body["instances"] if i["up"]) if body["settled"] else None
        except (urllib3.exceptions.HTTPError, OSError, ValueError, LookupError, TypeError, StopIteration) as error:
            if peer.up or peer.error is None:
                log.info("instance %s does not answer: %s", peer.address, error)
            peer.up, peer.error = False, str(error) or type(error).__name__
            if isinstance(error.reason if isinstance(error, MaxRetryError) else error, TimeoutError):
                # What else it was asked for it does not answer either: others are asked now.
                connections.hang_up(peer.address)
            if isinstance(error, NewConnectionError) and peer.heard is not None:
                peer.heard = -math.inf  # nobody is there: it need not be waited for
            return
        if not peer.up:
            log.info("instance %s is there", peer.address)
        peer.holds, peer.knows, peer.heard, peer.up, peer.error = frozenset(holds), knows, time.monotonic(), True, None

    def _share(self) -> None:
        """Say what should be here: what this instance owns, and what it has that not all owners have yet."""
        owners = {shard: self.owners(shard) for shard in range(self.count)}
        owned = frozenset(shard for shard, of in owners.items() if self.address in of)
        here = self.held() & self._wanted
        has: Mapping[str, Collection[int]] = {p.address: p.holds for p in self._peers.values() if p.up}
        needed = frozenset(s for s in here - owned if not all(s in has.get(a, ()) for a in owners[s]))
        if owned | needed != self._wanted:
            self._wanted = owned | needed
            log.info("instance %s takes shards %s", self.address, ", ".join(map(str, sorted(self._wanted))) or "none")
            self.hold(Shards(self.count, self._wanted))

    def _say(self, error: str) -> None:
        if error != self._error:
            log.warning("%s", error)
        self._error = error


def ranked(shard: int, addresses: Collection[str]) -> list[str]:
    """Instances by their weight for a shard, the highest first."""
    return sorted(
        addresses, key=lambda a: hashlib.blake2b(f"{shard} {a}".encode(), digest_size=8).digest(), reverse=True
    )
