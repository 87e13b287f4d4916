"""PostgreSQL → Debezium → Kafka → statehouse, all of them real: in the end the state is the table, whatever was killed."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal

import pytest
import requests
from confluent_kafka import Producer

from statehouse import kafka
from statehouse.config.file import load
from statehouse.payload import micros_of
from tests.support import pages, postgres
from tests.support.depth import first, sized
from tests.support.pages import folder
from tests.support.processes import kill_all
from tests.support.records import create, rows, wait

__all__ = ["folder"]  # a fixture
SECONDS = {"with schemas": sized(15, 600), "without": 60}  # of writes
EACH = sized(6, 40)  # seconds between two kills
KEYS = 60
EPOCH = dt.datetime(1970, 1, 1)
TABLE = """CREATE TABLE account (id bigint PRIMARY KEY, name text NOT NULL, balance numeric(12, 2), at timestamptz, seen timestamp,
  day date, doc jsonb, ok boolean, d double precision, tags text[]);
INSERT INTO account SELECT n, 'first', n, now() FROM generate_series(1, 20) AS n;
"""
CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
merge_every: 1 second
streams:
  account:
    topic: {topic}
    format: debezium
    schema: >-
      id BIGINT NOT NULL, name STRING NOT NULL, balance DECIMAL(12, 2), at TIMESTAMP, seen TIMESTAMP_NTZ, day DATE, doc STRING,
      ok BOOLEAN, d DOUBLE, tags ARRAY<STRING>
stores:
  account: {{stream: account, key: id, value: row, reduce: latest}}
"""
# Each column as text, so that what PostgreSQL says and what statehouse says can be compared.
NOW = """SELECT json_build_object('id', id, 'name', name, 'balance', balance::text, 'at', (extract(epoch FROM at) * 1000000)::bigint,
  'seen', (extract(epoch FROM seen) * 1000000)::bigint, 'day', day, 'doc', doc::text, 'ok', ok, 'd', d, 'tags', tags) FROM account"""


def statement(dice: random.Random) -> str:
    """What an application does to the table."""
    id, other = dice.randrange(KEYS), dice.randrange(KEYS)
    texts = ["NULL", "''", "'né \"x\"'", "'a'", f"'{dice.random()}'"]
    values = {
        "name": dice.choice(texts[1:]),
        "balance": dice.choice(["NULL", "0", "-0.01", "9999999999.99", f"{dice.randrange(10**6)} / 100.0"]),
        "at": dice.choice(["NULL", "now()", "'0001-01-02 00:00:00+00'", "'9999-12-30 23:59:59.999999+00'"]),
        "seen": dice.choice(["NULL", "now()", "'1969-12-31 23:59:59.999999'"]),
        "day": dice.choice(["NULL", "current_date", "'0001-01-01'", "'9999-12-31'"]),
        "doc": dice.choice(["NULL", "'{}'", "'{\"a\": [1, null]}'", "'1'", "'null'"]),
        "ok": dice.choice(["NULL", "true", "false"]),
        "d": dice.choice(["NULL", "0", "-1.5e300", "random()"]),
        "tags": dice.choice(["NULL", "'{}'", "'{a,NULL,\"b c\"}'"]),
    }
    kind = dice.random()
    if kind < 0.4:
        return f"INSERT INTO account (id, {', '.join(values)}) VALUES ({id}, {', '.join(values.values())}) ON CONFLICT DO NOTHING;"
    if kind < 0.75:
        some = dice.sample(sorted(values), dice.randint(1, len(values)))
        return f"UPDATE account SET {', '.join(f'{n} = {values[n]}' for n in some)} WHERE id = {id};"
    if kind < 0.85:
        return f"UPDATE account SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT 1 FROM account WHERE id = {other});"
    if kind < 0.95:
        return f"DELETE FROM account WHERE id = {id};"
    return f"UPDATE account SET name = name || '.' WHERE id % 7 = {id % 7} AND length(name) < 30;"


class Application(threading.Thread):
    """Writes for so long, some statements at once in a transaction of which one in five is rolled back."""

    def __init__(self, server: postgres.Postgres, seconds: float) -> None:
        super().__init__()
        self.server, self.seconds, self.statements = server, seconds, 0
        self.ended: int | None = None

    def run(self) -> None:
        dice, until = random.Random(7), time.monotonic() + self.seconds
        with subprocess.Popen(self.server.psql(), stdin=subprocess.PIPE, text=True) as process:
            assert process.stdin
            while time.monotonic() < until:
                some = [statement(dice) for _ in range(dice.choice((1, 1, 1, 2, 20)))]
                process.stdin.write("\n".join(["BEGIN;", *some, dice.choice(["COMMIT;"] * 4 + ["ROLLBACK;"]), ""]))
                process.stdin.flush()
                self.statements += len(some)
                time.sleep(0.01)
            process.stdin.write(
                "ALTER TABLE account ADD COLUMN later text DEFAULT 'x';\nUPDATE account SET name = name;\n"
            )
            process.stdin.close()
        self.ended = process.returncode


def table_of(server):
    """PostgreSQL's table by id; a fraction as the API has it."""
    found = [json.loads(line) for line in server.sql(f"{NOW};").splitlines()]
    return {row["id"]: row for row in found}


def as_text(row):
    """A row of statehouse's as :data:`NOW` has it."""
    moments = {name: None if row[name] is None else micros(row[name]) for name in ("at", "seen")}
    balance = None if row["balance"] is None else f"{row['balance']:.2f}"
    day, d = row["day"] and str(row["day"]), row["d"] if row["d"] is None else float(row["d"])
    return {**row, **moments, "balance": balance, "day": day, "d": d}


def micros(moment):
    """A moment, as Spark or the API gives it, in microseconds since 1970."""
    return micros_of(moment) if isinstance(moment, str) else (moment - EPOCH) // dt.timedelta(microseconds=1)


def shown(url):
    """What the API's scan has, by id."""
    answer = requests.get(f"{url}/stores/account/keys", headers={"Accept": "application/x-ndjson"}, timeout=60)
    found = [json.loads(line, parse_float=Decimal) for line in answer.text.splitlines()]
    return {row["key"]: as_text(row["value"]) for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("schemas", first(1, ["with schemas", "without"]))
def test_the_state_is_the_table(broker, spark, folder, schemas):
    if not postgres.SERVERS:
        assert os.environ.get("CI") != "true", "CI needs PostgreSQL"
        pytest.skip("needs PostgreSQL")
    try:
        postgres.engine_home()
    except subprocess.CalledProcessError as error:  # 240 MB that nothing else needs
        pytest.skip(f"Debezium cannot be installed: {error}")
    dice, topic = random.Random(schemas), f"account-{schemas.split()[0]}"
    create(broker.bootstrap, topic, partitions=3)
    (folder / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=topic))
    options = {"converter_schemas_enable": "true"}
    if schemas == "without":
        options = {
            "converter_schemas_enable": "false",
            "decimal_handling_mode": "string",
            "time_precision_mode": "isostring",
        }
    config = load(folder / "statehouse.yaml", {})
    started = []

    def start(*words):
        with (folder / f"{words[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "statehouse.cli", *words]
            started.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    def engine():
        started.append(postgres.start_engine(server, folder, broker.bootstrap, topic, "public.account", **options))
        return started[-1]

    with postgres.running() as server:
        server.sql(TABLE)
        try:
            start("serve", "--port", "0")
            jobs, debezium = start("run"), engine()
            postgres.until_streaming(server)
            application = Application(server, SECONDS[schemas])
            application.start()
            while application.is_alive():
                application.join(EACH)
                if application.is_alive():
                    if dice.random() < 0.7:
                        kill_all(debezium)
                        debezium = engine()
                    else:
                        kill_all(jobs)
                        jobs = start("run")
            assert application.ended == 0 and application.statements > 10 * SECONDS[schemas]
            kill_all(debezium)
            engine()
            wait(lambda: b"serving on" in (folder / "serve.log").read_bytes(), what="the API")
            url = (folder / "serve.log").read_text().split("serving on ")[1].split()[0]
            right = table_of(server)
            assert len(right) > KEYS / 4
            wait(lambda: shown(url) == right, seconds=120, step=0.5, what=f"the API's scan: the table is {right}")
            # Some of it once more, in any order.
            properties = {"bootstrap.servers": broker.bootstrap}
            starts = {partition: low for partition, (low, _) in kafka.end_offsets(properties, topic).items()}
            messages = [(m.key(), m.value()) for m in kafka.records_from(properties, topic, starts)]
            producer = Producer({**properties, "log_level": 0, "queue.buffering.max.messages": len(messages) + 1})
            for key, value in dice.choices(messages, k=len(messages) // 2):
                producer.produce(topic, key=key, value=value)
            assert producer.flush(60) == 0
            os.killpg(jobs.pid, signal.SIGTERM)
            assert jobs.wait(120) == 0
            code, output = pages.statehouse(["run", "--once"], {})
            assert code == 0, output[-3000:]
            state = {row["key"]: row["value"] for row in rows(spark, f"{config.root}/state/account")}
            assert {key: as_text(row) for key, row in state.items()} == right
            wait(lambda: shown(url) == right, seconds=60, step=0.5, what="the API's scan")
            assert (
                not os.path.exists(f"{config.root}/quarantine/account")
                or rows(spark, f"{config.root}/quarantine/account") == []
            )
        finally:
            for process in started:
                kill_all(process)
