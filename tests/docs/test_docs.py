"""Every page of ``docs/`` (at full depth; else every sixth) does what it shows: run as a stranger would, top to bottom, in a
folder of its own.

A fenced block is what its info string says: ``yaml statehouse.yaml`` (or json, csv) is a file to write; ``console`` is
commands after ``$``, each with lines that its output has in this order, where ``…`` stands for anything; ``sql`` is a
query for DuckDB, and the ``text`` right after it the table that it gives. Anything else is for reading only.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from api.engine import duck
from tests.support.depth import sized
from tests.support.pages import FENCE, console, folder

__all__ = ["folder"]  # a fixture

# What docs/console.md shows is done in tests/api/test_console_browser.py, what docs/client.md shows in
# tests/statehouse/test_client.py, and the tutorial in test_tutorial.py. Some pages list what the code has, and are held to it by
# tests/test_structure.py, tests/api/test_openapi.py, test_errors_page.py, test_monitor_page.py and test_pages.py. Others tell, and
# show nothing that runs.
LISTING = ("reference", "options", "errors", "monitor")
TELLING = ("concepts", "deploy", "upgrade")
ELSEWHERE = ("client", "console", "tutorial", *LISTING, *TELLING)
PAGES = sorted(page for page in (Path(__file__).parents[2] / "docs").glob("*.md") if page.stem not in ELSEWHERE)
COMMAND = re.compile(r"\$ (?:\w+=\S+ )*statehouse\b")


def run(page):
    """Run a page's blocks where we stand; how many commands it ran. AssertionError where it shows something else."""
    blocks = [(info.split(), body) for info, body in FENCE.findall(page)]
    ran = checked = 0
    for (info, body), (after, shown) in zip(blocks, [*blocks[1:], ([], "")], strict=True):
        if len(info) == 2:
            Path(info[1]).write_text(body)
        elif info == ["console"]:
            count, lines = console(body)
            ran, checked = ran + count, checked + lines
        elif info == ["sql"]:
            assert after == ["text"], f"no result is shown after\n{body}"
            assert query(body) == shown, body
            checked += 1
    assert ran and checked, "the page has no example that runs"
    assert ran == len(COMMAND.findall(page)), "the page shows a command outside of its console blocks"


def query(sql):
    """DuckDB's rows as text, under their names, each column as wide as its widest cell."""
    with duck.connect() as connection:
        found = connection.sql(sql.strip().removesuffix(";"))
        rows = [found.columns, *found.project("COLUMNS(*)::VARCHAR").fetchall()]
    cells = [["NULL" if cell is None else cell for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in cells)


@pytest.mark.slow
@pytest.mark.parametrize("page", sized(PAGES[2::6], PAGES), ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(spark, folder, page):
    run(page.read_text())


SHOWN = """
```yaml statehouse.yaml
streams: {s: {topic: t, schema: k STRING}}
```
```console
$ statehouse status -c none.yaml
none.yaml: No such …: expected …
$ echo $?
2
```
```sql
SELECT 1 AS one, NULL AS none
```
```text
one  none
1    NULL
```
"""


@pytest.mark.parametrize(
    ("shown", "instead", "says"),
    [
        ("", "", None),
        ("none.yaml: No such", "none.yaml: Some such", "is not in the output"),
        ("\n2\n", "\n0\n", "the exit code"),
        ("1    NULL", "1    0", "SELECT 1"),
        ("```text", "```", "no result is shown"),
        ("$ statehouse", "$ curl", "cannot run"),
        ("```console", "```", "no example"),
        ("```sql", "Then `$ statehouse run`.\n```sql", "outside"),
    ],
)
def test_a_page_that_shows_something_else_fails(folder, shown, instead, says):
    with contextlib.nullcontext() if says is None else pytest.raises(AssertionError, match=says):
        run(SHOWN.replace(shown, instead, 1))
