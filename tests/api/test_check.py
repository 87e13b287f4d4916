"""Which expressions DuckDB can compute: asked of sqlglot and DuckDB themselves."""

from __future__ import annotations

from pathlib import Path

from api.engine.check import check
from statehouse.config.file import load
from tests.support.api_lake import KINDS, configured, rule

FILE = """\
streams:
  s:
    topic: t
    schema: >-
      k STRING, ts TIMESTAMP, n DECIMAL(12,2), m MAP<STRING, ARRAY<INT>>, o STRUCT<b: STRING>, `select` INT
stores:
  good:
    stream: s
    key: [k, "date_format(ts, 'yyyy-MM-dd') AS day", "m['a'][0] AS first", "`select` AS s"]
    where: "k LIKE 'a%' AND o.b IS NOT NULL AND _offset > 0"
    value: "coalesce(n, 0) * 0.02 + year(ts)"
    reduce: sum
  other:
    stream: s
    key: dayofweek(ts)
    agent: n * 1e0
    value: levenshtein(k, 'a')
    where: k RLIKE '^a'
    reduce: majority
  bad:
    stream: s
    key: [k, "nope AS x"]
    where: "schema_of_json(k) = 'x'"
    value: "java_method('java.lang.Math', 'abs', n)"
    reduce: sum
"""


def test_what_duckdb_can_compute_and_what_not(tmp_path: Path, capfd) -> None:
    (tmp_path / "statehouse.yaml").write_text(FILE)
    found = dict(check(load(tmp_path / "statehouse.yaml", {}), {}))
    assert {at[2]: message for at, message in found.items() if at[1] == "other"} == {
        name: f"{part} is not known to be the same in DuckDB"
        for name, part in {
            "key": "DAYOFWEEK(ts)",
            "agent": "n * 1e0",
            "value": "LEVENSHTEIN(k, 'a')",
            "where": "k RLIKE '^a'",
        }.items()
    }
    found = {at: message for at, message in found.items() if at[1] != "other"}
    assert list(found) == [
        ("stores", "bad", "key", 1),
        ("stores", "bad", "value"),
        ("stores", "bad", "where"),
    ]
    assert "nope" in found["stores", "bad", "key", 1]
    assert all(message.startswith("DuckDB cannot compute it: ") for message in found.values())
    assert capfd.readouterr() == ("", "")


def test_the_stores_of_the_other_tests(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert check(config, {name: rule(config, name) for name in KINDS}) == []
