"""``replica: disk``: a new process goes on from what the last one kept, and never from what is wrong or not this state's."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from api.replica import storage
from api.replica.replica import Replica
from statehouse.config.models import Config
from tests.support.api_lake import State, configured


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = configured(tmp_path)
    kept = made.api.model_copy(update={"replica": "disk", "cache": str(tmp_path / "cache")})
    return made.model_copy(update={"api": kept})


def value(config: Config, key: str = "a") -> tuple[float | None, int | None, str | None]:
    """What a new process shows of a key, at which version, and its trouble."""
    replica = Replica(config)
    replica.refresh()
    row = replica.snapshot("last").get([key])
    status = replica.status("last")
    return row["value"] if row else None, status["version"], status["error"]


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions of tables that are read from the lake."""
    versions: list[int] = []
    load = storage.load

    def noted(db, config, store, version, *more, **named):  # type: ignore[no-untyped-def]
        versions.append(version)
        return load(db, config, store, version, *more, **named)

    monkeypatch.setattr(storage, "load", noted)
    return versions


def test_a_second_process_does_not_read_the_table(config: Config, unread: list[int]) -> None:
    state = State(config, "last")
    first = state.write(4, {"key": "a", "value": 1.0}, {"key": "b", "value": float("inf")})
    assert value(config) == (1, first, None) and unread == [first]
    assert value(config) == (1, first, None) and value(config, "b")[0] == float("inf") and unread == [first]
    second = state.write(5, {"key": "a", "value": 2.0})  # there is no changelog to go on from: the new version is read
    assert value(config) == (2, second, None) and unread == [first, second]


@pytest.mark.parametrize("harm", ["empty", "garbage", "half", "a folder"])
def test_a_file_that_is_wrong_is_made_anew(config: Config, unread: list[int], harm: str) -> None:
    version = State(config, "last").write(4, {"key": "a", "value": 1.0})
    value(config)
    file = storage.folder(config) / "last.arrow"
    whole = file.read_bytes()
    file.unlink()
    if harm == "a folder":
        file.mkdir()
    else:
        file.write_bytes({"empty": b"", "garbage": b"ARROW1\0\0" + b"x" * 99, "half": whole[: len(whole) // 2]}[harm])
    assert value(config) == (1, version, None) and unread == [version, version]
    assert value(config) == (1, version, None) and len(unread) == (3 if harm == "a folder" else 2)


def test_a_table_that_was_made_anew_is_another_one(config: Config, unread: list[int]) -> None:
    State(config, "last").write(4, {"key": "a", "value": 1.0})
    value(config)
    shutil.rmtree(Path(config.root, "state", "last"))
    version = State(config, "last").write(4, {"key": "a", "value": 7.0})
    assert value(config) == (7, version, None) and unread == [version, version]


def test_where_nothing_can_be_written_it_is_in_memory(config: Config, unread: list[int], tmp_path: Path) -> None:
    version = State(config, "last").write(4, {"key": "a", "value": 1.0})
    (tmp_path / "file").write_text("")
    config = config.model_copy(
        update={"api": config.api.model_copy(update={"cache": str(tmp_path / "file" / "cache")})}
    )
    assert value(config) == (1, version, None) and value(config) == (1, version, None) and unread == [version, version]


def test_of_many_processes_one_reads_the_table(config: Config, unread: list[int]) -> None:
    version = State(config, "last").write(4, *({"key": f"k{i}", "value": float(i)} for i in range(1000)))
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(value(config, "k7"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(7, version, None)] * 4 and unread == [version]
    assert sorted(os.listdir(storage.folder(config))) == ["last.arrow", "last.lock"]
