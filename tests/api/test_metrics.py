"""``/metrics`` and ``/readyz``: what Prometheus and a load balancer are told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from api import create_app
from api.http.metrics import Reads
from statehouse.config.models import Config
from statehouse.tables import table
from tests.support.api_lake import State, changelog, configured, eventually
from tests.support.calls import problem
from tests.support.serving import get, serving, stopped

Samples = dict[tuple[str, frozenset], float]


def samples(text: str) -> Samples:
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def requests(found: Samples, **labels: str) -> float:
    """How many requests were counted under labels."""
    wanted = set(labels.items())
    name = "statehouse_http_request_seconds_count"
    return sum(value for (n, mine), value in found.items() if n == name and wanted <= mine)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    config = configured(tmp_path)
    changelog(config, "sales", 4)
    State(config, "last").write(3, {"key": "a", "value": 1.0}, {"key": "b", "value": 2.0})
    State(config, "rewards").write(1)
    return config


@pytest.fixture
def app(config: Config) -> Iterator[Flask]:
    app = create_app(config)
    yield app
    app.extensions["statehouse"].replica.stop()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def limited(config: Config, most: int) -> Config:
    return config.model_copy(update={"api": config.api.model_copy(update={"max_lag": most})})


def test_requests_by_route(client: FlaskClient) -> None:
    for path in ("/stores/last/keys/a", "/stores/last/keys/b", "/stores/last/keys/c", "/stores/nope/keys/a"):
        client.get(path)
    client.put("/stores/last/keys/a", json={})
    client.get("/nowhere/1"), client.get("/nowhere/2"), client.open("/stores", method="BREW")
    found = samples(client.get("/metrics").text)
    route = "/stores/<store>/keys/<key:key>"
    assert requests(found, route=route, method="GET", status="200") == 2
    assert requests(found, route=route, method="GET", status="404") == 2
    assert requests(found, route=route, method="PUT", status="400") == 1
    assert requests(found, route="none", method="GET", status="404") == 2
    assert requests(found, route="none", method="other", status="405") == 1
    assert requests(found) == 8
    total = sum(v for (n, _), v in found.items() if n == "statehouse_http_request_seconds_sum")
    assert 0 < total < 60
    assert requests(samples(client.get("/metrics").text), route="/metrics") == 1


@given(st.lists(st.lists(st.one_of(st.floats(0, 100), st.sampled_from(Histogram.DEFAULT_BUCKETS[:-1])))))
def test_reads_are_counted_as_a_histogram_does_it(rounds: list[list[float]]) -> None:
    def made(registry: CollectorRegistry) -> Histogram:
        return Histogram("seconds", "of a read", ("route",), registry=registry).labels("a")

    ours, theirs = CollectorRegistry(), CollectorRegistry()
    reads, each = Reads(made(ours)), made(theirs)
    for found in rounds:
        for seconds in found:
            reads.took(seconds)
            each.observe(seconds)
        reads.count()
    now, then = (samples(generate_latest(registry).decode()) for registry in (ours, theirs))
    kept = {sample: value for sample, value in then.items() if not sample[0].endswith("_created")}
    assert {sample: now[sample] for sample in kept} == pytest.approx(kept)


def test_replicas_and_process(client: FlaskClient) -> None:
    def gauge(name: str, store: str) -> float | None:
        return found.get((f"statehouse_store_{name}", frozenset({("store", store)})))

    def just_refreshed() -> bool:  # a store that was not looked after for two seconds says so by its lag
        nonlocal found
        found = samples(client.get("/metrics").text)
        return gauge("lag_seconds", "last") == 0

    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    eventually(just_refreshed)
    assert client.get("/metrics").content_type.startswith("text/plain")
    assert (gauge("keys", "last"), gauge("position", "last"), gauge("version", "last")) == (2, 3, 1)
    status = client.get("/stores/rewards").get_json()
    assert gauge("position", "rewards") == 1 and 0 < gauge("lag_seconds", "rewards") <= status["lag_ms"] / 1000
    assert gauge("keys", "alarm") == 0 and gauge("position", "alarm") is None, "what is not known is left out"
    assert found["process_resident_memory_bytes", frozenset()] > 10_000_000


def test_the_other_format(client: FlaskClient) -> None:
    response = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.content_type.startswith("application/openmetrics-text")
    assert "statehouse_store_keys" in {family.name for family in of_openmetrics(response.text)}


@pytest.mark.parametrize("workers", [1, 3])
def test_the_workers_count_together(config: Config, workers: int) -> None:
    with serving(config, workers=workers) as (process, connection):
        seen: set[str] = set()

        def scrape() -> Samples:
            connection.close()  # a new connection may reach any of them
            connection.request("GET", "/metrics")
            found = samples(connection.getresponse().read().decode())
            seen.update(dict(labels)["worker"] for name, labels in found if name == "statehouse_worker")
            return found

        eventually(lambda: scrape() and len(seen) == workers)
        for _ in range(30):
            connection.close()
            assert get(connection, "/stores/last/keys/a")[0] == 200
        route = "/stores/<store>/keys/<key:key>"
        eventually(lambda: requests(scrape(), route=route, status="200") == 30)  # others' are here after a second
        seen.clear()

        def all_say_the_same() -> bool:
            found = scrape()
            assert requests(found, route=route, status="200") == 30
            assert found["statehouse_store_keys", frozenset({("store", "last")})] == 2
            return len(seen) == workers

        eventually(all_say_the_same)
        assert stopped(process, 15)[0] == 0


def test_ready(client: FlaskClient, config: Config) -> None:
    assert client.get("/readyz").get_json() == {"status": "ok"}, "however far behind"


def test_not_ready_while_too_far_behind(config: Config) -> None:
    app = create_app(limited(config, 60_000))
    assert app.test_client().get("/readyz").status_code == 200
    app.extensions["statehouse"].replica.stop()
    app = create_app(limited(config, 0))
    client, replica = app.test_client(), app.extensions["statehouse"].replica
    response = client.get("/readyz")
    late = {store["name"]: store["lag_ms"] for store in problem(response, 503, "not-ready")["stores"]}
    # Nothing has been merged into most; status has a stream without a changelog.
    assert late["rewards"] > 0 and late["days"] > 0 and not {"last", "status"} & set(late)
    assert int(response.headers["Retry-After"]) > 0
    assert client.get("/healthz").status_code == 200
    State(config, "days").write(3)
    replica.refresh()
    late = {store["name"] for store in problem(client.get("/readyz"), 503, "not-ready")["stores"]}
    assert "rewards" in late and "days" not in late
    replica.stop()


def test_not_ready_before_it_is_loaded(config: Config) -> None:
    log = Path(table(config, "state", "last"), "_delta_log")
    broken = [file for file in log.glob("*.json") if file.write_text("{")]
    assert broken
    app = create_app(config)
    document = problem(app.test_client().get("/readyz"), 503, "not-ready")
    assert [s["name"] for s in document["stores"]] == ["last"] and document["stores"][0]["error"]
    assert "last" in document["detail"]
    shutil.rmtree(log.parent)
    State(config, "last").write(3)
    app.extensions["statehouse"].replica.refresh()
    assert app.test_client().get("/readyz").status_code == 200
    app.extensions["statehouse"].replica.stop()
