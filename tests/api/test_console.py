"""The screens: at the address of their data, for who accepts HTML; whatever text is in it."""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections.abc import Iterator
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from api import create_app
from api.console import format, kept
from api.console.kept import Kept
from api.console.key import _chosen, _since, _told, course
from api.console.votes import result, votes
from api.console.words import sentence
from api.http.access import CSRF
from statehouse.config.file import load
from statehouse.config.models import Config
from tests.support.api_lake import MOMENT, Sales, State, changelog, configured, eventually, reset_of
from tests.support.oracle import fold

HTML = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
SCRIPT = "<script>alert('x')</script>"
ODD = ["", SCRIPT, "a/b", "//x/", 'ü 🙂 & "quotes"', "שלום عالم", "k" * 10_000, " ", "{{ 7 * 7 }}"]
VOID = {"meta", "link", "input", "rect", "path", "line", "circle", "br"}


class Page(HTMLParser):
    """A page's tags, and what is wrong with it: a tag that is not closed, a style or a script in it, an address that is elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)
        self.wrong += [f"{tag} is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "style" in given or any(name.startswith("on") for name in given) or (tag == "script" and "src" not in given):
            self.wrong.append(f"{tag} {given}")
        for name in ("href", "src", "action"):
            if (target := given.get(name)) and not target.startswith(("/", "#", "?")):
                self.wrong.append(f"{tag} leads to {target}")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID or tag in ("tr", "td", "th", "li"):
            return
        while self.open and self.open[-1] in ("tr", "td", "th", "li") and self.open[-1] != tag:
            self.open.pop()
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = configured(tmp_path_factory.mktemp("it's a console, é"))
    agents = {f"agent {n}": ("ok", "down", SCRIPT)[n % 3] for n in range(500)}
    reports = [(a, {"value": v, "event_time": MOMENT, "_order": reset_of(MOMENT)}) for a, v in agents.items()]
    State(config, "status").write(7, {"key": "d1", "value": "ok", "reports": reports})
    State(config, "last").write(3, *({"key": k, "value": float(i)} for i, k in enumerate(ODD)))
    State(config, "tagged").write(3, {"key": "a", "value": [SCRIPT, None]})
    State(config, "pairs").write(3, {"customer": "a/b", "till": 1, "value": Decimal("1.50"), "total": Decimal("1.50")})
    hours = [MOMENT.replace(minute=0, hour=h, microsecond=0) for h in (12, 13)]
    State(config, "hours").write(
        3, *({"key": "a", "window_start": w, "value": Decimal(w.hour), "total": Decimal(1)} for w in hours)
    )
    State(config, "by_till").write(3, *({"key": i, "value": i * i, "total": 1} for i in range(3000)))
    State(config, "days").write(3, {"key": dt.date(2026, 3, 1), "value": Decimal("5.00")})
    changelog(config, "reports", 8)
    sales = Sales(config)
    for weight in (1.0, 2.5):
        sales.append({"customer": SCRIPT, "weight": weight})
    for _ in range(2):
        sales.append({"customer": "b", "weight": 1.0})
    return config


@pytest.fixture(scope="module")
def client(config: Config) -> Iterator[FlaskClient]:
    app = create_app(config)
    app.test_client().get("/sql?q=SELECT+1")  # its process has begun then, and counts values while one waits
    yield app.test_client()
    app.extensions["statehouse"].stop()


def shown(response: TestResponse, status: int = 200) -> Page:
    """A page that is right, whatever is on it."""
    assert response.status_code == status, response.text
    assert response.content_type == "text/html; charset=utf-8"
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "Accept" in response.headers["Vary"]
    page = Page(response.text)
    assert page.wrong == [], response.text
    assert (
        "alert('x')" not in re.sub(r"&lt;script&gt;alert\(&#39;x&#39;\)", "", response.text)
        or SCRIPT not in response.text
    )
    assert SCRIPT not in response.text
    return page


@pytest.mark.parametrize("store", ["status", "alarm", "last", "tagged", "pairs", "hours", "by_till", "days", "names"])
def test_a_store(client: FlaskClient, store: str) -> None:
    page = shown(client.get(f"/stores/{store}/keys", headers=HTML))
    assert store in page.text and "The rule" in page.text
    eventually(lambda: shown(client.get(f"/stores/{store}", headers=HTML)).links == page.links)
    for link in [link for link in page.links if link.startswith(f"/stores/{store}/keys/")]:
        shown(client.get(link, headers=HTML))


def test_the_first_page(client: FlaskClient) -> None:
    page = shown(client.get("/", headers=HTML))
    assert {f"/stores/{s}/keys" for s in ("status", "alarm", "hours")} <= set(page.links)
    assert "majority of each agent's latest report" in page.text and "nothing has been merged yet" in page.text
    for link in sorted({link for link in page.links if link.startswith("/") and not link.startswith("/docs")}):
        shown(client.get(link, headers=HTML))


def test_json_is_what_it_was(client: FlaskClient) -> None:
    for path in (
        "/stores",
        "/stores/last",
        "/stores/last/keys",
        "/stores/last/keys/a%2Fb",
        "/tables",
        "/streams",
        "/sql",
        "/streams/sales/quarantine",
    ):
        for accept in (
            {},
            {"Accept": "*/*"},
            {"Accept": "application/json"},
            {"Accept": "application/json, text/html"},
        ):
            response = client.get(path, headers=accept)
            assert response.status_code == 200 and response.content_type == "application/json", (path, accept)
    assert client.get("/stores/last/keys", headers={"Accept": "text/csv"}).mimetype == "text/csv"
    assert client.get("/nothing").mimetype == "application/problem+json"


def test_what_is_wrong_is_a_page_with_the_same_status(client: FlaskClient) -> None:
    assert "There is no such store" in shown(client.get("/stores/nix/keys", headers=HTML), 404).text
    assert "no 'nix'" in shown(client.get("/stores/last/keys/nix", headers=HTML), 404).text
    shown(client.get("/nothing", headers=HTML), 404)
    shown(client.get("/tables/nix", headers=HTML), 404)
    shown(client.get("/streams/nix/quarantine", headers=HTML), 404)
    for name in ("at", "against"):
        page = shown(client.get(f"/stores/last/keys/a%2Fb?{name}=yesterday", headers=HTML))
        assert f"{name}: found 'yesterday'" in page.text, "a time that is not one yet keeps the page"
    assert "?" in shown(client.get("/stores/last/diff?from=99", headers=HTML), 404).links, "a way on without it"
    page = shown(client.get("/stores/last/keys?where=nothing+%3D+1", headers=HTML))
    assert "where:" in page.text, "a condition that is not one yet keeps the page"


def test_keys_can_be_filtered_and_paged_and_columns_hidden(client: FlaskClient) -> None:
    page = shown(client.get("/stores/by_till/keys?where=value+%3D+49", headers=HTML))
    assert [link for link in page.links if link.startswith("/stores/by_till/keys/")] == ["/stores/by_till/keys/7"]
    assert "/stores/by_till/keys" in page.links, "a chip without the condition"
    first = shown(client.get("/stores/by_till/keys", headers=HTML))
    following = next(link for link in first.links if "cursor=" in link)
    second = shown(client.get(following, headers=HTML))
    here, there = ({link for link in p.links if link.startswith("/stores/by_till/keys/")} for p in (first, second))
    assert len(here) == len(there) == 50 and not here & there
    hidden = shown(client.get("/stores/by_till/keys?hide=event_time&hide=value", headers=HTML))
    assert "Hidden:" in hidden.text and any(
        "hide=value" in link and "hide=event_time" not in link for link in hidden.links
    )
    part = shown(client.get("/stores/by_till/keys?where=value+%3E+9&limit=3&hide=value&unknown=1", headers=HTML))
    assert part.links.count("/stores/by_till/keys?where=value+%3E+9") == 3, "what can be downloaded is all that matches"
    bars = [link for link in first.links if "BETWEEN" in link]
    assert len(bars) > 5
    shown(client.get(bars[0], headers=HTML))


def test_a_key_with_its_votes_and_history(client: FlaskClient) -> None:
    page = shown(client.get("/stores/status/keys/d1", headers=HTML))
    assert (page.text.count("without it:") == 500 and "a tie goes to" in page.text) or "of 500 agents say" in page.text
    page = shown(client.get(f"/stores/last/keys/{quote(SCRIPT, safe='')}", headers=HTML))
    assert (
        "2.5" in page.text
        and "partition 0, offset 1" in page.text
        and "svg" in client.get(f"/stores/last/keys/{quote(SCRIPT, safe='')}", headers=HTML).text
    )
    then = next(link for link in page.links if "?at=" in link)
    assert "As of" in shown(client.get(then, headers=HTML)).text
    both = shown(client.get(f"{then}&against={quote(MOMENT.isoformat())}", headers=HTML))
    assert "absent" in both.text
    assert all("against=" in link for link in both.links if "at=" in link), "a click on an event compares as before"
    assert "said so before" in shown(client.get("/stores/last/keys/b", headers=HTML)).text
    assert "Change it by hand" not in shown(client.get("/stores/hours/keys/a", headers=HTML)).text, (
        "a window cannot be set"
    )


def test_sql(client: FlaskClient) -> None:
    page = shown(client.get("/sql", headers=HTML))
    assert "state.last" in page.text
    statement = "SELECT key, value FROM state.last ORDER BY value"
    page = shown(client.get("/sql", query_string={"q": statement}, headers=HTML))
    assert f"{len(ODD)} rows" in page.text and "version 1" in page.text
    assert "svg" in client.get("/sql", query_string={"q": statement}, headers=HTML).text, (
        "there is a number, so there is a chart"
    )
    assert "expected one SELECT" in shown(client.get("/sql?q=DROP+TABLE+x", headers=HTML)).text


def test_the_first_page_is_told_what_changes(tmp_path: Path) -> None:
    config = configured(tmp_path)
    state = State(config, "last")
    state.write(1, {"key": "a", "value": 1.0})
    app = create_app(config)
    answer = app.test_client().get("/", headers={"Accept": "text/event-stream"})
    assert answer.content_type == "text/event-stream"
    events = iter(answer.response)
    first = next(events)
    assert first.startswith(b"data: ") and first.endswith(b"\n\n") and b"by_till" in first
    next(text for text in events if text == b": \n\n")  # nothing has changed
    state.write(2, {"key": "a", "value": 1.0}, {"key": "b", "value": 2.0})
    assert next(text for text in events if text.startswith(b"data: ")) != first
    app.extensions["statehouse"].stop()
    assert list(events)[-1:] != first, "it ends with the service"


def test_a_difference(client: FlaskClient) -> None:
    page = shown(client.get("/stores/last/diff?from=0&to=1", headers=HTML))
    assert page.text.count("added") == len(ODD) + 1 and f"{len(ODD)} added, 0 changed, 0 gone" in page.text
    assert "No key has another value" in shown(client.get("/stores/last/diff?from=1&to=1", headers=HTML)).text
    assert "/stores/hours/keys/a" in shown(client.get("/stores/hours/diff", headers=HTML)).links


def test_a_page_is_one_request_of_its_caller(tmp_path: Path) -> None:
    configured(tmp_path)
    with (tmp_path / "statehouse.yaml").open("a") as file:
        file.write("api: {rate_limit: 1}\n")
    app = create_app(load(tmp_path / "statehouse.yaml", {}))
    client = app.test_client()
    shown(client.get("/", headers=HTML))
    assert "more than 1 requests" in shown(client.get("/", headers=HTML), 429).text
    app.extensions["statehouse"].stop()


def test_an_empty_lake(tmp_path: Path) -> None:
    file = tmp_path / "statehouse.yaml"
    file.write_text(
        "root: ./lake\nkafka: {bootstrap.servers: '127.0.0.1:1'}\nstreams: {s: {topic: t, schema: k STRING}}\nstores: {}\n"
    )
    app = create_app(load(file, {}))
    client = app.test_client()
    assert "no stores yet" in shown(client.get("/", headers=HTML)).text
    for path in ("/tables", "/sql"):
        shown(client.get(path, headers=HTML))
    app.extensions["statehouse"].stop()


def test_signing_in(tmp_path: Path) -> None:
    configured(tmp_path)
    (tmp_path / "tokens.yaml").write_text(
        "anna: {token: may-write, scopes: [read, write]}\nben: {token: may-read, scopes: [read]}\n"
    )
    with (tmp_path / "statehouse.yaml").open("a") as file:
        file.write("api: {tokens: tokens.yaml}\n")
    config = load(tmp_path / "statehouse.yaml", {})
    State(config, "last").write(3, {"key": "a", "value": 1.0})
    app = create_app(config)
    client = app.test_client()
    target = "/stores/last/keys?where=value+%3D+1"
    page = shown(client.get(target, headers=HTML), 401)
    assert "Sign in" in page.text and "WWW-Authenticate" not in client.get(target, headers=HTML).headers
    form = {"token": "wrong", "next": target}
    assert client.post("/console/session", data=form).status_code == 401
    assert (
        client.post(
            "/console/session", data={**form, "token": "may-write"}, headers={"Origin": "http://elsewhere"}
        ).status_code
        == 403
    )
    inside = (target, target), ("/console/session?", "/")
    for aim, leads in (*inside, ("//elsewhere/x", "/"), ("https://elsewhere", "/"), ("/\\elsewhere", "/")):
        done = client.post("/console/session", data={"token": "may-write", "next": aim})
        assert done.status_code == 303 and done.headers["Location"] == leads
    secure = client.post(
        "/console/session", data={"token": "may-write"}, headers={"Origin": "https://localhost"}
    )  # by a proxy that speaks TLS
    assert secure.status_code == 303 and "Secure" in secure.headers["Set-Cookie"]
    cookie = done.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    page = shown(client.get(target, headers=HTML))
    assert "/stores/last/keys/a" in page.links and "Sign out" in page.text
    assert "Change it by hand" in shown(client.get("/stores/last/keys/a", headers=HTML)).text
    mark = re.search('name="csrf" content="([^"]+)"', client.get("/", headers=HTML).text)
    assert mark
    put = {"json": {"value": "no number"}}
    assert client.put("/stores/last/keys/a", **put).status_code == 401, (
        "the cookie alone, which another site's page could send"
    )
    assert client.put("/stores/last/keys/a", headers={CSRF: "x" * 32}, **put).status_code == 401
    assert client.put("/stores/last/keys/a", headers={CSRF: mark[1]}, **put).status_code == 400, (
        "it is let in, and refused for its value"
    )
    client.post("/console/session/end")
    shown(client.get("/", headers=HTML), 401)
    client.post("/console/session", data={"token": "may-read"})
    mark = re.search('name="csrf" content="([^"]+)"', client.get("/", headers=HTML).text)
    assert mark and client.put("/stores/last/keys/a", headers={CSRF: mark[1]}, **put).status_code == 403
    assert "Change it by hand" not in shown(client.get("/stores/last/keys/a", headers=HTML)).text
    assert client.get("/console/static/console.css").status_code == 200
    app.extensions["statehouse"].stop()


def _placed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with their places in the topic."""
    return [{**event, "partition": 0, "offset": len(events) - n} for n, event in enumerate(events)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("pqr"),
            st.sampled_from(["a", "b", "c", None]),
            st.sampled_from(["report", "report", "report", "set", "purge"]),
        ),
        max_size=12,
    ),
    st.sampled_from(["majority", "at_least_one(a, b)", "latest", "sum", "count"]),
)
def test_the_course_of_a_value_is_the_oracles(drawn: list[tuple[str, str | None, str]], rule: str) -> None:
    """What a key's page says of each event's moment is what the oracle makes of the events up to it."""
    name = rule.partition("(")[0]
    numbers = {"a": 1, "b": 2, "c": 3, None: None}
    per_agent, additive = name in ("majority", "at_least_one"), name in ("sum", "count")
    events = [
        {
            "event_time": f"2026-01-01T00:00:{n:02}Z",
            "op": op,
            "agent": agent if op != "purge" else None,
            "order": (n, 0, n),
            "value": None if op == "purge" else numbers[value] if additive else value,
        }
        for n, (agent, value, op) in enumerate(drawn)
        if not (additive and (op == "set" and value is None))
    ]
    if name == "count":
        events = [{**e, "value": None if e["value"] is None else 1} for e in events]
    if additive and any(e["op"] != "report" for e in events):
        return  # the page shows what each event contributed
    arguments = ["a", "b"] if name == "at_least_one" else []
    right = [fold(name, events[: n + 1], *arguments) for n in range(len(events))]
    right = [found[0] if found else None for found in right]
    if not events or (additive and right[-1] is None):
        return
    made = course(rule, events, right[-1], {})
    if additive:  # before the first value there is none; a sum of nothing is 0
        right, made = [r or 0 for r in right], [m or 0 for m in made]
    assert made == right
    begun = len(right) - 1
    while begun and right[begun - 1] == right[-1]:
        begun -= 1
    history = {"events": events[::-1], "cursor": None}
    assert _since(history, made, None) == _since(history, made, events[-1]["event_time"]) == events[begun]["event_time"]
    assert _since({**history, "cursor": "1"}, made, None) == (events[begun]["event_time"] if begun else None)
    became = [event.get("became", made[0]) for event in _told(_placed(history["events"]), additive, made)][::-1]
    assert [a for a, b in zip(right[1:], right, strict=False) if a != b] == [
        became[n] for n in range(1, len(right)) if right[n] != right[n - 1]
    ]
    if per_agent and right[-1] is not None:
        standing = {}
        for event in events:
            standing = {} if event["op"] == "purge" else standing
            standing = {a: e for a, e in standing.items() if a != event["agent"]} | (
                {event["agent"]: event} if event["value"] is not None and event["agent"] else {}
            )
        found, why = votes(rule, standing)
        assert {v.agent for v in found} == set(standing) and why
        for vote in found:
            others = {a: e for a, e in standing.items() if a != vote.agent}
            assert vote.without == result(name, arguments, others)


def test_what_takes_long_is_made_once_for_all_who_look(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, made, go = Kept(), [], threading.Event()

    def make(what: object) -> object:
        made.append(what)
        return what

    def slow() -> str:
        go.wait(60)
        return "slow"

    with client.application.test_request_context("/"):
        assert kept.get("a", 1, lambda: make("one"), 60) == "one"
        assert kept.get("a", 2, lambda: make("two"), 60) == "one" == kept.get("a", 1, lambda: make("x"), 60)
        assert made == ["one"], "another state, but what was made is new enough"
        monkeypatch.setattr("api.console.kept.SECONDS", 0.0)
        assert kept.get("a", 2, lambda: make("two"), 60) == "two", "made anew"
        assert kept.get("a", 2, lambda: make("three"), 60) == "two"
        assert made == ["one", "two"]
        assert kept.get("b", 1, slow) is None and kept.get("b", 1, lambda: make("twice"), 0.01) is None
        assert kept.get("a", 3, slow, 0.01) == "two", "what is there, where it takes longer than one waits"
        go.set()
        eventually(lambda: kept.get("b", 1, slow) == "slow" == kept.get("a", 3, slow))
        assert "twice" not in made


def test_the_event_that_was_the_last_one_by_a_moment_is_marked() -> None:
    events = [{"event_time": f"2024-01-01T00:00:0{second}Z"} for second in (4, 2, 2, 1)]

    def chosen(moment: str, older: bool = False) -> int | None:
        return _chosen(events, f"2024-01-01T00:00:{moment}Z", older)

    assert [chosen(m) for m in ("09", "04", "03.999999", "02", "01.5", "00.999999")] == [0, 0, 1, 1, 3, None]
    assert [chosen(m, older=True) for m in ("09", "04", "02")] == [None, 0, 1], "it may be on a newer page"
    assert _chosen([{"event_time": None}], "2024-01-01T00:00:00Z", False) is None


def test_numbers_and_words() -> None:
    assert [format.number(n) for n in (0, -1234567, Decimal("1234.50"), 1e30)] == [
        "0",
        "-1,234,567",
        "1,234.50",
        "1e+30",
    ]
    assert [format.milliseconds(n) for n in (None, 0, 18, 1500, 62_000, 600_000, 90_000_000)] == [
        "unknown",
        "0 ms",
        "18 ms",
        "1.5 s",
        "62 s",
        "10 min",
        "25 h",
    ]
    assert [format.size(n) for n in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]
    store = {
        "stream": "s",
        "key": ["a", "lower(b) AS c"],
        "value": "n",
        "reduce": "sum",
        "window": "1 hour every 15 minutes",
        "where": "n > 0",
    }
    assert (
        sentence(store)
        == "The sum of n, for each a and c and window of 1 hour, a new one every 15 minutes of the stream s, of events where n > 0."
    )


def test_how_values_are_spread_follows_the_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the replica loaded the state long ago, and has followed the changelog since."""
    monkeypatch.setattr(kept, "SECONDS", 0.0)
    config = configured(tmp_path)
    state, sales = State(config, "rewards"), Sales(config)
    loaded = state.write(0)
    app = create_app(config)
    client, replica = app.test_client(), app.extensions["statehouse"].replica
    try:
        assert '<h2 id="spread">' not in client.get("/stores/rewards/keys", headers=HTML).text
        head = sales.append({"customer": "a", "amount": Decimal(1)}, {"customer": "b", "amount": Decimal(2)})
        eventually(lambda: replica.status("rewards")["position"] == head)
        rows = [{"key": k, "value": Decimal(v), "total": Decimal(v)} for k, v in (("a", 1), ("b", 2))]
        state.write(head, *rows)
        eventually(lambda: '<h2 id="spread">' in client.get("/stores/rewards/keys", headers=HTML).text, 30)
        assert replica.status("rewards")["version"] == loaded, "or this shows nothing"
    finally:
        app.extensions["statehouse"].stop()
