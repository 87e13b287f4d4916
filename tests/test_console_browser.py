"""The screens in a real Chromium, on a service that runs: what a person does, and whether everyone can."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect, sync_playwright

from tests.services import TOKENS, Service

pytestmark = pytest.mark.slow
SCREENS = (
    "/",
    "/stores/votes/keys",
    "/stores/hours/keys",
    "/stores/texts/keys",
    "/stores/fresh/keys",
    "/stores/votes/keys/k1",
    "/streams/s/quarantine",
    "/tasks",
    "/tables",
    "/tables/state.votes",
    "/sql",
    "/sql?q=SELECT+value,+count(*)+AS+keys+FROM+state.votes+GROUP+BY+ALL",
    "/sql?q=DROP+TABLE+x",
    "/stores/nix/keys",
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


@pytest.fixture(params=["light", "dark"])
def reader(request: pytest.FixtureRequest, chromium: str, tried: Service) -> Iterator[Reader]:
    """One who has signed in. Nothing may be asked of another host, and no page may complain."""
    with sync_playwright() as play:
        # Without a sandbox: the tests may run as root, and open our own pages only.
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(color_scheme=request.param).new_page()
        page.set_default_timeout(SECONDS)
        expect.set_options(timeout=SECONDS)
        made = Reader(page, tried.url)
        page.on(
            "request",
            lambda asked: (
                asked.url.startswith(tried.url) or asked.url.startswith("blob:") or made.wrong.append(asked.url)
            ),
        )
        page.on("pageerror", lambda error: made.wrong.append(str(error)))
        made.open("/")
        page.get_by_label("Token").fill(TOKENS["all"])
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="What is here")).to_be_visible()
        page.on(
            "console", lambda said: said.type == "error" and "404" not in said.text and made.wrong.append(said.text)
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


def test_a_value_is_found_set_purged_and_asked_for(reader: Reader) -> None:
    page = reader.page
    page.get_by_role("link", name="texts").first.click()
    page.get_by_label("Where").fill("key = 'b/c'")
    page.get_by_role("button", name="Show").click()
    expect(page.locator(".chip")).to_contain_text("key = 'b/c'")
    page.locator("#rows tbody a").click()
    expect(page.get_by_role("heading", name="b/c")).to_be_visible()

    name = f"by hand {os.getpid()} {'é' * 3}"
    page.get_by_label("New value").fill(name)
    page.get_by_role("button", name="Set").click()
    expect(page.locator(".huge")).to_have_text(name)
    expect(page.locator(".events li").first).to_contain_text(name)
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

    page.get_by_role("link", name="SQL", exact=True).click()
    page.get_by_label("One SELECT").fill("SELECT value, count(*) AS keys FROM state.votes GROUP BY ALL")
    page.get_by_label("One SELECT").press("Control+Enter")
    expect(page.locator("#result tbody tr").first).to_be_visible()
    expect(page.locator("svg.columns")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "result.csv"
    assert open(download.value.path()).readline().strip() == "value,keys"

    page.get_by_role("link", name="Home").click()
    page.locator("a[href$='/quarantine']").first.click()
    page.locator("details.record summary").first.click()
    expect(page.locator("details.record[open] pre, details.record[open] p").first).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
