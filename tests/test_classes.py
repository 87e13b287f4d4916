"""The archive of Spark's classes: used where it is whole, and never needed."""

from __future__ import annotations

import sys

import pytest

from jobs.classes import OPTIONS, PACKAGES, PATH, archive, with_archive

SETTINGS = {"spark.jars.packages": "a:b:1", "spark.jars.excludes": "c:d", OPTIONS: "-Dx=y", "spark.ui.enabled": "false"}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """An archive of :data:`SETTINGS`, and a jar that it lists."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    listed, classes = archive(SETTINGS)
    listed.parent.mkdir(parents=True)
    jar = tmp_path / "b-1.jar"
    for file in (jar, classes):
        file.touch()
    listed.write_text(str(jar))
    return listed, classes, jar


def test_its_jars_are_on_the_path_and_its_classes_are_named(made):
    _, classes, jar = made
    found = with_archive(SETTINGS)
    assert found[PATH] == str(jar)
    assert f'"-XX:SharedArchiveFile={classes}"' in found[OPTIONS]
    assert found[OPTIONS].startswith("-Dx=y ")
    assert not any(found[name] for name in PACKAGES)
    assert found["spark.ui.enabled"] == "false"


@pytest.mark.parametrize("missing", [0, 1, 2], ids=["list", "classes", "jar"])
def test_without_a_part_of_it_the_settings_are_as_they_were(made, missing):
    made[missing].unlink()
    assert with_archive(SETTINGS) == SETTINGS


def test_other_packages_and_a_path_of_ones_own_are_left_alone(made):
    other = {**SETTINGS, "spark.jars.packages": "a:b:2"}
    assert with_archive(other) == other
    own = {**SETTINGS, PATH: "mine.jar"}
    assert with_archive(own) == own
