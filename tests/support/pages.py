"""What pages show, run in this process as a stranger would."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import signal

import pytest

from statehouse.cli import main

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in; what a command changes in this process is put back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    levels = {name: logging.getLogger(name).level for name in (None, "statehouse")}
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("STATEHOUSE_")]:
        monkeypatch.delenv(name)
    yield tmp_path
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def console(block):
    """Run a console block; the numbers of commands run and of lines compared."""
    code = None
    ran = checked = 0
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        if command == "echo $?":
            assert expected == [str(code)], "the exit code of the command before"
            continue
        words = shlex.split(command)
        environ = dict(w.split("=", 1) for w in words if re.match(r"\w+=", w))
        words = words[len(environ) :]
        assert words[0] == "statehouse", f"cannot run {command!r}"
        code, output = statehouse(words[1:], environ)
        missing = unseen(expected, output.splitlines())
        assert missing is None, f"{missing!r} is not in the output of {command!r}, or not in this place:\n{output}"
        ran, checked = ran + 1, checked + len(expected)
    return ran, checked


def statehouse(arguments, environ):
    """Run the command in this process; its exit code, and what it wrote to stdout and stderr."""
    written = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(written),
    ):
        patch.setattr(logging.getLogger(), "handlers", [])  # pytest's own would keep the command's from being set up
        for name, value in environ.items():
            patch.setenv(name, value)
        try:
            code = main(arguments)
        except SystemExit as error:  # of argparse
            code = error.code
    return code, written.getvalue()


def unseen(expected, output):
    """The first expected line that does not come after those before it; None: all do."""
    rest = iter(output)
    for line in expected:
        pattern = ".*".join(map(re.escape, line.split("…")))
        if not any(re.fullmatch(pattern, found) for found in rest):
            return line
    return None
