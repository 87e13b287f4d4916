"""SQL over the lake's tables, in a process of its own.

One statement at a time is answered there (:mod:`api.reads.sql_process`); others wait for their turn. The process is started with the
first statement, ends where none comes for a while, and is killed where a statement takes longer than ``api: max_time`` or its caller leaves.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

from api.engine.deadline import LOOK, Deadline, Turns
from api.errors import Problem
from api.reads.sql_process import NO_MEMORY, Failure, Result, Statement, receive, send
from statehouse.config.models import Config
from statehouse.tables import table, tasks_table

IDLE_SECONDS = 300.0


class SqlProcess:
    """The process that answers, and the line of those who wait for it. Thread-safe."""

    def __init__(self) -> None:
        self._turns = Turns(at_once=1)
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None
        self._starting = threading.Lock()
        self._stopped = False

    def ask(self, statement: Statement, limit: Deadline) -> Result | Failure:
        """What the process answers. Raises a problem where that takes too long or too many wait."""
        mine = Deadline(limit.left, lambda: not limit.left, self._turns)
        with mine.turn():
            if self._idle:
                self._idle.cancel()
            try:
                return self._asked(statement, limit)
            finally:
                self._idle = threading.Timer(IDLE_SECONDS, self._let_go)
                self._idle.daemon = True
                self._idle.start()

    def stop(self) -> None:
        """End the process, for good."""
        with self._starting:
            self._stopped = True
        self._end()

    def _end(self) -> None:
        if self._idle:
            self._idle.cancel()
        process, self._process = self._process, None
        if process:
            process.kill()
            process.wait()

    def _asked(self, statement: Statement, limit: Deadline) -> Result | Failure:
        process = self._running()
        assert process.stdin and process.stdout
        try:
            send(process.stdin, statement)
            while not select.select([process.stdout], [], [], min(LOOK, limit.left))[0]:
                limit.check()
            answer = receive(process.stdout)
        except BaseException:
            self._end()  # it may be at work yet
            raise
        if answer is None:
            self._end()
            return Failure(NO_MEMORY)
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, which is started where there is none."""
        with self._starting:
            if self._stopped:
                raise Problem(503, "busy", "the service is ending")
            if self._process is None or self._process.poll() is not None:
                # With -m its classes would have other names.
                command = [sys.executable, "-c", f"from api.reads.sql_process import main; main({os.getpid()})"]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            return self._process

    def _let_go(self) -> None:
        if self._turns.turns.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._turns.turns.release()


def tables(config: Config) -> dict[str, str]:
    """The tables that a statement may name, and where they are."""
    kinds = {"state": list(config.stores), "changelog": list(config.streams), "quarantine": list(config.streams)}
    paths = {f"{kind}.{name}": table(config, kind, name) for kind, names in kinds.items() for name in names}
    routed = [route.to.table for route in config.routes.values() if route.to.table]
    paths |= {f"routes.{name}": table(config, "routes", name) for name in routed}
    return paths | ({"tasks": tasks_table(config)} if config.tasks is not None else {})
