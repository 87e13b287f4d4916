"""The command itself: help, errors, JSON, what a terminal gets and what a script gets."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest

from statehouse import errors
from statehouse.cli import cli, main
from statehouse.commands.output import Problem
from tests.support.records import create, wait
from tests.support.terminals import on_terminal

GOOD = """root: ./lake
kafka:
  bootstrap.servers: 127.0.0.1:1
streams:
  s:
    topic: t
    schema: k STRING, v INT
stores:
  latest: {stream: s, key: k, value: v, reduce: latest}
"""
ESCAPE = "\x1b["


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a good file, to stand in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "statehouse.yaml").write_text(GOOD)
    return tmp_path


def run(*words, **environ):
    """The command as a process whose output is no terminal: exit code, stdout, stderr."""
    command = [sys.executable, "-m", "statehouse.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environ})
    return done.returncode, done.stdout, done.stderr


# --- help ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cli.commands)
def test_every_command_has_examples_that_can_be_typed(name):
    command = cli.commands[name]
    shown = command.get_help(click.Context(command, info_name=name))
    assert "Examples:" in shown and command.help
    assert all(parameter.help for parameter in command.params if isinstance(parameter, click.Option)) or name == "serve"
    for typed, meaning in command.examples:
        words = [word for word in shlex.split(typed) if not re.match(r"[A-Z_]+=", word)]
        assert words[:2] == ["statehouse", name] and meaning
        assert command.make_context(name, words[2:]).params is not None


def test_the_help_needs_neither_half():
    code = "import sys; from statehouse.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {
        "pyspark",
        "duckdb",
        "flask",
        "pydantic",
        "sqlglot",
        "deltalake",
        "pyarrow",
        "rich",
        "httpx",
        "jobs",
        "api",
    }
    assert all(f"  {name} " in done.stdout for name in cli.commands)


def test_tab_completes_commands():
    _, script, _ = run(_STATEHOUSE_COMPLETE="bash_source")
    assert "complete" in script and "_STATEHOUSE_COMPLETE=bash_complete" in script
    environ = {"_STATEHOUSE_COMPLETE": "bash_complete", "COMP_WORDS": "statehouse re", "COMP_CWORD": "1"}
    assert run(**environ)[1].split() == ["plain,recover", "plain,requeue"]


# --- errors ----------------------------------------------------------------------------------------------------------------------


def test_every_error_says_what_to_do():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(kinds) > 5
    assert all("advice" in vars(kind) or kind is errors.FeedLost for kind in kinds)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("f.yaml:3: a.b: found 'x', expected one of y, z", ("f.yaml:3: a.b", "'x'", "one of y, z")),
        ("f.yaml:3: a: found reduce: 'x', expected one, expected", ("f.yaml:3: a", "reduce: 'x'", "one, expected")),
        ("found no 'time', expected one", ("", "no 'time'", "one")),
    ],
)
def test_an_error_in_parts(line, parts):
    assert tuple(Problem(line).parts.values()) == parts


def test_an_error_that_has_no_parts():
    assert Problem("Kafka is away").parts == {"found": "Kafka is away"}


def test_a_wrong_file_in_a_line_for_scripts_and_in_three_for_people(folder):
    (folder / "statehouse.yaml").write_text(GOOD.replace("reduce: latest", "reduce: last"))
    line = "statehouse.yaml:9: stores.latest: found reduce: 'last', expected one of at_least_one"
    code, out, err = run("status")
    assert (code, out) == (2, "") and err.startswith(line) and len(err.splitlines()) == 2
    assert err.endswith("\n  to do: correct it there, then `statehouse check`\n")
    words = ["-m", "statehouse.cli", "status"]
    code, shown = on_terminal(words, environ={"NO_COLOR": "1"})
    assert code == 2
    where, found, expected, advice = shown.splitlines()
    assert where == "statehouse.yaml:9: stores.latest"
    assert found == "  found     reduce: 'last'"
    assert expected.startswith("  expected  one of at_least_one")
    assert advice == "  to do     correct it there, then `statehouse check`"
    assert ESCAPE in on_terminal(words, environ={"NO_COLOR": ""})[1]


def test_a_wrong_file_as_json(folder, capsys):
    (folder / "statehouse.yaml").write_text(GOOD.replace("reduce: latest", "reduce: last"))
    assert main(["check", "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["file"]) == (False, "statehouse.yaml")
    [problem] = told["problems"]
    assert problem["where"] == "statehouse.yaml:9: stores.latest" and problem["found"] == "reduce: 'last'"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nosuch"], "found no such command 'nosuch'"),
        (["load"], "found missing argument 'STREAM', expected statehouse load"),
        (["load", "s"], "found missing argument 'FILE...', expected statehouse load"),
        (["status", "--jsn"], "found no such option"),
        (["serve", "--port", "x"], "'x' is not a valid integer"),
        (["recover", "nosuch"], "found the store 'nosuch', expected one of latest"),
        (["requeue", "nosuch"], "found the stream 'nosuch', expected one of s"),
        (["erase", "nosuch", "-5"], "found the store 'nosuch', expected one of latest"),
        (["erase", "latest", "--5"], "found no such option"),
        (["status", "-c", "none.yaml"], "none.yaml: No such file or directory: expected a statehouse.yaml"),
        ([], "Usage: statehouse"),
    ],
)
def test_a_wrong_command_line(folder, capsys, words, says):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert says in err and ("to do: " in err or not words)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["erase", "--help"]])
def test_help_is_no_error(capsys, words):
    assert main(words) == 0


def test_a_key_may_be_a_negative_number():
    context = cli.commands["erase"].make_context("erase", ["latest", "-5", "-c", "f.yaml", "-6.5"])
    assert context.params["keys"] == ("-5", "-6.5") and context.params["file"] == "f.yaml"


def test_arguments_keep_their_order_where_some_are_negative_numbers():
    context = cli.commands["set"].make_context("set", ["tills", "a", "-5", "--agent", "me", "-.5", "--url=http://h"])
    assert (context.params["key"], context.params["value"]) == (("a", "-5"), "-.5")
    assert (context.params["agent"], context.params["url"], context.params["wait"]) == ("me", "http://h", True)
    context = cli.commands["scan"].make_context("scan", ["--from", "-5", "tills", "--to", "-4"])
    assert (context.params["store"], context.params["start"], context.params["to"]) == ("tills", "-5", "-4")
    context = cli.commands["get"].make_context("get", ["tills", "--", "--json", "-a"])
    assert (context.params["key"], context.params["as_json"]) == (("--json", "-a"), False)


# --- what a terminal gets --------------------------------------------------------------------------------------------------------


def test_status_is_plain_for_a_script_and_a_table_on_a_terminal(folder, broker, monkeypatch):
    monkeypatch.setenv("STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap)
    (folder / "statehouse.yaml").write_text(GOOD.replace("topic: t", "topic: nosuch"))
    code, out, _ = run("status")
    assert code == 0 and ESCAPE not in out
    assert out.splitlines() == [
        "stream  topic   events  quarantined  version  behind  bytes",
        "s       nosuch  0       0            -        0       0",
        "",
        "store   reduce  keys  position  head  lag_ms  unkeyed  late  version  bytes",
        "latest  latest  0     -         -     0       0        0     -        0",
    ]
    code, shown = on_terminal(["-m", "statehouse.cli", "status"])
    assert code == 0 and ESCAPE in shown and "──" in shown


WORKING = """
import logging, sys, time
from statehouse import logs
from statehouse.commands.progress import working
logs.to_stderr()
with working("loading", 2, "files") as work:
    for number in range(2):
        work.begin(f"loading {number}.jsonl", lambda: 5000)
        logging.getLogger("statehouse").info("a line")
        work.advance(1200)
        time.sleep(number and 1.3)
        work.count()
    work.begin("nothing to do", lambda: 0)
    work.begin("going on")
    time.sleep(0.3)
print("done")
"""


def test_progress_is_for_a_terminal(folder):
    code, shown = on_terminal(["-c", WORKING])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 0 and "1 of 2 files" in shown and "0:00:00" in shown
    assert re.search(r"loading 1.jsonl [━╸╺]+ 1,200 of 5,000 events, [0-9,]+/s, 0:00:0[34] left", shown)
    assert re.search(r"going on +0:00:00", shown) and "nothing to do" not in shown
    assert len(re.findall("^.*a line$", shown, re.MULTILINE)) == 2, "log lines stand above it"
    assert f"{ESCAPE}?25l" not in shown, "the cursor stays, since a signal may end the process at once"
    done = subprocess.run([sys.executable, "-c", WORKING], capture_output=True, text=True)
    assert done.stdout == "done\n" and [line[9:] for line in done.stderr.splitlines()] == ["a line", "a line"]


# --- doctor ----------------------------------------------------------------------------------------------------------------------


def doctor(capsys):
    """Its exit code, and its checks by name."""
    code = main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == (code == 0)
    assert all(check["advice"] for check in told["checks"] if check["level"] in ("warn", "bad"))
    return code, {check["name"]: check for check in told["checks"]}


def test_doctor_without_kafka(folder, capsys, monkeypatch):
    monkeypatch.setattr("statehouse.doctor.KAFKA_SECONDS", 0.5)
    code, checks = doctor(capsys)
    assert code == 1 and checks["Kafka"]["level"] == "bad" and "start Kafka" in checks["Kafka"]["advice"]
    assert checks["topics"]["level"] == "skip"
    names = ("Python", "packages", "memory", "settings", "disk", "lake can be read", "lake can be written", "clock")
    assert {name: checks[name]["level"] for name in names} == dict.fromkeys(names, "ok")
    assert not (folder / "lake").exists(), "nothing is changed"


def test_doctor_without_settings_and_java(folder, capsys, monkeypatch):
    (folder / "statehouse.yaml").unlink()
    monkeypatch.setenv("JAVA_HOME", str(folder))
    code, checks = doctor(capsys)
    assert code == 1 and checks["settings"]["level"] == checks["Java"]["level"] == "bad"
    assert "install Java 17 to 22" in checks["Java"]["advice"] and "statehouse init" in checks["settings"]["advice"]
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^bad   Java: .*\n      to do: install Java", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "11.0.2"),
        ('openjdk version "23" 2024-09-17', "23 "),
        (
            "Error occurred during boot layer: Module jdk.incubator.vector not found",
            "has no module jdk.incubator.vector",
        ),
    ],
)
def test_doctor_knows_a_java_that_spark_does_not_run_on(folder, capsys, monkeypatch, says, found):
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    (folder / "statehouse.yaml").unlink()
    monkeypatch.setenv("JAVA_HOME", str(folder))
    _, checks = doctor(capsys)
    assert checks["Java"]["level"] == "bad" and found in checks["Java"]["found"]


def test_doctor_with_kafka(folder, broker, capsys, monkeypatch):
    monkeypatch.setenv("STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap)
    topic = f"doctor-{os.getpid()}"
    (folder / "statehouse.yaml").write_text(GOOD.replace("topic: t", f"topic: {topic}"))
    code, checks = doctor(capsys)
    assert code == 0 and checks["Kafka"]["level"] == "ok"
    assert checks[f"topic {topic}"]["level"] == "warn", "there is none yet"
    create(broker.bootstrap, topic, partitions=3)
    wait(lambda: doctor(capsys)[1][f"topic {topic}"]["found"] == "3 partitions", seconds=20)
