"""databricks.yml: by the classes of Databricks' own package for bundles, which refuse what they do not know, and by our command.

Not by a workspace: whether its clusters, volumes and permissions are there is for `databricks bundle validate` to say.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml
from databricks.bundles.jobs import Job

from jobs import databricks, session
from jobs.position import Position
from statehouse import cli, kafka
from statehouse.cli import parser
from statehouse.config import load
from statehouse.errors import ConfigError

TOP = Path(__file__).parents[1]
TEXT = (TOP / "databricks.yml").read_text()


@pytest.fixture
def bundle():
    return yaml.safe_load(TEXT)


@pytest.fixture
def there(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")


def jobs(bundle):
    return {name: Job.from_dict(job) for name, job in bundle["resources"]["jobs"].items()}


def test_the_jobs_are_of_the_shapes_that_databricks_knows(bundle):
    assert set(jobs(bundle)) == {"run", "chain"}
    wrong = [
        lambda b: b["resources"]["jobs"]["run"].update(continous={}),
        lambda b: b["resources"]["jobs"]["chain"]["tasks"][0].update(depends_on="merge"),
        lambda b: b["resources"]["jobs"]["chain"]["tasks"][0]["spark_python_task"].update(entry_point="x"),
        lambda b: b["resources"]["jobs"]["chain"]["schedule"].pop("timezone_id"),
        lambda b: b["resources"]["jobs"]["run"]["job_clusters"][0]["new_cluster"].update(data_security_mode="NONSENSE"),
    ]
    for change in wrong:
        other = copy.deepcopy(bundle)
        change(other)
        with pytest.raises((ValueError, TypeError, AttributeError)):
            jobs(other)


def test_every_task_is_a_command_of_ours(bundle):
    for job in bundle["resources"]["jobs"].values():
        for task in job["tasks"]:
            if done := task.get("spark_python_task"):
                assert (TOP / done["python_file"]).is_file()
                found = parser().parse_args(done["parameters"])
                assert (found.command, found.config) == (task["task_key"], "${var.config}")


def test_every_variable_is_declared_and_each_target_gives_those_without_a_default(bundle):
    declared = bundle["variables"]
    assert set(re.findall(r"\$\{var\.(\w+)\}", TEXT)) == set(declared)
    for target in bundle["targets"].values():
        assert set(target["variables"]) <= set(declared)
        assert {name for name, v in declared.items() if "default" not in v} <= set(target["variables"])


def test_a_lake_has_one_writer_and_nothing_is_kept_beside_a_merge(bundle):
    found = jobs(bundle)
    assert all(job.max_concurrent_runs == 1 for job in found.values())
    for target in bundle["targets"].values():
        chosen = {n: v.get("default") for n, v in bundle["variables"].items()} | target["variables"]
        assert "PAUSED" in (chosen["continuous"], chosen["scheduled"]), "never both"
    before = {t.task_key: {d.task_key for d in t.depends_on} for t in found["chain"].tasks}

    def all_before(task):
        return before[task].union(*(all_before(t) for t in before[task]))

    assert all_before("maintain") >= {"ingest", "merge", "route", "publish", "tasks"}
    assert all_before("merge") == {"ingest"}


def test_a_root_is_one_place_to_all(there, monkeypatch):
    for root in ("/Workspace/Shared/lake", "/dbfs/lake", "/tmp/lake"):
        with pytest.raises(ConfigError, match="expected s3"):
            session.session("statehouse", None, root)
    assert databricks.volume("/Volumes/a/b/c") and not databricks.volume("/tmp/lake")
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    assert not databricks.volume("/Volumes/a/b/c")


def test_on_databricks_the_session_is_the_clusters_and_every_new_one_has_the_settings(there, spark):
    made = session.session("statehouse", None, "/Volumes/a/b/c")
    assert made.sparkContext is spark.sparkContext
    for name in databricks.SETTINGS:
        if made.conf.isModifiable(name):
            made.conf.set(name, "America/New_York" if name.endswith("Zone") else "true")
    try:
        assert {n: session.fresh(made).conf.get(n) for n in databricks.SETTINGS} == databricks.SETTINGS
        assert {n: session.session("").conf.get(n) for n in databricks.SETTINGS} == databricks.SETTINGS
    finally:
        databricks.prepared(spark)
        spark.conf.unset("spark.databricks.delta.properties.defaults.enableDeletionVectors")


def test_a_volumes_files_are_not_locked_and_a_position_there_is_moved_by_spark(there, monkeypatch, tmp_path, spark):
    (tmp_path / "statehouse.yaml").write_text("root: /Volumes/a/b/c\nstreams: {s: {topic: t, schema: k STRING}}\n")
    config = load(tmp_path / "statehouse.yaml", {})
    with session.lock(spark, config, "merge"), session.lock(spark, config, "merge"):
        assert not Path("/Volumes/a").exists()
    monkeypatch.setattr(databricks, "VOLUMES", str(tmp_path))
    monkeypatch.setattr("jobs.position.DeltaTable", None)
    position = Position(f"{tmp_path}/positions/route.r", "route:r:t")
    for number in (3, 7):
        position.move(number, {"0": number})
        assert (position.get(), position.said()) == (number, {"0": number})


def test_kafkas_classes_have_another_name_there(monkeypatch):
    given = {"bootstrap.servers": "k:9092", "sasl.username": "u", "sasl.password": "org.apache.kafka.p"}
    usual = databricks.client(given)
    assert usual == kafka.java(given)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    assert databricks.client(given) == {**usual, "sasl.jaas.config": f"kafkashaded.{usual['sasl.jaas.config']}"}
    already = {"sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required;"}
    assert databricks.client(already) == already


@pytest.mark.parametrize(("code", "ends"), [(0, None), (2, 2)])
def test_a_command_that_went_well_does_not_exit(monkeypatch, code, ends):
    monkeypatch.setattr(cli, "main", lambda: code)
    if ends is None:
        assert cli.entry_point() is None
    else:
        with pytest.raises(SystemExit) as error:
            cli.entry_point()
        assert error.value.code == ends
