"""The changelog's change data feed: what its versions appended, by the commits themselves and with Arrow, whose memory stays flat.

Not by deltalake's own reader: that takes times of old files (Spark's INT96) for nanoseconds, of which there are not enough for the
years before 1677 and after 2262.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from statehouse.places import remote
from statehouse.tables import opened

VERSION, CHANGE = "_commit_version", "_change_type"
PARQUET = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
INSERTED = ds.field(CHANGE) == "insert"
FEW = 4  # files, that are read sooner by one thread
AT_ONCE = 16_384  # rows of a batch


def feed(changelog: str, start: int, head: int) -> pa.Table:
    """The rows appended to a changelog in its versions (start, head], with the version of each as ``_commit_version``; not those that
    were deleted there.

    Raises deltalake's errors where the log or the files no longer have them.
    """
    with _gone(changelog):
        dataset, many = _appended(changelog, start, head)
        return dataset.to_table(_columns(dataset), filter=INSERTED, use_threads=many)


def batches(changelog: str, start: int, head: int) -> Iterator[pa.Table]:
    """The same, some thousands of rows at a time."""
    with _gone(changelog):
        dataset, many = _appended(changelog, start, head)
        for batch in dataset.to_batches(
            columns=_columns(dataset), filter=INSERTED, batch_size=AT_ONCE, fragment_readahead=1, use_threads=many
        ):
            yield pa.Table.from_batches([batch])


def can_follow(changelog: str) -> bool:
    """Whether a changelog has a feed: our own have one."""
    table = opened(changelog)
    return table is not None and table.metadata().configuration.get("delta.enableChangeDataFeed") == "true"


@contextmanager
def _gone(changelog: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise DeltaError(f"{changelog} no longer has all of its versions: {error}") from error


def _appended(changelog: str, start: int, head: int) -> tuple[ds.FileSystemDataset, bool]:
    """The files of some versions, and whether they are many. Whatever is asked of it, the rows that were inserted have to be filtered."""
    delta = DeltaTable(changelog, version=head)
    schema = pa.schema([*pa.schema(delta.schema().to_arrow()), (VERSION, pa.int64()), (CHANGE, pa.string())])
    files: pa_fs.FileSystem = pa_fs.LocalFileSystem()
    root = f"{changelog}/"
    if remote(changelog):
        files, root = pa_fs.PyFileSystem(DeltaStorageHandler(changelog)), ""
    fragments = []
    for version in range(start + 1, head + 1):
        with files.open_input_stream(f"{root}_delta_log/{version:020}.json") as commit:
            added, changed = _files(commit.readall())
        of = ds.field(VERSION) == version
        # A commit that tells its changes in files of their own tells all of them there.
        names, rows = (changed, of) if changed else (added, of & INSERTED)
        paths = [f"{root}{unquote(name)}" for name in names]
        fragments += [PARQUET.make_fragment(path, files, partition_expression=rows) for path in paths]
    return ds.FileSystemDataset(fragments, schema, PARQUET, files), len(fragments) > FEW


def _files(commit: bytes) -> tuple[list[str], list[str]]:
    """The files that a commit added with new rows in them, and those that tell its changes."""
    actions: dict[str, list[dict[str, Any]]] = {"add": [], "cdc": []}
    for line in commit.splitlines():
        if line.startswith((b'{"add"', b'{"cdc"')):
            ((kind, action),) = json.loads(line).items()
            actions[kind].append(action)
    added = [action for action in actions["add"] if action["dataChange"]]
    if any(action.get("deletionVector") for action in added):
        raise DeltaError("found a deletion vector in a changelog, expected none")
    return [action["path"] for action in added], [action["path"] for action in actions["cdc"]]


def _columns(dataset: ds.FileSystemDataset) -> list[str]:
    return [name for name in dataset.schema.names if name != CHANGE]
