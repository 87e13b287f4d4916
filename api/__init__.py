"""The serving half: Flask over a replica of the lake in DuckDB. Imports neither Spark nor the jobs.

``create_app`` makes the app; each module is one concern: ``app`` puts them together, ``stores`` reads, ``writes`` writes, ``page``
is for people, ``gate`` says who may, ``problems`` is what errors look like, ``replica`` follows the lake, ``server`` serves.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Not before it is wanted: the process that starts the workers has no use for what takes them a second to import.
    from api.app import create_app

    return create_app
