"""Progress on a terminal: what takes a while, how many are done of how many, how fast, and how long it still takes."""

from __future__ import annotations

import datetime as dt
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from statehouse.commands.output import is_terminal
from statehouse.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK = 0.5  # seconds between two looks at what Spark has read
ENOUGH = 0.01  # of a total; before that the rate is not known: what Spark reads first is the table's own log


class Work(Progress):
    """What is going on, for as long as :func:`working`: a line for the whole, and one below it for the step in hand. It does
    nothing where nobody looks."""

    def __init__(self, lines: Any = None, text: str = "", total: int | None = None, of: str = "") -> None:
        self._lines, self.is_shown = lines, lines is not None
        self._whole = lines.add_task(text, total=total, of=of, visible=bool(text)) if lines else None
        self._step: Any = None
        self._done, self._total, self._counts_events = 0, 0, False
        self._lock = threading.Lock()
        self.records: Records | None = None  # what Spark reads is what is done, until the job says it

    def say(self, text: str) -> None:
        """What the whole is now."""
        if self._lines:
            self._lines.update(self._whole, description=text)

    def count(self) -> None:
        """One more of the whole's ``total`` is done."""
        if self._lines:
            self._lines.advance(self._whole)

    def begin(self, text: str, total: Callable[[], int | None] | None = None, of: str = "events") -> None:
        """See :class:`statehouse.progress.Progress`."""
        if not self._lines:
            return
        number = total() if total else None
        self.end()
        if number == 0:
            return
        with self._lock:
            self._done, self._total, self._counts_events = 0, number or 0, of == "events" and number is not None
            if self.records:
                self.records.restart()
            self._step = self._lines.add_task(text, total=number, of=of)

    def advance(self, count: int = 1) -> None:
        """See :class:`statehouse.progress.Progress`."""
        with self._lock:
            if self._step is None:
                return
            if self.records:
                self.records.restart()
            self._done += count
            self._show(self._done)

    def end(self) -> None:
        """See :class:`statehouse.progress.Progress`."""
        with self._lock:
            if self._step is not None:
                self._lines.remove_task(self._step)
                self._step = None

    def look(self) -> None:
        """Take what Spark has read of the events in hand for done."""
        with self._lock:
            if self._step is not None and self._counts_events and self.records:
                self._show(self._done + self.records.read())

    def _show(self, done: int) -> None:
        # All is read, and not yet written: for rich a task that is complete has ended, and its clock stops.
        self._lines.update(self._step, completed=min(done, self._total - 0.01))


class Records:
    """How many records Spark has read since :meth:`restart`: of the stage that has read the most, as each pass over the same
    events is a stage. What a task has read is known when it ends, and every ten seconds."""

    def __init__(self, spark: SparkSession) -> None:
        self._store = spark.sparkContext._jsc.sc().statusStore()
        self._stages: set[int] = set()
        self._last = -1  # the newest stage of what was before

    def restart(self) -> None:
        """Count anew, without the stages until now."""
        with suppress(Exception):
            self._last = max([self._last, *self._stages, *self._active()])
        self._stages = set()

    def read(self) -> int:
        """The records; 0 where Spark says nothing, as on its way down."""
        with suppress(Exception):
            self._stages |= {stage for stage in self._active() if stage > self._last}
            return max((self._store.lastStageAttempt(stage).inputRecords() for stage in self._stages), default=0)
        return 0

    def _active(self) -> list[int]:
        stages = self._store.activeStages()
        return [stages.apply(number).stageId() for number in range(stages.size())]


def counts(done: float, total: float | None, of: str, seconds: float) -> str:
    """``1,200 of 5,000 events, 400/s, 0:00:09 left``: empty where there is no total; a rate and a time where they are known."""
    if not total:
        return ""
    text = f"{round(done):,} of {round(total):,} {of}"
    if total * ENOUGH <= done <= total - 1 and seconds >= 1:
        rate = done / seconds
        text += f", {rate:,.0f}/s" if rate >= 1 else ""
        text += f", {dt.timedelta(seconds=int((total - done) / rate))} left"
    return text


@contextmanager
def working(text: str, total: int | None = None, of: str = "", spark: SparkSession | None = None) -> Iterator[Work]:
    """Show on a terminal's stderr what takes a while, with the seconds that it has taken, and a bar where there is a ``total`` of
    something. Without a text there are only the steps that a job tells. ``spark``: whose reading counts as a step's progress."""
    if not is_terminal(sys.stderr):
        yield Work()
        return
    from rich.console import Console
    from rich.file_proxy import FileProxy
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Lines
    from rich.text import Text

    class Visible(Console):
        # A signal may end the process at once, and would leave the terminal without a cursor.
        def show_cursor(self, show: bool = True) -> bool:
            return False

    class Bar(BarColumn):
        # One without a total would run from side to side, beside the spinner that says the same.
        def render(self, task: Task) -> Any:
            return super().render(task) if task.total else Text()

    class Counts(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(counts(task.completed, task.total, task.fields["of"], task.elapsed or 0))

    # Of its own: while Spark starts, what is written to file descriptor 2 goes into Spark's log.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal:
        console = Visible(file=terminal, force_terminal=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}"), Bar(bar_width=20), Counts(), TimeElapsedColumn()]
        lines = Lines(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
        handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
        streams = [handler.setStream(FileProxy(console, handler.stream)) for handler in handlers]  # above the progress
        try:
            work = Work(lines, text, total, of)
            with lines, _looking(work, spark):
                yield work
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                if stream is not None:
                    handler.setStream(stream)


@contextmanager
def _looking(work: Work, spark: SparkSession | None) -> Iterator[None]:
    """Look now and then at what Spark has read, in a thread of its own: the job's waits for Spark."""
    if spark is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK):
            work.look()

    with suppress(Exception):  # a Spark that is a service elsewhere has no such store
        work.records = Records(spark)
    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(5)
