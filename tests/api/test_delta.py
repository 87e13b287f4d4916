"""A version of a Delta table by its files is what DuckDB's own extension reads."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from api.engine import delta, duck
from api.engine.delta import parts, pin, unpin
from tests.support.api_lake import MOMENT, ORDER, TIME

REPORT = pa.struct([("value", pa.int32()), ("_order", ORDER)])
SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "at": TIME,
        "day": pa.date32(),
        "list": pa.list_(pa.string()),
        "reports": pa.map_(pa.string(), REPORT),
        "sum": pa.decimal128(12, 2),
        "raw": pa.binary(),
        "small": pa.int16(),
        "big": pa.int64(),
        "float": pa.float32(),
        "yes": pa.bool_(),
    }
)
ROW = {
    "key": "a",
    "at": MOMENT,
    "day": MOMENT.date(),
    "list": ["x", None],
    "reports": [("p", {"value": 1, "_order": Decimal(10**30)})],
    "sum": Decimal("1.50"),
    "raw": b"\0",
    "small": 1,
    "big": 2**60,
    "float": 0.1,
    "yes": True,
}


@pytest.mark.parametrize("partitions", [[], ["key"]])
def test_the_same_as_by_the_extension(tmp_path: Path, partitions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "a lake" / "table")
    DeltaTable.create(path, SCHEMA, partition_by=partitions)
    write_deltalake(path, pa.Table.from_pylist([ROW, {"key": "none"}], schema=SCHEMA), mode="append")
    later = pa.table({"key": ["b"], "new": [1]})
    write_deltalake(path, later, mode="append", schema_mode="merge")  # a column that older files lack
    with duck.connect(root=str(tmp_path)) as db:

        def read(version: int) -> tuple[dict, list]:
            name = pin(db, path, version, "a name")
            found = duck.types(db, name), db.execute(f"SELECT * FROM {name} ORDER BY key").fetchall()
            unpin(db, "a name")
            return found

        made = [read(version) for version in (0, 1, 2)]
        with monkeypatch.context() as patch:
            patch.setattr(delta, "_plain", lambda *_: False)
            assert made == [read(version) for version in (0, 1, 2)]
        assert [len(rows) for _, rows in made] == [0, 2, 3]
        assert made[2][1][0][-1] is None and made[2][1][1][-1] == 1
        in_parts = [
            row for _ in parts(db, path, 2, "a name", 1) for row in db.execute('SELECT * FROM "a name"').fetchall()
        ]
        assert sorted(in_parts, key=str) == sorted(made[2][1], key=str)
        plain = delta._plain(DeltaTable(path), path, [])
        assert plain == (not partitions), "a partition's value is not in the files"
