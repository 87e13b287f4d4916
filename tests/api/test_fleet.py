"""Several instances that share the keys: each answers as one that has them all, whatever becomes of the others."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import create_app
from api.engine.keys import kafka_key
from api.engine.shards import Shards, murmur2s, number, numbers
from api.engine.types import canonical
from api.fleet.membership import ranked
from statehouse.config.models import Config
from statehouse.partitioner import murmur2, text
from tests.support.api_lake import MOMENT, eventually
from tests.support.depth import FULL, sized
from tests.support.fleet import SHARDS, config, filled, fleet, get, raw

__all__ = ["config"]  # a fixture
from tests.support.follower import Follower
from tests.support.records import children

JAVA = {  # of org.apache.kafka.common.utils.UtilsTest.testMurmur2
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def test_the_shard_is_the_partition_of_the_java_client() -> None:
    for key, expected in JAVA.items():
        assert murmur2(key.encode()) == expected & 0x7FFFFFFF
        assert number((key,), 7) == (expected & 0x7FFFFFFF) % 7


@given(st.lists(st.text(max_size=30), max_size=90), st.integers(0, 10))
def test_of_many_texts_it_is_the_same(texts: list[str], first: int) -> None:
    found = murmur2s(pa.array(texts, pa.string())[first:])
    assert found.tolist() == [murmur2(t.encode()) for t in texts[first:]]
    kept = Shards(5, frozenset({1, 3})).kept([(t,) for t in texts])
    assert kept == [(t,) for t in texts if number((t,), 5) in (1, 3)]


PARTS = {
    "STRING": (st.text(max_size=9), pa.large_string()),
    "INT": (st.integers(-(2**31), 2**31 - 1), pa.int32()),
    "DECIMAL(12,2)": (
        st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        pa.decimal128(12, 2),
    ),
    "DATE": (st.dates(dt.date(1, 1, 1)), pa.date32()),
    "BOOLEAN": (st.booleans(), pa.bool_()),
    "TIMESTAMP": (st.datetimes(dt.datetime(1, 1, 1)), pa.timestamp("us")),
}


@given(st.data())
def test_a_key_is_in_the_same_shard_as_text_as_values_and_as_columns(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=3))
    keys = data.draw(st.lists(st.tuples(*(PARTS[k][0] for k in kinds)), min_size=1, max_size=9))
    columns = [pa.array(values, PARTS[k][1]) for k, values in zip(kinds, zip(*keys, strict=True), strict=True)]
    found = numbers(columns, SHARDS)
    assert found.tolist() == [number(key, SHARDS) for key in keys]
    if not {"DECIMAL(12,2)"} & set(kinds):  # 1.50 and 1.5 are one key; what was sent may be written either way
        store = _store(len(kinds))
        for key in keys:
            parts = [canonical(text((part,)), kind) for part, kind in zip(key, kinds, strict=True)]
            assert text(key) == kafka_key(parts, store), "its text in Kafka"


def _store(parts: int):
    names = [f"k{i}" for i in range(parts)]
    columns = ", ".join(f"{n} STRING" for n in names)
    text = {"streams": {"s": {"topic": "t", "schema": columns}}}
    text["stores"] = {
        "x": {"stream": "s", "key": names if parts > 1 else names[0], "value": names[0], "reduce": "latest"}
    }
    return Config.model_validate(text).stores["x"]


def test_who_should_have_a_shard_changes_only_with_who_is_gone() -> None:
    addresses = [f"http://10.0.0.{i}:8080" for i in range(5)]
    for shard in range(200):
        before = ranked(shard, addresses)
        gone = before[2]
        assert ranked(shard, [a for a in addresses if a != gone]) == [a for a in before if a != gone]
    firsts = np.unique([ranked(shard, addresses)[0] for shard in range(1000)], return_counts=True)[1]
    assert firsts.min() > 120, "about as many each"


@pytest.mark.slow
def test_every_instance_answers_as_one_that_has_every_key(config: Config, tmp_path: Path) -> None:
    names, _ = filled(config, 700)
    app = create_app(config)
    client = app.test_client()
    try:
        with fleet(tmp_path, 3) as instances:
            said = instances.settled()
            holds = {i["address"]: set(i["holds"]) for i in said[0]["instances"]}
            assert len(holds) == 3
            keys = [get(port, "/stores/last")[1]["keys"] for port in instances.ports]
            assert sum(keys) == 2 * len(names), "each key is in two of them"
            asked = [f"/stores/last/keys/{quote(k, safe='')}" for k in [*names[:60], "nobody", "no/body"]]
            asked += [f"/stores/status/keys/{quote(k, safe='')}/reports" for k in names[:40]]
            asked += [f"/stores/pairs/keys/{quote(k, safe='')}/0" for k in names[:60]]
            asked += [f"/stores/hours/keys/{quote(k, safe='')}?from=2026-03-01T13:00:00Z" for k in names[:40]]
            asked += [f"/stores/days/keys/2020-01-{d:02}" for d in range(1, 31)]
            for path in asked:
                expected = client.get(path)
                for port in instances.ports:
                    status, headers, data = raw(port, path)
                    assert (status, data.decode()) == (expected.status_code, expected.text), path
                    assert headers.get("ETag") == expected.headers.get("ETag")
            scans = [
                "limit=7",
                "prefix=key-000",
                "from=key-00100&to=key-00200",
                "where=value%20%3E%20100&limit=9000",
                "limit=50",
            ]
            paths = [f"/stores/last/keys?{q}" for q in scans]
            paths += [f"/stores/{s}/keys?limit=2000" for s in ("pairs", "hours", "days", "status", "rewards")]
            for path in paths:
                for accept in (
                    "application/json",
                    "application/x-ndjson",
                    "text/csv",
                    "application/vnd.apache.arrow.stream",
                ):
                    expected = client.get(path, headers={"Accept": accept})
                    for port in instances.ports:
                        status, headers, data = raw(port, path, Accept=accept)
                        assert status == 200
                        assert headers.get("Statehouse-Position") == expected.headers.get("Statehouse-Position")
                        if "arrow" in accept and "rewards" not in path:
                            found = pa.ipc.open_stream(data).read_all()
                            assert found == pa.ipc.open_stream(expected.data).read_all()
                        else:
                            assert data == expected.data, (path, accept)
            pages: list[str] = []
            cursor, turn = "", 0
            while cursor is not None:  # each page by another one
                found = get(instances.ports[turn % 3], f"/stores/last/keys?limit=100&cursor={cursor}")[1]
                pages += [row["key"] for row in found["rows"]]
                cursor, turn = found["cursor"], turn + 1
            assert pages == sorted(names)
            for store, wanted in (
                ("last", [*names, "nobody", names[3]]),
                ("hours", names[:50]),
                ("pairs", [[k, 0] for k in names]),
            ):
                body = {"keys": wanted}
                expected = client.post(f"/stores/{store}/lookup", json=body).get_json()
                for port in instances.ports:
                    assert get(port, f"/stores/{store}/lookup", "POST", body) == (200, expected)
            port = instances.ports[0]
            held = holds[f"http://127.0.0.1:{port}"]
            for away in [k for k in names[40:] if number((k,), SHARDS) not in held][:1]:
                for path in (f"/stores/last/keys/{away}", "/stores/last/keys"):  # as another instance asks
                    shards = ",".join(str(s) for s in range(SHARDS))
                    assert get(port, path, **{"Statehouse-Shards": shards})[1]["type"] == "urn:statehouse:elsewhere"
            assert get(port, "/stores/last/keys", **{"Statehouse-Shards": "x"})[0] == 400
    finally:
        app.extensions["statehouse"].replica.stop()


@pytest.mark.slow
def test_one_dies_one_is_restarted_one_is_added(config: Config, tmp_path: Path) -> None:
    """Under reads of keys that change, by four connections to each; and who follows the changes misses none."""
    commits_a_second, reads_a_second = sized((0.5, 30), (10, 300))  # the more, the longer a process takes to start
    names, sales = filled(config, sized(1000, 3000))
    model = {k: [(0, float(i))] for i, k in enumerate(names)}  # by version of the changelog
    commits = {1: time.monotonic()}
    late = [0.0]
    lock, stopping = threading.Lock(), threading.Event()
    wrong: list[object] = []
    broken: list[tuple[int, float]] = []
    reads = [0]

    def write() -> None:
        dice, value = random.Random(2), 10_000.0
        while not stopping.is_set():
            value += 1
            chosen = dice.sample(names, 20)
            with lock:  # before anyone can read it
                for key in chosen:
                    model[key].append((max(commits) + 1, value))
            moments = MOMENT + dt.timedelta(seconds=value)
            head = sales.append(*({"customer": k, "weight": value, "at": moments} for k in chosen))
            commits[head] = time.monotonic()
            stopping.wait(1 / commits_a_second)

    def read(ports: Sequence[int], seed: int) -> None:
        dice, connection, port = random.Random(seed), None, 0
        due = time.monotonic()
        while not stopping.is_set():
            due += 12 / reads_a_second
            stopping.wait(max(0, due - time.monotonic()))
            try:
                if connection is None:
                    port = dice.choice([p for p in ports if p in instances.running])
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                key = dice.choice(names)
                if dice.random() < 0.9:
                    connection.request("GET", f"/stores/last/keys/{quote(key, safe='')}")
                    response = connection.getresponse()
                    found = json.loads(response.read())
                    rows = [found]
                else:
                    some = dice.sample(names, 20)
                    connection.request(
                        "POST", "/stores/last/lookup", json.dumps({"keys": some}), {"Content-Type": "application/json"}
                    )
                    response = connection.getresponse()
                    found = json.loads(response.read())
                    rows = found.get("rows")
                reads[0] += 1
                if response.status != 200:
                    wrong.append((port, response.status, found))
                    continue
                position = found["position"]
                following = next((at for version, at in list(commits.items()) if version > position), None)
                late[0] = max(late[0], time.monotonic() - following if following else 0)
                with lock:
                    for row in rows:
                        # It may be newer than its position says, and never older.
                        known = model[row["key"]]
                        least = [value for version, value in known if version <= position][-1]
                        if row["value"] not in [value for _, value in known if value >= least]:
                            wrong.append((port, position, row["key"], row["value"], known[-3:]))
            except (OSError, http.client.HTTPException):
                broken.append((port, time.monotonic()))
                connection = None

    def more_reads(count: int) -> None:
        """Wait for so many more, whatever the machine takes for them."""
        goal = reads[0] + count
        eventually(lambda: wrong or reads[0] >= goal)

    with fleet(tmp_path, 4, started=3) as instances:
        instances.settled()  # the fourth is waited for, at first
        threads = [threading.Thread(target=write)]
        threads += [threading.Thread(target=read, args=(instances.ports, seed)) for seed in range(12)]
        for thread in threads:
            thread.start()
        try:
            follower = Follower(instances.ports[2:3], "last", ["key"])
            more_reads(sized(120, 600))
            took = []

            def converge() -> None:
                begun = time.monotonic()
                instances.settled()
                took.append(round(time.monotonic() - begun, 1))

            first, second, _, fourth = instances.ports
            instances.kill(first)
            converge()
            assert not wrong, wrong[:5]
            assert all(port == first for port, _ in broken), "errors only on its open connections"
            instances.start(first)
            converge()
            more_reads(sized(100, 400))
            before = len(broken)
            if FULL:
                instances.stop(second)
                instances.start(second)
                converge()
            assert all(port in (first, second) for port, _ in broken), broken
            instances.start(fourth)
            converge()
            more_reads(sized(120, 600))
            assert not wrong, wrong[:5]
            print(f"at most {late[0]:.1f} s behind, {len(commits)} commits")
            print(
                f"{reads[0]} reads; the map was right again after {took} s; {before} and {len(broken) - before} connections broke"
            )
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
        head = sales.append({"customer": "the last one", "weight": 1.0})
        eventually(lambda: follower.wrong or follower.position >= head)
        assert not follower.wrong, follower.wrong
        expected = {**{k: v[-1][1] for k, v in model.items()}, "the last one": 1.0}
        assert {k: v["value"] for (k,), v in follower.rows.items()} == expected
        eventually(lambda: _all(instances.ports[3]) == expected)  # the follower may be further than this one
        follower.stop()


def _all(port: int) -> dict[str, float]:
    rows = get(port, "/stores/last/keys?limit=10000")[1]["rows"]
    return {r["key"]: r["value"] for r in rows}


@pytest.mark.slow
def test_one_that_hangs_is_waited_for_once(config: Config, tmp_path: Path) -> None:
    """With `max_time` as it is by default, a minute; those who scan and who follow the changes go on, too."""
    names, sales = filled(config, 400)
    with fleet(tmp_path, 3) as instances:
        instances.settled()
        here = instances.ports[0]
        has = get(here, "/processors")[1]["map"]
        # Whom this one asks first for the keys of some shards.
        hanging = int(next(h[0] for h in has if f"http://127.0.0.1:{here}" not in h).rpartition(":")[2])
        first = {
            n
            for n, h in enumerate(has)
            if h[0] == f"http://127.0.0.1:{hanging}" and f"http://127.0.0.1:{here}" not in h
        }
        asked = [k for k in names if number((k,), SHARDS) in first]
        values = {k: float(n) for n, k in enumerate(names)}
        follower = Follower([here], "last", ["key"])
        eventually(lambda: follower.connections)
        stopped = [instances.running[hanging].pid, *children(instances.running[hanging].pid)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            took = []
            with ThreadPoolExecutor(8) as threads:
                for value, key in zip(threads.map(partial(point, here), asked[:40]), asked[:40], strict=True):
                    assert value == values[key]
                    took.append(time.monotonic() - begun)
            assert 1 < max(took) < 20, "not twice max_time and more"
            eventually(lambda: not up(here, hanging))
            begun = time.monotonic()
            for key in asked:
                assert point(here, key) == values[key]
            assert (time.monotonic() - begun) / len(asked) < 0.5, "nobody waits for it any more"
            assert len(_all(here)) == len(names)
            head = sales.append({"customer": "new", "weight": 1.0})
            eventually(lambda: follower.wrong or follower.position >= head)
            assert not follower.wrong
            print(f"the slowest of the first reads took {max(took):.1f} s")
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        eventually(lambda: up(here, hanging))
        follower.stop()
        assert _all(hanging)["new"] == 1.0


def point(port: int, key: str) -> float:
    return get(port, f"/stores/last/keys/{quote(key, safe='')}")[1]["value"]


def up(port: int, other: int) -> bool:
    """Whether an instance says that another one is there."""
    instances = get(port, "/processors")[1]["instances"]
    return next(i["up"] for i in instances if i["address"] == f"http://127.0.0.1:{other}")


@pytest.mark.slow
def test_where_no_instance_has_a_key_the_table_is_read(config: Config, tmp_path: Path) -> None:
    names, _ = filled(config, 200)
    with fleet(tmp_path, 2, copies=1) as instances:
        here, other = instances.ports
        eventually(lambda: sum(len(i["holds"]) for i in get(here, "/processors")[1]["instances"]) == SHARDS)
        instances.kill(other)
        for number, key in enumerate(names):
            assert get(here, f"/stores/last/keys/{quote(key, safe='')}")[1]["value"] == float(number)
        eventually(lambda: len(get(here, "/processors")[1]["instances"][0]["holds"]) in (0, SHARDS))
        eventually(lambda: get(here, "/stores/last")[1]["keys"] == len(names))
