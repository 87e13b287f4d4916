"""What an instance of a fleet asks of the others: a key, or many keys. (Of a scan their part: :mod:`api.fleet.scan`.)

A request between instances says in the header :data:`api.fleet.client.SHARDS` of which shards it is, and is answered from what is here or refused
(421): it never goes on to a third one. The caller's token goes with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from api.engine.shards import listed, number
from api.errors import Problem
from api.fleet.client import BACK, ELSEWHERE, OFFSETS, FleetRequest, Reply, as_problem, ask_instance
from api.fleet.membership import Fleet
from api.replica.snapshot import Snapshot

SOME = 200  # keys that are looked up before it is known how long their rows are


def shards_asked_for(request: FleetRequest, snapshot: Snapshot) -> frozenset[int] | None:
    """The shards that the request at hand is of, from another instance; None: it is from a caller. A problem where they are not
    here."""
    if request.shards is None or request.fleet is None:
        return None
    wanted = listed(request.shards)
    assert wanted is not None  # else nobody was let in
    if snapshot.shards is not None and not wanted <= snapshot.shards.numbers:
        missing = ", ".join(map(str, sorted(wanted - snapshot.shards.numbers)))
        raise Problem(ELSEWHERE, "elsewhere", f"found a request for shards {missing}, which are not here")
    return wanted


def forward(request: FleetRequest, snapshot: Snapshot, parts: Sequence[str], below: str = "") -> Reply | None:
    """Another instance's answer to the request at hand, about a key; None: it is to be answered here, as no other one can."""
    fleet = request.fleet
    if fleet is None or snapshot.has(parts):
        return None
    assert snapshot.rule is not None
    shard = shard_of(snapshot, parts)
    if request.shards is not None:
        raise Problem(ELSEWHERE, "elsewhere", f"found a key of shard {shard}, which is not here")
    # A dot by itself would be taken for a folder.
    key = "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)
    path = f"/stores/{quote(snapshot.rule.store.name)}/keys/{key}{below}"
    for address in fleet.found([shard])[shard]:
        response = ask_instance(request, address, "GET", path, [shard])
        if response is not None:
            headers = {name: response.headers[name] for name in BACK if name in response.headers}
            return Reply(response.data, response.status, headers)
    return None


def shard_of(snapshot: Snapshot, parts: Sequence[str]) -> int:
    """The shard of a key."""
    assert snapshot.shards is not None
    return number(snapshot.key(parts), snapshot.shards.count)


@dataclass
class Found:
    """What many keys are: each as JSON text, None where there is none; of which position at the least, and up to which offsets
    some are ahead of it."""

    rows: list[str | None]
    position: int | None
    offsets: dict[str, int] = field(default_factory=dict)

    def add(self, places: Sequence[int], other: Found) -> None:
        """Put others into some places."""
        for place, row in zip(places, other.rows, strict=True):
            self.rows[place] = row
        known = [p for p in (self.position, other.position) if p is not None]
        self.position = min(known) if known else None
        least(self.offsets, other.offsets)


def look_up(request: FleetRequest, snapshot: Snapshot, wanted: Sequence[Sequence[str]]) -> Found:
    """The states of keys, wherever they are; a problem where no instance has one's shard."""
    fleet = request.fleet
    if fleet is None or snapshot.rule is None or shards_asked_for(request, snapshot) is not None:
        return _here(snapshot, wanted, request.most)
    of = [number(snapshot.key(parts), fleet.count) for parts in wanted]
    path = f"/stores/{quote(snapshot.rule.store.name)}/lookup"
    states = Found([None] * len(wanted), None)
    left, length = list(range(len(wanted))), 0
    here = snapshot.shards.numbers if snapshot.shards else frozenset(of)
    if mine := [i for i in left if of[i] in here]:
        states.add(mine, _here(snapshot, [wanted[i] for i in mine], request.most))
        length = sum(len(row) for row in states.rows if row)
    left = [i for i in left if of[i] not in here]
    while left:
        for address, shards in assign(fleet, {of[i] for i in left}).items():
            theirs = [i for i in left if of[i] in shards]
            body = json.dumps({"keys": [wanted[i] for i in theirs]}).encode()
            response = ask_instance(request, address, "POST", path, shards, body)
            if response is None:
                continue
            if response.status != 200:
                raise as_problem(response)
            rows = [None if line == "null" else line for line in response.data.decode().split("\n")[:-1]]
            length = _in_room(length, rows, request.most)
            reached = json.loads(response.headers[OFFSETS])
            states.add(theirs, Found(rows, reached["position"], reached["offsets"]))
            left = [i for i in left if of[i] not in shards]
    return states


def _here(snapshot: Snapshot, wanted: Sequence[Sequence[str]], room: int) -> Found:
    """The states of keys by what is here."""
    position = snapshot.position  # before the rows: they may be newer than it says, never older
    rows: list[str | None] = []
    some, length = SOME, 0
    while len(rows) < len(wanted):
        rows += (part := snapshot.lookup(wanted[len(rows) : len(rows) + some]))
        length = _in_room(length, part, room)
        some = max(SOME, len(rows) * room // (2 * length + 1))  # the next ones are as long, as far as can be known
    return Found(rows, position, ahead(snapshot))


def _in_room(length: int, rows: Sequence[str | None], room: int) -> int:
    """How long the rows so far and these are; a problem where that is too long for an answer."""
    length += sum(len(row) for row in rows if row)
    if length > room:
        detail = f"found rows of more than {room:,} bytes, expected no more (api: max_answer): ask for fewer keys"
        raise Problem(413, "too-large", detail)
    return length


def ahead(snapshot: Snapshot) -> dict[str, int]:
    """Up to where some of what was read of what is here is ahead of its position; known when it has been read."""
    return dict(snapshot.ahead) if snapshot.overlay.under else {}


def assign(fleet: Fleet, shards: Collection[int]) -> dict[str, list[int]]:
    """Which instance is asked for which of some shards; a problem where nobody has one."""
    shards_of: dict[str, list[int]] = {}
    holders_of = fleet.found(sorted(shards))
    for shard, holders in holders_of.items():
        if holders:
            shards_of.setdefault(holders[0], []).append(shard)
    if missing := [shard for shard, holders in holders_of.items() if not holders]:
        raise no_holder(missing)
    return shards_of


def no_holder(shards: Sequence[int]) -> Problem:
    """The problem where no instance has some shards."""
    numbers = ", ".join(map(str, shards))
    detail = f"found no instance that has {numbers}, expected one: GET /processors says who has which"
    return Problem(503, "shards-missing", detail, missing=list(shards))


def least(offsets: dict[str, int], others: Mapping[str, int]) -> None:
    """Have of each partition the lesser of two offsets."""
    for partition, offset in others.items():
        offsets[partition] = min(offset, offsets.get(partition, offset))
