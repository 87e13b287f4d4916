"""Both halves answer alike: what the API shows ahead of the changelog is what it shows by the changelog, and after the merge.

Drawn schemas and payloads (tests/support/payloads.py) and the files of RFC 8259's test suite go through Spark and through the API. `make fuzz` does
it at its full size.
"""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.alike import KEYS, differ
from tests.support.depth import sized
from tests.support.payloads import SUITE, ddl, draw_payload, draw_schema, draw_text, expected, wrapped, write

SCHEMAS, PAYLOADS = sized((1, 600), (10, 20_000))  # and so many payloads of each


def configured(lake, schema):
    """A stream of these columns and an id; a store that has all of a row, one of a value alone, and one for each column that can be a key."""
    columns = ", ".join(["id BIGINT", *(f"`{name}` {ddl(kind)}" for name, kind in schema)])
    named = ", ".join(f"`{name}`" for name, _ in schema)
    stores = [f"  rows: {{stream: s, key: id, value: 'struct({named})', reduce: latest}}"]
    stores.append(f"  v0: {{stream: s, key: id, value: '`{schema[0][0]}`', reduce: first}}")
    for number, (name, kind) in enumerate(schema):
        if isinstance(kind, str) and kind.startswith(KEYS):
            stores.append(f"  k{number}: {{stream: s, key: ['`{name}` AS k', 'id % 7 AS m'], value: id, reduce: max}}")
    # Of a third of the events Spark would throw, also where ANSI mode is off.
    thrown = "timestamp_millis(CASE WHEN id % 3 = 0 THEN 9223372036854775807 ELSE id END)"
    stores.append(f"  thrown: {{stream: s, key: 'id % 9 AS k', value: '{thrown}', reduce: max}}")
    stores.append(f"  thrown_key: {{stream: s, key: '{thrown} AS k', value: id, reduce: count}}")
    text = "\n".join(stores).replace("'", '"')
    return lake(f"streams:\n  s: {{topic: t, schema: '{columns}'}}\nstores:\n{text}\n")


def drawn(dice, schema, count):
    """Records, as (key, value, headers), and of each report whether it is taken."""
    found = []
    for number in range(1, count + 1):
        payload = {"id": number, **draw_payload(dice, schema)}
        kind = dice.random()
        if kind < 0.05:  # a set of a whole row
            body = {"value": {n: v for n, v in payload.items() if n != "id"}, "agent": draw_text(dice)}
            found.append(
                (str(dice.randint(1, count)), write(body), {"statehouse-op": b"set", "statehouse-store": b"rows"}, None)
            )
        elif kind < 0.08:  # a purge, of a key or of what may be one
            key = f"{quote(draw_text(dice), safe=dice.choice(('', '+%')))}/{dice.randint(0, 6)}"
            key = dice.choice((key, str(dice.randint(1, count)), draw_text(dice)))
            store = dice.choice(("rows", "v0", "k0", None))  # there may be no k0
            headers = {"statehouse-op": b"purge", **({"statehouse-store": store.encode()} if store else {})}
            found.append((key, "", headers, None))
        else:
            found.append((None, write(payload), {}, expected(payload, schema) is not None))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_live_is_what_is_merged(spark, lake, seed):
    dice = random.Random(seed)
    schema = draw_schema(dice)
    config, records = configured(lake, schema), drawn(dice, schema, PAYLOADS)
    taken = differ(spark, config, [(key, value.encode(), headers) for key, value, headers, _ in records])
    assert taken >= sum(right is True for *_, right in records) > PAYLOADS / 10


@pytest.mark.slow
@pytest.mark.skipif(not SUITE.is_dir(), reason="the suite is not beside the checkout")
def test_live_is_what_is_merged_of_the_json_suite(spark, lake):
    kinds = [
        "STRING",
        "DOUBLE",
        "DECIMAL(38, 10)",
        "BIGINT",
        "BOOLEAN",
        "TIMESTAMP",
        ("ARRAY", "STRING"),
        ("MAP", "DOUBLE"),
    ]
    schema = [(f"c{number}", kind) for number, kind in enumerate(kinds)]
    records = []
    for file in sorted(Path(SUITE).glob("*.json"))[:: sized(8, 1)]:
        content = file.read_bytes()
        columns = [b'{"id": %d, "c%d": %s}' % (len(records), number, content) for number in range(len(kinds))]
        records += [(None, value, {}) for value in (*wrapped(content), *columns)]
        records += [("1", b'{"value": {"c0": %s}}' % content, {"statehouse-op": b"set", "statehouse-store": b"rows"})]
    assert differ(spark, configured(lake, schema), records) > sized(35, 300)
