"""The walls between the folders, and that nothing is undocumented."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from statehouse.cli import cli
from statehouse.config import Api, Config, Jobs, Lookup, Publish, Route, Store, Stream, Target
from statehouse.reducers import REDUCERS

TOP = Path(__file__).parents[1]
COMMAND = [TOP / "statehouse/cli.py", *(TOP / "statehouse/commands").glob("*.py")]  # which knows both halves
WALLS = {
    "statehouse": {"pyspark", "delta", "flask", "duckdb", "jobs", "api", "demo"},
    "jobs": {"api", "demo", "flask", "duckdb"},
    "api": {"jobs", "demo", "pyspark", "delta"},
}


def imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("folder", WALLS)
def test_no_folder_imports_what_is_behind_a_wall(folder):
    files = [f for f in (TOP / folder).glob("**/*.py") if f not in COMMAND]
    assert files
    assert {f.name: crossed for f in files if (crossed := WALLS[folder] & set(imports(f)))} == {}


def test_the_command_imports_either_half_only_when_asked_for():
    for file in COMMAND:
        top = ast.parse(file.read_text()).body
        names = {a.name for n in top if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module for n in top if isinstance(n, ast.ImportFrom)}
        assert not {n.split(".")[0] for n in names} & {"jobs", "api", "demo", "pyspark", "duckdb", "rich"}, file


def test_every_setting_reducer_and_subcommand_is_in_the_reference():
    reference = (TOP / "docs/reference.md").read_text()
    settings = {
        f.alias or n
        for m in (Config, Stream, Lookup, Store, Route, Target, Publish, Api, Jobs)
        for n, f in m.model_fields.items()
        if n != "name"
    }
    commands = cli.commands
    missing = {w for w in [*settings, *REDUCERS] if f"`{w}`" not in reference and f"`{w}(" not in reference}
    missing |= {c for c in commands if f"statehouse {c}" not in reference}
    assert missing == set()
