"""The replica's DuckDB gets at the lake and at nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from api.engine import duck
from tests.support.api_lake import State, configured


@pytest.mark.parametrize("root", ["lake", "elsewhere/../lake", "link/lake"])
def test_what_sql_can_get_at(tmp_path: Path, root: str) -> None:
    (tmp_path / "it's é").mkdir()
    config = configured(tmp_path / "it's é")
    State(config, "last").write(3, {"key": "a", "value": 1.0})
    os.symlink(tmp_path / "it's é", tmp_path / "it's é" / "link")
    (tmp_path / "it's é" / "elsewhere").mkdir()
    (tmp_path / "it's é" / "secret.csv").write_text("secret\n")
    at = f"{tmp_path}/it's é/{root}"
    with duck.connect(root=at) as connection:
        cursor = connection.cursor()
        table = duck.literal(f"{at}/state/last")
        cursor.execute(f"ATTACH {table} AS lake (TYPE delta, READ_ONLY, PIN_SNAPSHOT, VERSION 1)")
        assert cursor.execute("SELECT value FROM lake").fetchall() == [(1.0,)]
        assert cursor.execute(f"SELECT value FROM delta_scan({table})").fetchall() == [(1.0,)]
        secret = duck.literal(f"{at}/../secret.csv")
        for sql in (
            f"SELECT * FROM read_csv({secret})",
            f"SELECT * FROM {secret}",
            "SELECT * FROM read_text('/etc/passwd')",
            "SELECT * FROM glob('/etc/*')",
            f"COPY (SELECT 1) TO {duck.literal(f'{tmp_path}/out.csv')}",
            f"ATTACH {duck.literal(f'{tmp_path}/out.db')}",
            "SET enable_external_access = true",
            "SET allowed_directories = ['/']",
            "RESET allowed_directories",
            "INSTALL httpfs",
            "LOAD httpfs",
            f"LOAD {duck.literal(f'{at}/own.duckdb_extension')}",
            "SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')",
        ):
            with pytest.raises((duckdb.PermissionException, duckdb.InvalidInputException)):
                cursor.execute(sql).fetchall()
    assert not list(tmp_path.glob("out.*"))
