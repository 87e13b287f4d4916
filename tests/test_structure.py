"""The walls between the folders, the rooms of ``api/`` and ``jobs/`` and the tests, and that nothing is undocumented."""

from __future__ import annotations

import ast
import sys
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

from statehouse.cli import cli
from statehouse.config.models import Api, Config, Jobs, Lookup, Publish, Route, Source, Store, Stream, Target
from statehouse.config.stores import Own
from statehouse.config.tasks import Send, SetKey, Task
from statehouse.reducers import REDUCERS
from tests.support.lean import installed_with

TOP = Path(__file__).parents[1]
COMMAND = [TOP / "statehouse/cli.py", *(TOP / "statehouse/commands").glob("*.py")]  # which knows both halves
WALLS = {
    "statehouse": {"pyspark", "delta", "flask", "duckdb", "jobs", "api", "demo"},
    "jobs": {"api", "demo", "flask", "duckdb"},
    "api": {"jobs", "demo", "pyspark", "delta"},
}
# The rooms of api/ and of jobs/, and which others each one imports. api/errors.py is below them all; the jobs are above their rooms.
ROOMS = {
    "engine": set(),
    "replica": {"engine"},
    "reads": {"engine", "replica"},
    "fleet": {"engine", "replica", "reads"},
    "writes": {"engine"},
    "http": {"engine", "replica", "reads", "fleet", "writes"},
    "console": {"engine", "replica", "reads", "http"},
    "server": {"engine", "http", "console"},
}
JOB_ROOMS = {"spark": set(), "tasks": {"spark"}}
DEEPEST = 7
ONLY = {  # the rooms that may know a package
    "flask": {"http", "console"},
    "werkzeug": {"http", "console"},
    "uvicorn": {"server"},
    "urllib3": {"fleet"},
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


INSTALLED_WITH = {"statehouse": (), "statehouse/formats": ("formats",), "jobs": ("jobs",), "api": ("api",)}
ASKED_FOR = {"client", "formats"}  # of `statehouse`, with an extra of its own


@pytest.mark.parametrize(("folder", "extras"), INSTALLED_WITH.items())
def test_what_a_folder_imports_is_installed_with_it(folder, extras):
    here = installed_with(*extras) | set(sys.stdlib_module_names) | {"statehouse", folder}
    files = [f for f in (TOP / folder).glob("**/*.py") if f not in COMMAND]
    files = [f for f in files if f.parent == TOP / folder or f.parent.name not in ASKED_FOR]
    assert files
    assert {f.name: lacking for f in files if (lacking := set(imports(f)) - here)} == {}


def modules_of(folder):
    """Each module of a folder, and the modules that it imports, also late ones."""
    files = {".".join(f.relative_to(TOP).with_suffix("").parts): f for f in (TOP / folder).glob("**/*.py")}
    found = {}
    for name, file in files.items():
        found[name] = names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom):
                each = [f"{node.module}.{a.name}" for a in node.names]
                names |= {n if n in files else node.module for n in each}
    return found


def room_of(module, folder="api"):
    """The room of a module of a folder; None: it is in none."""
    parts = module.split(".")
    return parts[1] if parts[0] == folder and len(parts) > 2 else None


def depth(graph, node, above=()):
    """How many nodes there are in the longest chain from one downwards; an AssertionError where it comes back to itself."""
    assert node not in above, " → ".join([*above[above.index(node) :], node])
    return 1 + max((depth(graph, below, (*above, node)) for below in graph[node]), default=0)


def test_a_room_of_the_api_imports_only_those_below_it():
    arrows = {room: set() for room in ROOMS}
    for module, names in modules_of("api").items():
        if room := room_of(module):
            assert "api" not in names, module  # which puts all together
            arrows[room] |= {other for n in names if (other := room_of(n)) and other != room}
        elif module == "api.errors":
            assert not any(n.startswith("api") for n in names)
    assert arrows == ROOMS
    assert max(depth(ROOMS, room) for room in ROOMS) == DEEPEST
    assert [room for room in ROOMS if f"| `{room}/` |" not in (TOP / "CONTRIBUTING.md").read_text()] == []


def test_a_room_of_the_jobs_imports_only_those_below_it_and_no_job():
    arrows = {room: set() for room in JOB_ROOMS}
    for module, names in modules_of("jobs").items():
        if room := room_of(module, "jobs"):
            ours = {n for n in names if n.split(".")[0] == "jobs"}
            assert {n for n in ours if not room_of(n, "jobs")} == set(), module
            arrows[room] |= {other for n in ours if (other := room_of(n, "jobs")) != room}
    assert arrows == JOB_ROOMS
    assert [room for room in JOB_ROOMS if f"| `{room}/` |" not in (TOP / "CONTRIBUTING.md").read_text()] == []


def test_no_module_beside_the_script_for_spark_submit_hides_a_package():
    beside = {entry.stem for entry in (TOP / "jobs").iterdir()}  # a script's folder is the first that is looked into
    assert beside & {*metadata.packages_distributions(), *sys.stdlib_module_names, *WALLS, "demo"} == set()


@pytest.mark.parametrize("folder", ["api", "jobs", "statehouse"])
def test_no_module_imports_itself_by_way_of_others(folder):
    found = modules_of(folder)
    TopologicalSorter({module: {n for n in names if n in found} for module, names in found.items()}).prepare()


def test_settings_are_imported_from_the_module_that_has_them():
    door = "statehouse.config"  # which is for users
    assert {m for folder in (*WALLS, "demo") for m, names in modules_of(folder).items() if door in names} == set()


def test_a_package_is_known_in_its_rooms_alone():
    for module, names in modules_of("api").items():
        crossed = {n.split(".")[0] for n in names} & {p for p, rooms in ONLY.items() if room_of(module) not in rooms}
        assert crossed <= ({"flask"} if module == "api.__init__" else set()), module  # there for the type alone


@pytest.mark.parametrize(("folder", "rooms"), [("api", {*ROOMS, "openapi"}), ("jobs", {*JOB_ROOMS})])
def test_a_room_says_what_it_is_for_and_has_no_code_at_its_door(folder, rooms):
    doors = list((TOP / folder).glob("*/**/__init__.py"))
    assert {door.parent.name for door in doors} == rooms
    for door in doors:
        tree = ast.parse(door.read_text())
        assert ast.get_docstring(tree) and len(tree.body) == 1, door


# Where tests are: those of a folder in one of its name, those of the pages, and those of both halves together or of several processes.
TEST_ROOMS = {"api", "jobs", "statehouse", "docs", "system"}
OF_ALL = {"tests/test_structure.py", "tests/test_turns.py"}  # of the folders themselves


def test_each_test_is_in_a_folder_that_says_what_it_is_of():
    rooms = {folder.name for folder in (TOP / "tests").iterdir() if any(folder.glob("*.py"))}
    assert rooms == {*TEST_ROOMS, "support"}
    assert {str(file.relative_to(TOP)) for file in (TOP / "tests").glob("test_*.py")} == OF_ALL
    assert list((TOP / "tests/support").rglob("test_*.py")) == []
    for room in TEST_ROOMS:
        assert (TOP / "tests" / room / "__init__.py").is_file(), "two folders may have a file of the same name"
        assert f"`{room}/`" in (TOP / "CONTRIBUTING.md").read_text()


def test_no_module_of_tests_imports_another():
    """What tests have in common is in tests/support."""
    for module, names in modules_of("tests").items():
        assert {n for n in names if n.split(".")[0] == "tests" and n.split(".")[1:2] != ["support"]} == set(), module


def test_every_setting_reducer_and_subcommand_is_in_the_reference():
    reference = (TOP / "docs/reference.md").read_text()
    settings = {
        f.alias or n
        for m in (Config, Stream, Lookup, Store, Route, Source, Target, Publish, Task, Send, SetKey, Own, Api, Jobs)
        for n, f in m.model_fields.items()
        if n != "name"
    }
    commands = cli.commands
    missing = {w for w in [*settings, *REDUCERS] if f"`{w}`" not in reference and f"`{w}(" not in reference}
    missing |= {c for c in commands if f"statehouse {c}" not in reference}
    assert missing == set()
