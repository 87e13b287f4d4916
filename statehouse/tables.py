"""Where the tables are, and what their Delta logs say. Read with ``deltalake``: no Spark, no query.

What a table's commits carry besides rows:

* ``changelog/<stream>``: each commit that ingests holds ``{"offsets": {"0": 17}, "events": n, "quarantined": n}`` as
  its ``userMetadata``: the next offset of every partition, counting refused events, and running totals.
* ``state/<store>``: the ``txn`` action ``changelog`` holds the changelog's version that is folded;
  ``userMetadata`` of the same commit holds ``{"unkeyed": n}``, the running count of events without a key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from statehouse.config import Config, Store
from statehouse.fold import Rule

POSITION = "changelog"  # the application id of the txn action
# What the system knows of an event, in the changelog beside the payload's own columns.
EVENT_COLUMNS = {
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_event_time": "TIMESTAMP",
    "_log_time": "TIMESTAMP",
    "_op": "STRING",
    "_key": "STRING",
    "_store": "STRING",
    "_agent": "STRING",
    "_value": "STRING",
    "_payload": "STRING",
}
DEFINITION = "statehouse.definition"  # the table property that holds the rule a state was folded by


def table(config: Config, kind: str, name: str) -> str:
    """The path of ``changelog/<stream>``, ``state/<store>``, ``tombstones/<store>`` or ``quarantine/<stream>``."""
    return f"{config.root}/{kind}/{name}"


def opened(path: str) -> DeltaTable | None:
    """The table at its newest version, or None where there is none yet."""
    if "://" not in path and not (Path(path) / "_delta_log").is_dir():
        return None
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def position(path: str) -> int | None:
    """The changelog version that a state has folded; None: nothing yet."""
    delta = opened(path)
    return delta.transaction_version(POSITION) if delta else None


def commits(delta: DeltaTable) -> Any:
    """The commits' infos, newest first."""
    step = 20
    yield from delta.history(step)
    seen = step
    while seen <= delta.version():
        step *= 4
        yield from delta.history(step)[seen:]
        seen = step


def metadata(path: str, field: str) -> dict[str, Any] | None:
    """The newest commit's ``userMetadata`` that has a field; None where no commit that is still logged has."""
    delta = opened(path)
    for entry in commits(delta) if delta else ():
        try:
            found = json.loads(entry.get("userMetadata") or "null")
        except ValueError:
            continue
        if isinstance(found, dict) and field in found:
            return found
    return None


def commit_time(path: str, version: int) -> int | None:
    """When a version was committed, in milliseconds since 1970; None where the log has it no longer."""
    delta = opened(path)
    for entry in commits(delta) if delta else ():
        if entry.get("version") == version:
            return entry.get("timestamp")
    return None


def definition_of(rule: Rule) -> str:
    """A rule with its types as the text that is kept in a state table's properties."""
    return json.dumps({**rule.store.definition, "types": [*rule.key_types, rule.value_input]}, sort_keys=True)


def stored_rule(config: Config, store: Store) -> Rule | None:
    """The rule that a store's table is folded by, with the types that Spark found; None where there is no table yet."""
    delta = opened(table(config, "state", store.name))
    kept = delta.metadata().configuration.get(DEFINITION) if delta else None
    if kept is None:
        return None
    *key_types, value_input = (found := json.loads(kept)).pop("types")
    return Rule(Store.model_validate({**found, "name": store.name}), tuple(key_types), value_input)
