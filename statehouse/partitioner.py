"""Where a key is: its text in Kafka, and the number by which Kafka's own partitioner chooses a partition for it.

The rule is that of the Java client's DefaultPartitioner, ``toPositive(murmur2(key)) % partitions``. A fleet shares its keys by the
same rule, so both halves and the client use this.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

SEED, M, R = 0x9747B28C, 0x5BD1E995, 24


def murmur2(data: bytes) -> int:
    """``toPositive(murmur2(data))`` of org.apache.kafka.common.utils.Utils."""
    length = len(data)
    h = SEED ^ length
    for at in range(0, length & ~3, 4):
        k = int.from_bytes(data[at : at + 4], "little") * M & 0xFFFFFFFF
        k = (k ^ k >> R) * M & 0xFFFFFFFF
        h = (h * M & 0xFFFFFFFF) ^ k
    if rest := data[length & ~3 :]:
        h = (h ^ int.from_bytes(rest, "little")) * M & 0xFFFFFFFF
    h = (h ^ h >> 13) * M & 0xFFFFFFFF
    return (h ^ h >> 15) & 0x7FFFFFFF


def text(key: Sequence[Any]) -> str:
    """A key's text in Kafka: as it is, or the parts of a composite one, percent-encoded, with '/' between them."""
    if len(key) == 1:
        return text_of(key[0])
    return "/".join(quote(text_of(part), safe="") for part in key)


def text_of(part: Any) -> str:
    """A part of a key as text that means the same; equal parts have the same text. A time without a zone is in UTC."""
    if isinstance(part, dt.datetime):
        return (part.astimezone(dt.timezone.utc).replace(tzinfo=None) if part.tzinfo else part).isoformat() + "Z"
    if isinstance(part, Decimal):  # 1.50 is 1.5
        number = format(part, "f")
        return number.rstrip("0").rstrip(".") if "." in number else number
    return str(part).lower() if isinstance(part, bool) else str(part)
