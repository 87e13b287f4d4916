"""The README's example answers what the README prints, and every link between the pages leads somewhere."""

from __future__ import annotations

import datetime as dt
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api import create_app
from statehouse.config.file import load
from tests.support import api_lake
from tests.support.api_lake import Reports, State, eventually, reset_of

TOP = Path(__file__).parents[2]
README = (TOP / "README.md").read_text()
PAGES = [*TOP.glob("*.md"), *(TOP / "docs").glob("*.md"), *(TOP / "bench").glob("*.md")]
STORE = "device_status"
EVENTS = (  # key, agent, value, second
    ("device-006", "core", "ok", 8),
    ("device-007", "north", "ok", 9),
    ("device-007", "south", "alarm", 11),
    ("device-006", "north", "ok", 12),
    ("device-007", "core", "alarm", 13),
)
VALUES = {"device-006": "ok", "device-007": "alarm"}


def at(second):
    return dt.datetime(2026, 11, 23, 0, 33, second, tzinfo=dt.timezone.utc)


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The API on the README's own file, over a lake as the jobs would leave it."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (tmp_path / "statehouse.yaml").write_text(text)
    config = load(tmp_path / "statehouse.yaml", {"STATEHOUSE_API__FRESHNESS": "changelog"})
    monkeypatch.setitem(api_lake.KINDS, STORE, (("STRING",), "STRING"))
    position = Reports(config).append(
        *({"key": k, "agent": a, "value": v, "ts": at(s), "at": at(s)} for k, a, v, s in EVENTS)
    )
    rows = []
    for key, value in VALUES.items():
        reports = [
            (a, {"value": v, "event_time": at(s), "_order": reset_of(at(s), 0, offset)})
            for offset, (k, a, v, s) in enumerate(EVENTS, 1)
            if k == key
        ]
        last = max(report["event_time"] for _, report in reports)
        rows.append({"key": key, "value": value, "reports": reports, "event_time": last})
    State(config, STORE).write(position, *rows)
    app = create_app(config)
    yield app.test_client()
    app.extensions["statehouse"].stop()


def test_the_example_answers_what_is_printed(client):
    shown = re.findall(r"^\$ (curl .*)\n(.*)$", README, re.MULTILINE)
    assert len(shown) == 3
    for command, expected in shown:
        words = shlex.split(command)
        (url,) = (urlsplit(word) for word in words if word.startswith("http"))
        query = url.query
        if "--data-urlencode" in words:
            name, _, value = words[words.index("--data-urlencode") + 1].partition("=")
            answer = client.get(url.path, query_string={name: value})
        else:
            answer = eventually(lambda path=url.path, query=query: _ready(client.get(path, query_string=query)))
        pattern = ".*".join(map(re.escape, expected.split("…")))
        assert re.fullmatch(pattern, answer.get_data(as_text=True).strip()), (command, answer.get_data(as_text=True))


def _ready(answer):
    return answer if answer.status_code != 503 else None


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_every_link_leads_somewhere(page):
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
