"""Work that is tried, and tried again when it fails, each name on its own: one that fails keeps no other.

What fails is said in a line, counted in the metrics, and kept in the lake until it succeeds (:mod:`statehouse.failures`), so that
``status`` and the API, which are other processes, can show it.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from py4j.protocol import Py4JNetworkError

from jobs import metrics
from jobs.spark.position import Position
from statehouse.config.models import Config
from statehouse.errors import StatehouseError, first_line
from statehouse.failures import failing, failures_table

T = TypeVar("T")
log = logging.getLogger("statehouse")
LONGEST = 30.0  # seconds between two tries, at the most


def reason(error: BaseException) -> str:
    """An error in one line; one of our own in full."""
    return str(error) if isinstance(error, StatehouseError) else first_line(error)


class Attempts:
    """Of one part of the jobs, such as ``merge``, whose names are its stores. May be used by several threads."""

    def __init__(self, config: Config, part: str) -> None:
        self.part = part
        self._config, self._lock = config, threading.Lock()
        self._position = Position(failures_table(config, part), part)
        self._failing = failing(config, part)  # by name; also those of a process before
        self.errors: dict[str, Exception] = {}  # of the names whose last try failed
        self._counts: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def wait(self, name: str) -> float:
        """Seconds until a name is to be tried again."""
        return max(0.0, self._due.get(name, 0.0) - time.monotonic())

    def run(self, name: str, work: Callable[[], T]) -> T | None:
        """The result of ``work``; None where it fails, which is logged, or where it is too early to try it again. Raises the error where
        Spark's JVM is gone, as nothing can succeed any more."""
        if self.wait(name):
            return None
        try:
            result = work()
        except (Py4JNetworkError, ConnectionRefusedError):
            raise
        except Exception as error:
            self._fail(name, error)
            return None
        self.succeed(name)
        return result

    def _fail(self, name: str, error: Exception) -> None:
        self.errors[name] = error
        count = self._counts[name] = self._counts.get(name, 0) + 1
        self._due[name] = time.monotonic() + min(2.0**count, LONGEST)
        log.error("%s %s: %s", self.part, name, reason(error))
        log.debug("%s %s", self.part, name, exc_info=error)
        metrics.FAILING.labels(self.part, name).set(1)
        with self._lock:
            if self._failing.get(name, {}).get("error") != reason(error):
                since = dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
                self._keep({**self._failing, name: {"error": reason(error), "since": since}})

    def succeed(self, name: str) -> None:
        """Note that the work of a name succeeds; called by work that does not return, such as a stream."""
        self.errors.pop(name, None)
        self._counts.pop(name, None)
        self._due.pop(name, None)
        metrics.FAILING.labels(self.part, name).set(0)
        with self._lock:
            if name in self._failing:
                self._keep({other: failure for other, failure in self._failing.items() if other != name})

    def _keep(self, failing: dict[str, dict[str, str]]) -> None:
        self._failing = failing
        try:
            self._position.move((self._position.get() or 0) + 1, failing)
        except Exception as error:  # the lake itself may be what fails
            log.warning("failures/%s: %s", self.part, first_line(error))
