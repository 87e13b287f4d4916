"""``statehouse.yaml``: what a user writes. ``models`` is its shape, ``file`` reads it and says which line is wrong.

It imports of ``statehouse`` what is below it, and no engine: expressions are tried by those that will run them (:mod:`jobs.check`
for Spark, :mod:`api.engine.check` for DuckDB). What users import is here; our own code imports it from where it is.
"""

from statehouse.config.file import DEFAULT_FILE, chosen, from_document, load, rule_file
from statehouse.config.models import (
    ISOLATION,
    Api,
    Config,
    Jobs,
    Key,
    Lookup,
    Own,
    Publish,
    Route,
    Send,
    SetKey,
    Source,
    Store,
    Stream,
    Target,
    Task,
)

__all__ = [
    "DEFAULT_FILE",
    "ISOLATION",
    "Api",
    "Config",
    "Jobs",
    "Key",
    "Lookup",
    "Own",
    "Publish",
    "Route",
    "Send",
    "SetKey",
    "Source",
    "Store",
    "Stream",
    "Target",
    "Task",
    "chosen",
    "from_document",
    "load",
    "rule_file",
]
