"""The screens in a real Chromium, on a service that runs: what a person does, and whether everyone can."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from axe_playwright_python.sync_playwright import Axe
from deltalake import write_deltalake
from playwright.sync_api import Page, expect, sync_playwright
from pyspark.sql import SparkSession

from demo.broker import Broker
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.spark.tables import QUARANTINE_COLUMNS
from jobs.tasks.job import Tasks
from statehouse.config.file import load
from statehouse.config.models import Config
from statehouse.tables import EVENT_COLUMNS, TASK_COLUMNS, changelog_columns, table, tasks_table
from tests.support.api_lake import MOMENT, State, configured, reset_of
from tests.support.depth import deep, first
from tests.support.records import create, produce
from tests.support.serving import serving

pytestmark = pytest.mark.slow
TOKEN = "may-read-and-write"
KINDS = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "BINARY": pa.binary(),
    QUARANTINE_COLUMNS["headers"]: pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
}
SCREENS = (
    "/",
    "/stores/status/keys",
    "/stores/alarm/keys",
    "/stores/hours/keys",
    "/stores/status/keys/d1",
    "/streams/reports/quarantine",
    "/tasks",
    "/tables",
    "/tables/state.status",
    "/sql",
    "/sql?q=SELECT+value,+count(*)+AS+keys+FROM+state.status+GROUP+BY+ALL",
    "/sql?q=DROP+TABLE+x",
    "/stores/nix/keys",
    "/docs",
)
SECONDS = 60_000  # milliseconds that a page may take on a machine that has much else to do


@dataclass
class Reader:
    """A browser's page, and what it had to complain about."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        assert os.environ.get("CI") != "true", "CI needs chromium"
        pytest.skip("needs chromium")
    return found


def written(path: str, columns: dict[str, str], *rows: dict[str, object]) -> None:
    """A table of these rows."""
    schema = pa.schema([(name, KINDS[kind]) for name, kind in columns.items()])
    full = [{name: row.get(name) for name in columns} for row in rows]
    write_deltalake(
        path, pa.Table.from_pylist(full, schema=schema), configuration={"delta.enableChangeDataFeed": "true"}
    )


@pytest.fixture(scope="module")
def served(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with tokens whose jobs do not run: what is sent is shown ahead of them. Its address."""
    folder = tmp_path_factory.mktemp("browser")
    config = lake(configured(folder, broker.bootstrap), folder)
    for stream in config.streams.values():
        create(broker.bootstrap, stream.topic, 1)
    with serving(config) as (_, connection):
        yield f"http://127.0.0.1:{connection.port}"


def lake(config: Config, folder: Path) -> Config:
    """Tables of every kind, as the jobs leave them."""
    file = folder / "statehouse.yaml"
    # topics of these tests' own: the broker is everyone's
    file.write_text(re.sub("topic: ", "topic: screens-", file.read_text()) + "api: {tokens: tokens.yaml}\ntasks: {}\n")
    (folder / "tokens.yaml").write_text(f"anna: {{token: {TOKEN}, scopes: [read, write]}}\n")
    config = load(file, {})
    written(table(config, "changelog", "reports"), changelog_columns(config.streams["reports"]) | EVENT_COLUMNS)
    said = [("north", "ok"), ("south", "alarm"), ("core", "ok")]
    reports = [
        (a, {"value": v, "event_time": MOMENT, "_order": reset_of(MOMENT, 0, n)}) for n, (a, v) in enumerate(said)
    ]
    for store in ("status", "alarm"):
        State(config, store).write(
            0, *({"key": f"d{n}", "value": "ok" if n % 2 else "alarm", "reports": reports} for n in range(60))
        )
    hours = [MOMENT.replace(hour=hour, minute=0) for hour in (3, 4)]
    amounts = [{"value": Decimal(n), "total": Decimal(n)} for n in (1, 2)]
    State(config, "hours").write(
        0, *({"key": "a", "window_start": hour, **amount} for hour, amount in zip(hours, amounts, strict=True))
    )
    refused = {
        "topic": config.streams["reports"].topic,
        "partition": 0,
        "timestamp": MOMENT,
        "log_time": MOMENT,
        "key": "d1",
    }
    rows = [
        {**refused, "offset": n, "payload": "{<b>not JSON</b>", "reason": f"not JSON: found {n}, expected an object"}
        for n in range(5)
    ]
    written(
        table(config, "quarantine", "reports"),
        QUARANTINE_COLUMNS,
        *rows,
        {**refused, "offset": 9, "payload_bytes": b"\xff", "reason": "not UTF-8"},
    )
    task = {
        "id": "screens-agent-reports:0:7",
        "stream": "reports",
        "key": "d1",
        "due": MOMENT.replace(year=2100),
        "status": "waiting",
        "topic": "alerts",
    }
    written(tasks_table(config), TASK_COLUMNS, task)
    return config


@pytest.fixture(params=first(1, ["light", "dark"]))
def reader(request: pytest.FixtureRequest, chromium: str, served: str) -> Iterator[Reader]:
    with reading(chromium, served, request.param) as made:
        yield made


@contextmanager
def reading(chromium: str, served: str, colours: Literal["light", "dark"] = "light") -> Iterator[Reader]:
    """One who has signed in. Nothing may be asked of another host, and no page may complain."""
    with sync_playwright() as play:
        # Without a sandbox: the tests may run as root, and open our own pages only.
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(color_scheme=colours, timezone_id="Asia/Kathmandu").new_page()
        page.set_default_timeout(SECONDS)
        expect.set_options(timeout=SECONDS)
        made = Reader(page, served)
        page.on(
            "request",
            lambda asked: asked.url.startswith(served) or asked.url.startswith("blob:") or made.wrong.append(asked.url),
        )
        page.on("pageerror", lambda error: made.wrong.append(str(error)))
        made.open("/")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="What is here")).to_be_visible()
        page.on(
            "console",
            lambda said: said.type == "error" and not re.search("40[14]", said.text) and made.wrong.append(said.text),
        )
        yield made
        browser.close()
        assert made.wrong == []


def test_every_screen_can_be_used_by_everyone(reader: Reader) -> None:
    """axe-core's rules (WCAG 2 A and AA), and a phone's width without a page that is wider."""
    for path in SCREENS:
        page = reader.open(path)
        found = [v for v in Axe().run(page).response["violations"] if v["impact"] in ("serious", "critical")]
        assert found == [], (path, [(v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found])
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.set_viewport_size({"width": 1280, "height": 720})


def test_a_value_is_found_set_purged_and_asked_for(reader: Reader, request: pytest.FixtureRequest) -> None:
    page, key = reader.page, {"light": "d1", "dark": "d3"}[request.node.callspec.params["reader"]]
    page.get_by_role("link", name="status").first.click()
    page.get_by_label("Where").fill(f"key = '{key}'")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".chip")).to_contain_text(f"key = '{key}'")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    page.locator("#rows tbody a").click()
    expect(page.get_by_role("heading", name=key)).to_be_visible()

    expect(page.locator(".huge")).to_have_text("ok")
    expect(page.locator(".votes li")).to_have_count(3)
    for number in range(3):  # against two who say ok
        page.get_by_label("New value").fill("alarm")
        page.get_by_label("As agent").fill(f"by hand {number}")
        page.get_by_role("button", name="Set").click()
        expect(page.locator(".events li").first).to_contain_text(f"by hand {number}")
    expect(page.locator(".huge")).to_have_text("alarm")
    expect(page.locator(".provisional").first).to_be_visible()
    slider = page.get_by_label("Move through time")
    slider.focus()
    slider.press("Home")
    expect(page).to_have_url(re.compile(r"[?&]at="))
    expect(page.locator("#state")).to_contain_text("As of")
    page.get_by_role("link", name="Back to now").click()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Purge the key").click()
    expect(page.locator(".huge")).to_have_text("absent")
    expect(page.locator(".events li").first).to_contain_text("purge")

    other = {"d1": "d4", "d3": "d6"}[key]
    page.goto(f"{reader.url}/stores/status/keys?prefix={other}&hide=reset")
    there = page.locator("#rows tbody tr").first
    expect(there.locator("td").first).to_have_text("alarm")
    page.request.put(
        f"{reader.url}/stores/status/keys/{other}",
        data={"value": "ok", "agent": "meanwhile"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    expect(there).to_have_class(re.compile("changed"))
    expect(there).to_contain_text(re.compile(r"ok\s3"))  # the reports too

    page.goto(f"{reader.url}/stores/hours/keys")  # where a key has a row for each window, which are told apart
    windows = page.locator("#rows tbody tr").evaluate_all("lines => lines.map((line) => line.dataset.window)")
    assert len(windows) == len(set(windows)) == 2
    cells = page.locator("#rows tbody").inner_text()
    with page.expect_response(lambda answer: answer.url.endswith("/stores/hours/keys")):
        pass
    page.wait_for_timeout(500)
    assert page.locator("#rows tbody").inner_text() == cells

    page.get_by_role("link", name="SQL", exact=True).click()
    page.get_by_label("One SELECT").fill("SELECT value, count(*) AS keys FROM state.status GROUP BY ALL")
    page.get_by_label("One SELECT").press("Control+Enter")
    expect(page.locator("#result tbody tr").first).to_be_visible()
    expect(page.locator("svg.columns")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "result.csv"
    assert Path(download.value.path()).read_text().splitlines()[0] == "value,keys"

    page.get_by_role("link", name="Home").click()
    page.locator("a[href$='/quarantine']").first.click()
    page.locator("details.record summary").first.click()
    expect(page.locator("details.record[open] pre, details.record[open] p").first).to_be_visible()
    expect(page.locator("main")).to_contain_text("not JSON: found …, expected an object")
    sent = re.compile("Sent [05] again; [05] had been sent before")
    for _ in range(2):  # also where it was sent in the other colours
        page.get_by_role("button", name="Send all again").first.click()
        expect(page.locator("#sent")).to_contain_text(sent)
        page.reload()
    page.get_by_role("button", name="Send all again").first.click()
    expect(page.locator("#sent")).to_contain_text("Sent 0 again")
    page.get_by_role("link", name="Tasks").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#sent")).to_contain_text("Asked for its end")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


ALIVE = """
streams:
  visits: {{topic: {topic}, schema: "key STRING NOT NULL, agent STRING NOT NULL, value STRING, ts TIMESTAMP", time: ts}}
stores:
  health: {{stream: visits, key: key, agent: agent, value: value, reduce: majority}}
tasks:
  still_down: {{store: health, when: value = 'down', after: 5 days, send: {{topic: alerts}}}}
api: {{tokens: tokens.yaml}}
"""


@deep
def test_the_whole_path_while_the_jobs_run(
    spark: SparkSession,
    broker: Broker,
    lake: Callable[[str, str], Config],
    chromium: str,
    tmp_path: Path,
) -> None:
    topic = f"screens-alive-{uuid.uuid4()}"
    (tmp_path / "tokens.yaml").write_text(f"anna: {{token: {TOKEN}, scopes: [read, write]}}\n")
    config = lake(ALIVE.format(topic=topic), broker.bootstrap)
    create(broker.bootstrap, topic, 1)
    start = dt.datetime.now(dt.timezone.utc) - dt.timedelta(hours=3)
    told = [(f"d{n}", agent, "up" if n else "down", n) for n in range(6) for agent in ("north", "south", "core")]
    events = [
        {"key": key, "agent": agent, "value": value, "ts": (start + dt.timedelta(minutes=n)).isoformat()}
        for key, agent, value, n in told
    ]
    produce(broker.bootstrap, topic, [(event["key"], event, None, 0) for event in events])
    produce(broker.bootstrap, topic, [("d1", {**events[0], "ts": f"soon {n}"}, None, 0) for n in range(2)])
    ingest, merge = (
        Ingest(spark, config, config.streams["visits"]),
        Merge(spark, config, config.stores["health"]),
    )
    tasks = Tasks(spark, config)

    def work() -> None:
        """What the jobs do with what is new."""
        query = ingest.start(ingest.begin(), once=True)
        query.awaitTermination()
        assert query.exception() is None
        merge.round()
        tasks.round()

    work()
    with serving(config) as (_, connection), reading(chromium, f"http://127.0.0.1:{connection.port}") as reader:
        page = reader.page
        page.on("dialog", lambda dialog: dialog.accept())
        row = page.locator("tr", has=page.get_by_role("link", name="visits"))
        expect(row.locator("td").nth(1)).to_have_text(str(len(events)))
        page.get_by_role("link", name="health").first.click()
        page.locator(".bars").get_by_role("link", name="down").click()
        expect(page.locator(".chip")).to_contain_text("value = 'down'")
        expect(page.locator("#rows tbody tr")).to_have_count(1)
        page.locator("#rows tbody a").click()
        expect(page.locator(".huge")).to_have_text("down")
        since = (start.astimezone(ZoneInfo("Asia/Kathmandu"))).strftime("%-I:%M")
        expect(page.locator("#state")).to_contain_text(since)  # in the reader's zone
        slider = page.get_by_label("Move through time")
        slider.focus()
        slider.press("Home")
        expect(page.locator("#state")).to_contain_text("As of")
        page.get_by_role("link", name="Back to now").click()

        for agent in ("north", "south"):
            page.get_by_label("New value").fill("up")
            page.get_by_label("As agent").fill(agent)
            page.get_by_role("button", name="Set").click()
            expect(page.locator(".events li").first).to_contain_text(agent)
        expect(page.locator(".huge")).to_have_text("up")
        expect(page.locator("#provisional")).to_be_visible()
        work()
        expect(page.locator("#provisional")).to_be_hidden()  # by itself
        expect(page.locator(".huge")).to_have_text("up")
        page.get_by_role("button", name="Purge the key").click()
        expect(page.locator(".huge")).to_have_text("absent")
        expect(page.locator(".events li").first).to_contain_text("purge")

        page.get_by_role("link", name="Home").first.click()
        row = page.locator("tr", has=page.get_by_role("link", name="visits"))
        row.locator("a[href$='/quarantine']").click()
        page.locator("tbody th a").first.click()
        expect(page.locator(".chip")).to_contain_text("ts: found …")
        expect(page.locator("details.record")).to_have_count(2)
        page.get_by_role("button", name="Send all again").click()
        expect(page.locator("#sent")).to_contain_text("Sent 2 again")
        work()
        page.reload()
        expect(page.locator("summary", has_text="sent again")).to_have_count(2)
        expect(page.locator("details.record")).to_have_count(4)  # they are as wrong as they were

        produce(
            broker.bootstrap,
            topic,
            [("d2", {**events[0], "key": "d2", "agent": a}, None, 0) for a in ("a", "b", "c", "d")],
        )
        page.get_by_role("link", name="Home").first.click()
        work()
        expect(page.locator("#live")).to_contain_text("sends to alerts")  # by itself
        page.get_by_role("link", name="All tasks").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#sent")).to_contain_text("Asked for its end")
        work()
        page.get_by_role("link", name="cancelled").click()
        expect(page.locator("tbody tr", has_text="d2")).to_have_count(1)

        page.get_by_role("link", name="SQL", exact=True).click()
        names = page.locator("details", has=page.get_by_text("state.health", exact=True))
        names.evaluate("found => { found.open = true }")
        page.get_by_label("One SELECT").fill("SELECT")
        names.get_by_role("button", name="value", exact=True).click()
        page.get_by_label("One SELECT").press_sequentially(" FROM")
        names.get_by_role("button", name="the table").click()
        expect(page.get_by_label("One SELECT")).to_have_value("SELECT value FROM state.health")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#result tbody tr")).to_have_count(5)
        with page.expect_download() as download:
            page.get_by_role("link", name="NDJSON").click()
        lines = sorted(Path(download.value.path()).read_text().splitlines())
        assert lines == ['{"value":"down"}'] + ['{"value":"up"}'] * 4
