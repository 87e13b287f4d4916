"""The tokens file: who may use the API, and for what. It is read again when it changes.

::

    dashboard: {token: "sha256:9f86d081…", scopes: [read]}    # printf %s TOKEN | sha256sum
    till-17: {token: aVerySecretText, scopes: [read, write]}
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import reprlib
import stat
import threading
from contextlib import suppress
from typing import Any, NamedTuple

from statehouse.errors import ConfigError
from statehouse.yaml_file import YamlFile, read_yaml

SCOPES = ("read", "write")
log = logging.getLogger("statehouse.api")


class Holder(NamedTuple):
    """Whose token it is, and what it allows."""

    name: str
    digest: bytes  # SHA-256 of the token
    scopes: tuple[str, ...]


class Tokens:
    """Follows a tokens file; thread-safe. Raises ConfigError where it is wrong from the start; one that goes wrong later
    is logged, and the tokens of before stay valid."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stamp = self._look()
        self._holders = read(file)
        self._reading = threading.Lock()

    def find(self, token: str) -> Holder | None:
        """Whose token this is. All are compared, each in constant time."""
        digest = hashlib.sha256(token.encode()).digest()
        same = [holder for holder in self._current() if hmac.compare_digest(holder.digest, digest)]
        return same[0] if same else None

    def _current(self) -> list[Holder]:
        if self._look() != self._stamp:
            with self._reading:
                if (stamp := self._look()) != self._stamp:  # not read by another thread meanwhile
                    self._read_again()
                    self._stamp = stamp  # of before it was read: what changed since then is read by the next look
        return self._holders

    def _read_again(self) -> None:
        try:
            self._holders = read(self._file)
        except ConfigError as error:
            log.error("%s; the tokens of before stay valid", error)
        except Exception as error:  # that nobody foresaw; what it says may have a token in it
            log.error("%s: %s; the tokens of before stay valid", self._file, type(error).__name__)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read(file: str) -> list[Holder]:
    """The holders of a tokens file. Raises ConfigError with the line, never with a token."""
    with suppress(OSError):  # which reading it tells
        if not stat.S_ISREG(os.stat(file).st_mode):  # to open a pipe would be to wait for who writes
            raise ConfigError(f"{file}: found no regular file, expected a file of tokens (api: tokens)")
    document = read_yaml(file, "a file of tokens (api: tokens)", secret=True)
    data = document.data
    if not isinstance(data, dict) or not data:
        raise ConfigError(f"{file}:1: found no tokens, expected 'name: {{token: TEXT, scopes: [read, write]}}'")
    holders = [_holder(file, document, name, entry) for name, entry in data.items()]
    digests = [holder.digest for holder in holders]
    for holder in holders:
        if digests.count(holder.digest) > 1:
            raise _wrong(file, document, (holder.name, "token"), "one that another name has too", "a token of its own")
    return holders


def _holder(file: str, document: YamlFile, name: Any, entry: Any) -> Holder:
    if not isinstance(entry, dict) or set(entry) != {"token", "scopes"}:
        # A token may stand in the place of a name.
        names = ["something else"]
        if isinstance(entry, dict):
            names = [str(n) if n in ("token", "scopes") else "another name" for n in entry]
        raise _wrong(file, document, (name,), ", ".join(names) or "nothing", "token and scopes")
    token, scopes = entry["token"], entry["scopes"]
    if not isinstance(scopes, list) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise _wrong(file, document, (name, "scopes"), reprlib.repr(scopes), f"a list of {', '.join(SCOPES)}")
    if not isinstance(token, str):
        raise _wrong(file, document, (name, "token"), type(token).__name__, "a text, in quotes if need be")
    if token.startswith("sha256:"):
        if not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", token):
            raise _wrong(file, document, (name, "token"), "no SHA-256", "'sha256:' and 64 hexadecimal digits")
        digest = bytes.fromhex(token.removeprefix("sha256:"))
    elif not re.fullmatch(r"[A-Za-z0-9._~+/-]{8,}=*", token):  # what a Bearer header can carry (RFC 6750)
        raise _wrong(
            file, document, (name, "token"), "another text", "8 or more letters, digits or any of . _ ~ + / - ="
        )
    else:
        digest = hashlib.sha256(token.encode()).digest()
    return Holder(str(name), digest, tuple(scopes))


def _wrong(file: str, document: YamlFile, path: tuple, found: str, expected: str) -> ConfigError:
    where = ".".join(map(str, path))
    line = document.line_of(tuple(map(str, path)))
    return ConfigError(f"{file}:{line}: {where}: found {found}, expected {expected}")
