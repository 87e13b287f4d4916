"""``docs/monitor.md``, its dashboard and its alerts name the metrics that the code exports, all of them, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families

from api.http import metrics as api_metrics

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs/monitor.md").read_text()
BOARD = json.loads((TOP / "docs/grafana/statehouse.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((TOP / "docs/grafana/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
TARGET = {"instance", "job"}  # what Prometheus knows of a series by itself
WORDS = {"by", "or", "and", "unless", "sum", "max", "min", "rate", "increase", "time", "vector", "histogram_quantile"}
WORDS |= {"min_over_time"}
STATUS = {"keys": 1, "position": 1, "version": 1, "lag_ms": 1, "error": None}
LIVE = {"state": "off", "pending": 1, "behind": 1, "lag_ms": 1}


def of_the_api():
    """The names of the series that the API exports, with their labels."""
    replica = SimpleNamespace(config=SimpleNamespace(stores={"s": None}), status=lambda name: {**STATUS, "live": LIVE})
    app = Flask(__name__)
    api_metrics.install(app, replica)
    client = app.test_client()
    client.get("/nowhere")
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        sample.name: set(sample.labels)
        for family in families
        for sample in family.samples
        if "_created" not in sample.name
    }


def of_the_jobs():
    """Those that the jobs export. It needs Spark's package, and no Java."""
    metrics = pytest.importorskip("jobs.metrics")
    found = {}
    for made in metrics.REGISTRY._collector_to_names:
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}[made._type]
        found |= {made._name + end: {*made._labelnames, *(["le"] if end == "_bucket" else [])} for end in ends}
    return found


@pytest.fixture(scope="module")
def exported():
    return {**of_the_jobs(), **of_the_api(), "up": set()}


def series(query):
    """The series that a query names, each with the labels that it compares; and the labels that it groups by."""
    grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", query) for label in re.split(r",\s*", labels)}
    rest = re.sub(r"\bby \([^)]*\)|\[\w+\]", "", query)
    found = []
    for name, matchers in re.findall(r"\b([a-z_]+)\b(?:\{([^}]*)\})?", re.sub(r'"[^"]*"', '""', rest)):
        if name not in WORDS and f"{name}=" not in rest.replace(" ", ""):
            found.append((name, set(re.findall(r"(\w+)\s*=?[=~!]", matchers))))
    return found, grouped


def wrong(query, exported):
    """What a query names and nobody exports."""
    found, grouped = series(query)
    assert found, query
    known = {name: {*labels - {"job"}, *({"exported_job"} & {f"exported_{x}" for x in labels}), *TARGET}
             for name, labels in exported.items()}  # fmt: skip
    missing = {name for name, _ in found if name not in known}
    missing |= {f"{name}{{{x}}}" for name, labels in found if name in known for x in labels - known[name]}
    everywhere = set.intersection(*(known[name] for name, _ in found if name in known)) if not missing else grouped
    return missing | {f"by {label}" for label in grouped - everywhere}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_exported(rule, exported):
    assert wrong(rule["expr"], exported) == set()
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert f"| `{rule['alert']}` |" in PAGE
    text = " ".join(rule["annotations"].values())
    _, grouped = series(rule["expr"])
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= grouped
    assert rule["annotations"]["summary"] and rule["annotations"]["description"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_is_exported(panel, exported):
    assert panel["targets"] and panel["description"]
    for target in panel["targets"]:
        assert wrong(target["expr"], exported) == set()
        _, grouped = series(target["expr"])
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= grouped | TARGET


def test_the_dashboard_is_whole(exported):
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24, "panels lie over each other"
    for variable in BOARD["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
        assert label in exported[metric]
    shown = {name for panel in PANELS for target in panel["targets"] for name, _ in series(target["expr"])[0]}
    bare = {re.sub("_(bucket|sum|count)$", "", name) for name in shown}
    all_of_ours = {re.sub("_(bucket|sum|count)$", "", n) for n in exported if n.startswith("statehouse_")}
    assert all_of_ours - bare == {"statehouse_worker"}


def test_every_metric_is_on_the_page_with_its_labels(exported):
    rows = dict(re.findall(r"^\| `(statehouse_\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    bare = {
        re.sub("_(bucket|sum|count)$", "", n): labels - {"le"} for n, labels in exported.items() if "statehouse" in n
    }
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()} == bare


@pytest.mark.parametrize(
    "query",
    [
        "statehouse_nothing > 1",
        'statehouse_failing{store="s"} == 1',
        "sum by (store) (statehouse_failing)",
        'statehouse_failing{job="merge"} == 1 and statehouse_store_keys{nope=~"a"}',
        "max by (job, name) (statehouse_events_total)",
    ],
)
def test_a_query_of_what_is_not_there_is_found(query, exported):
    assert wrong(query, exported) != set()
