"""A stream as a replica follows it: where its changelog ends, what that has of the topic, and what is ahead of it."""

from __future__ import annotations

from collections import deque

import pyarrow as pa
from deltalake import DeltaTable

from api.engine.change_feed import feed
from api.engine.delta_log import Log
from api.replica.locks import ChangeSignal
from api.replica.pending import Offsets
from api.replica.provisional import ProvisionalState
from api.replica.topic import TopicFollower
from statehouse.config.models import Config, Stream
from statehouse.numbering import Numbering, differs
from statehouse.tables import covered, table

VERSIONS = 1000  # of the changelog, of which it is remembered what they have of the topic


class FollowedStream:
    """One stream, and what its stores show; all but :meth:`has` is for the replica's thread."""

    def __init__(self, config: Config, stream: Stream, provisional: ProvisionalState, changes: ChangeSignal) -> None:
        self.provisional, self.follower = provisional, TopicFollower(config, stream, provisional, changes)
        self.head: int | None = None  # the changelog's newest version
        self._stream, self._log = stream, Log(table(config, "changelog", stream.name))
        self.numbering: Numbering | None = None  # of the topics that the changelog is of
        self._offsets: deque[tuple[int, dict[int, int]]] = deque(maxlen=VERSIONS)
        self._feeds: dict[tuple[str, int, int], pa.Table] = {}  # of one refresh

    def look(self) -> None:
        """Find out where the changelog ends, and what it has of the topic there."""
        self._feeds.clear()
        head = self._log.newest()
        if head is None or head.version == self.head:
            self.head = head.version if head else None
            return
        while head is not None:  # until nothing was committed meanwhile: it would be that which was found
            newest = DeltaTable(self._log.path)
            position = covered(newest)
            head = self._log.newest()
            if head is None or head.version == newest.version():
                break
        if position is not None and not differs(self._stream, position):
            self._offsets.append((newest.version(), position["offsets"]))
            self.numbering = Numbering.of(self._stream, position)
        self.head = newest.version()

    def cover(self) -> None:
        """What is ahead of the changelog is told where that ends now."""
        self.provisional.cover(self.covered(self.head), self.numbering)

    def covered(self, position: int | None) -> Offsets | None:
        """What a version of the changelog has of the topic; None where that is not known."""
        wanted = position or 0  # which is the table's creation
        return next((offsets for version, offsets in reversed(self._offsets) if version == wanted), None)

    def has(self, position: int | None, partition: int, offset: int) -> bool:
        """Whether a version of the changelog has the event at an offset of a partition. For any thread."""
        known = [offsets for version, offsets in list(self._offsets) if position is not None and version <= position]
        return bool(known) and known[-1].get(partition, 0) > offset

    def feed(self, changelog: str, start: int, until: int, last: bool) -> pa.Table:
        """What a changelog's versions brought. A stream's stores mostly want the same ``last`` ones, as long as they are up to date."""
        wanted = (changelog, start, until)
        if wanted in self._feeds:
            return self._feeds[wanted]
        events = feed(*wanted)
        if last:
            self._feeds[wanted] = events
        return events
