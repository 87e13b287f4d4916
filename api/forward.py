"""What an instance of a fleet asks of the others: a key, many keys, or their part of a scan.

A request between instances says in the header :data:`SHARDS` of which shards it is, and is answered from what is here or refused
(421): it never goes on to a third one. The caller's token goes with it.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
import urllib3
from flask import Response, current_app, request
from urllib3.util import Timeout

from api import keys
from api.columns import Columns, Key, count, joined
from api.context import the_deadline
from api.errors import TITLES, Problem
from api.fleet import Fleet
from api.media_types import ARROW
from api.scans import pages
from api.shards import Shards, listed, number
from api.snapshot import Inside, Snapshot
from api.where import Where

SHARDS = "Statehouse-Shards"  # a header: numbers, separated by commas
PLACE = "Statehouse-Position"  # the header of a scan that says where to follow the changes from
OFFSETS = "Statehouse-Offsets"  # of an answer that is ahead of its position, up to where
WITH = ("Authorization", "If-None-Match")
BACK = ("Content-Type", "ETag", "Retry-After", "Allow", "WWW-Authenticate", PLACE)
CONNECT = 1.0  # seconds
BESIDE = 5.0  # seconds that an answer may take longer than it should
ELSEWHERE = 421
MOST = 10**9  # rows of a scan
SOME = 200  # keys that are looked up before it is known how long their rows are
FAILURES = (urllib3.exceptions.HTTPError, OSError)


def the_fleet() -> Fleet | None:
    """The fleet of the app that serves this request; None: this instance has every key."""
    return current_app.extensions["statehouse"].fleet


def check() -> None:
    """A problem where the request at hand says wrongly of which shards it is."""
    text = request.headers.get(SHARDS, "0")
    if listed(text) is None:
        raise Problem(400, "bad-header", f"{SHARDS}: found {text[:100]!r}, expected numbers separated by commas")


def only(snapshot: Snapshot) -> frozenset[int] | None:
    """The shards that the request at hand is of, from another instance; None: it is from a caller. A problem where they are not
    here."""
    text = request.headers.get(SHARDS)
    if text is None or the_fleet() is None:
        return None
    wanted = listed(text)
    assert wanted is not None  # as of `check`
    if snapshot.shards is not None and not wanted <= snapshot.shards.numbers:
        missing = ", ".join(map(str, sorted(wanted - snapshot.shards.numbers)))
        raise Problem(ELSEWHERE, "elsewhere", f"found a request for shards {missing}, which are not here")
    return wanted


def one(snapshot: Snapshot, parts: Sequence[str], below: str = "") -> Response | None:
    """Another instance's answer to the request at hand, about a key; None: it is to be answered here, as no other one can."""
    fleet = the_fleet()
    if fleet is None or snapshot.has(parts):
        return None
    assert snapshot.rule is not None
    shard = shard_of(snapshot, parts)
    if SHARDS in request.headers:
        raise Problem(ELSEWHERE, "elsewhere", f"found a key of shard {shard}, which is not here")
    # A dot by itself would be taken for a folder.
    key = "/".join(quote(part, safe="").replace(".", "%2E") for part in parts)
    path = f"/stores/{quote(snapshot.rule.store.name)}/keys/{key}{below}"
    for address in fleet.found([shard])[shard]:
        found = _asked(fleet, address, "GET", path, [shard])
        if found is not None:
            headers = {name: found.headers[name] for name in BACK if name in found.headers}
            return Response(found.data, found.status, headers)
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
        _least(self.offsets, other.offsets)


def many(snapshot: Snapshot, wanted: Sequence[Sequence[str]]) -> Found:
    """The states of keys, wherever they are; a problem where no instance has one's shard."""
    fleet = the_fleet()
    if fleet is None or snapshot.rule is None or only(snapshot) is not None:
        return _here(snapshot, wanted)
    of = [number(snapshot.key(parts), fleet.count) for parts in wanted]
    path = f"/stores/{quote(snapshot.rule.store.name)}/lookup"
    made = Found([None] * len(wanted), None)
    left, length = list(range(len(wanted))), 0
    here = snapshot.shards.numbers if snapshot.shards else frozenset(of)
    if mine := [i for i in left if of[i] in here]:
        made.add(mine, _here(snapshot, [wanted[i] for i in mine]))
        length = sum(len(row) for row in made.rows if row)
    left = [i for i in left if of[i] not in here]
    while left:
        for address, shards in assigned(fleet, {of[i] for i in left}).items():
            asked = [i for i in left if of[i] in shards]
            body = json.dumps({"keys": [wanted[i] for i in asked]}).encode()
            found = _asked(fleet, address, "POST", path, shards, body)
            if found is None:
                continue
            if found.status != 200:
                raise passed(found)
            rows = [None if line == "null" else line for line in found.data.decode().split("\n")[:-1]]
            length = _in_room(length, rows, fleet.limits.max_answer)
            reached = json.loads(found.headers[OFFSETS])
            made.add(asked, Found(rows, reached["position"], reached["offsets"]))
            left = [i for i in left if of[i] not in shards]
    return made


def _here(snapshot: Snapshot, wanted: Sequence[Sequence[str]]) -> Found:
    """The states of keys by what is here."""
    position = snapshot.position  # before the rows: they may be newer than it says, never older
    room: int = current_app.extensions["statehouse"].config.api.max_answer
    rows: list[str | None] = []
    some, length = SOME, 0
    while len(rows) < len(wanted):
        rows += (part := snapshot.lookup(wanted[len(rows) : len(rows) + some]))
        length = _in_room(length, part, room)
        some = max(SOME, len(rows) * room // (2 * length + 1))  # the next ones are as long, as far as can be known
    return Found(rows, position, _ahead(snapshot))


def _in_room(length: int, rows: Sequence[str | None], room: int) -> int:
    """How long the rows so far and these are; a problem where that is too long for an answer."""
    length += sum(len(row) for row in rows if row)
    if length > room:
        detail = f"found rows of more than {room:,} bytes, expected no more (api: max_answer): ask for fewer keys"
        raise Problem(413, "too-large", detail)
    return length


def _ahead(snapshot: Snapshot) -> dict[str, int]:
    """Up to where some of what was read of what is here is ahead of its position; known when it has been read."""
    return dict(snapshot.ahead) if snapshot.overlay.under else {}


def assigned(fleet: Fleet, shards: Collection[int]) -> dict[str, list[int]]:
    """Which instance is asked for which of some shards; a problem where nobody has one."""
    made: dict[str, list[int]] = {}
    found = fleet.found(sorted(shards))
    for shard, holders in found.items():
        if holders:
            made.setdefault(holders[0], []).append(shard)
    if missing := [shard for shard, holders in found.items() if not holders]:
        raise nobody(missing)
    return made


class Scan:
    """A scan of the request at hand over the whole fleet: what is here, and the other instances' parts, in the order of the key.

    They are asked at once: ``position`` and ``place`` are those of the least of them. Raises a problem where nobody has a shard.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        bounds: tuple[Key, Inside | None],
        after: Sequence[str] | None,
        where: Where | None,
        limit: int,
        at_once: bool,
    ) -> None:
        self._snapshot, self._limit = snapshot, limit
        deadline = the_deadline()
        self.place, self.position = snapshot.place, snapshot.position  # before the rows: they may be newer, never older
        self._others_offsets: dict[str, int] = {}
        self._sources = [pages(snapshot, bounds, after, limit, where, at_once, deadline)]
        fleet, wanted = the_fleet(), only(snapshot)
        if fleet is None or snapshot.shards is None:
            return
        if wanted is not None:
            self._sources = [self._mine(pages(snapshot, bounds, after, MOST, where, at_once, deadline), wanted)]
            return
        # By now, not by what the caller is: the answer may be long under way.
        self._fleet = fleet
        self._headers = token()
        self._query = {n: v for n, v in request.args.items() if n not in ("limit", "cursor")}
        for address, shards in assigned(fleet, set(range(fleet.count)) - snapshot.shards.numbers).items():
            self._sources.append(self._theirs(address, shards, after))

    @property
    def offsets(self) -> dict[str, int]:
        """Up to where some of what was read is ahead of the position."""
        found = _ahead(self._snapshot)
        _least(found, self._others_offsets)
        return found

    def pages(self) -> Iterator[Columns]:
        """All of it, page by page."""
        left, merged = self._limit, self._merged(self._sources)

        def page() -> Columns | None:
            nonlocal left
            rows = next(merged, None) if left > 0 else None
            if rows is None:
                return None
            rows = {name: column[:left] for name, column in rows.items()}
            left -= count(rows)
            return rows

        yield from iter(page, None)  # a loop would keep the rows of each page until the next is wanted

    def _mine(self, found: Iterator[Columns], wanted: frozenset[int]) -> Iterator[Columns]:
        """What is here of some shards only."""
        rule, shards = self._snapshot.rule, self._snapshot.shards
        assert rule is not None and shards is not None
        here = Shards(shards.count, wanted)
        for rows in found:
            mask = here.mask([rows[name] for name in rule.key_columns])
            if count(kept := {name: column.filter(mask) for name, column in rows.items()}):
                yield kept

    def _theirs(self, address: str, shards: Sequence[int], after: Sequence[str] | None) -> Iterator[Columns]:
        """Another instance's rows of some shards, after a key. Where it ends amid them, others go on."""
        response = self._opened(address, shards, after)
        if response is None:
            return self._others(shards, after)
        self._reached(response)
        return self._read(response, address, shards, after)

    def _read(
        self, response: urllib3.HTTPResponse, address: str, shards: Sequence[int], after: Sequence[str] | None
    ) -> Iterator[Columns]:
        response.auto_close = False  # at its end: Arrow asks once more
        try:
            with response, pa.ipc.open_stream(response) as batches:
                for batch in batches:
                    if batch.num_rows:
                        rows = dict(zip(batch.schema.names, batch.columns, strict=True))
                        yield rows
                        after = self._snapshot.last(rows)
                return
        except (*FAILURES, pa.ArrowException):
            self._fleet.lost(address)
        yield from self._others(shards, after)

    def _others(self, shards: Sequence[int], after: Sequence[str] | None) -> Iterator[Columns]:
        found = assigned(self._fleet, shards)
        return self._merged([self._theirs(address, some, after) for address, some in found.items()])

    def _opened(self, address: str, shards: Sequence[int], after: Sequence[str] | None) -> urllib3.HTTPResponse | None:
        rule = self._snapshot.rule
        assert rule is not None
        query = {**self._query, "limit": str(min(self._limit, MOST))}
        if after is not None:
            query["cursor"] = keys.cursor(after)
        path = f"/stores/{quote(rule.store.name)}/keys?{urlencode(query)}"
        headers = {**self._headers, "Accept": ARROW}
        return streamed(self._fleet, address, path, shards, headers)

    def _reached(self, response: urllib3.HTTPResponse) -> None:
        """Where another instance is: all of it is no further than the least."""
        place, said = response.headers.get(PLACE, ""), json.loads(response.headers[OFFSETS])
        position = said["position"]
        if position is not None and (self.position is None or position < self.position):
            self.place, self.position = place, position
        _least(self._others_offsets, said["offsets"])

    def _merged(self, sources: Sequence[Iterator[Columns]]) -> Iterator[Columns]:
        """The rows of several scans in the order of the key."""
        if len(sources) == 1:
            yield from sources[0]
            return
        rule = self._snapshot.rule
        assert rule is not None
        names = list(rule.keys)
        left = [(source, rows) for source in sources if (rows := next(source, None))]
        while left:
            bound = min(_key_at(rows, names, count(rows) - 1) for _, rows in left)
            parts, after = [], []
            for source, rows in left:
                place = bisect.bisect_right(range(count(rows)), bound, key=partial(_key_at, rows, names))
                parts.append({name: column[:place] for name, column in rows.items()})
                rest: Columns | None = {name: column[place:] for name, column in rows.items()}
                if place == count(rows):
                    rest = next(source, None)
                if rest is not None:
                    after.append((source, rest))
            found = pa.table(joined(parts))
            order = pc.sort_indices(found.select(names), sort_keys=[(name, "ascending") for name in names])
            yield {name: found[name].combine_chunks().take(order) for name in found.column_names}
            left = after


def nobody(shards: Sequence[int]) -> Problem:
    """The problem where no instance has some shards."""
    detail = (
        f"found no instance that has {', '.join(map(str, shards))}, expected one: GET /processors says who has which"
    )
    return Problem(503, "shards-missing", detail, missing=list(shards))


def said(position: int | None, offsets: Mapping[str, int]) -> dict[str, str]:
    """Headers that tell another instance what an answer reflects."""
    return {OFFSETS: json.dumps({"position": position, "offsets": offsets})}


def passed(response: urllib3.HTTPResponse) -> Problem:
    """Another instance's problem as our own."""
    document = json.loads(response.data)
    kind = str(document.get("type", "")).removeprefix("urn:statehouse:")
    headers = {name: response.headers[name] for name in BACK[2:] if name in response.headers}
    return Problem(response.status, kind if kind in TITLES else "busy", document.get("detail", ""), headers)


def _asked(
    fleet: Fleet, address: str, method: str, path: str, shards: Collection[int], body: bytes | None = None
) -> urllib3.HTTPResponse | None:
    """Another instance's whole answer to what the request at hand asks, with its query; None as of :func:`_sent`."""
    query = request.query_string.decode("latin-1")
    headers = _of_request(*WITH)
    if body is not None:
        headers["Content-Type"] = "application/json"
    return _sent(fleet, address, method, f"{path}?{query}" if query else path, shards, headers, body)


def streamed(
    fleet: Fleet,
    address: str,
    path: str,
    shards: Collection[int],
    headers: Mapping[str, str],
    silence: float | None = None,
) -> urllib3.HTTPResponse | None:
    """Another instance's answer as it comes, None as of :func:`_sent`, which has ``silence``; its problem as our own."""
    found = _sent(fleet, address, "GET", path, shards, headers, None, whole=False, silence=silence)
    if found is not None and found.status != 200:
        with found:
            raise passed(found)
    return found


def token() -> dict[str, str]:
    """The header with the caller's token, for what is asked when the request is no longer at hand."""
    return _of_request(*WITH[:1])


def _of_request(*names: str) -> dict[str, str]:
    return {name: request.headers[name] for name in names if name in request.headers}


def _sent(
    fleet: Fleet,
    address: str,
    method: str,
    path: str,
    shards: Collection[int],
    headers: Mapping[str, str],
    body: bytes | None,
    whole: bool = True,
    silence: float | None = None,
) -> urllib3.HTTPResponse | None:
    """Another instance's answer; None where it does not answer (or in the midst of it is silent for so many seconds), or does not
    have the shards any more: another one may be asked."""
    numbers = ",".join(map(str, shards))
    timeout = Timeout(connect=CONNECT, read=silence or fleet.limits.max_time / 1000 + BESIDE)
    ask = partial(
        fleet.http.request,
        method,
        address + path,
        headers={**headers, SHARDS: numbers},
        body=body,
        timeout=timeout,
        preload_content=whole,
        redirect=False,
        retries=False,
    )
    try:
        try:
            found = ask()
        except FAILURES as error:
            # A connection that was kept may be closed at the very moment that it is used again, and all that is asked here may be
            # asked twice. But not one who hangs: it was hung up on.
            if isinstance(error, urllib3.exceptions.TimeoutError) or not fleet.up(address):
                raise
            found = ask()
    except FAILURES:
        fleet.lost(address)
        return None
    if found.status == ELSEWHERE:
        found.close()
        fleet.gone(address, shards)
        return None
    assert isinstance(found, urllib3.HTTPResponse)
    return found


def _least(offsets: dict[str, int], others: Mapping[str, int]) -> None:
    for partition, offset in others.items():
        offsets[partition] = min(offset, offsets.get(partition, offset))


def _key_at(rows: Columns, names: Sequence[str], place: int) -> Key:
    return tuple(rows[name][place].as_py() for name in names)
