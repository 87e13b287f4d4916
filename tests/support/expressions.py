"""Expressions in Spark's words, and rows with values at the edges of every type: what :mod:`statehouse.alike` is held to."""

from __future__ import annotations

from pathlib import Path

COLUMNS = {
    "s": "STRING", "i": "INT", "b": "BIGINT", "t": "TINYINT", "sm": "SMALLINT", "d": "DOUBLE", "f": "FLOAT",
    "dec": "DECIMAL(10,2)", "few": "DECIMAL(5,1)", "dec38": "DECIMAL(38,10)", "bo": "BOOLEAN", "dt": "DATE", "ts": "TIMESTAMP",
    "ntz": "TIMESTAMP_NTZ", "arr": "ARRAY<INT>", "m": "MAP<STRING, INT>", "st": "STRUCT<a: INT, B: STRING>", "bin": "BINARY",
}  # fmt: skip
EXPRESSIONS = (Path(__file__).parents[1] / "fixtures" / "expressions.txt").read_text().splitlines()
VALUES: dict[str, list] = {
    "s": ["a", " 12 ", "1.9", "aB,c.d", "", "2024-02-29", "2024-02-29 12:30:00", "ß\u0130é😀ΑΣ ﬁǰ", "true", "29/02/2024", '{"a": 1.50}',
          "a%b_c\\d", "  x y\t\n", "1e3", "NaN", "yes", "a.a.a", "2024-2-9", "99999999999", "a_b", "12:00", "2024", "0x1F", "e\u0301", "\0x"],
    "i": [0, 1, -1, -7, 2**31 - 1, -(2**31), 3, 5, 10, 100, 65],
    "b": [0, 1, -7, 2**63 - 1, -(2**63), 1_700_000_000_123, 4_102_444_800_000, 2**53 + 1],
    "t": [0, 1, -7, 127, -128, 3],
    "sm": [0, 300, -7, 32767, -32768],
    "d": [0.0, -0.0, 1.5, 2.5, -2.5, 1e20, 1e-7, 0.15, 123456789.125, 5e-324, 1.7976931348623157e308, 2.675, 99.995, 1e15, 12345678.9],
    "f": [0.1, 2.5, 3.4e38, -0.0, 1e20, 1234567.9],
    "dec": ["0", "1.50", "2.55", "-2.55", "99999999.99", "-99999999.99", "0.05", "10.00", "1.05"],
    "few": ["0", "9999.9", "-9999.9", "0.5", "-0.5"],
    "dec38": ["0", "1.5", "-2.5", "9999999999999999999999999999.9999999999", "-9999999999999999999999999999.9999999999", "0.0000000005"],
    "bo": [True, False],
    "dt": ["2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "1582-10-10", "2024-12-30", "1900-01-01"],
    "ts": ["2024-02-29T12:30:45.123456Z", "1969-12-31T23:59:59.5Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
           "1582-10-10T00:00:00Z", "2024-12-30T00:00:00Z", "1900-01-01T05:00:00Z", "2023-03-31T23:00:00Z"],
    "ntz": ["2024-02-29T12:30:45.5", "1969-12-31T23:59:59.999999", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"],
    "arr": [[1, 2, 3], [3, None, 1], [], [1, 1, 2, None], [5]],
    "m": [{"k": 1}, {"k": None, "z": 5}, {}],
    "st": [{"a": 1, "B": "x"}, {"a": None, "B": None}, {"B": ""}, {}],
    "bin": ["QQ==", "", "/+8="],
}  # fmt: skip


def rows() -> list[dict]:
    """As many rows as the longest list has values, each of which meets others; one of nulls alone, too."""
    most = max(map(len, VALUES.values()))
    return [{n: v[k % len(v)] for n, v in VALUES.items() if k % 7 or n in "sid"} for k in range(2 * most)] + [{}]
