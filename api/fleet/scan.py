"""A scan over a whole fleet: what is here, and the parts of other instances, in the order of the key."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Sequence
from functools import partial
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
import urllib3

from api.engine import keys
from api.engine.columns import Columns, Key, count, joined
from api.engine.deadline import Deadline
from api.engine.media_types import ARROW
from api.engine.shards import Shards
from api.fleet.client import FAILURES, OFFSETS, PLACE, FleetRequest, open_stream
from api.fleet.routing import ahead, assign, least, shards_asked_for
from api.reads.scans import pages
from api.replica.snapshot import After, Selection, Snapshot

MOST = 10**9  # rows of a scan


class Scan:
    """A scan of the request at hand over the whole fleet: what is here, and the other instances' parts, in the order of the key.

    They are asked at once: ``position`` and ``place`` are those of the least of them. Raises a problem where nobody has a shard.
    """

    def __init__(
        self, request: FleetRequest, snapshot: Snapshot, of: Selection, after: After, limit: int, deadline: Deadline
    ) -> None:
        self._snapshot, self._limit = snapshot, limit
        self.place, self.position = snapshot.place, snapshot.position  # before the rows: they may be newer, never older
        self._others_offsets: dict[str, int] = {}
        self._sources = [pages(snapshot, of, after, limit, deadline)]
        fleet, wanted = request.fleet, shards_asked_for(request, snapshot)
        if fleet is None or snapshot.shards is None:
            return
        if wanted is not None:
            self._sources = [self._mine(pages(snapshot, of, after, MOST, deadline), wanted)]
            return
        # By now, not by what the caller is: the answer may be long under way.
        self._fleet = fleet
        self._headers = request.token
        self._query = {n: v for n, v in request.parameters.items() if n not in ("limit", "cursor")}
        for address, shards in assign(fleet, set(range(fleet.count)) - snapshot.shards.numbers).items():
            self._sources.append(self._theirs(address, shards, after))

    @property
    def offsets(self) -> dict[str, int]:
        """Up to where some of what was read is ahead of the position."""
        offsets = ahead(self._snapshot)
        least(offsets, self._others_offsets)
        return offsets

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

    def _theirs(self, address: str, shards: Sequence[int], after: After) -> Iterator[Columns]:
        """Another instance's rows of some shards, after a key. Where it ends amid them, others go on."""
        response = self._opened(address, shards, after)
        if response is None:
            return self._others(shards, after)
        self._reached(response)
        return self._read(response, address, shards, after)

    def _read(
        self, response: urllib3.HTTPResponse, address: str, shards: Sequence[int], after: After
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

    def _others(self, shards: Sequence[int], after: After) -> Iterator[Columns]:
        addresses = assign(self._fleet, shards)
        return self._merged([self._theirs(address, some, after) for address, some in addresses.items()])

    def _opened(self, address: str, shards: Sequence[int], after: After) -> urllib3.HTTPResponse | None:
        rule = self._snapshot.rule
        assert rule is not None
        query = {**self._query, "limit": str(min(self._limit, MOST))}
        if after is not None:
            query["cursor"] = keys.cursor(after)
        path = f"/stores/{quote(rule.store.name)}/keys?{urlencode(query)}"
        headers = {**self._headers, "Accept": ARROW}
        return open_stream(self._fleet, address, path, shards, headers)

    def _reached(self, response: urllib3.HTTPResponse) -> None:
        """Where another instance is: all of it is no further than the least."""
        place, said = response.headers.get(PLACE, ""), json.loads(response.headers[OFFSETS])
        position = said["position"]
        if position is not None and (self.position is None or position < self.position):
            self.place, self.position = place, position
        least(self._others_offsets, said["offsets"])

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
            table = pa.table(joined(parts))
            order = pc.sort_indices(table.select(names), sort_keys=[(name, "ascending") for name in names])
            yield {name: table[name].combine_chunks().take(order) for name in table.column_names}
            left = after


def _key_at(rows: Columns, names: Sequence[str], place: int) -> Key:
    return tuple(rows[name][place].as_py() for name in names)
