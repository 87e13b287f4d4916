"""Where a record says which schema its payload has: in front of it, or in a header. These are Confluent's wire formats.

In front of the payload are the byte 0 and the schema's id in four bytes, or the byte 1 and its GUID in 16. A header has the same. Of
Protobuf the message's place in its file follows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from statehouse.payload import Refused

ID_HEADER = "__value_schema_id"
EXPECTED = "expected the byte 0 and the id of a schema in four bytes"


class Frame(NamedTuple):
    """The schema's id as text, and where in ``data`` it ends. ``data`` is the payload, or the header that has the id."""

    id: str
    data: bytes
    end: int


def frame_of(payload: bytes, header: bytes | None) -> Frame:
    """Where a record names its schema: in the header if there is one, else in front of the payload. Raises Refused where it does not."""
    data = payload if header is None else header
    if len(data) > 4 and data[0] == 0:
        return Frame(str(int.from_bytes(data[1:5], "big")), data, 5)
    if len(data) > 16 and data[0] == 1:
        return Frame(str(uuid.UUID(bytes=data[1:17])), data, 17)
    where = "" if header is None else f"header {ID_HEADER}: "
    raise Refused(f"{where}found {_describe_bytes(data)}, {EXPECTED}")


def ids_of(records: Iterable[tuple[bytes | None, Any]]) -> set[str]:
    """The ids of the schemas that records name. A record is a pair of its payload and its header."""
    ids = set()
    for payload, header in records:
        if payload is not None:
            with suppress(Refused):
                ids.add(frame_of(payload, header).id)
    return ids


def _describe_bytes(data: bytes) -> str:
    if not data:
        return "nothing"
    return f"the bytes {data[:5].hex(' ')}{' …' if len(data) > 5 else ''}"
