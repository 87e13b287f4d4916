"""``statehouse init``: what it finds in records, what it writes, and that the file is right."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
import yaml

from statehouse.cli import main
from statehouse.config.file import load
from statehouse.init.payloads import Payload
from statehouse.init.propose import Choice, file_text, look_at
from statehouse.init.sample import Sample, read_file
from statehouse.init.shapes import columns_of
from statehouse.records import decoder_for
from tests.support.data import SHARED
from tests.support.depth import sized
from tests.support.payloads import draw_anything, draw_payload, draw_schema, draw_text, write
from tests.support.records import create, produce
from tests.support.retail import FOLDER as RETAIL
from tests.support.retail import sold
from tests.support.terminals import on_terminal

BOOKINGS = SHARED / "bookings" / "bookings.jsonl.gz"
DRAWN = sized(60, 2000)  # samples
REPORTS = [
    {"key": f"device-{n % 7}", "agent": ("north", "south")[n % 3 % 2], "value": "ok" if n % 5 else "alarm"}
    | {"ts": f"2026-01-31T12:{n // 60:02}:{n % 60:02}Z"}
    for n in range(120)
]


def lines(path, rows):
    """A file of JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def sample_of(rows):
    """A sample of rows, as of a topic without keys."""
    sample = Sample("topic t")
    sample.add([Payload(json.dumps(row).encode()) for row in rows])
    return sample


def types(rows):
    """The columns of rows, by name."""
    columns, _ = columns_of(sample_of(rows).records)
    return {column.name: column.ddl for column in columns}


def proposed(rows):
    """What is likely for rows: key, time, agent and rule."""
    findings = look_at(sample_of(rows))
    key, time = findings.keys[0].sql, findings.times[0].sql if findings.times else None
    agent = findings.agent(key)
    rule = findings.rules(key, agent, time)[0]
    return key, time, agent, (rule.reduce, rule.value)


def init(tmp_path, *words, environ=None):
    """Run the command; the file as a configuration, and as text."""
    out = tmp_path / "statehouse.yaml"
    assert main(["init", "--out", str(out), "--yes", *map(str, words)]) == 0
    return load(out, environ or {}), out.read_text()


def refused(config, payloads):
    """How many payloads the first stream of a configuration refuses."""
    [stream] = config.streams.values()
    none = [None] * len(payloads)
    reasons = decoder_for(stream, [], []).decode(none, none, none, payloads).column("_reason")
    return len(reasons) - reasons.null_count


# --- real data -------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not BOOKINGS.is_file(), reason="the shared data is not beside the checkout")
@pytest.mark.parametrize("records", [1000, 20_000])
def test_real_bookings(tmp_path, records):
    config, _ = init(tmp_path, "--file", BOOKINGS, "--records", records)
    [stream], [store] = config.streams.values(), config.stores.values()
    assert [(c.name, c.type, c.required) for c in stream.columns] == [
        ("booking_id", "INT", True),
        ("customer_id", "INT", True),
        ("item_id", "INT", True),
        ("clerk", "STRING", True),
        ("booked_at", "TIMESTAMP", True),
        ("returned_at", "TIMESTAMP", False),  # the first 5,000 all have it
    ]
    assert (stream.name, stream.topic, stream.time, stream.keep_payload) == ("bookings", "bookings", "booked_at", True)
    assert (store.name, store.key, store.reduce) == ("bookings_by_customer_id", "customer_id", "latest")
    with gzip.open(BOOKINGS, "rb") as payloads:
        assert refused(config, [line.strip() for line in payloads]) == 0


@pytest.mark.skipif(not RETAIL.is_dir(), reason="the shared data is not beside the checkout")
def test_real_invoices(tmp_path):
    rows = list(sold(random.Random(1), 300))
    config, text = init(tmp_path, "--file", lines(tmp_path / "invoices.jsonl", rows))
    [stream], [store] = config.streams.values(), config.stores.values()
    found = {c.name: c.type for c in stream.columns}
    assert (found["InvoiceNumber"], found["CreatedTime"], found["StoreID"]) == ("INT", "BIGINT", "STRING")
    assert (found["CustomerCardNo"], found["NumberOfItems"], found["TotalAmount"]) == (
        *("STRING", "INT"),
        "DECIMAL(12, 2)",  # money, although these have no cents
    )
    item = "STRUCT<ItemCode: INT, ItemDescription: STRING, ItemPrice: DECIMAL(12, 2), ItemQty: INT>"
    assert found["InvoiceLineItems"] == f"ARRAY<{item}>"
    assert not next(c for c in stream.columns if c.name == "DeliveryAddress").required
    assert stream.time == "timestamp_millis(CreatedTime)"
    assert (store.name, store.key) == ("total_amount_by_customer_card_no", "CustomerCardNo")
    assert (store.value, store.reduce) == ("TotalAmount", "sum")
    assert "# CustomerType is one of: NONPRIME, PRIME" in text and "# Also possible: StoreID, PosID" in text


@pytest.mark.skipif(not RETAIL.is_dir(), reason="the shared data is not beside the checkout")
def test_real_templates_of_invoices_which_are_one_array(tmp_path, capsys):
    config, _ = init(tmp_path, "--file", RETAIL / "invoice.json")
    [stream], [store] = config.streams.values(), config.stores.values()
    assert (stream.time, store.key) == ("timestamp_seconds(CAST(CreatedTime AS BIGINT))", "StoreID")
    assert "statehouse load" not in capsys.readouterr().out, "which reads lines only"


# --- types, key, time, agent -----------------------------------------------------------------------------------------------------


def test_types():
    rows = [
        {
            "i": 7,
            "near": 2**31 - 1,
            "b": -(2**63),
            "huge": 10**30,
            "money": 1.5,
            "price": 3,
            "far": 52.520008,
            "e": 1e300,
        }
        | {
            "yes": True,
            "day": "2026-01-31",
            "at": "2026-01-31T12:00:00.123+01:00",
            "text": "2026",
            "mixed": 1,
            "nothing": None,
        }
        | {"tags": ["a", None], "empty": [], "point": {"x": 1, "a b": 2, "up": "2026-01-31 12:00"}, "none": {}}
        | {"order": 1, "a-b": 2, "é": 3, "_x": 4, "a b": 5, "Same": 6, "same": 7},
        {"mixed": "b", "money": 20, "point": {"x": 2**40}, "at": None, "same": 8},
    ]
    assert types(rows) == {
        **{"i": "INT", "near": "BIGINT", "b": "BIGINT", "huge": "DECIMAL(38,0)", "money": "DECIMAL(12,2)"},
        **{"price": "DECIMAL(12,2)", "far": "DOUBLE", "e": "DOUBLE", "yes": "BOOLEAN", "day": "DATE"},
        **{"at": "TIMESTAMP", "text": "STRING", "mixed": "STRING", "nothing": "STRING"},
        **{"tags": "ARRAY<STRING>", "empty": "ARRAY<STRING>", "point": "STRUCT<x: BIGINT, up: TIMESTAMP>"},
        **{"none": "MAP<STRING, STRING>", "order": "INT", "a-b": "INT", "é": "INT", "same": "INT"},
    }
    _, left_out = columns_of(sample_of(rows).records)
    assert left_out == ["_x", "a b", "Same"]


def test_names_that_are_data_are_a_map():
    assert types([{"m": {f"k{n}": n, f"j{n}": 0.5}} for n in range(20)]) == {"m": "MAP<STRING, DECIMAL(12,2)>"}


def test_what_is_never_missing_is_not_null_where_enough_was_seen():
    columns, _ = columns_of(sample_of([{"a": n, "b": n % 2 or None, "ended_at": n} for n in range(10)]).records)
    assert [c.required for c in columns] == [True, False, False]
    columns, _ = columns_of(sample_of([{"a": 1}] * 9).records)
    assert [c.required for c in columns] == [False]


@pytest.mark.parametrize(
    ("row", "time"),
    [
        (lambda n: {"k": n % 3, "ts": 1_790_000_000 + n}, "timestamp_seconds(ts)"),
        (lambda n: {"k": n % 3, "createdAt": 1_790_000_000_000 + n}, "timestamp_millis(createdAt)"),
        (lambda n: {"k": n % 3, "event_time": (1_790_000_000 + n) * 10**6}, "timestamp_micros(event_time)"),
        (lambda n: {"k": n % 3, "time": (1_790_000_000 + n) * 10**9}, "timestamp_micros(time DIV 1000)"),
        (lambda n: {"k": n % 3, "ts": str(1_790_000_000_000 + n)}, "timestamp_millis(CAST(ts AS BIGINT))"),
        (lambda n: {"k": n % 3, "phone": 1_790_000_000 + n}, None),
        (lambda n: {"k": n % 3, "ts": n}, None),
        (lambda n: {"k": n % 3, "day": f"2026-01-{n % 28 + 1:02}"}, None),
        (lambda n: {"k": n % 3, "date": f"2026-01-{n // 5 + 1:02}"}, "CAST(date AS TIMESTAMP)"),
        (lambda n: {"k": n % 3, "meta": {"at": f"2026-01-31T12:00:{n % 60:02}Z"}}, "meta.at"),
        (
            lambda n: {"k": n % 3, "due_at": f"2026-02-01T12:00:{n % 60:02}Z", "ts": f"2026-01-31T12:00:{n % 60:02}Z"},
            "ts",
        ),
        (lambda n: {"k": n % 3, "expires": f"2026-02-01T12:00:{n % 60:02}Z"}, None),
    ],
)
def test_event_times(row, time):
    assert proposed([row(n) for n in range(60)])[1] == time


@pytest.mark.parametrize(
    ("rows", "key", "agent", "rule"),
    [
        (REPORTS, "key", "agent", ("majority", "value")),
        ([{"id": n, "user_id": n % 9, "event": "x"} for n in range(50)], "user_id", None, ("latest", "_payload")),
        ([{"id": n, "name": f"row {n}"} for n in range(50)], "id", None, ("latest", "_payload")),
        ([{"sensor": f"s{n % 6}", "temperature": n / 8} for n in range(50)], "sensor", None, ("latest", "temperature")),
        ([{"order": {"id": n % 20}, "status": "new"} for n in range(50)], "order.id", None, ("latest", "status")),
        ([{"sku": f"a{n % 9}", "qty": n % 4} for n in range(50)], "sku", None, ("sum", "qty")),
    ],
)
def test_keys_agents_and_values(rows, key, agent, rule):
    found = proposed(rows)
    assert (found[0], found[2], found[3]) == (key, agent, rule)


def test_the_schema_takes_every_record_that_it_was_made_of():
    """Whatever the records are: the file is valid, and no record of the sample is refused."""
    for seed in range(DRAWN):
        dice = random.Random(seed)
        sample, schema = Sample("topic t"), draw_schema(dice)
        odd = dice.choice((0, 0.02, 0.1))
        for _ in range(dice.choice((1, 12, 40))):
            payload = draw_payload(dice, schema, odd)
            if dice.random() < 0.05:
                payload[draw_text(dice)] = draw_anything(dice)
            sample.add([Payload(write(payload).encode(), None, str(dice.randrange(5)))])
        findings = look_at(sample)
        if not findings.columns:
            continue
        key = findings.keys[0].sql
        rule = dice.choice(findings.rules(key, findings.agent(key), None))
        kafka = {"bootstrap.servers": "h:1", "client.id": dice.choice(["x: y", "#", "null", "1", "'", "\u2028"])}
        times = [None, *(time.sql for time in findings.times)]
        text = file_text(findings, Choice("t", [key], rule, dice.choice(times), kafka=kafka), "statehouse.yaml")
        assert yaml.safe_load(text)["kafka"] == kafka  # and file_text has decoded all records


# --- the command -----------------------------------------------------------------------------------------------------------------


def test_flags_say_what_is_wanted(tmp_path):
    file = lines(tmp_path / "old reports.jsonl", REPORTS)
    words = ["--key", "key,agent", "--time", "none", "--reduce", "count", "--store", "seen", "--topic", "agent-reports"]
    signing = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hidden",
    }
    words += [w for n, v in {**signing, "client.id": "a b"}.items() for w in ("--kafka", f"{n}={v}")]
    config, text = init(tmp_path, "--file", file, *words, environ={"STATEHOUSE_KAFKA__SASL_PASSWORD": "hidden"})
    [stream], store = config.streams.values(), config.stores["seen"]
    assert (stream.name, stream.topic, stream.time) == ("agent_reports", "agent-reports", None)
    assert (store.key, store.value, store.reduce, store.agent) == (["key", "agent"], None, "count", None)
    assert config.kafka["client.id"] == "a b"
    assert "hidden" not in text and "$STATEHOUSE_KAFKA__SASL_PASSWORD" in text, "a password is not for the file"
    file = lines(tmp_path / "r.jsonl", REPORTS)
    config, text = init(tmp_path, "--force", "--file", file, "--reduce", "at_least_one(alarm, ok)", "--value", "value")
    assert config.stores["value_by_key"].agent == "agent" and config.streams["r"].time == "ts"
    config, text = init(tmp_path, "--force", "--file", file, "--key", "upper(key)", "--key", "value")
    assert [k.name for k in next(iter(config.stores.values())).keys] == ["upper_key", "value_key"]


def test_a_file_is_never_overwritten_unless_asked_for(tmp_path, capsys):
    out = tmp_path / "statehouse.yaml"
    out.write_text("mine")
    words = ["init", "--example", "topic", "--out", str(out)]
    assert main(words) == 2 and out.read_text() == "mine"
    assert f"{out}: found a file, expected none\n  to do: name another with --out" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0 and "_payload" in out.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--key", "customer"], "--key: found the column 'customer', expected one of key, agent, value, ts"),
        (["--reduce", "most"], "found reduce: 'most', expected one of at_least_one"),
        (["--reduce", "majority", "--value", "value", "--agent", "none"], "found no 'agent', expected one"),
        (["--kafka", "x"], "--kafka: found 'x', expected NAME=VALUE"),
        (["--value", "("], "expected a Spark SQL expression"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(tmp_path, capsys, words, says):
    file, out = lines(tmp_path / "r.jsonl", REPORTS), tmp_path / "statehouse.yaml"
    assert main(["init", "--file", str(file), "--out", str(out), *words]) == 2
    assert says in capsys.readouterr().err and not out.exists()


@pytest.mark.parametrize("content", [b"", b"1\n2\n", b"\x1f\x8b", b"a,b\n1,2\n"])
def test_a_file_without_objects(tmp_path, capsys, content):
    file = tmp_path / "x.jsonl.gz" if content.startswith(b"\x1f") else tmp_path / "x.jsonl"
    file.write_bytes(content)
    assert main(["init", "--file", str(file), "--out", str(tmp_path / "s.yaml")]) == 1
    assert ", expected JSON" in capsys.readouterr().err
    assert main(["init", "--file", str(tmp_path / "none"), "--out", str(tmp_path / "s.yaml")]) == 1


def test_one_object_over_several_lines_and_rubbish_between(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(REPORTS[0], indent=2))
    assert len(read_file(tmp_path / "one.json", 10).records) == 1
    (tmp_path / "some.jsonl").write_text('\n{"a": 1}\n\nrubbish\n{"a": 2}\n')
    sample = read_file(tmp_path / "some.jsonl", 10)
    assert (len(sample.records), sample.refused) == (2, 1) and "not a JSON object" in sample.reason


def test_two_questions_on_a_terminal(tmp_path):
    lines(tmp_path / "reports.jsonl", REPORTS)
    words = ["-m", "statehouse.cli", "init", "--file", "reports.jsonl"]
    code, shown = on_terminal(words, ["\n", "\n"], cwd=tmp_path)
    assert code == 0, shown
    assert shown.index("Which key?") < shown.index("What is kept of each key?")
    assert "statehouse.yaml: written, from 120 records" in shown and "statehouse check" in shown
    store = load(tmp_path / "statehouse.yaml", {}).stores["value_by_key"]
    assert (store.key, store.agent, store.reduce) == ("key", "agent", "majority")
    (tmp_path / "statehouse.yaml").unlink()
    code, shown = on_terminal(words, ["9\n", "key\n", "\x03"], cwd=tmp_path)
    assert code == 1 and "found '9', expected a number from 1 to" in shown
    assert "nothing is written" in shown and not (tmp_path / "statehouse.yaml").exists()


def test_a_topic(broker, tmp_path, capsys):
    topic = f"init-{os.getpid()}"
    create(broker.bootstrap, topic, partitions=3)
    rows = [
        {"StoreID": f"S{n % 9}", "Card": n % 40, "TotalAmount": n / 4, "CreatedTime": 1_790_000_000_000}
        for n in range(90)
    ]
    records = [(row["StoreID"], row, None, n % 3) for n, row in enumerate(rows)]
    records += [("S1", None, None, 0), ("S1", b"rubbish", None, 1), ("S1", {"value": 1}, {"statehouse-op": "set"}, 2)]
    produce(broker.bootstrap, topic, records)
    capsys.readouterr()
    config, text = init(tmp_path, "--bootstrap", broker.bootstrap, "--topic", topic, "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["records"], said["refused"]) == (90, 1) and said["next"][0].startswith("statehouse check")
    [store] = config.stores.values()
    assert (store.key, store.value, store.reduce) == ("StoreID", "TotalAmount", "sum")
    assert "the key of the messages" in text
    assert config.kafka["bootstrap.servers"] == broker.bootstrap
    words = ["init", "--bootstrap", broker.bootstrap, "--out", str(tmp_path / "other.yaml")]
    assert main([*words, "--topic", f"{topic}-none"]) == 2
    assert f"found '{topic}-none', expected one of" in capsys.readouterr().err


def test_the_examples_are_the_demos(tmp_path):
    """The fleet and the tills of the demo, whose topics they may be run on."""
    demo = load(Path(__file__).parents[2] / "statehouse.yaml", {})
    for name, stream in (("fleet", "reports"), ("retail", "invoices"), ("topic", "reports")):
        out = tmp_path / f"{name}.yaml"
        assert main(["init", "--example", name, "--out", str(out)]) == 0
        found = load(out, {}).streams[stream]
        assert found.topic == demo.streams[stream].topic
        assert name == "topic" or found.schema_ == demo.streams[stream].schema_


@pytest.mark.slow
def test_check_passes_what_init_writes(spark, tmp_path, capsys):
    files = [[("--example", name)] for name in ("fleet", "retail", "topic")]
    odd = [{"order": n % 5, "a-b": {"left": n}, "é": "x", "date": 1_790_000_000 * 10**9} for n in range(30)]
    files.append([("--file", lines(tmp_path / "odd.jsonl", odd)), ("--key", "order"), ("--value", "`a-b`.left")])
    if RETAIL.is_dir():
        files.append([("--file", BOOKINGS), ("--records", 2000)])
        tills = ("--file", lines(tmp_path / "sold.jsonl", sold(random.Random(1), 100)))
        files.append([tills, ("--key", "StoreID"), ("--key", "PosID")])
    for number, given in enumerate(files):
        out = tmp_path / f"{number}.yaml"
        assert main(["init", "--out", str(out), *(str(word) for pair in given for word in pair)]) == 0
        capsys.readouterr()
        assert main(["check", "-c", str(out), "--json"]) == 0, (capsys.readouterr().out, out.read_text())
        assert json.loads(capsys.readouterr().out)["notes"] == [], "DuckDB has words for all of it, too"
