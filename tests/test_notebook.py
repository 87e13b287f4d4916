"""The notebook runs from top to bottom on a lake like the demo's, and is stored with its outputs."""

from __future__ import annotations

import random
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from demo.simulate import invoice, report
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.config import load
from tests.records import SCHEMA, record

TOP = Path(__file__).parents[1]
FILE = TOP / "notebooks" / "explore.ipynb"


def code_cells(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def test_the_outputs_are_stored():
    cells = code_cells(nbformat.read(FILE, 4))
    assert any("image/png" in o.get("data", {}) for c in cells for o in c.outputs)
    assert not any(o.output_type == "error" for c in cells for o in c.outputs)


@pytest.mark.slow
def test_it_runs_on_a_lake_like_the_demos(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("STATEHOUSE_ROOT", str(tmp_path / "lake"))
    config = load(TOP / "statehouse.yaml")
    dice, health = random.Random(1), {}
    made = {
        "reports": [report(dice, health) for _ in range(300)] + [("device-000", b"rubbish")],
        "invoices": [invoice(dice, n) for n in range(300)],
    }
    for name, stream in config.streams.items():
        rows = [record(stream.topic, 0, o, 10**15, k, v) for o, (k, v) in enumerate(made[name])]
        Ingest(spark, config, stream).batch(spark.createDataFrame(rows, SCHEMA))
    for store in config.stores.values():
        Merge(spark, config, store).round()
    notebook = nbformat.read(FILE, 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FILE.parent)}}).execute()
    agents = next(c for c in code_cells(notebook) if "contradicting_percent" in c.source)
    assert all(name in agents.outputs[0]["data"]["text/plain"] for name in ("north", "core"))
