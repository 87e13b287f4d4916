"""The changelog's change data feed: what its versions appended. Read with deltalake, whose memory stays flat."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from statehouse.tables import opened


def feed(changelog: str, start: int, head: int) -> pa.Table:
    """The rows appended to a changelog in its versions (start, head], with the version of each as ``_commit_version``; not those that
    were deleted there.

    Raises deltalake's errors where the log or the files no longer have them.
    """
    return _inserted(pa.table(_reader(changelog, start, head)))


def batches(changelog: str, start: int, head: int) -> Iterator[pa.Table]:
    """The same, some thousands of rows at a time."""
    for batch in pa.RecordBatchReader.from_stream(_reader(changelog, start, head)):
        yield _inserted(pa.Table.from_batches([batch]))


def can_follow(changelog: str) -> bool:
    """Whether a changelog has a feed: our own have one."""
    found = opened(changelog)
    return found is not None and found.metadata().configuration.get("delta.enableChangeDataFeed") == "true"


def _inserted(rows: pa.Table) -> pa.Table:
    kept = pc.equal(rows["_change_type"].cast(pa.string()), "insert")  # it may be a view, which cannot be compared
    return rows if pc.all(kept).as_py() is not False else rows.filter(kept)


def _reader(changelog: str, start: int, head: int) -> pa.RecordBatchReader:
    return DeltaTable(changelog, version=head).load_cdf(starting_version=start + 1, ending_version=head)
