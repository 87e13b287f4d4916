"""The notebooks run from top to bottom on a lake like the demo's, and are stored with their outputs."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from demo.simulate import invoice, report
from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.config.file import load
from tests.support.records import SCHEMA, record
from tests.support.serving import serving

TOP = Path(__file__).parents[2]
NOTEBOOKS = sorted((TOP / "notebooks").glob("*.ipynb"))
DICE = random.Random(1)


def code_cells(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def texts(cell):
    """What a cell gave, but for pictures."""
    said = [output.get("text", "") for output in cell.outputs]
    return "\n".join(
        said + [text for o in cell.outputs for kind, text in o.get("data", {}).items() if "image" not in kind]
    )


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_each_is_short_and_stored_with_its_outputs(file):
    notebook = nbformat.read(file, 4)
    cells = code_cells(notebook)
    assert 6 <= len(notebook.cells) <= 12
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)], "executed once, from top to bottom"
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    stored = "\n".join(text for cell in cells for text in (cell.source, texts(cell)))
    assert not re.search(r"/(home|root|tmp|Users|work)\b", stored), "a path of the machine that executed it"


def test_each_is_in_the_docs():
    page = (TOP / "docs/start.md").read_text()
    assert [file.name for file in NOTEBOOKS if f"../notebooks/{file.name}" not in page] == []


def filled(spark, folder):
    """A lake like the demo's, merged twice; its settings."""
    shutil.copy(TOP / "statehouse.yaml", folder)
    shutil.copytree(TOP / "demo", folder / "demo", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    config, health = load(folder / "statehouse.yaml"), {}
    for number, stores in enumerate((config.stores, ["rewards"])):
        made = {
            "reports": [report(DICE, health) for _ in range(200)] + [("device-000", b"rubbish")],
            "invoices": [invoice(DICE, 200 * number + n) for n in range(200)],
        }
        for name, stream in config.streams.items():
            rows = [record(stream.topic, 0, 201 * number + o, 10**15, k, v) for o, (k, v) in enumerate(made[name])]
            Ingest(spark, config, stream).batch(spark.createDataFrame(rows, SCHEMA))
        for name in stores:
            Merge(spark, config, config.stores[name]).round()
    return config


@pytest.mark.slow
def test_they_run_on_a_lake_like_the_demos(spark, tmp_path, monkeypatch):
    """All in one process, which starts one Spark; each begins without the names of the one before."""
    monkeypatch.setenv("STATEHOUSE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    config, every = filled(spark, tmp_path), new_notebook()
    for file in NOTEBOOKS:
        every.cells += [new_code_cell("%reset -f"), *nbformat.read(file, 4).cells]
    with serving(config) as (_, service):
        monkeypatch.setenv("STATEHOUSE_URL", f"http://127.0.0.1:{service.port}")
        NotebookClient(every, timeout=300, resources={"metadata": {"path": str(NOTEBOOKS[0].parent)}}).execute()

    def shown(word):
        return texts(next(cell for cell in code_cells(every) if word in cell.source))

    assert all(name in shown("contradicting_percent") for name in ("north", "core"))
    assert re.search("changed +[0-9]+", shown("AS kind\n    FROM")), "of the customers between two versions"
    assert re.search("0 added, 0 gone, [1-9][0-9]* changed", shown("rule_file(")), "by the new rule"
    assert re.search("reports +400 +2 +0.5", shown("refused_percent"))
    assert sum("image/png" in o.get("data", {}) for cell in code_cells(every) for o in cell.outputs) == 5
