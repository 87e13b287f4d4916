"""Where log lines go: stderr, in every process of the command."""

from __future__ import annotations

import logging
import sys


def to_stderr() -> None:
    """Warnings of all, and what statehouse itself has to say; lines of the audit as they are, one JSON object each."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("statehouse").setLevel(logging.INFO)
    audit = logging.getLogger("statehouse.audit")
    if not audit.handlers:
        audit.addHandler(logging.StreamHandler(sys.stderr))
        audit.propagate = False
