"""The API as a user starts it: processes, real sockets, signals. What a connection does is in `test_loop`."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

import pytest

from api.server.supervisor import serve
from statehouse.config.models import Config
from statehouse.errors import ConfigError, StatehouseError
from tests.support.api_lake import State, configured, eventually
from tests.support.calls import STRANGE
from tests.support.depth import sized
from tests.support.serving import SCRIPT, get, serving, stopped


def filled(folder: Path) -> Config:
    """A lake with odd keys."""
    config = configured(folder)
    State(config, "last").write(3, *({"key": k, "value": float(i)} for i, k in enumerate(STRANGE)))
    State(config, "pairs").write(3, {"customer": "a/b", "till": 1, "value": 2})
    State(config, "names").write(3, {"customer": "a/b", "tag": "x%2Fy", "value": Decimal("0.10")})
    return config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return filled(tmp_path)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[http.client.HTTPConnection]:
    """To a server of those who only read, and leave it as it is."""
    with serving(filled(tmp_path_factory.mktemp("served"))) as (_, connection):
        yield connection


def test_served_for_real(config: Config) -> None:
    with serving(config) as (process, connection):
        for number, key in enumerate(STRANGE):
            status, found = get(connection, f"/stores/last/keys/{quote(key, safe='')}")
            assert (status, found.get("key"), found.get("value")) == (200, key, number)
        assert get(connection, "/stores/pairs/keys/a%2Fb/1")[1]["customer"] == "a/b"
        found = get(connection, "/stores/names/keys/a%2Fb/x%252Fy")[1]
        assert (found["customer"], found["tag"]) == ("a/b", "x%2Fy"), "a '/' is in the part, not between two"
        for path, expected in (("/nope", 404), ("/stores/nope", 404), ("/stores/last/keys/%FF", 400)):
            status, found = get(connection, path)
            assert (status, found["status"]) == (expected, expected)
        connection.request("PUT", "/stores/last/keys/k", b"x" * 1_100_000, {"Content-Type": "application/json"})
        assert json.loads(connection.getresponse().read())["status"] == 413
        connection.close()
        code, rest, seconds = stopped(process, signal.SIGTERM)
        assert code == 0
        assert json.loads(rest)["status"] == 413, "the audit's line, and nothing else"
        assert seconds < 5


def test_a_path_is_written_in_one_way(connection: http.client.HTTPConnection) -> None:
    """Or rules of a proxy by path could be passed by."""
    for path in (
        "/healthz",
        "/stores/last",
        "/stores/last/keys/a",
        "/stores/last/keys//a",
        "/stores/last/keys/%2Fa",
    ):
        status = get(connection, path)[0]
        assert status == 200 or (status == 404 and "/keys/" in path), path
        segments = path.split("/")[1:]
        for place in range(min(3, len(segments))):
            segment = segments[place]
            for other in (f"/{segment}", f"%{ord(segment[0]):02x}{segment[1:]}", f"{segment}%2f", f"{segment}/"):
                wrong = "/" + "/".join([*segments[:place], other, *segments[place + 1 :]])
                if not wrong.startswith("/stores/last/keys/"):
                    assert get(connection, wrong)[0] == 404, wrong
    assert get(connection, "/stores/last%2fkeys/a")[0] == get(connection, "/stores%2flast/keys/a")[0] == 404


def test_who_may_call_this_machine_what(config: Config) -> None:
    with (Path(config.root).parent / "statehouse.yaml").open("a") as file:
        file.write("api: {hosts: [State.internal]}\n")
    with serving(config) as (_, connection):
        for host, expected in (("localhost:1", 200), ("state.internal", 200), ("example.org", 421)):
            for path in ("/healthz", "/stores/last/keys/%2F", "/stores/last/keys/%2F?freshness=changelog"):
                connection.request("GET", path, headers={"Host": host})
                response = connection.getresponse()
                assert (response.status, len(response.read()) > 0) == (expected, True)
        for shards, expected in (("0", 200), ("7,11", 200), ("-1", 400), ("1,", 400), ("x", 400), ("12345", 400)):
            for path in ("/stores/last/keys/%2F", "/stores/last/keys/%2F?freshness=changelog", "/stores/last/keys"):
                connection.request("GET", path, headers={"Statehouse-Shards": shards})
                response = connection.getresponse()
                assert (response.status, len(response.read()) > 0) == (expected, True), (shards, path)


def test_the_event_loop_says_what_flask_says(connection: http.client.HTTPConnection) -> None:
    """In the same bytes: the header Origin is for Flask."""
    with socket.create_connection(("127.0.0.1", connection.port)) as raw:
        for key in STRANGE:
            path, answers = f"/stores/last/keys/{quote(key, safe='')}", []
            for more in ("", "Origin: http://x\r\n", "X: 1\r\n", "X: 1\r\nX: 2\r\n"):
                raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
                response = http.client.HTTPResponse(raw)
                response.begin()
                headers = [(name, value) for name, value in response.getheaders() if name != "date"]
                answers.append((response.status, headers, response.read()))
            assert answers[0][0] == 200 and answers == [answers[0]] * 4


def test_two_workers_each_follow_the_lake(config: Config) -> None:
    tagged = State(config, "tagged")
    with serving(config, workers=2) as (process, connection):
        tagged.write(9, {"key": "a", "value": ["x"]})

        def positions() -> set[int | None]:
            seen = set()
            for _ in range(12):  # a new connection may reach either of them
                connection.close()
                seen.add(get(connection, "/stores/tagged")[1]["position"])
            return seen

        eventually(lambda: positions() == {9})
        code, rest, _ = stopped(process, signal.SIGINT)
        assert (code, rest) == (0, "")


def workers(process: subprocess.Popen) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs Linux")
    return [int(p) for p in children.read_text().split() if b"spawn_main" in Path(f"/proc/{p}/cmdline").read_bytes()]


def test_a_killed_worker_is_replaced(config: Config) -> None:
    """However often: also while it starts."""
    with serving(config) as (process, connection):

        def answers() -> bool:
            connection.close()
            try:
                return get(connection, "/stores/last/keys/%2F")[0] == 200
            except OSError:
                return False

        for _ in range(sized(1, 2)):
            for _ in range(2):
                (worker,) = eventually(lambda: workers(process))
                os.kill(worker, signal.SIGKILL)
                eventually(lambda: not Path(f"/proc/{worker}").exists())  # noqa: B023 (used at once)
            eventually(answers)
        assert stopped(process, signal.SIGTERM)[:2] == (0, "")


def test_workers_end_with_the_one_who_looks_after_them(config: Config) -> None:
    with serving(config, workers=2) as (process, _):
        eventually(lambda: len(workers(process)) == 2)
        left = workers(process)
        process.kill()
        process.wait()
        eventually(lambda: not any(Path(f"/proc/{worker}").exists() for worker in left))


def test_stopped_at_once_before_it_answers(config: Config) -> None:
    file = str(Path(config.root).parent / "statehouse.yaml")
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, file, "2", "127.0.0.1", "0"]
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as process:
            eventually(lambda: len(workers(process)) == 2)
            os.killpg(process.pid, number)  # as Ctrl-C does it
            assert process.stdout is not None
            assert (process.wait(120), process.stdout.read()) == (0, "")


@pytest.mark.parametrize("chunked", [False, True])
def test_half_a_body_is_none(config: Config, chunked: bool) -> None:
    """What has come of it would be a right one."""
    with serving(config) as (process, connection):
        length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 100"
        half = b'c\r\n{"value": 1}\r\n' if chunked else b'{"value": 1}'
        with socket.create_connection(("127.0.0.1", connection.port)) as raw:
            head = f"PUT /stores/last/keys/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
            raw.sendall(head.encode() + half)
            time.sleep(0.3)
        assert get(connection, "/stores/last/keys/%2F")[0] == 200
        time.sleep(0.3)
        code, said, _ = stopped(process, signal.SIGTERM)
        assert (code, said) == (0, ""), "nobody was asked: not even the audit has a line"


def test_what_cannot_be_served(config: Config) -> None:
    for host in ("0.0.0.0", "192.168.1.1", "::", "example.org"):
        with pytest.raises(ConfigError, match=f"found --host {host}, expected a loopback address"):
            serve(config, host)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StatehouseError, match=f"port {port} of 127.0.0.1: Address already in use"):
            serve(config, port=port)
    with pytest.raises(StatehouseError, match="port 99999"):
        serve(config, port=99999)


def test_a_second_server_on_the_same_port(config: Config) -> None:
    with serving(config) as (process, connection):
        with pytest.raises(StatehouseError, match="Address already in use"):
            serve(config, port=connection.port)
        assert stopped(process, signal.SIGTERM)[0] == 0
