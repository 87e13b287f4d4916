"""The Python client against the real service: what it reads and writes, what it does where something fails, and that its page is true."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import doctest
import http.client
import importlib.util
import inspect
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from statehouse.client import (
    AsyncClient,
    BadRequest,
    Client,
    ClientError,
    Conflict,
    MissingLibrary,
    NotAllowed,
    NotFound,
    NotYet,
    Unavailable,
    Unreachable,
)
from statehouse.client.session import Writes
from statehouse.tables import GENERATION, table
from tests.support.api_lake import MOMENT, State, eventually
from tests.support.calls import STRANGE
from tests.support.client_page import PAGE, TOPICS, configured, filled
from tests.support.fleet import fleet, get
from tests.support.records import children, create, free_port, produce
from tests.support.serving import serving
from tests.support.topics import everything

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UTC = dt.timezone.utc


@pytest.fixture(scope="module")
def service(broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A service with a Kafka: where it is, and what it is of."""
    config = configured(tmp_path_factory.mktemp("client"), broker.bootstrap)
    for topic, partitions in TOPICS.values():
        create(broker.bootstrap, topic, partitions)
    # The changelog says that it has these.
    for topic, _ in TOPICS.values():
        produce(broker.bootstrap, topic, [("c-1", b"", None, 0)] * 2)
    filled(config)
    State(config, "rewards").write(1, *({"key": key, "value": Decimal(n)} for n, key in enumerate(STRANGE)))
    hours = (
        {"key": "w", "window_start": MOMENT.replace(minute=0) + dt.timedelta(hours=h), "value": Decimal(h)}
        for h in (0, 1)
    )
    State(config, "hours").write(1, *hours)
    State(config, "days").write(1, {"key": dt.date(2026, 3, 1), "value": Decimal("0.10")})
    State(config, "tagged").write(1, {"key": "t", "value": ["a", None]})
    for store in ("names", "by_till"):
        State(config, store).write(1)
    with serving(config) as (_, connection):
        url = f"http://127.0.0.1:{connection.port}"
        yield SimpleNamespace(url=url, port=connection.port, bootstrap=broker.bootstrap)


@pytest.fixture
def client(service: SimpleNamespace) -> Iterator[Client]:
    with Client(service.url) as client:
        yield client


def test_the_page_does_what_it_shows(service: SimpleNamespace) -> None:
    text = "\n".join(FENCE.findall(PAGE.read_text())).replace("http://127.0.0.1:8080", service.url)
    page = doctest.DocTestParser().get_doctest(text, {}, "client.md", str(PAGE), 0)
    said: list[str] = []
    found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(page, out=said.append)
    assert found.attempted > 30 and not found.failed, "".join(said)


def test_neither_spark_nor_flask_is_imported() -> None:
    blocked = ("pyspark", "flask", "duckdb", "deltalake", "pandas", "polars", "pyarrow", "api", "jobs")
    script = (
        f"import sys; sys.modules |= dict.fromkeys({blocked!r}); from statehouse.client import Client; Client().close()"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_method_shows_what_it_gives() -> None:
    assert str(inspect.signature(Client.history)).endswith("-> 'Rows[Event]'")
    assert str(inspect.signature(AsyncClient.get)).endswith("-> 'State | None'")


def test_keys_of_every_kind_and_typed_values(client: Client) -> None:
    for number, key in enumerate(STRANGE):
        state = client.get("rewards", key)
        assert (state.key, state.value, type(state.value)) == (key, number, Decimal), key
    found = client.get_many("rewards", [*STRANGE, "nobody", STRANGE[1]])
    assert [state and state.key for state in found] == [*STRANGE, None, STRANGE[1]]
    assert [state.key for state in client.scan("rewards", page=5)] == sorted(STRANGE)
    for day in (dt.date(2026, 3, 1), "2026-03-01"):
        state = client.get("days", day)
        assert (state.key, state.value, state.event_time) == (dt.date(2026, 3, 1), Decimal("0.10"), MOMENT)
    assert client.get("tagged", "t").value == ["a", None]
    assert client.get("days", "2026-03-01", at=MOMENT - dt.timedelta(days=900)) is None
    assert client.get("days", "2026-03-01", version=1).value == Decimal("0.10")
    windows = client.get("hours", "w").windows
    assert [(w.key, w.window_start.minute, w.value) for w in windows] == [("w", 0, 0), ("w", 0, 1)]
    assert [w.value for w in client.get("hours", "w", start=windows[1].window_start).windows] == [1]
    assert [(s.key, s.window_start) for s in client.scan("hours")] == [("w", w.window_start) for w in windows]


def test_what_the_service_refuses(client: Client, service: SimpleNamespace) -> None:
    for ask, kind, name in (
        (lambda: client.get("nope", "k"), NotFound, "unknown-store"),
        (lambda: client.get("days", "k"), BadRequest, "bad-key"),
        (lambda: client.get("days", "2026-03-01", version=9), NotFound, "unknown-version"),
        (lambda: client.sql("SELEC"), BadRequest, "bad-sql"),
        (lambda: client.put("days", "2026-03-01", value="x"), BadRequest, "bad-value"),
        (lambda: client.bulk("days", [{"key": "x", "delete": True}]), BadRequest, "bad-lines"),
        (lambda: client.get("last", "k", after="client-sales:0:99999", wait=0), NotYet, "not-yet"),
        (lambda: list(client.scan("days", where="nope = 1")), BadRequest, "bad-parameter"),
        (
            lambda: (
                client.put("last", "k", value=1, idempotency_key="k")
                and client.put("last", "k", value=2, idempotency_key="k")
            ),
            Conflict,
            "idempotency-key-reused",
        ),
    ):
        with pytest.raises(kind) as found:
            ask()
        assert found.value.kind == name and str(found.value.status) in str(found.value) and found.value.detail
    with pytest.raises(ValueError, match="nan"):
        client.put("last", "k", value=float("nan"))
    with Client(f"http://127.0.0.1:{free_port()}", retries=1) as nobody, pytest.raises(Unreachable):
        nobody.get("last", "k")


def test_tables_of_the_library_of_your_choice(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = client.scan("rewards", limit=3, page=2)
    assert len(list(scan)) == len(list(scan)) == scan.to_arrow().num_rows == 3
    arrow = client.scan("hours").to_arrow()
    assert arrow["value"].to_pylist() == [Decimal("0.00"), Decimal("1.00")]
    assert arrow["event_time"].to_pylist() == [MOMENT] * 2
    assert client.scan("hours").to_pandas()["window_start"].dt.hour.tolist() == [12, 13]
    assert client.history("last", "c-1").to_arrow()["value"].to_pylist() == [2.5]
    rows = client.sql("SELECT key, value, event_time, changed_at FROM state.days")
    assert rows[0] == {"key": dt.date(2026, 3, 1), "value": Decimal("0.10"), "event_time": MOMENT, "changed_at": MOMENT}
    assert len(rows.to_pandas()) == 1
    if importlib.util.find_spec("polars"):
        assert client.scan("hours").to_polars()["value"].to_list() == [Decimal("0.00"), Decimal("1.00")]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingLibrary, match="pip install polars"):
        rows.to_polars()


def test_a_session_reads_what_it_has_written(client: Client) -> None:
    with client.session() as session:
        for number in range(10):
            session.put("names", "a/b", f"tag {number}", value=Decimal("0.10") * number)
            assert session.get("names", "a/b", f"tag {number}").value == Decimal("0.10") * number
            session.put("by_till", "007", value=number)
            assert session.get("by_till", 7).value == number, "one key, however it is written"
        done = session.bulk("names", ({"key": ("bulk", n), "value": n} for n in range(6000)))
        assert done.events == 6000 and len(done.tokens) == 3
        assert session.get("names", "bulk", 5999).value == 5999
        assert sum(1 for _ in session.scan("names", prefix=("bulk", ""), page=5000)) == 6000
        assert all(
            state.value == int(state.key[1]) for state in session.get_many("names", [("bulk", n) for n in range(2000)])
        )
        session.delete("names", "bulk", 1)
        assert session.get("names", "bulk", 1) is None
        assert session.get("names", "bulk", 2, at=dt.datetime.now(UTC)).value == 2
        assert [event.op for event in session.history("names", "bulk", 1)] == ["purge", "set"]


def test_a_session_that_writes_much_waits_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehouse.client.session.MOST_KEYS", 2)
    writes = Writes()
    for number in range(4):
        writes.note("s", [(number,)], [f"t:{number % 2}:{number}"])
    assert writes.before("s", (3,)) == ("t:1:3",)
    assert writes.before("s", (0,)) == ("t:0:2", "t:1:3"), "which one is not known any more"
    assert writes.before("other", (0,)) == ()


class Proxy:
    """A proxy that closes connections on which a request is sent that begins so, ``cuts`` times: when the answer is there."""

    def __init__(self, port: int, begins: bytes, cuts: int) -> None:
        self.port, self.begins, self.cuts, self.requests = port, begins, cuts, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours = self.server.accept()[0]
                theirs = socket.create_connection(("127.0.0.1", self.port))
                threading.Thread(target=self._pass, args=(ours, theirs), daemon=True).start()

    def _pass(self, ours: socket.socket, theirs: socket.socket) -> None:
        with ours, theirs:
            cut = False
            while True:
                for ready in select.select([ours, theirs], [], [])[0]:
                    if not (data := ready.recv(65536)) or (cut and ready is theirs):
                        return
                    if ready is ours and data.startswith(self.begins):
                        self.requests, cut = self.requests + 1, self.requests < self.cuts
                    (theirs if ready is ours else ours).sendall(data)


def test_a_write_whose_answer_is_lost_stays_one_event(service: SimpleNamespace) -> None:
    lossy = Proxy(service.port, b"PUT", cuts=2)
    with Client(lossy.url) as client:
        client.put("rewards", "lost", value=1)
        bulk = Proxy(service.port, b"POST", cuts=1)
        with Client(bulk.url) as other:
            assert other.bulk("rewards", [{"key": "lost in bulk", "value": n} for n in (1, 2)]).events == 2
    assert (lossy.requests, bulk.requests) == (3, 2)
    keys = [key for key, _, _ in everything(service.bootstrap, "client-sales").values()]
    assert (keys.count(b"lost"), keys.count(b"lost in bulk")) == (1, 2)


def test_how_many_events_a_bulk_write_had_when_it_failed(client: Client) -> None:
    lines = [{"key": f"some {n}", "value": 1} for n in range(9)]
    with pytest.raises(BadRequest) as found:
        client.bulk("rewards", [*lines, {"key": "wrong", "value": "x"}], size=100)
    assert 0 < found.value.acknowledged <= 9


def test_asyncio(service: SimpleNamespace) -> None:
    async def main() -> None:
        async with AsyncClient(service.url) as client:
            found = await asyncio.gather(*(client.get("rewards", key) for key in STRANGE))
            assert [state.key for state in found] == STRANGE
            assert [s.key async for s in client.scan("rewards", page=4, limit=6)] == sorted(STRANGE)[:6]
            assert (await client.scan("hours").to_arrow()).num_rows == len(await client.scan("hours").to_pandas()) == 2
            assert (await client.at("1999-01-01").get("days", "2026-03-01")) is None
            with pytest.raises(NotFound):
                await client.get("nope", "k")
            async with client.session() as session:
                for number in range(5):
                    await session.put("rewards", "awaited", value=number)
                    assert (await session.get("rewards", "awaited")).value == number
            async with client.changes("last", seconds=0.2) as changes:
                assert [change async for change in changes] == [] and changes.position

    asyncio.run(main())


def killed(process: subprocess.Popen) -> None:
    """As kill -9 does, its worker with it."""
    for pid in (process.pid, *children(process.pid)):
        os.kill(pid, 9)
    process.wait()


@pytest.mark.slow
def test_changes_go_on_when_the_service_comes_back(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("me: {token: may-only-read, scopes: [read]}\n")
    config, port = configured(tmp_path, rate_limit=10, tokens="tokens.yaml"), free_port()
    sales, url, found = filled(config), f"http://127.0.0.1:{port}", []
    with contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(serving(config, port=port))
        client = stack.enter_context(Client(url, token="may-only-read", retries=1000))
        rows = client.scan("last", freshness="changelog")
        assert [row.key for row in rows] == ["c-1"] and rows.position
        changes = client.changes("last", position=rows.position)

        def follow() -> None:
            with contextlib.suppress(ClientError, RuntimeError):  # at the end, when the client is closed
                found.extend((change.kind, change.key, change.state and change.state.value) for change in changes)

        threading.Thread(target=follow, daemon=True).start()
        anew, odd = {GENERATION: "1"}, "c-2\u2028\x85"
        sales.append({"customer": odd, "weight": 1.5}, {"purge": "c-1"})
        eventually(lambda: {("purge", "c-1", None), ("state", odd, 1.5)} == set(found))
        killed(process)
        sales.append({"customer": "c-3", "weight": 3.5})
        reader = threading.Thread(target=lambda: found.append(client.get("last", "c-3").value))
        reader.start()  # nobody answers yet
        stack.enter_context(serving(config, port=port))
        eventually(lambda: {("state", "c-3", 3.5), 3.5} <= set(found))
        DeltaTable(table(config, "state", "last")).alter.set_table_properties(anew, raise_if_not_exists=False)
        tombstones = table(config, "tombstones", "last")
        DeltaTable.create(
            tombstones, pa.schema({"key": pa.string()}), configuration=anew, raise_if_key_not_exists=False
        )
        eventually(lambda: ("reset", None, None) in found)

        stranger = stack.enter_context(Client(url))
        for caller, status in ((stranger, 401), (client, 403)):
            with pytest.raises(NotAllowed) as refused:
                caller.delete("last", "c-1")
            assert refused.value.status == status
        with Client(url, token="may-only-read", retries=0) as hurried, pytest.raises(Unavailable, match="429"):
            for _ in range(100):
                hurried.get("last", "c-3")
        assert client.get("last", "c-3").value == 3.5, "after as long as the service asks for"


def asked(port: int) -> int:
    """How many point reads an instance has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    reads = (
        line for line in lines if line.startswith("statehouse_http_request_seconds_count{") and 'key:key>"' in line
    )
    return sum(int(float(line.rpartition(" ")[2])) for line in reads)


@pytest.mark.slow
def test_a_key_is_asked_for_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehouse.client.routing.FRESH_SECONDS", 0.5)
    config = configured(tmp_path)
    filled(config)
    keys = [f"key {n}" for n in range(60)]
    State(config, "rewards").write(1, *({"key": key, "value": Decimal(n)} for n, key in enumerate(keys)))
    with fleet(tmp_path, 2, copies=1) as instances:
        owners = eventually(lambda: shared(instances.ports))
        with Client(f"http://127.0.0.1:{instances.ports[0]}") as client:
            before = [asked(port) for port in instances.ports]
            assert [client.get("rewards", key).value for key in keys] == list(range(60))
            taken = [asked(port) - count for port, count in zip(instances.ports, before, strict=True)]
            assert sum(taken) == 60, "nothing is passed on"
            assert min(taken) > 10, f"both are asked: {owners}"
            assert client.get("pairs", "store 1", 7).value == Decimal("12.50")
            instances.kill(instances.ports[1])
            # By the one that is left; of what it has not, from the lake.
            assert [client.get("rewards", key).value for key in keys[::6]] == list(range(0, 60, 6))
            eventually(lambda: client.get("rewards", keys[0]) and known(client) == {client._core.routes.url})


def known(client: Client) -> set[str]:
    """The instances that a client knows to have something."""
    return {address for owners in client._core.routes._map for address in owners}


def shared(ports: list[int]) -> list[list[str]] | None:
    """Who has which shard, when both instances have some and say the same."""
    maps = [get(port, "/processors")[1]["map"] for port in ports]
    full = maps[0] == maps[1] and all(len(of) == 1 for of in maps[0])
    return maps[0] if full and len({of[0] for of in maps[0]}) == 2 else None
