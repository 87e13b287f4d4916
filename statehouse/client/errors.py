"""What the client raises. One root, :class:`ClientError`; each docstring says what the caller does next."""

from __future__ import annotations

import importlib
import json
from typing import Any

from statehouse.errors import StatehouseError

URN = "urn:statehouse:"


class ClientError(StatehouseError):
    """Anything that the client raises on purpose.

    ``acknowledged`` is the number of events that Kafka has of a bulk write which failed midway.
    """

    acknowledged = 0


class Unreachable(ClientError):
    """No instance answered, after all repeats: look whether the service runs. A write may have arrived or not."""


class Incomplete(ClientError):
    """An answer was cut off by the service: ask again."""


class MissingLibrary(ClientError, ImportError):
    """A library that this needs is not installed; the message says how to install it."""


class Problem(ClientError):
    """The service refused a request, with a problem document (RFC 9457): the message is its ``detail``.

    ``status`` is the HTTP status, ``type`` such as ``urn:statehouse:unknown-store``, ``title`` its meaning in a sentence, ``document``
    all of it.
    """

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status, self.document = status, document
        self.type = str(document.get("type", "about:blank"))
        self.title = str(document.get("title", ""))
        self.detail = str(document.get("detail", ""))
        super().__init__(f"{status} {self.title}: {self.detail}")

    @property
    def kind(self) -> str:
        """The type without its prefix, such as ``unknown-store``."""
        return self.type.removeprefix(URN)


class BadRequest(Problem):
    """400, 405, 413, 414, …: the request is wrong: correct it."""


class NotAllowed(Problem):
    """401, 403: the token is not known, or does not allow this."""


class NotFound(Problem):
    """404: there is no such store, version or task."""


class Conflict(Problem):
    """409, 410, 422: what is there does not fit the request; ``detail`` says what does."""


class NotYet(Problem):
    """504: a write that was waited for is not in the answers in time: try again, or wait longer."""


class Unavailable(Problem):
    """429, 5xx: the service cannot answer now, also after all repeats: try again later."""


BY_STATUS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict, 410: Conflict, 422: Conflict, 504: NotYet}


def problem_of(status: int, content: bytes) -> Problem:
    """The error that an answer tells; what is no problem document, such as a proxy's page, is its ``detail``."""
    try:
        document = json.loads(content)
        document["detail"]
    except (ValueError, TypeError, KeyError):
        document = {"title": "The answer is not the service's", "detail": content[:200].decode("utf-8", "replace")}
    kind = Unavailable if status == 429 or status >= 500 else BadRequest
    return BY_STATUS.get(status, kind)(status, document)


def library(name: str) -> Any:
    """An optional library, imported. MissingLibrary where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingLibrary(f"found no {name}, expected it: pip install {name}") from error
