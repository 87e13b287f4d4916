"""Only so many requests may wait for something at once, or those that wait would take all threads."""

from __future__ import annotations

import threading

from api.errors import Problem


class Places(threading.BoundedSemaphore):
    """So many places, one of which a request holds as long as it is within. Where all are taken it is a problem (503), ``busy``."""

    def __init__(self, count: int, busy: str) -> None:
        super().__init__(count)
        self._busy = busy

    def __enter__(self, *_: object) -> bool:
        if not self.acquire(blocking=False):
            raise Problem(503, "busy", self._busy)
        return True
