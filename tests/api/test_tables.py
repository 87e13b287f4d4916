"""What ``/tables`` says of each version is what that version has."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable, write_deltalake

from api.reads.tables import Log
from statehouse.tables import table
from tests.support.depth import sized
from tests.support.lakes import drawn, more

KINDS = sized(("changelog.s", "state.total"), ("changelog.s", "state.total", "state.hours"))


@pytest.mark.slow
def test_files_and_bytes_are_those_of_each_version(spark, filled):
    config, _ = filled
    for number in range(sized(1, 5)):
        records, _ = drawn(number, first=1000 * (number + 1), resets=False)
        more(spark, config, records)
    paths = [table(config, *name.split(".")) for name in KINDS]
    for path in paths:
        spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"DELETE FROM delta.`{paths[1]}` WHERE key < 'k3'")
    spark.sql(f"ALTER TABLE delta.`{paths[1]}` SET TBLPROPERTIES ('a.b' = 'c')")
    spark.read.format("delta").load(paths[1]).write.format("delta").mode("overwrite").save(paths[1])
    for path in paths:
        commits = list(Log(path).refresh().sized_commits())
        assert len(commits) == DeltaTable(path).version() + 1 > 4
        for commit in commits:
            actions = DeltaTable(path, version=commit["version"]).get_add_actions(flatten=True)
            sizes = actions["size_bytes"].to_pylist()
            assert (commit["files"], commit["bytes"]) == (len(sizes), sum(sizes)), (path, commit)
    plain = f"{path}-plain"  # without marks, as deltalake writes no others
    for _ in range(2):
        spark.read.format("delta").load(path).write.format("delta").mode("append").save(plain)
    commits = list(Log(plain).refresh().sized_commits())
    write_deltalake(plain, DeltaTable(plain).to_pyarrow_table(), mode="append")  # which says nothing of bytes
    listed = list(Log(plain).refresh().sized_commits())
    assert listed[0]["bytes"] and listed[0]["files"] == commits[0]["files"] + 1
    assert [(c["files"], c["bytes"]) for c in listed[1:]] == [(c["files"], None) for c in commits]
    assert len(listed) == len(commits) + 1 == 3
