"""The replica follows the lake: no gap, no half, no matter what happens to the lake."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from flask import Flask
from flask.testing import FlaskClient

from api import create_app
from api.engine import duck
from api.engine.delta_log import Log
from api.replica import store as store_module
from api.replica import stream as stream_module
from api.replica.replica import Replica
from statehouse.config.models import Config
from statehouse.errors import StatehouseError
from statehouse.tables import table
from tests.support.api_lake import Sales, State, changelog, configured, eventually


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configured(tmp_path)


@pytest.fixture
def replica(config: Config) -> Replica:
    """One that is refreshed by hand."""
    return Replica(config)


@pytest.fixture
def app(config: Config):
    app = create_app(config)
    yield app
    app.extensions["statehouse"].replica.stop()


def status(client: FlaskClient, store: str = "last") -> dict:
    return client.get(f"/stores/{store}").get_json()


def test_a_store_comes_into_being_and_is_followed(app: Flask, config: Config) -> None:
    client = app.test_client()
    assert status(client)["position"] is None
    state = State(config, "last")
    state.write(4, {"key": "a", "value": 1.0})
    eventually(lambda: status(client)["position"] == 4)
    assert client.get("/stores/last/keys/a").get_json()["value"] == 1
    version = state.write(5, {"key": "a", "value": 2.0})
    eventually(lambda: status(client)["position"] == 5)
    assert status(client)["version"] == version
    assert client.get("/stores/last/keys/a").get_json()["value"] == 2


def test_a_state_that_is_made_but_not_merged_has_no_keys_and_no_past(app: Flask, config: Config) -> None:
    State(config, "last")
    client = app.test_client()
    eventually(lambda: status(client)["version"] == 0)
    for path in ("keys/a", "keys/a/history", "keys/a?at=2026-01-01", "keys/a?version=0"):
        assert client.get(f"/stores/last/{path}").status_code == 404, path
    assert client.get("/stores/last/keys").get_json() == {"rows": [], "cursor": None, "position": None}


def test_readers_see_whole_versions_while_they_change(app: Flask, config: Config) -> None:
    """Each version has its number in every row: nobody may see two, an empty store, or go back."""
    keys = [f"k{i}" for i in range(200)]
    state = State(config, "last")

    def write(number: int) -> None:
        state.write(number, *({"key": k, "value": float(number)} for k in keys))

    write(0)
    eventually(lambda: status(app.test_client())["position"] == 0)
    wrong: list[object] = []
    stop = threading.Event()
    reads = 0

    def read() -> None:
        nonlocal reads
        client, last = app.test_client(), 0
        while not stop.is_set():
            page = client.get("/stores/last/keys").get_json()
            one = client.get("/stores/last/keys/k7").get_json()
            values = {row["value"] for row in page["rows"]}
            if values != {page["position"]} or len(page["rows"]) != 200 or page["position"] < last:
                wrong.append(page)
            if one["value"] != one["position"] or one["position"] < page["position"]:
                wrong.append(one)
            last = one["position"]
            reads += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    replica = app.extensions["statehouse"].replica
    for number in range(1, 16):
        write(number)
        replica.refresh()
    eventually(lambda: status(app.test_client())["position"] == 15)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:1]
    assert reads > 15


def test_a_cursor_stays_right_while_the_state_changes(config: Config, app: Flask) -> None:
    state = State(config, "last")
    client = app.test_client()
    following = app.extensions["statehouse"].replica

    def version(number: int, keys: str) -> None:
        state.write(number, *({"key": k, "value": float(number)} for k in keys))
        following.refresh()

    version(0, "bdfhjl")
    page = client.get("/stores/last/keys?limit=3").get_json()
    assert [r["key"] for r in page["rows"]] == ["b", "d", "f"]
    version(1, "abcdhijkl")  # f, where the cursor stands, is gone; there are new keys before and after it
    rest = client.get(f"/stores/last/keys?cursor={page['cursor']}").get_json()
    assert [r["key"] for r in rest["rows"]] == ["h", "i", "j", "k", "l"]
    assert (rest["position"], rest["cursor"]) == (1, None)


def test_discarded_versions_leave_memory(replica: Replica, config: Config) -> None:
    state = State(config, "last")
    made, held = [], None
    for number in range(5):
        state.write(number, {"key": "a", "value": float(number)})
        replica.refresh()
        held = held or replica.snapshot("last")
        made.append(weakref.ref(replica.snapshot("last")))
    gc.collect()
    assert [one() is not None for one in made] == [True, False, False, False, True], "the one held, and the current one"
    assert held and held.get(["a"])["value"] == 0


def test_a_lake_that_goes_away(replica: Replica, config: Config) -> None:
    state = State(config, "last")
    state.write(3, {"key": "a", "value": 1.0})
    changelog(config, "sales", 5)
    replica.refresh()
    shutil.move(config.root, f"{config.root}.away")
    replica.refresh()
    gone = replica.status("last")
    assert "state/last is gone; serving version 1" in gone["error"]
    assert (gone["keys"], gone["position"]) == (1, 3)
    assert replica.status("tagged")["error"] is None, "it was never there"
    shutil.move(f"{config.root}.away", config.root)
    state.write(4, {"key": "a", "value": 2.0})
    replica.refresh()
    assert (replica.status("last")["error"], replica.status("last")["position"]) == (None, 4)


def test_a_lake_that_cannot_be_read(replica: Replica, config: Config) -> None:
    state = State(config, "last")
    state.write(3, {"key": "a", "value": 1.0})
    replica.refresh()
    state.write(4, {"key": "a", "value": 2.0})
    for file in Path(state.path).glob("*.parquet"):
        file.write_bytes(b"rubbish")
    replica.refresh()
    assert "state/last: " in replica.status("last")["error"]
    snapshot = replica.snapshot("last")
    found = snapshot.get(["a"])
    assert (snapshot.position, found and found["value"]) == (3, 1)
    state.write(5, {"key": "a", "value": 3.0})
    replica.refresh()
    assert (replica.status("last")["error"], replica.snapshot("last").position) == (None, 5)


def test_a_state_that_could_not_be_read_so_far(config: Config) -> None:
    """It is not the same as one that is empty."""
    state = State(config, "last")
    state.write(3, {"key": "a", "value": 1.0})
    files = {file: file.read_bytes() for file in Path(state.path).glob("*.parquet")}
    for file in files:
        file.write_bytes(b"rubbish")
    app = create_app(config)
    client = app.test_client()
    try:
        keys = "/stores/last/keys"
        for answer in (
            client.get(f"{keys}/a"),
            client.get(keys),
            client.get(keys, headers={"Accept": "application/x-ndjson"}),
            client.post("/stores/last/lookup", json={"keys": ["a"]}),
            client.get("/stores/last/changes"),
            client.get(f"{keys}/a/history"),
        ):
            found = answer.get_json(force=True)
            assert (answer.status_code, found["type"]) == (503, "urn:statehouse:not-ready"), found
            assert found["detail"].startswith("state/last: ") and answer.headers["Retry-After"]
        assert client.get("/stores/tagged/keys").get_json()["rows"] == [], "it is empty"
        for file, body in files.items():
            file.write_bytes(body)
        eventually(lambda: client.get(f"{keys}/a").status_code == 200)
    finally:
        app.extensions["statehouse"].stop()


def test_a_table_that_was_made_anew(replica: Replica, config: Config) -> None:
    """Fewer versions, or as many: it is another table all the same."""
    for number, value in enumerate((1.0, 2.0, 3.0)):
        shutil.rmtree(config.root, ignore_errors=True)
        State(config, "last").write(number, {"key": "a", "value": value})
        replica.refresh()
        found = replica.snapshot("last").get(["a"])
        assert found and found["value"] == value


def vacuumed(path: str) -> None:
    """Compacted, and rid of every file that only older versions have."""
    DeltaTable(path).optimize.compact()
    assert DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def test_the_past_is_read_from_the_newest_changelog_where_the_files_of_its_version_are_gone(config: Config) -> None:
    sales = Sales(config)
    State(config, "last").write(0)
    for number in range(4):
        sales.append({"customer": "a", "weight": number})
    app = create_app(config)
    app.extensions["statehouse"].replica.stop()
    vacuumed(sales.path)
    client = app.test_client()
    found = client.get("/stores/last/keys/a/history").get_json()
    assert ([e["value"] for e in found["events"]], found["position"]) == ([3, 2, 1, 0], 7), "a vacuum has versions too"
    found = client.get("/stores/last/keys/a?at=2100-01-01").get_json()
    assert (found["value"], found["position"]) == (3, 7)


def test_answers_do_not_go_back_where_the_feed_is_gone(
    replica: Replica, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.replica.store.OVERLAY", 0)  # every version is read
    sales, state = Sales(config), State(config, "last")
    state.write(0)
    for number in range(4):
        sales.append({"customer": f"c{number}", "weight": number})
    replica.refresh()
    assert replica.snapshot("last").position == 4
    vacuumed(sales.path)
    state.write(2, {"key": "c0", "value": 0.0}, {"key": "c1", "value": 1.0})  # what comes after it cannot be read again
    replica.refresh()
    status = replica.status("last")
    assert (status["position"], status["keys"], status["freshness"], status["version"]) == (7, 4, "changelog", 1)
    state.write(5, *({"key": f"c{number}", "value": float(number)} for number in range(4)))
    sales.append({"customer": "c4", "weight": 4})
    replica.refresh()
    status = replica.status("last")
    assert (status["position"], status["keys"], status["freshness"], status["version"]) == (8, 5, "changelog", 3)


def test_lag(replica: Replica, config: Config) -> None:
    state = State(config, "last")
    changelog(config, "sales", 3)
    replica.refresh()
    assert replica.status("last")["lag_ms"] > 0, "nothing of it is folded"
    state.write(1, {"key": "a", "value": 1.0})
    replica.refresh()
    behind = replica.status("last")
    assert (behind["position"], behind["head"]) == (1, 2)
    assert 0 < behind["lag_ms"] < 60_000
    state.write(2, {"key": "a", "value": 1.0})
    replica.refresh()
    assert replica.status("last")["lag_ms"] == 0


def test_a_lag_that_nobody_has_looked_for_is_told(replica: Replica, config: Config) -> None:
    state = State(config, "last")
    changelog(config, "sales", 2)
    state.write(1, {"key": "a", "value": 1.0})
    replica.refresh()
    assert replica.status("last")["lag_ms"] == 0
    followed = replica._stores["last"]
    followed.seen -= 60
    assert 60_000 <= replica.status("last")["lag_ms"] < 90_000, "a refresh that takes so long"
    replica.refresh()
    assert replica.status("last")["lag_ms"] == 0


def test_what_is_committed_while_the_log_is_read_is_not_taken_for_folded(
    replica: Replica, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, read = Sales(config), stream_module.covered
    State(config, "last").write(0, {"key": "a", "value": 1.0})
    replica.refresh()
    sales.append({"customer": "a", "weight": 2.0})

    def slow(delta: DeltaTable) -> dict | None:
        monkeypatch.undo()
        sales.append({"customer": "a", "weight": 3.0})
        return read(delta)

    monkeypatch.setattr(stream_module, "covered", slow)
    for _ in range(2):
        replica.refresh()
        weight = replica.snapshot("last").get(["a"])["value"]
        assert weight in (2.0, 3.0) and replica.covers("last", "till-sales", 0, 2) == (weight == 3.0)
    assert (
        replica.covers("last", "till-sales", 0, 1)
        and replica.covers("last", "till-sales", 0, 2)
        and not replica.covers("last", "till-sales", 0, 3)
    )


def test_tables_of_discarded_versions_leave_memory(
    replica: Replica, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "OVERLAY", 0)
    sales, state, used = Sales(config), State(config, "last"), []
    for number in range(1, 13):
        position = sales.append({"customer": "a", "weight": float(number)}, {"customer": "b", "weight": 0.5})
        state.write(position - 1, {"key": "a", "value": float(number - 1)})
        replica.refresh()
        assert replica.snapshot("last").version == number and replica.snapshot("last").get(["b"]) is not None
        (found,) = replica._db.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
        used.append(found)
    assert max(used[3:]) <= used[3], used


def test_the_log_is_followed_without_reading_it(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(config, "changelog", "sales")
    log = Log(path)
    assert log.newest() is None
    changelog(config, "sales", 2)
    first = log.newest()
    assert first and first.version == 1
    monkeypatch.setattr("os.listdir", lambda path: pytest.fail("listed again"))
    assert log.newest() == first
    changelog(config, "sales", 3)
    following = log.newest()
    assert following and following.version == 4


@pytest.mark.parametrize("version", ["1.5.1", "1.5.2"])
def test_versions_of_duckdb_that_read_wrong_rows(version: str) -> None:
    with pytest.raises(StatehouseError, match=f"found DuckDB {version}"):
        duck.connect(version)


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's extension is enough; without it and without a network the message says what to install."""
    with duck.connect() as connection:
        loaded = connection.execute("SELECT loaded FROM duckdb_extensions() WHERE extension_name = 'delta'")
        assert loaded.fetchone() == (True,)

    def offline(*arguments: object, **options: object) -> duckdb.DuckDBPyConnection:
        settings = {
            "custom_extension_repository": "http://127.0.0.1:1",
            "extension_directory": "/nonexistent",
        }
        return connect(config=settings)

    connect = duckdb.connect
    monkeypatch.setattr(duck, "_extension", lambda name: None)
    monkeypatch.setattr(duckdb, "connect", offline)
    with pytest.raises(StatehouseError, match="pip install 'duckdb-extension-delta=="):
        duck.connect()
