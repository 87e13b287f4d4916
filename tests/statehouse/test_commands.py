"""The commands that ask a running service: what a terminal gets, what a script gets, and what is an error."""

from __future__ import annotations

import csv
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statehouse.cli import main
from statehouse.config.file import load
from tests.support.api_lake import YAML, State
from tests.support.client_page import PAGE, configured, filled
from tests.support.pages import FENCE, console
from tests.support.records import create, free_port, produce
from tests.support.serving import serving
from tests.support.terminals import on_terminal

COMMAND = ["-m", "statehouse.cli"]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service without a Kafka: its URL, and the changelog of its stream of sales."""
    config = configured(tmp_path_factory.mktemp("commands"))
    sales = filled(config)
    with serving(config) as (_, connection):
        yield f"http://127.0.0.1:{connection.port}", sales


@pytest.fixture
def url(service, monkeypatch):
    """The URL, which the environment names."""
    monkeypatch.setenv("STATEHOUSE_URL", service[0])
    monkeypatch.delenv("STATEHOUSE_TOKEN", raising=False)
    return service[0]


@pytest.fixture
def lines(capsys):
    """A function that runs a command; what it printed, a JSON document a line."""

    def run(*words, code=0):
        assert main([*words]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


# --- what a script gets ----------------------------------------------------------------------------------------------------------


def test_get(url, lines):
    [state] = lines("get", "status", "device-007")
    assert (state["key"], state["value"], state["reports"]["north"]["value"]) == ("device-007", "ok", "ok")
    [state] = lines("get", "pairs", "store 1", "7", "--json")
    assert (state["customer"], state["till"], state["value"]) == ("store 1", 7, 12.5)


def test_scan(url, lines):
    assert [row["key"] for row in lines("scan", "status")] == ["device-006", "device-007", "device-008"]
    assert [row["key"] for row in lines("scan", "status", "--where", "value = 'alarm'")] == ["device-008"]
    assert [row["key"] for row in lines("scan", "status", "--from", "device-007", "--limit", "1")] == ["device-007"]
    assert [row["key"] for row in lines("scan", "status", "--prefix", "device-", "--to", "device-007")] == [
        "device-006"
    ]
    assert [row["till"] for row in lines("scan", "pairs", "--from", "store 1/7")] == [7]


def test_history(url, lines):
    events = lines("history", "last", "c-1")
    assert (events[-1]["op"], events[-1]["value"]) == ("report", 2.5)
    assert lines("history", "last", "c-1", "--limit", "1") == events[:1]


def test_sql(url, lines, capsys, tmp_path):
    assert lines("sql", "SELECT value, count(*) AS n FROM state.status GROUP BY ALL ORDER BY ALL;") == [
        {"value": "alarm", "n": 1},
        {"value": "ok", "n": 2},
    ]
    assert (
        main(["sql", "--csv", "SELECT 'a\"b' AS t, NULL AS nothing, 1.50::DECIMAL(9,2) AS d, true AS yes, [1] AS l"])
        == 0
    )
    assert [*csv.reader(capsys.readouterr().out.splitlines())] == [
        ["t", "nothing", "d", "yes", "l"],
        ['a"b', "", "1.50", "true", "[1]"],
    ]
    done = subprocess.run(
        [sys.executable, *COMMAND, "sql"], input="SELECT 1 AS one\n;\n", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, '{"one":1}\n')


def test_top(url, capsys):
    assert main(["top", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [stream["name"] for stream in shown["streams"]] == ["reports", "sales"] and len(shown["stores"]) == 10
    assert main(["top"]) == 0
    streams, stores = capsys.readouterr().out.split("\n\n")[:2]
    assert streams.startswith("stream   topic") and "\nreports  client-reports  1 " in streams
    assert stores.startswith("store ") and "\nstatus   reports  majority " in stores


def test_watch_until_ctrl_c(url, service):
    process = subprocess.Popen([sys.executable, *COMMAND, "watch", "last"], stdout=subprocess.PIPE)
    try:
        for _ in range(60):  # what comes before it listens is not told
            service[1].append({"customer": "c-2", "weight": 1.5})
            if select.select([process.stdout], [], [], 0.5)[0]:
                break
        change = json.loads(process.stdout.readline())
        assert (change["kind"], change["key"], change["state"]["value"]) == ("state", "c-2", 1.5) and change["position"]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.communicate()


# --- what a terminal gets --------------------------------------------------------------------------------------------------------


def test_a_terminal_gets_lines_and_tables(url):
    code, shown = on_terminal([*COMMAND, "get", "status", "device-007"])
    rows = [line.split() for line in STYLE.sub("", shown).splitlines()]
    assert code == 0 and rows[:2] == [["key", "device-007"], ["value", "ok"]]
    assert ["agent", "value", "event_time"] in rows and any(row[:2] == ["north", "ok"] for row in rows)
    code, shown = on_terminal([*COMMAND, "scan", "pairs", "--limit", "1"])
    shown = STYLE.sub("", shown)
    rows = [line.split() for line in shown.splitlines() if line.strip()]
    assert rows[0][:4] == ["customer", "till", "value", "total"] and rows[2][:5] == [
        "store",
        "1",
        "6",
        "12.50",
        "12.50",
    ]
    code, listed = on_terminal([*COMMAND, "scan", "status"])
    assert code == 0 and "north: alarm" in listed
    assert "the first 1 rows; there are more" in shown and "store 1       7" not in shown


def test_a_prompt_for_sql(url, tmp_path):
    typed = [
        "\\d\n",
        "\\d state.last\n",
        "SELECT chr(27) || '[2J' AS text,\n",
        "1 + 1 AS two;\n",
        "SELEC;\n",
        "\\x\n",
        "\x03",
        "\\q\n",
    ]
    code, shown = on_terminal([*COMMAND, "sql"], typed, environ={"XDG_STATE_HOME": str(tmp_path)})
    assert code == 0 and "state.status" in shown and "changed_at" in shown
    assert "\\x1b[2J" in shown and "\x1b[2J" not in shown, "what is in the data does not steer the terminal"
    assert "  -> " in shown and "1 row" in shown and "syntax error" in shown and "expected \\d" in shown
    assert "1 + 1 AS two;" in (tmp_path / "statehouse/sql_history").read_text()


def test_top_is_refreshed_until_ctrl_c(url):
    code, shown = on_terminal([*COMMAND, "top"], ["\x03"], prompt="Ctrl-C ends it")
    assert code == 0 and "majority" in shown and shown.rstrip().endswith("\x1b[?25h"), "the cursor is there again"


# --- errors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says", "advice"),
    [
        (["get", "status", "nobody"], "status: found no key 'nobody', expected one", "`statehouse scan status`"),
        (["history", "last", "nobody"], "found no event of the key 'nobody', expected one", "`statehouse scan last`"),
        (
            ["get", "nope", "k"],
            "There is no such store: found 'nope', expected one of alarm",
            "`statehouse top --once`",
        ),
        (["get", "pairs", "k"], "found 1 parts separated by '/', expected 2: customer/till", "correct it"),
        (["scan", "status", "--where", "x = 1"], "A query parameter is wrong: where: found", "correct it"),
        (["sql", "SELEC"], "syntax error", "correct it"),
        (["set", "last", "k", "x"], 'found "x", expected a number (DOUBLE)', "correct it"),
    ],
)
def test_what_is_absent_or_refused(url, capsys, words, says, advice):
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and says in shown.err and f"\n  to do: {advice}" in shown.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["get", "status"], "missing argument 'KEY...', expected statehouse get [OPTIONS] STORE KEY..."),
        (["set", "status", "k"], "missing argument 'KEY...'"),
        (["get", "status", "k", "--url", "localhost:8080"], "is no address such as http://127.0.0.1:8080"),
        (["sql", "--csv", "--json", "SELECT 1"], "both --csv and --json"),
        (["scan", "status", "--limit", "0"], "0 is not in the range"),
    ],
)
def test_a_wrong_command_line(url, capsys, words, says):
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_no_service(capsys):
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert main(["get", "status", "k", "--url", nowhere]) == 1
    found, advice = capsys.readouterr().err.splitlines()
    assert found == f"statehouse: found no service at {nowhere} ([Errno 111] Connection refused), expected one"
    assert advice.startswith("  to do: start one: `statehouse serve`")


def test_no_client_installed(url, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("statehouse.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert main(["top"]) == 1
    assert capsys.readouterr().err == (
        "statehouse: found no httpx, expected it for what asks a service\n  to do: pip install 'statehouse[client]'\n"
    )


# --- with a Kafka: writes, and a caller's token ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def writable(broker, tmp_path_factory):
    """The URL of a service with a Kafka, which knows one caller."""
    folder = tmp_path_factory.mktemp("writes")
    text = YAML.format(bootstrap=broker.bootstrap).replace("topic: ", "topic: commands-")
    (folder / "tokens.yaml").write_text("me: {token: the-word-of-a-caller, scopes: [read, write]}\n")
    (folder / "statehouse.yaml").write_text(f"{text}api: {{tokens: tokens.yaml}}\n")
    config = load(folder / "statehouse.yaml", {})
    for stream in config.streams.values():
        create(broker.bootstrap, stream.topic, 1)
        produce(broker.bootstrap, stream.topic, [("c-1", b"", None, 0)] * 2)  # the changelog says that it has these
    filled(config)
    for store in ("alarm", "tagged"):
        State(config, store).write(1)
    with serving(config) as (_, connection):
        yield f"http://127.0.0.1:{connection.port}"


def test_a_token(writable, capsys):
    words = ["get", "alarm", "k", "--url", writable]
    for token in ([], ["--token", "wrong"]):
        assert main([*words, *token]) == 1
        assert "\n  to do: give a token that may do this, in $STATEHOUSE_TOKEN" in capsys.readouterr().err


def test_set_and_purge(writable, lines, monkeypatch):
    monkeypatch.setenv("STATEHOUSE_URL", writable)
    monkeypatch.setenv("STATEHOUSE_TOKEN", "the-word-of-a-caller")
    [written] = lines("set", "alarm", "device-007", "alarm", "--agent", "me")
    assert written["state"]["value"] == "alarm" and "me" in written["state"]["reports"]
    [written] = lines("set", "pairs", "a", "-7", "-12.50")
    assert (written["state"]["till"], written["state"]["value"]) == (-7, -12.5)
    [written] = lines("set", "tagged", "k", '["a", "b"]')
    assert written["state"]["value"] == ["a", "b"]
    [written] = lines("purge", "alarm", "device-007")
    assert written["state"] is None and written["token"].startswith("commands-agent-reports:0:")
    assert lines("get", "alarm", "device-007", code=1) == []
    [written] = lines("set", "last", "k", "2.5", "--no-wait")
    assert list(written) == ["token"]
    code, shown = on_terminal([*COMMAND, "purge", "last", "k"])
    assert (code, shown) == (0, "k is not in last\n")


# --- docs ------------------------------------------------------------------------------------------------------------------------


def test_the_page_does_what_it_shows(url):
    blocks = [body for info, body in FENCE.findall(Path(PAGE).read_text()) if info == "console"]
    counts = [console(body) for body in blocks]
    assert counts and all(ran and shown for ran, shown in counts)
    assert os.environ["STATEHOUSE_URL"] == url
