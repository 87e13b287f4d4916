"""Spark's daemon of Python workers, for local jobs: SIGTERM to all processes at once does not end it or its workers, so that the batch in
hand is finished. It ends as the JVM does, whose pipe it reads.
"""

from __future__ import annotations

import signal

from pyspark import daemon

if __name__ == "__main__":
    # The JVM has it ignored (jobs.spark.session), and so has what it starts, unless it asks for a handler: as this one does, by this name.
    daemon.SIGTERM = signal.SIGUSR1  # type: ignore
    daemon.manager()
