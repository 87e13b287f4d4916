"""Progress: what is shown of a count, and what Spark has read. That the jobs tell how far they are is in their own tests."""

from __future__ import annotations

import threading

import pytest

from statehouse.commands.progress import LOOK, Records, Work, counts


@pytest.mark.parametrize(
    ("done", "total", "seconds", "shown"),
    [
        (0, None, 5, ""),
        (0, 5000, 5, "0 of 5,000 events"),
        (1200, 5000, 0.2, "1,200 of 5,000 events"),
        (1200, 5000, 3, "1,200 of 5,000 events, 400/s, 0:00:09 left"),
        (1200, 500_000, 3, "1,200 of 500,000 events"),
        (3, 10, 12, "3 of 10 events, 0:00:28 left"),
        (4999.99, 5000, 10, "5,000 of 5,000 events"),
    ],
)
def test_a_count_in_words(done, total, seconds, shown):
    assert counts(done, total, "events", seconds) == shown


def test_where_nobody_looks_nothing_is_counted():
    work = Work()
    work.begin("folding", lambda: pytest.fail("this may take a while"))
    work.advance()
    work.end()
    work.count()
    work.say("folded")
    work.look()


class Lines:
    """What rich is told: the steps in their order, and what is done of the newest one."""

    def __init__(self):
        self.steps, self.completed = [], 0

    def add_task(self, text, **_about):
        self.steps.append(text)
        return len(self.steps)

    def update(self, task, completed):
        assert task == len(self.steps)
        self.completed = completed

    def remove_task(self, _task):
        pass


def test_what_spark_reads_is_done_until_the_job_says_it(spark, tmp_path):
    path = str(tmp_path / "rows")
    spark.range(0, 100, 1, 4).write.parquet(path)
    slow = "java_method('java.lang.Thread', 'sleep', 10L)"  # of each row
    read = spark.read.parquet(path).where(f"{slow} IS NULL AND id >= 0")
    lines = Lines()
    work = Work(lines, "the whole")
    work.records = Records(spark)
    for _ in range(2):
        work.begin("reading", lambda: 100)
        job = threading.Thread(target=read.count)
        job.start()
        while job.is_alive():
            job.join(LOOK / 5)
            work.look()
        assert 99 < lines.completed < 100, "all is read, and the job goes on"
    work.advance(70)
    work.look()
    assert lines.completed == 70, "what was read before counts no more"
    work.end()
    assert lines.steps == ["the whole", "reading", "reading"]
