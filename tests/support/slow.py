"""A test that takes long says so by the mark ``slow``, so that `make test` stays fast. One that does not is named at the end
of the run, and fails it with ``FAIL_SLOW=1``: for a machine that has nothing else to do.
"""

from __future__ import annotations

import os

import pytest

SECONDS = 5


def limit() -> float:
    """The seconds that a test may take: more on a machine whose cores are wanted by others too."""
    return SECONDS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Clock:
    """A plugin of pytest that collects the tests which took too long. What a fixture takes does not count: it is for more
    than one test."""

    def __init__(self) -> None:
        self.late: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has run, in this process or in another."""
        if report.when == "call" and "slow" not in report.keywords and report.duration > limit():
            self.late[report.nodeid] = report.duration

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The run has ended."""
        if self.late and os.environ.get("FAIL_SLOW") == "1" and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which they were."""
        for name, seconds in self.late.items():
            terminalreporter.write_line(f"{name} took {seconds:.1f} s: make it faster, or mark it slow", red=True)
