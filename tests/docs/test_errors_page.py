"""``docs/errors.md`` has every error: classes, the problems of HTTP, and the reasons of the quarantine, as the code has them."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from api.errors import TITLES
from statehouse import errors
from statehouse.client import errors as client_errors

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs/errors.md").read_text()
# Modules whose Refused is a reason.
REFUSING = {
    **{name: [f"statehouse.{name}"] for name in ("payload", "records")},
    "formats": [f"statehouse.formats.{file.stem}" for file in sorted((TOP / "statehouse/formats").glob("[a-z]*.py"))],
}


def classes(module):
    """The errors that a module defines."""
    found = inspect.getmembers(module, inspect.isclass)
    return [c for _, c in found if issubclass(c, errors.StatehouseError) and c.__module__ == module.__name__]


def text_of(node, module):
    """The text of an expression of a module, with ``…`` for what differs; None: it is not known before it runs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        known = getattr(module, node.id, None)
        return known if isinstance(known, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        value = part.value
        known = getattr(module, value.id, None) if isinstance(value, ast.Name) else value
        parts.append(str(known) if isinstance(known, (str, int)) else "…")
    return "".join(parts)


def reasons(name):
    """The texts that a module refuses with: those of ``Refused(…)``, and what its functions of reasons return."""
    module = importlib.import_module(name)
    tree = ast.parse(Path(module.__file__).read_text())
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Refused"]
    nodes = [call.args[0] for call in calls]
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.returns and function.name.startswith("_not"):
            nodes += [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    return {text for node in nodes if (text := text_of(node, module))}


def sql_reasons():
    """The texts that Spark refuses with, of :mod:`jobs.spark.parse` and of a route, and those of a record without text; the beginning of
    one that SQL goes on with."""
    found = set()
    for file in ("jobs/spark/parse.py", "jobs/route.py", "statehouse/records.py"):
        tree = ast.parse((TOP / file).read_text())
        within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        raised = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Raise) for part in ast.walk(node)}
        for node in ast.walk(tree):
            whole = isinstance(node, ast.JoinedStr) or id(node) not in within
            text = text_of(node, None) if whole and id(node) not in raised else None
            if text and re.match(r"'?(found |not UTF-8|not a JSON|the time cannot|route …: )", text):
                found.add(text.strip("'"))
    return found


def shown(text):
    """Whether the page has a text in a code span, or where it ends with a blank, one that begins so."""
    return f"`{text}" in PAGE if text.endswith(" ") else f"`{text}`" in PAGE


@pytest.mark.parametrize("module", [errors, client_errors], ids=lambda module: module.__name__)
def test_every_class_is_there(module):
    assert classes(module)
    assert [c.__name__ for c in classes(module) if not shown(c.__name__)] == []


def test_every_problem_is_there_with_its_title():
    rows = {row[1]: row[2] for row in re.finditer(r"^\| `([a-z-]+)` \| ([^|]+) \|", PAGE, re.MULTILINE)}
    assert {kind: rows.get(kind) for kind in TITLES} == TITLES
    assert set(rows) <= set(TITLES), "what is not any more"


@pytest.mark.parametrize("name", REFUSING)
def test_every_reason_of_the_quarantine_is_there(name):
    found = {text for module in REFUSING[name] for text in reasons(module)}
    assert len(found) > 3
    assert sorted(text for text in found if not shown(text)) == []


def test_every_reason_that_spark_finds_is_there():
    found = sql_reasons()
    assert len(found) > 5
    assert sorted(text for text in found if not shown(text)) == []


def test_every_status_of_a_problem_is_there():
    rows = {row[1]: row[2] for row in re.finditer(r"^\| `([a-z-]+)` \| [^|]+ \| ([0-9, ]+) \|", PAGE, re.MULTILINE)}
    found = set()
    for file in (TOP / "api").glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            given = (
                [a.value for a in node.args if isinstance(a, ast.Constant)] if name in ("Problem", "refused") else []
            )
            if name == "Problem" and len(given) > 1 and given[1] in TITLES:
                found.add((given[1], str(given[0])))
            elif name == "refused" and given and given[0] in TITLES:
                found.add((given[0], "400"))
    assert len(found) > 30
    assert sorted((kind, status) for kind, status in found if status not in rows.get(kind, "")) == []
