"""Keys as text: in a URL's path, in Kafka, in a scan's cursor.

In a path the parts of a composite key are separated by '/', and each is percent-encoded, so that a part may
hold an encoded '/'. WSGI hands over the path decoded, where that '/' looks like any other. So a server is asked
for the raw path, which `statehouse serve` (:mod:`api.bridge`), gunicorn, uWSGI and werkzeug give. Under one that
does not, a path with too many parts is still clear when just one part of the key is text, as numbers and times
have no '/'; otherwise it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from api.errors import Problem, refused
from api.typed import canonical
from statehouse.config import Store
from statehouse.fold import Rule

SEGMENTS = 4  # of /stores/{store}/keys/{key}, up to the key
# A part in a cursor, see `cursor`: no half of a surrogate pair is among the codes.
CODE = "(?:[0-9a-f]{1,3}|[1-9abcef][0-9a-f]{3}|d[0-7][0-9a-f]{2}|[1-9a-f][0-9a-f]{4}|10[0-9a-f]{4})"
ESCAPED = f"(?:[A-Za-z0-9_-]|~{CODE}~)*"


def of_request(environ: Mapping[str, Any], store: Store, rule: Rule | None) -> list[str]:
    """The parts of the key that a request's path names, checked against the key's types if they are known."""
    types = kinds(store, rule)
    return typed([_utf8(part) for part in _parts(environ, store, types)], store, types)


def of_path(raw: str, store: Store, rule: Rule | None) -> list[str]:
    """The same of the rest of a raw path, after /stores/{store}/keys/."""
    return typed([_utf8(part) for part in _raw_parts(raw, store)], store, kinds(store, rule))


def decoded(raw: str) -> str:
    """A raw path as WSGI hands it over."""
    return unquote_to_bytes(raw).decode("latin-1") if "%" in raw else raw


def without(environ: Mapping[str, Any], suffix: str) -> Mapping[str, Any] | None:
    """The environment of a path without its last segment; None where that is a part of the key, whose '/' is encoded."""
    trimmed = dict(environ)
    raw = raw_path(environ)
    if raw is not None and not raw.endswith(f"/{suffix}"):
        return None
    trimmed["PATH_INFO"] = environ["PATH_INFO"][: -len(suffix) - 1]
    for name in ("RAW_URI", "REQUEST_URI"):
        if name in environ:
            trimmed[name] = str(environ[name]).partition("?")[0][: -len(suffix) - 1]
    return trimmed


def raw_path(environ: Mapping[str, Any]) -> str | None:
    """The path below the app as it was sent, where the server tells and where it is the same path."""
    target = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if not target:
        return None
    path = str(target).partition("?")[0]
    if "://" in path:  # a proxy's form: http://host/path
        path = "/" + path.partition("://")[2].partition("/")[2]
    prefix, info = (environ.get(n, "").encode("latin-1") for n in ("SCRIPT_NAME", "PATH_INFO"))
    if unquote_to_bytes(path) != prefix + info:
        return None
    segments = path.split("/", 1 + prefix.count(b"/"))
    return "/" + segments[-1] if len(segments) > 1 else None


def kinds(store: Store, rule: Rule | None) -> list[str]:
    """The types of a key's parts; text where they are not known yet."""
    return list(rule.key_types) if rule else ["STRING"] * len(store.keys)


def typed(parts: Sequence[str], store: Store, types: Sequence[str]) -> list[str]:
    """The parts of a key in the form that both engines cast alike, or a problem."""
    names = "/".join(k.name for k in store.keys)
    if len(parts) != len(types):
        raise refused("bad-key", f"{len(parts)} parts separated by '/'", f"{len(types)}: {names}")
    made = []
    for key, part, kind in zip(store.keys, parts, types, strict=True):
        try:
            made.append(canonical(part, kind))
        except ValueError as error:
            expected = str(error).removeprefix("expected ")
            raise refused("bad-key", repr(part[:100]), expected, at=key.name) from None
    return made


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
    return [_utf8(unquote_to_bytes(part)) for part in text.split("/")]


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
    return Problem(400, "bad-parameter", f"cursor: found {text[:100]!r}, expected one that a scan of this store gave")


def _parts(environ: Mapping[str, Any], store: Store, kinds: Sequence[str]) -> list[bytes]:
    decoded = environ["PATH_INFO"].encode("latin-1")  # WSGI's way to put bytes into text
    raw = raw_path(environ)
    tail = raw.split("/", SEGMENTS) if raw is not None else []
    if len(tail) > SEGMENTS:
        return _raw_parts(tail[SEGMENTS], store)
    key = decoded.split(b"/", SEGMENTS)[SEGMENTS]
    if not store.composite:
        return [key]
    parts = key.split(b"/")
    texts = [i for i, kind in enumerate(kinds) if kind.upper() == "STRING"]
    if (surplus := len(parts) - len(kinds)) > 0 and texts:
        if len(texts) > 1:
            raise Problem(
                400,
                "bad-key",
                f"found {len(parts)} parts separated by '/', expected {len(kinds)}: this server decodes %2F "
                "before it can be told from a separator, so a key of several texts cannot have it in a path",
            )
        at = texts[0]
        parts[at : at + surplus + 1] = [b"/".join(parts[at : at + surplus + 1])]
    return parts


def _raw_parts(raw: str, store: Store) -> list[bytes]:
    return [unquote_to_bytes(part) for part in (raw.split("/") if store.composite else [raw])]


def _utf8(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise refused("bad-key", repr(part[:50]), "UTF-8, percent-encoded") from None
