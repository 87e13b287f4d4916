"""Keys as text: in Kafka, in a scan's cursor, and checked against their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote_to_bytes

from api.engine.types import canonical
from api.errors import Problem, bad_parameter, refused
from statehouse.config.models import Store
from statehouse.fold import Rule

# A part in a cursor, see `cursor`: no half of a surrogate pair is among the codes.
CODE = "(?:[0-9a-f]{1,3}|[1-9abcef][0-9a-f]{3}|d[0-7][0-9a-f]{2}|[1-9a-f][0-9a-f]{4}|10[0-9a-f]{4})"
ESCAPED = f"(?:[A-Za-z0-9_-]|~{CODE}~)*"


def kinds(store: Store, rule: Rule | None) -> list[str]:
    """The types of a key's parts; text where they are not known yet."""
    return list(rule.key_types) if rule else ["STRING"] * len(store.keys)


def typed(parts: Sequence[str], store: Store, types: Sequence[str]) -> list[str]:
    """The parts of a key in the form that both engines cast alike, or a problem."""
    names = "/".join(k.name for k in store.keys)
    if len(parts) != len(types):
        raise refused("bad-key", f"{len(parts)} parts separated by '/'", f"{len(types)}: {names}")
    checked = []
    for key, part, kind in zip(store.keys, parts, types, strict=True):
        try:
            checked.append(canonical(part, kind))
        except ValueError as error:
            raise refused("bad-key", repr(part[:100]), error, at=key.name) from None
    return checked


def size(parts: Sequence[str]) -> int:
    """The bytes of a key's text, before it is percent-encoded."""
    return sum(len(part.encode()) for part in parts) + len(parts) - 1


def kafka_key(parts: Sequence[str], store: Store) -> str:
    """The key's text in Kafka: as it is, or a composite key's parts percent-encoded with '/' between them."""
    return "/".join(quote(part, safe="") for part in parts) if store.composite else parts[0]


def of_text(text: str, store: Store) -> list[str]:
    """The parts of a key as it is in Kafka, not checked yet; a problem where they are not UTF-8, percent-encoded."""
    if not store.composite:
        return [text]
    if re.search("%(?![0-9A-Fa-f]{2})", text):  # to Spark it would be no key
        raise refused("bad-key", repr(text[:100]), "its parts percent-encoded, with '/' between them")
    return [utf8(unquote_to_bytes(part)) for part in text.split("/")]


def cursor(parts: Sequence[str]) -> str:
    """The place after a key, for the next page of a scan: each part after a '.', and what is neither a letter of ASCII, a
    digit, '-' nor '_' as its code in hexadecimal between '~': nothing in it has to be percent-encoded."""
    return "".join("." + re.sub("[^A-Za-z0-9_-]", lambda found: f"~{ord(found[0]):x}~", part) for part in parts)


def of_cursor(text: str, count: int) -> list[str]:
    """The key that a cursor was made of, or a problem."""
    parts = text.split(".")
    if len(parts) != count + 1 or parts[0] or not all(re.fullmatch(ESCAPED, part) for part in parts):
        raise bad_cursor(text)
    return [re.sub("~([0-9a-f]+)~", lambda found: chr(int(found[1], 16)), part) for part in parts[1:]]


def bad_cursor(text: str) -> Problem:
    """The problem of a cursor that no scan of this store has given."""
    return bad_parameter("cursor", text, "one that a scan of this store gave")


def utf8(part: bytes) -> str:
    """A part of a key, or a problem."""
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise refused("bad-key", repr(part[:50]), "UTF-8, percent-encoded") from None
