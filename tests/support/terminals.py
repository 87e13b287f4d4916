"""Commands under a terminal of their own, as someone who types sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time


def _take_terminal():
    """Ctrl-C that is typed is a signal for the process, also where the tests themselves run in the background, which take no notice of it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def on_terminal(words, answers=(), seconds=300, prompt="> ", **options):
    """Run Python with some words under a pty; each of the answers is typed when the prompt is the last that is shown. The exit
    code, and all that was shown."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "200", **options.pop("environ", {})}
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(
        [sys.executable, *words], env=environ, start_new_session=True, preexec_fn=_take_terminal, **ends, **options
    )
    os.close(theirs)
    shown, waiting, until = b"", list(answers), time.monotonic() + seconds
    answered = 0
    try:
        while True:
            assert time.monotonic() < until, shown.decode()
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                read = os.read(ours, 65536)
            except OSError:  # all its ends are closed
                break
            if not read:
                break
            shown += read
            if waiting and shown[answered:].rstrip(b"\r\n").endswith(prompt.encode()):
                answered = len(shown)
                os.write(ours, waiting.pop(0).encode())
    finally:
        os.close(ours)
        process.kill() if time.monotonic() >= until else None
        code = process.wait()
    assert not waiting, shown.decode()
    return code, shown.decode().replace("\r\n", "\n")
