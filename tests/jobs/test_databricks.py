"""databricks.yml: by the classes of Databricks' own package for bundles, which refuse what they do not know, by the JSON schema where
its command line is installed (the schema's licence keeps it out of here), and by our command.

Not by a workspace: whether its clusters, volumes and permissions are there is for `databricks bundle validate` to say.
"""

from __future__ import annotations

import configparser
import copy
import json
import logging
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from databricks.bundles.jobs import Job

from jobs.spark import databricks, session
from jobs.spark.position import Position
from statehouse import cli, kafka_clients
from statehouse.config.file import load
from statehouse.errors import ConfigError

TOP = Path(__file__).parents[2]
TEXT = (TOP / "databricks.yml").read_text()
SETUP = configparser.ConfigParser()
SETUP.read(TOP / "setup.cfg")


@pytest.fixture
def bundle():
    return yaml.safe_load(TEXT)


@pytest.fixture
def there(monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")


def jobs(bundle, target):
    return {name: Job.from_dict(job) for name, job in bundle["targets"][target]["resources"]["jobs"].items()}


def tasks(bundle):
    """Each job's name with each of its tasks that runs something, as they stand in the file."""
    for target in bundle["targets"].values():
        for name, job in target["resources"]["jobs"].items():
            yield from ((name, task) for task in job["tasks"] if "python_wheel_task" in task)


def wrong(bundle):
    """The bundle, with one mistake each time."""
    for change in (
        lambda run, chain: run.update(continous={}),
        lambda run, chain: run["job_clusters"][0]["new_cluster"].update(data_security_mode="NONSENSE"),
        lambda run, chain: run["job_clusters"][0]["new_cluster"].update(num_workers="two"),
        lambda run, chain: chain["tasks"][0].update(depends_on="merge"),
        lambda run, chain: chain["tasks"][0]["python_wheel_task"].pop("entry_point"),
        lambda run, chain: chain["tasks"][0]["libraries"].append({"wheel": "x"}),
        lambda run, chain: chain["schedule"].pop("timezone_id"),
    ):
        other = copy.deepcopy(bundle)
        change(
            other["targets"]["prod"]["resources"]["jobs"]["run"], other["targets"]["dev"]["resources"]["jobs"]["chain"]
        )
        yield other


def test_the_jobs_are_of_the_shapes_that_databricks_knows(bundle):
    assert {target: set(jobs(bundle, target)) for target in bundle["targets"]} == {
        "dev": {"chain"},
        "prod": {"run"},
        "scheduled": {"chain"},
    }
    for other in wrong(bundle):
        with pytest.raises((ValueError, TypeError, AttributeError)):
            [jobs(other, target) for target in other["targets"]]


def test_the_whole_file_is_of_the_schema(bundle):
    if not (command := shutil.which("databricks")):
        pytest.skip("the schema is what `databricks bundle schema` prints, and there is no databricks here")
    shown = subprocess.run([command, "bundle", "schema"], capture_output=True, text=True, check=True).stdout
    schema = jsonschema_rs.validator_for(json.loads(shown))
    schema.validate(bundle)
    assert not any(schema.is_valid(other) for other in wrong(bundle))


def test_every_task_is_a_command_of_ours(bundle):
    names = dict(line.split(" = ") for line in SETUP["options.entry_points"]["console_scripts"].split("\n") if line)
    assert names["statehouse"] == f"{cli.entry_point.__module__}:{cli.entry_point.__name__}"
    for job, task in tasks(bundle):
        done = task["python_wheel_task"]
        assert (done["package_name"], done["entry_point"]) == (SETUP["metadata"]["name"], "statehouse")
        name, *given = done["parameters"]
        found = cli.cli.commands[name].make_context(name, given).params
        assert (name, found["file"], found["once"]) == (task["task_key"], "${var.config}", job == "chain")


def test_a_task_has_the_packages_that_the_runtime_lacks(bundle):
    wanted = SETUP["options.extras_require"]["jobs"].split()
    has_or_never_asks = "pyspark==", "delta-spark==", "pandas~=", "polars>="
    lacks = [{"pypi": {"package": p}} for p in wanted if not p.startswith(has_or_never_asks)]
    for _, task in tasks(bundle):
        assert task["libraries"] == [{"whl": "./dist/*.whl"}, *lacks]


def test_every_variable_is_declared_and_each_target_gives_those_without_a_default(bundle):
    declared = bundle["variables"]
    assert set(re.findall(r"\$\{var\.(\w+)\}", TEXT)) == set(declared)
    for target in bundle["targets"].values():
        assert set(target["variables"]) == {name for name, v in declared.items() if "default" not in v}


def test_a_lake_has_one_writer_and_nothing_is_kept_beside_a_merge(bundle):
    assert "jobs" not in bundle.get("resources", {}), "these would be in every target"
    roots = [target["variables"]["root"] for target in bundle["targets"].values()]
    assert len(set(roots)) == len(roots)
    for target in bundle["targets"]:
        ((job, found),) = jobs(bundle, target).items()
        assert found.max_concurrent_runs == 1
        commands = [task.task_key for task in found.tasks if task.python_wheel_task]
        if job == "run":  # keeps the tables itself, between two merges
            assert commands == ["run"]
            continue
        assert commands == ["ingest", "merge", "route", "publish", "tasks", "maintain"]
        assert found.schedule.pause_status is None, "a target for development pauses what does not say"
        before = {t.task_key: {d.task_key for d in t.depends_on} for t in found.tasks}

        def all_before(task, before=before):
            return before[task].union(*(all_before(t) for t in before[task]))

        for i, command in enumerate(commands):
            assert all_before(command) >= set(commands[:i]), "one at a time"
        kept = next(t for t in found.tasks if t.task_key == "maintain")
        assert [(d.task_key, d.outcome) for d in kept.depends_on] == [("nor_after", "true")]
        assert {t.task_key for t in found.tasks if t.run_if} == {"publish", "tasks"}, "a failure is told"


@pytest.mark.parametrize(("code", "ends"), [(0, None), (2, 2)])
def test_a_command_that_went_well_does_not_exit(monkeypatch, code, ends):
    monkeypatch.setattr(cli, "main", lambda: code)
    if ends is None:
        assert cli.entry_point() is None
    else:
        with pytest.raises(SystemExit) as error:
            cli.entry_point()
        assert error.value.code == ends
    assert logging.getLogger("statehouse").isEnabledFor(logging.WARNING), "the process may go on, as a notebook does"


def test_a_root_is_one_place_to_all(there, monkeypatch):
    for root in ("/Workspace/Shared/lake", "/dbfs/lake", "/tmp/lake"):
        with pytest.raises(ConfigError, match="expected s3"):
            session.session("statehouse", None, root)
    assert databricks.in_volume("/Volumes/a/b/c") and not databricks.in_volume("/tmp/lake")
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION")
    assert not databricks.in_volume("/Volumes/a/b/c")


def test_kafkas_classes_have_another_name_there(monkeypatch):
    given = {"bootstrap.servers": "k:9092", "sasl.username": "u", "sasl.password": "org.apache.kafka.p"}
    usual = databricks.client(given)
    assert usual == kafka_clients.java(given)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    assert databricks.client(given) == {**usual, "sasl.jaas.config": f"kafkashaded.{usual['sasl.jaas.config']}"}
    already = {"sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required;"}
    assert databricks.client(already) == already


def test_on_databricks_the_session_is_the_clusters_and_every_new_one_has_the_settings(there, spark):
    made = session.session("statehouse", None, "/Volumes/a/b/c")
    assert made.sparkContext is spark.sparkContext
    other = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.datetime.java8API.enabled": "false",
    }
    for name in databricks.SETTINGS:
        if made.conf.isModifiable(name):
            made.conf.set(name, other.get(name, "true"))
    try:
        assert {n: session.new_session(made).conf.get(n) for n in databricks.SETTINGS} == databricks.SETTINGS
        assert {n: session.session("").conf.get(n) for n in databricks.SETTINGS} == databricks.SETTINGS
    finally:
        databricks.prepare(spark)
        spark.conf.unset("spark.databricks.delta.properties.defaults.enableDeletionVectors")


def test_a_volumes_files_are_not_locked_and_a_position_there_is_moved_by_spark(there, monkeypatch, tmp_path, spark):
    (tmp_path / "statehouse.yaml").write_text("root: /Volumes/a/b/c\nstreams: {s: {topic: t, schema: k STRING}}\n")
    config = load(tmp_path / "statehouse.yaml", {})
    with session.lock(spark, config, "merge"), session.lock(spark, config, "merge"):
        assert not Path("/Volumes/a").exists()
    monkeypatch.setattr(databricks, "VOLUMES", str(tmp_path))
    monkeypatch.setattr("jobs.spark.position.DeltaTable", None)
    position = Position(f"{tmp_path}/positions/route.r", "route:r:t")
    for number in (3, 7):
        position.move(number, {"0": number})
        assert (position.get(), position.read_note()) == (number, {"0": number})
