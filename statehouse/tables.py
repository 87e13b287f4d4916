"""Where the tables are, and what their Delta logs say. Read with ``deltalake``: no Spark, no query.

What a table's commits carry besides rows:

* ``changelog/<stream>``: each commit that ingests holds ``{"topic": "t", "id": "vPeO…", "offsets": {"0": 17}}``, or with several topics
  ``{"topics": {"t": {"id": "vPeO…", "partitions": {"0": 3}}}, "offsets": {"3": 17}}`` (:mod:`statehouse.numbering`), as its
  ``userMetadata``: Kafka's id of the topic, where it gives one, and the next offset of every partition, counting refused events
  and offsets without a record. One that loads a file holds the
  ``txn`` action ``load:<the file's SHA-256>``.
* ``state/<store>``: the ``txn`` action ``changelog`` holds the changelog's version that is folded (after a recovery
  ``changelog.1``, and so on: see :func:`folded`); ``userMetadata`` of the same commit holds ``{"unkeyed": n, "late": n}``,
  the running counts of events without a key, and of events that came after the retention of their window.
* The table that a route writes: the ``txn`` action ``route:<name>`` holds the changelog's version that was sent there.
* ``positions/route.<name>``, a table without rows: the same of a route to a topic, ``route:<name>:<topic>``.
  ``positions/publish.<store>``: the state's version that was published. ``userMetadata`` of such a commit holds ``{"route:…": {"0": 17}}``, the next offsets, for when the changelog's feed is lost.
* ``positions/once``, also without rows: ``userMetadata`` holds ``{"once:<parts>": …}``, what a run that left nothing undone has seen (:mod:`jobs.idle`).
* ``tasks``: ``userMetadata`` of every commit holds ``{"tasks": {"streams": …, "offsets": …, "stores": …}}``, how far they are registered and watched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from statehouse.config.models import Config, Route, Store, Stream
from statehouse.fold import Rule
from statehouse.places import remote

POSITION = "changelog"  # the application id of the txn action
MOST_COMMITS = 100  # of which it is looked what they added
WITHOUT_ROWS = ("OPTIMIZE", "SET TBLPROPERTIES", "ADD COLUMNS", "CLUSTER BY")  # Delta's operations that add none
LOADED = -1  # the partition of events that came from files; Kafka's begin with 0
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
RANK = {
    "_rank": "BIGINT"
}  # besides, in a stream with `order:`: the event's place in the order, before partition and offset
HEADER_COLUMNS = {"_headers": "MAP<STRING, STRING>", "_timestamp_type": "STRING"}  # besides, with `keep_headers: true`
TOPIC_PARTITION = "_topic_partition"  # besides, in a stream with `topics:`: Kafka's own number of the partition
TASK_COLUMNS = {
    "id": "STRING",
    "task": "STRING",  # the rule; null: it was asked for
    "stream": "STRING",
    "store": "STRING",  # what it waits for: a state,
    "key": "STRING",  # of this key,
    "value": "STRING",  # and, of one that was asked for, this value, as JSON
    "since": "TIMESTAMP",
    "due": "TIMESTAMP",
    "status": "STRING",  # waiting, sent, cancelled or failed
    "ended": "TIMESTAMP",  # when the state was no longer so
    "reason": "STRING",
    "sent": "BIGINT",  # how often
    "sent_at": "TIMESTAMP",
    "topic": "STRING",
    "message_key": "STRING",
    "message": "STRING",
    "set": "STRING",  # the store that the message is a set of
    "position": "BIGINT",  # the changelog's version that asked for it
}
DEFINITION = "statehouse.definition"  # the table property that holds the rule a state was folded by
BUCKETS = "statehouse.buckets"  # of a state that is partitioned: into how many, by the column
BUCKET = "_bucket"
ORDERED = "statehouse.order"  # of a changelog whose events have a rank: the expression that gives it
CLUSTERED = "statehouse.cluster_by"  # of a changelog that is compacted in an order: the columns
MARKS = ("ranked", "captured")  # what a rule has of its stream, kept with it where it is so
FOLD = "statehouse.fold"  # of a state: by which of the product's folds, where they gave different rows
FOLDS = 2  # of which the newest counts windows in 64 bits, and takes structs by the names that they were declared with
REQUEUED_COLUMNS = {
    "partition": "INT",  # of the record that was refused
    "offset": "BIGINT",
    "sent_as": "STRING",  # what it came back as: t:0:17
    "log_time": "TIMESTAMP",
}
VECTORS, MARKING = (
    "delta.enableDeletionVectors",
    "deletionVectors",
)  # that a table's rows are marked as deleted: its property, Delta's feature
GENERATION = "statehouse.generation"  # how often a state, or its tombstones, was replaced as a whole: by recover


def changelog_columns(stream: Stream) -> dict[str, str]:
    """The columns of a stream's changelog: the payload's, those of its lookups, then the system's."""
    return {**{c.name: c.type for c in stream.known}, **event_columns(stream)}


def event_columns(stream: Stream) -> dict[str, str]:
    """What the system knows of an event of a stream."""
    ranked, headers = (RANK if stream.ranked else {}), (HEADER_COLUMNS if stream.keep_headers else {})
    return {**EVENT_COLUMNS, **ranked, **headers, **({TOPIC_PARTITION: "INT"} if stream.several else {})}


def coordinates(stream: Stream) -> list[str]:
    """SQL: where an event, or a record, is in Kafka, as its token says it: the topic, the partition and the offset."""
    kafkas = f"coalesce({TOPIC_PARTITION}, _partition)" if stream.several else "_partition"
    return ["_topic", kafkas, "_offset"]


def table(config: Config, kind: str, name: str) -> str:
    """The path of ``changelog/<stream>``, ``state/<store>``, ``tombstones/<store>``, ``quarantine/<stream>``, ``requeued/<stream>``,
    ``routes/<table>`` or ``positions/<job>``."""
    return f"{config.root}/{kind}/{name}"


def tasks_table(config: Config) -> str:
    """The path of ``tasks``."""
    return f"{config.root}/tasks"


def route_position(config: Config, route: Route) -> tuple[str, str]:
    """Where a route's position is: a table, and the application id of its ``txn``."""
    if route.to.table:
        return table(config, "routes", route.to.table), f"route:{route.name}"
    return table(config, "positions", f"route.{route.name}"), f"route:{route.name}:{route.to.topic}"


def publish_position(config: Config, store: Store, delta: DeltaTable) -> tuple[str, str]:
    """Where the position of a published store is. Another topic, ``where`` or state than before has none."""
    assert store.publish
    what = hashlib.sha256(
        json.dumps([store.publish.where, delta.metadata().id, generation(delta)]).encode()
    ).hexdigest()
    path = table(config, "positions", f"publish.{store.name}")
    return path, f"publish:{store.name}:{store.publish.topic}:{what[:16]}"


def opened(path: str) -> DeltaTable | None:
    """The table at its newest version, or None where there is none yet."""
    if not remote(path) and not (Path(path) / "_delta_log").is_dir():
        return None
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def generation(delta: DeltaTable) -> int:
    """How often recover has replaced the table."""
    return int(delta.metadata().configuration.get(GENERATION, 0))


def buckets(delta: DeltaTable | None) -> int | None:
    """Into how many buckets a state's table is partitioned; None: it is not."""
    count = delta.metadata().configuration.get(BUCKETS) if delta else None
    return int(count) if count else None


def application(generation: int) -> str:
    """The application id of a generation's position: Delta passes over a commit whose number an id has already, and a
    recovery may well end at the position that the state had."""
    return f"{POSITION}.{generation}" if generation else POSITION


def folded(delta: DeltaTable) -> int | None:
    """The changelog version that a version of a state has folded; None: nothing yet."""
    return delta.transaction_version(application(generation(delta)))


def position(path: str) -> int | None:
    """The changelog version that a state has folded; None: nothing yet."""
    delta = opened(path)
    return folded(delta) if delta else None


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
    return next((fields for _, fields in _user_metadata(delta) if field in fields), None) if delta else None


def covered(delta: DeltaTable, most: int | None = None) -> dict[str, Any] | None:
    """What a version of a changelog, or the last before ``most``, has of its topic: ``topic``, its ``id`` where that is known, and by
    partition the next ``offsets``.
    None: it is not known, as the log no longer has the commit that says so. Where the table has changed meanwhile it is the newest
    version's."""
    first = None
    for version, fields in _user_metadata(delta):
        first = version
        if "offsets" in fields and (most is None or (version is not None and version <= most)):
            return {**fields, "offsets": {int(p): o for p, o in fields["offsets"].items()}}
    return {"offsets": {}} if first == 0 else None


def offsets_at(path: str, version: int) -> dict[int, int] | None:
    """By partition the next offset that a version of a changelog covers, which need not be the newest; None as :func:`covered`."""
    while True:
        delta = DeltaTable(path)
        coverage = covered(delta, version)
        if DeltaTable(path).version() == delta.version():  # else the entries may be numbered wrongly
            return None if coverage is None else coverage["offsets"]


def _user_metadata(delta: DeltaTable) -> Iterator[tuple[int | None, dict[str, Any]]]:
    """The commits' versions and ``userMetadata``, newest first; empty where that is none of ours."""
    for entry in commits(delta):
        try:
            fields = json.loads(entry.get("userMetadata") or "null")
        except ValueError:
            fields = None
        yield entry.get("version"), fields if isinstance(fields, dict) else {}


def commit_time(path: str, version: int) -> int | None:
    """When a version was committed, in milliseconds since 1970; None where the log has it no longer."""
    delta = opened(path)
    for entry in commits(delta) if delta else ():
        if entry.get("version") == version:
            return entry.get("timestamp")
    return None


def fold_of(delta: DeltaTable) -> int:
    """By which of the product's folds a state was made."""
    return int(delta.metadata().configuration.get(FOLD, 1))


def definition_of(rule: Rule) -> str:
    """A rule with its types as the text that is kept in a state table's properties."""
    marks = {name: True for name in MARKS if getattr(rule, name)}
    return json.dumps({**rule.store.definition, **marks, "types": rule.types}, sort_keys=True)


def stored_rule(delta: DeltaTable | None, name: str) -> Rule | None:
    """The rule that a state table is folded by, with the types that Spark found; None where it has none."""
    text = delta.metadata().configuration.get(DEFINITION) if delta else None
    if text is None:
        return None
    types = (definition := json.loads(text)).pop("types")
    marks = {name: definition.pop(name) for name in MARKS if name in definition}
    store = Store.model_validate({**definition, "name": name})
    keys = len(store.keys)
    return Rule(store, tuple(types[:keys]), types[keys], tuple(types[keys + 1 :]), **marks)


def select(delta: DeltaTable, query: str) -> list[dict[str, Any]]:
    """Rows of a query of one table, which is ``found`` in it, by DataFusion: Spark takes a second for any."""
    return [row for batch in batches(delta, query) for row in batch.to_pylist()]


def batches(delta: DeltaTable, query: str) -> Iterator[pa.RecordBatch]:
    """The same, as they are read."""
    engine = QueryBuilder().register("found", delta)
    engine.execute("SET datafusion.execution.parquet.coerce_int96 = 'us'")  # in nanoseconds the year 2500 is long ago
    for batch in engine.execute(query):
        yield pa.record_batch(batch)


def deleted_rows(delta: DeltaTable) -> dict[str, pa.Array]:
    """By a file's path in the table the numbers of its rows that are marked as deleted; of files that have any."""
    if MARKING not in (delta.protocol().reader_features or []):
        return {}
    vectors, root = pa.table(delta.deletion_vectors()), unquote(urlsplit(delta.table_uri).path).rstrip("/") + "/"
    return {
        unquote(urlsplit(uri).path).removeprefix(root): pc.indices_nonzero(pc.invert(mask.values))
        for uri, mask in zip(vectors["filepath"].to_pylist(), vectors["selection_vector"], strict=True)
    }


def rows_and_bytes(path: str, version: int | None = None) -> tuple[int, int]:
    """A table's rows (by its statistics) and bytes at a version, or the newest one; zeros where there is none."""
    if opened(path) is None:
        return 0, 0
    delta = DeltaTable(path, version=version)
    return row_count(delta), byte_count(delta)


def rows_since(path: str, version: int | None) -> float:
    """How many rows a table has got since a version, by its newest commits; infinity where they do not tell, or are many."""
    delta = opened(path)
    count = delta.version() - version if delta and version is not None else MOST_COMMITS + 1
    if delta is None or not 0 <= count <= MOST_COMMITS:
        return float("inf")
    infos = [info for info in (delta.history(count) if count else ()) if info.get("operation") not in WITHOUT_ROWS]
    return sum(float(info.get("operationMetrics", {}).get("numOutputRows", "inf")) for info in infos)


def row_count(delta: DeltaTable) -> int:
    """A version's rows, by its statistics and without those that are marked as deleted."""
    return _sum(delta, "num_records") - sum(map(len, deleted_rows(delta).values()))


def byte_count(delta: DeltaTable) -> int:
    """The bytes of a version's files."""
    return _sum(delta, "size_bytes")


def files(delta: DeltaTable) -> pa.Table:
    """A version's files: ``path`` within the table, ``size_bytes``, ``num_records``, and more."""
    # By pa.table pandas would be imported, which takes as long as all else here.
    return pa.RecordBatchReader.from_stream(delta.get_add_actions(flatten=True)).read_all()


def _sum(delta: DeltaTable, name: str) -> int:
    actions = files(delta)
    return (pc.sum(actions[name]).as_py() or 0) if name in actions.schema.names else 0
