"""Where log lines go: stderr, in every process of the command."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def to_stderr() -> None:
    """Warnings of all, and what statehouse itself has to say; lines of the audit as they are, one JSON object each."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("statehouse").setLevel(logging.INFO)
    for noisy in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)
    audit = logging.getLogger("statehouse.audit")
    if not audit.handlers:
        audit.addHandler(logging.StreamHandler(sys.stderr))
        audit.propagate = False


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Not the stack that py4j logs, by the root logger, where it still has to say something to a JVM that ends."""
    return "py4j" not in Path(record.pathname).parts
