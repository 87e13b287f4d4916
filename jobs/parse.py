"""Kafka's records as rows of the changelog, or the reason why one is refused. Nothing here reads or writes.

A payload is refused when it is not a JSON object of the stream's schema; a control event (see
:mod:`statehouse.kafka` for its headers) when its operation, store, key or value is not one. What Spark's JSON
reader lets pass is taken: a number for a STRING is its text, fields outside the schema are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from jobs.lookup import Lookups, many
from statehouse.config import Stream
from statehouse.fold import Rule, literal, quoted
from statehouse.kafka import OP_HEADER, STORE_HEADER, TASK_OPERATIONS
from statehouse.tables import EVENT_COLUMNS
from statehouse.values import TOPIC_NAME, Column

CORRUPT = "_corrupt"
# As in jobs.feed.new: a time that is no number in the code that Spark makes.
NOW = "array(current_timestamp())[CASE WHEN _partition IS NULL THEN 1 ELSE 0 END]"
LEAST, GREATEST = "TIMESTAMP '0001-01-01 00:00:00'", "TIMESTAMP '9999-12-31 23:59:59.999999'"
# The reader takes the first object and looks no further. In a flat one the only brace that closes is the last byte (of text
# Spark looks for each character's end). Any other is read again with an object behind it, which must come next.
FLAT = "endswith(_text, '}') AND NOT contains(substring(CAST(_text AS BINARY), 1, octet_length(_text) - 1), X'7D')"
NEXT = """get(from_json(concat('[', _text, ', {"_end": ""}]'), 'ARRAY<STRUCT<_end: STRING>>'), 1)._end"""
SINGLE = f"({FLAT}) OR {NEXT} <=> ''"


def _field(name: str) -> str:
    return f"_json.{quoted(name)}"


def _json_path(name: str) -> str:
    return "$['" + name.replace("'", "\\'") + "']"


def _report_reason(stream: Stream) -> str:
    """SQL: why a report is refused, or null. The later branches are only for what the JSON reader refused."""
    found = [
        f"CASE WHEN {_field(c.name)} IS NULL AND get_json_object(_text, {literal(_json_path(c.name))}) IS NOT NULL "
        f"THEN concat({literal(f'{c.name}: found ')}, left(get_json_object(_text, {literal(_json_path(c.name))}), 100), "
        f"{literal(f', expected {c.type}')}) END"
        for c in stream.columns
    ]
    wrong = f"concat_ws('; ', {', '.join(found)})"
    branches = [
        ("_text IS NULL", "'not UTF-8'"),
        (
            r"NOT startswith(trim(LEADING ' \t\r\n' FROM _text), '{')",
            "concat('not a JSON object: found ', coalesce(nullif(left(_text, 40), ''), 'nothing'))",
        ),
        (f"_json.{CORRUPT} IS NOT NULL", f"coalesce(nullif({wrong}, ''), 'not JSON')"),
        ("NOT _single", "'not JSON: found more after the object'"),
    ]
    branches += [
        (f"{_field(c.name)} IS NULL", literal(f"{c.name}: found nothing, expected {c.type} NOT NULL"))
        for c in stream.columns
        if c.required
    ]
    branches += [
        (
            f"CAST({_field(c.name)} AS TIMESTAMP) NOT BETWEEN {LEAST} AND {GREATEST}",
            literal(f"{c.name}: found a time outside the years 1 to 9999"),
        )
        for c in _times(stream.columns)
    ]
    if stream.time_columns:
        given = " OR ".join(f"{_field(c)} IS NOT NULL" for c in stream.time_columns)
        branches += [
            (f"({given}) AND _time IS NULL", literal(f"found no time in {stream.time}")),
            (
                f"_time NOT BETWEEN {LEAST} AND {GREATEST}",
                "'found an event time outside the years 1 to 9999'",
            ),
        ]
    for lookup in stream.lookups:
        rows, by = quoted(many(lookup)), f"concat_ws('/', {', '.join(by for _, by in lookup.matches)})"
        said = f"concat({literal(f'{lookup.name}: found ')}, {rows}, ' rows with the key ', {by}, ', expected one')"
        branches.append((f"{rows} > 1", said))
    branches.append(
        ("_time IS NULL AND _timestamp IS NULL", "'found no time, expected one: a row of a file has no other'")
    )
    return _case(branches)


def _control_reason(rules: Iterable[Rule], tasks: Sequence[str] | None) -> str:
    """SQL: why a set, a purge, a task or its end is refused, or null."""
    rules = list(rules)
    operations = ["set", "purge", *(TASK_OPERATIONS if tasks is not None else ())]
    expected_operations = " or ".join([", ".join(operations[:-1]), operations[-1]])
    names = ", ".join(literal(r.store.name) for r in rules) or "''"
    expected = ", ".join(r.store.name for r in rules) or "none: this stream has no stores"
    branches = [
        (
            f"_op NOT IN ({', '.join(map(literal, operations))})",
            f"concat({literal(OP_HEADER)}, ': found ', _op, {literal(f', expected {expected_operations}')})",
        ),
        (
            "_key IS NULL AND (_op IN ('set', 'purge') OR _store IS NOT NULL)",
            "concat('a ', _op, ' without a key in UTF-8')",
        ),
        (
            f"_store NOT IN ({names})",
            f"concat({literal(STORE_HEADER)}, ': found ', _store, {literal(f', expected one of {expected}')})",
        ),
        ("_op = 'set' AND _store IS NULL", literal(f"a set without the header {STORE_HEADER}")),
        (
            "_op = 'set' AND (_text IS NULL OR json_object_keys(_text) IS NULL"
            " OR NOT array_contains(json_object_keys(_text), 'value'))",
            '\'a set whose payload is not a JSON object such as {"value": 1, "agent": "a"}\'',
        ),
    ]
    branches += _task_reasons(tasks) if tasks is not None else []
    for rule in rules:
        if rule.store.windows:
            reason = literal(f"a set on {rule.store.name}, expected a purge: it has windows, and a set names none")
            branches.append((f"_store = {literal(rule.store.name)} AND _op = 'set'", reason))
            reason = literal(f"a task that waits for {rule.store.name}, expected a store without windows")
            branches.append((f"_store = {literal(rule.store.name)} AND _op = 'task'", reason))
        mine = f"_store = {literal(rule.store.name)}"
        missing = " OR ".join(f"({k}) IS NULL" for k in rule.control_keys())
        kinds = literal(f", expected a key of {rule.store.name}: {'/'.join(rule.key_types)}")
        branches.append((f"{mine} AND ({missing})", f"concat('found the key ', left(_key, 100), {kinds})"))
        value = literal(f", expected {rule.event_type}")
        branches.append(
            (
                f"{mine} AND _op = 'set' AND _value IS NOT NULL AND ({rule.set_value()}) IS NULL",
                f"concat('value: found ', left(_value, 100), {value})",
            )
        )
        if rule.store.reducer.additive:
            reason = literal(f"a set of null, expected a value: to clear a key of {rule.store.name}, purge it")
            branches.append((f"{mine} AND _op = 'set' AND _value IS NULL", reason))
    return _case(branches)


def _task_reasons(stores: Sequence[str]) -> list[tuple[str, str]]:
    """Why a task is refused: its payload is ``{"due": …, "send": {"topic", "key", "value"}}``, or with ``"set": {"store", "key",
    "value"}``; with ``"value"`` it waits for the state of the key and the store that its record names. What it sets is one of the ``stores``."""
    names, expected = ", ".join(map(literal, stores)) or "''", ", ".join(stores) or "none: no store can be set"

    def found(path: str) -> str:
        return f"get_json_object(_text, '$.{path}')"

    topic, store = found("send.topic"), found("set.store")
    return [
        (
            f"_op = 'cancel' AND {found('id')} IS NULL",
            """'a cancel whose payload is not a JSON object such as {"id": "t:0:17"}'""",
        ),
        (
            f"_op = 'task' AND coalesce(CAST({found('due')} AS TIMESTAMP) NOT BETWEEN {LEAST} AND {GREATEST}, TRUE)",
            f"concat('due: found ', coalesce({found('due')}, 'nothing'), ', expected a time such as 2026-05-01T10:00:00Z')",
        ),
        (
            f"_op = 'task' AND ({topic} IS NULL) = ({store} IS NULL)",
            "'a task without send.topic and set.store, or with both, expected one'",
        ),
        (
            f"_op = 'task' AND NOT {topic} RLIKE '^{TOPIC_NAME}$'",
            f"concat('send.topic: found ', left({topic}, 300), ', expected letters, digits, . _ and -')",
        ),
        (
            f"_op = 'task' AND {store} NOT IN ({names})",
            f"concat('set.store: found ', left({store}, 100), {literal(f', expected one of {expected}')})",
        ),
        (
            f"_op = 'task' AND {store} IS NOT NULL AND ({found('set.key')} IS NULL"
            " OR NOT array_contains(json_object_keys(get_json_object(_text, '$.set')), 'value'))",
            "'set: found no key or no value, expected both'",
        ),
        (
            "_op = 'task' AND _store IS NULL AND array_contains(json_object_keys(_text), 'value')",
            literal(f"value: found one, expected the header {STORE_HEADER} too: whose value is waited for"),
        ),
        (
            f"_op = 'task' AND array_contains(json_object_keys(_text), 'value') AND {found('value')} IS NULL",
            "'value: found null, expected a value'",
        ),
    ]


def _case(branches: list[tuple[str, str]]) -> str:
    return "CASE " + " ".join(f"WHEN {test} THEN {reason}" for test, reason in branches) + " END"


def _times(columns: Iterable[Column]) -> list[Column]:
    return [c for c in columns if c.type.upper() in ("TIMESTAMP", "DATE", "TIMESTAMP_NTZ")]


def _header(name: str) -> str:
    """SQL: the last header of a name, as text; null where there is none."""
    # Not by filter(headers, h -> ...): Spark makes no code of that.
    found = f"CAST(nullif(array_position(reverse(headers.key), {literal(name)}), 0) AS INT)"
    return f"CAST(element_at(reverse(headers.value), {found}) AS STRING)"


def parse(
    records: DataFrame,
    stream: Stream,
    rules: Iterable[Rule],
    lookups: Lookups | None = None,
    tasks: Sequence[str] | None = None,
) -> DataFrame:
    """Kafka's records (with headers) as the changelog's columns, ``_reason`` (null: accepted) and, for the quarantine, ``_text``, ``_bytes``, ``_headers`` and ``_timestamp``, which are null where the event is accepted: the
    callers keep these rows in memory. ``tasks``: there may be events that ask for one, to set one of these stores."""
    schema = ", ".join([*(f"{quoted(c.name)} {c.type}" for c in stream.columns), f"{CORRUPT} STRING"])
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}', 'allowSingleQuotes', 'false')"
    payload = [f"_json.{quoted(c.name)} AS {quoted(c.name)}" for c in stream.columns]
    return (
        records.selectExpr(
            "topic AS _topic",
            "partition AS _partition",
            "offset AS _offset",
            "timestamp AS _timestamp",
            "headers AS _headers",
            "value AS _bytes",
            "try_validate_utf8(CAST(key AS STRING)) AS _key",
            "try_validate_utf8(CAST(value AS STRING)) AS _text",
            f"coalesce({_header(OP_HEADER)}, CASE WHEN value IS NULL THEN 'purge' ELSE 'report' END) AS _op",
            f"{_header(STORE_HEADER)} AS _store",
        )
        # A report is what has no operation; it may be a header that says so too.
        .withColumn("_store", F.expr("CASE WHEN _op <> 'report' THEN _store END"))
        .withColumn(
            "_json",
            F.expr(f"CASE WHEN _op = 'report' THEN from_json(_text, {literal(schema)}, {options}) END"),
        )
        .withColumn("_single", F.expr(f"_op <> 'report' OR {SINGLE}"))
        .withColumn("_agent", F.expr("CASE WHEN _op = 'set' THEN get_json_object(_text, '$.agent') END"))
        .withColumn(
            "_value",
            F.expr(
                "CASE WHEN _op = 'set' THEN get_json_object(_text, '$.value') WHEN "
                f"_op IN {TASK_OPERATIONS} THEN _text END"
            ),
        )
        .selectExpr("*", *payload)
        .transform(lookups.join if lookups else lambda rows: rows)
        .withColumn("_time", F.expr(f"CASE WHEN _op = 'report' THEN CAST({stream.time or 'NULL'} AS TIMESTAMP) END"))
        .withColumn(
            "_reason",
            F.expr(f"CASE WHEN _op = 'report' THEN {_report_reason(stream)} ELSE {_control_reason(rules, tasks)} END"),
        )
        .withColumn("_event_time", F.expr("coalesce(_time, _timestamp)"))
        .withColumn("_log_time", F.expr(NOW))
        .withColumn("_payload", F.expr("_text" if stream.keep_payload else "CAST(NULL AS STRING)"))
        .select(
            *(quoted(c.name) for c in stream.known),
            *EVENT_COLUMNS,
            "_reason",
            *(
                F.expr(f"CASE WHEN _reason IS NOT NULL THEN {c} END").alias(c)
                for c in ("_text", "_bytes", "_headers", "_timestamp")
            ),
        )
    )


def accepted(parsed: DataFrame, stream: Stream) -> DataFrame:
    """The rows for the changelog."""
    rows = parsed.where("_reason IS NULL")
    return rows.select(*(quoted(c.name) for c in stream.known), *EVENT_COLUMNS)


def refused(parsed: DataFrame) -> DataFrame:
    """The rows for the quarantine: nothing of the record is lost."""
    return parsed.where("_reason IS NOT NULL").selectExpr(
        "_topic AS topic",
        "_partition AS partition",
        "_offset AS offset",
        "_timestamp AS timestamp",
        "_key AS key",
        "_text AS payload",
        "CASE WHEN _text IS NULL THEN _bytes END AS payload_bytes",
        "_headers AS headers",
        "_reason AS reason",
        "_log_time AS log_time",
    )
