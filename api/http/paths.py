"""The key in a URL's path.

The parts of a composite key are separated by '/', and each is percent-encoded, so that a part may
hold an encoded '/'. WSGI hands over the path decoded, where that '/' looks like any other. So a server is asked
for the raw path, which `statehouse serve` (:mod:`api.server.wsgi`), gunicorn, uWSGI and werkzeug give. Under one that
does not, a path with too many parts is still clear when just one part of the key is text, as numbers and times
have no '/'; otherwise it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote_to_bytes

from api.engine.keys import kinds, typed, utf8
from api.errors import Problem
from statehouse.config.models import Store
from statehouse.fold import Rule


def store_and_key(path: str) -> tuple[str, str] | None:
    """The two that a path /stores/{store}/keys/{key} names, raw or decoded as the path is; None where it names none."""
    pieces = path.split("/", 4)  # in half the time of a regular expression
    if len(pieces) < 5 or pieces[0] or pieces[1] != "stores" or pieces[3] != "keys":
        return None
    return pieces[2], pieces[4]


def of_request(environ: Mapping[str, Any], store: Store, rule: Rule | None) -> list[str]:
    """The parts of the key that a request's path names, checked against the key's types if they are known."""
    types = kinds(store, rule)
    return typed([utf8(part) for part in _parts(environ, store, types)], store, types)


def of_path(raw: str, store: Store, rule: Rule | None) -> list[str]:
    """The same of the rest of a raw path, after /stores/{store}/keys/."""
    return typed([utf8(part) for part in _raw_parts(raw, store)], store, kinds(store, rule))


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


def _parts(environ: Mapping[str, Any], store: Store, kinds: Sequence[str]) -> list[bytes]:
    if named := store_and_key(raw_path(environ) or ""):
        return _raw_parts(named[1], store)
    named = store_and_key(environ["PATH_INFO"])
    assert named
    key = named[1].encode("latin-1")  # WSGI's way to put bytes into text
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
