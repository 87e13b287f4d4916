"""``docs/tutorial.md`` works as it is printed, from top to bottom, in a folder of its own.

A fenced block is what its info string says: ``sh`` is commands, ``sh NAME`` one that goes on in a terminal of that name, and the
``text`` after either one all that it prints, where ``…`` stands for anything. A language and a file's name is a file to write. Anything
else is for reading only.

What differs from a reader's machine: ports are free ones, and ``9092`` and ``8080`` on the page stand for them; what needs Spark runs
in this process, whose session the tests share.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.pages import FENCE, folder, statehouse
from tests.support.records import free_port, wait
from tests.support.terminals import on_terminal

__all__ = ["folder"]  # a fixture
PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
IN_SPARK = ("check", "run", "recover")
READS = ("get", "scan", "history", "sql")  # may be asked again: what was sent is shown some tens of milliseconds later
NOT_ON_A_TERMINAL = re.compile(r"^.*: asking Spark \(a few seconds\) \.\.\.\n", re.MULTILINE)
COMMAND = ["-m", "statehouse.cli"]
SHOW = "SHOW" in os.environ  # print what is printed, and compare nothing: to write the page


class Reader:
    """Somebody who types what the page shows: with a terminal to type in, and others by their names."""

    def __init__(self):
        self.ports = {"9092": str(free_port()), "8080": str(free_port())}
        self.others = {}
        environ = {"STATEHOUSE_URL": self.here("http://127.0.0.1:8080"), "NO_COLOR": "1", "COLUMNS": "120"}
        self.environ = environ

    def here(self, text):
        """Text of the page, for this machine."""
        for shown, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{port}")
        return text

    def there(self, text):
        """Text of this machine, as the page has it."""
        for shown, port in self.ports.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{shown}")
        return text

    def does(self, lines, shown):
        """Run some lines; what they print. The reads at their end are repeated for some seconds, until they show what is shown."""
        until = time.monotonic() + (0 if SHOW else 20)
        outputs = [self.types(line) for line in lines]
        reads = [*itertools.takewhile(is_read, reversed(lines))][::-1]
        while True:
            output = self.there("".join(outputs))
            if shown is None or not reads or matches(shown, output) or time.monotonic() > until:
                return output
            time.sleep(0.2)
            outputs[-len(reads) :] = [self.types(line) for line in reads]

    def types(self, line):
        """Run a line; what it prints."""
        words = shlex.split(self.here(line), posix=True)
        if words[0] == "statehouse":
            return self._statehouse(words[1:])
        if words[0] == "cat":
            return Path(words[1]).read_text()
        if words[0] == "curl":
            return _get(words[1])
        assert words[0] == "python" and words[-2] == "<", f"cannot run {line!r}"
        with open(words[-1]) as given:
            done = subprocess.run(
                [sys.executable, *words[1:-2]], stdin=given, check=True, capture_output=True, text=True
            )
        return done.stdout + done.stderr

    def _statehouse(self, words):
        if words[0] in IN_SPARK:
            code, output = statehouse(words, {})
            assert code == 0, output
            return NOT_ON_A_TERMINAL.sub("", output)
        code, output = on_terminal([*COMMAND, *words], environ=self.environ)
        assert code == 0, output
        return output

    def starts(self, name, line, shown):
        """Start what goes on, in the terminal ``name``: what ran there before is stopped by Ctrl-C. It has to print what is shown;
        before that it may say that it fetches something."""
        if name in self.others:
            self.stops(name)
        words = shlex.split(line)[1:]
        port = self.ports["9092" if words[0] == "broker" else "8080"]
        log = Path(f"{name}.log")
        with log.open("w") as output:
            command = [sys.executable, *COMMAND, *words, "--port", port]
            self.others[name] = subprocess.Popen(command, stdout=output, stderr=output)
        wait(lambda: matches(f"…{shown}", self.there(log.read_text())), 120, what=f"{shown!r} of {line!r}")

    def stops(self, name):
        process = self.others.pop(name)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, name

    def ends(self):
        for process in self.others.values():
            process.kill()
            process.wait()


def is_read(line):
    """Whether a line only asks."""
    words = shlex.split(line)
    return words[0] == "curl" or (words[0] == "statehouse" and words[1] in READS)


def _get(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def tidy(text):
    """Text as it stands on the terminal in the end, without what progress has erased; colours, empty lines, and how wide a column is, do
    not count."""
    text = text.replace("\r", "")
    for erased in (r"[^\n]*\n\x1b\[1A\x1b\[2K", r"[^\n]*\x1b\[2K", r"\x1b\[[0-9;?]*[A-Za-z]"):
        text = re.sub(erased, "", text)
    rows = (re.sub(" +", " ", re.sub("─+", "─", row)).strip() for row in text.splitlines())
    return "\n".join(row for row in rows if row)


def matches(shown, output):
    """Whether an output is what is shown."""
    return re.fullmatch(".*".join(map(re.escape, tidy(shown).split("…"))), tidy(output), re.DOTALL) is not None


@pytest.mark.slow
def test_the_tutorial_works_as_printed(spark, folder):
    reader = Reader()
    blocks = [(info.split(), body) for info, body in FENCE.findall(PAGE)]
    compared = 0
    try:
        for (info, body), (after, shown) in zip(blocks, [*blocks[1:], ([], "")], strict=True):
            shown = shown if after == ["text"] else None
            if info[:1] == ["sh"] and len(info) == 2:
                reader.starts(info[1], body.strip(), shown)
            elif info == ["sh"]:
                output = reader.does(body.splitlines(), shown)
                if SHOW:
                    print(f"\n----- {body}{output}", file=sys.__stderr__)
                    continue
                assert shown is None or matches(shown, output), f"{body}prints\n{output}"
                compared += shown is not None
            elif len(info) == 2:
                Path(info[1]).write_text(reader.here(body))
        for name in [*reader.others][::-1]:
            reader.stops(name)
    finally:
        reader.ends()
    assert compared > 10 or SHOW
