"""In which shard of a fleet a key is: what Kafka's own partitioner says of its text in Kafka.

The rule is that of the Java client's DefaultPartitioner, ``toPositive(murmur2(key)) % shards``, so that a topic with as many
partitions, written by such clients, has a shard's keys in one of them. The key's text is the one of :func:`api.engine.keys.kafka_key`:
the key as it is, or the parts of a composite one, percent-encoded, with '/' between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW

from api.engine.columns import Key
from api.engine.duck import Connection
from statehouse.partitioner import SEED, M, R, murmur2, text, text_of

MANY = 64  # keys from which on it takes less time to do them all at once
QUOTED = "[^A-Za-z0-9_.~-]"  # what is percent-encoded in a part


def listed(text: str) -> frozenset[int] | None:
    """The numbers of shards that a text lists, separated by commas; None where it does not."""
    parts = text.split(",")
    return frozenset(map(int, parts)) if all(re.fullmatch("[0-9]{1,4}", part) for part in parts) else None


@dataclass(frozen=True)
class Shards:
    """Some of a number of shards."""

    count: int
    numbers: frozenset[int]

    def mask(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Which rows have their key here, of the key's columns."""
        return pa.array(np.isin(numbers(columns, self.count), list(self.numbers)))

    def kept(self, keys: Iterable[Key]) -> list[Key]:
        """Those of some keys that are here."""
        found = list(keys)
        if len(found) < MANY:
            return [key for key in found if number(key, self.count) in self.numbers]
        texts = pa.array([text(key) for key in found], pa.large_string())
        here = np.isin(murmur2s(texts) % self.count, list(self.numbers))
        return [found[place] for place in np.flatnonzero(here)]

    def declare(self, db: Connection, name: str) -> None:
        """Make of :meth:`mask` a function of DuckDB's."""

        def here(*columns: pa.ChunkedArray) -> pa.Array:
            return self.mask([column.combine_chunks() for column in columns])

        db.create_function(name, here, None, duckdb.sqltype("BOOLEAN"), type=ARROW)


def number(key: Key, count: int) -> int:
    """The shard of a key."""
    return murmur2(text(key).encode()) % count


def numbers(columns: Sequence[pa.Array], count: int) -> np.ndarray:
    """The shards of the keys that some columns hold."""
    texts = [_texts(column, len(columns) > 1) for column in columns]
    joined = texts[0] if len(texts) == 1 else pc.binary_join_element_wise(*texts, pa.scalar("/", pa.large_string()))
    return murmur2s(joined) % count


def murmur2s(texts: pa.Array) -> np.ndarray:
    """The same of each of many texts."""
    texts = texts.cast(pa.large_string())
    if not len(texts):
        return np.zeros(0, np.int64)
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    starts, lengths = places[:-1], np.diff(places)
    held = np.frombuffer(data or b"", np.uint8)
    held = np.concatenate([held, np.zeros(4, np.uint8)])  # a word may be begun at any of its bytes
    words = np.ndarray(len(held) - 3, "<u4", held, 0, (1,))
    m = np.uint32(M)
    h = np.uint32(SEED) ^ lengths.astype(np.uint32)
    inside = np.arange(len(texts))
    for at in range(0, int(lengths.max()) & ~3, 4):
        inside = inside[lengths[inside] >= at + 4]
        k = words[starts[inside] + at] * m
        k = (k ^ k >> np.uint32(R)) * m
        h[inside] = h[inside] * m ^ k
    ends, rest = starts + (lengths & ~3), lengths & 3
    some = np.flatnonzero(rest)
    tails = words[ends[some]] & (np.uint32(1) << (8 * rest[some]).astype(np.uint32)) - np.uint32(1)
    h[some] = (h[some] ^ tails) * m
    h = (h ^ h >> np.uint32(13)) * m
    return ((h ^ h >> np.uint32(15)) & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _texts(column: pa.Array, part: bool) -> pa.Array:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        strings = column.cast(pa.large_string())
        if not part or not pc.any(pc.match_substring_regex(strings, QUOTED)).as_py():
            return strings
    elif pa.types.is_integer(column.type):
        return column.cast(pa.large_string())  # nothing in it to encode but what is not encoded, its '-'
    texts = (text_of(value) for value in column.to_pylist())
    return pa.array((quote(t, safe="") if part else t for t in texts), pa.large_string())
