"""Commands as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def session_of(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    alive = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = file.read_text().partition(" (")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, _, session = rest.rpartition(") ")[2].split()[:4]
        if int(session) == leader and state not in "ZX":
            alive.append(int(pid))
    return alive


def signal_all(leader: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to each process of a session, as systemd does it; one may end in between, or by another's end."""
    for pid in session_of(leader.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(leader: subprocess.Popen[bytes]) -> None:
    """Leave nothing behind, whatever a test has come to."""
    signal_all(leader, signal.SIGKILL)
    leader.wait()


def statehouse(folder, *words, **options):
    """Run the command as its own process in a folder; its output goes to a file there."""
    with open(folder / "command.log", "ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "statehouse.cli", *words],
            cwd=folder,
            stderr=log,
            stdout=subprocess.PIPE,
            **options,
        )
    assert done.returncode == 0, (folder / "command.log").read_text()[-3000:]
    return done.stdout.decode()
