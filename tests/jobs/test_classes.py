"""The archive of Spark's classes: shared by a user's checkouts, used where it is whole, and never needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyspark
import pytest

from jobs.spark.class_archive import OPTIONS, PACKAGES, PATH, archive, archive_for

SETTINGS = {"spark.jars.packages": "a:b:1", "spark.jars.excludes": "c:d", OPTIONS: "-Dx=y", "spark.ui.enabled": "false"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache with nothing in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return tmp_path / "cache" / "statehouse"


@pytest.fixture
def whole(cache, tmp_path):
    """An archive of :data:`SETTINGS`."""
    made = archive(SETTINGS)
    (tmp_path / "b-1.jar").touch()
    (tmp_path / "a-2.jar").touch()
    made.lay_out([tmp_path / "b-1.jar", tmp_path / "a-2.jar"])
    made.classes.touch()
    return made


def test_its_jars_are_on_the_path_and_its_classes_are_named(whole, cache):
    assert whole.folder.parent == cache
    found = archive_for(SETTINGS)
    assert found == whole
    settings = found.settings(SETTINGS)
    assert settings[PATH] == f"{whole.folder}/packages/b-1.jar:{whole.folder}/packages/a-2.jar", "in their order"
    assert f'"-XX:SharedArchiveFile={whole.classes}"' in settings[OPTIONS]
    assert settings[OPTIONS].startswith("-Dx=y ")
    assert not any(settings[name] for name in PACKAGES)
    assert settings["spark.ui.enabled"] == "false"


def test_spark_is_whole_in_its_home(whole):
    own = Path(pyspark.__file__).parent
    for part in ("bin", "jars", "python"):
        files = {f.relative_to(own) for f in (own / part).rglob("*") if f.is_file()}
        assert files and {f.relative_to(whole.home) for f in (whole.home / part).rglob("*") if f.is_file()} == files
        # The JVM compares the times of jars with those that the archive was made of.
        assert all((own / f).stat().st_mtime_ns == (whole.home / f).stat().st_mtime_ns for f in files)


@pytest.mark.parametrize("missing", ["classes.jsa", "packages.txt", "packages/a-2.jar", "home/jars", "home"])
def test_without_a_part_of_it_there_is_none(whole, missing):
    part = whole.folder / missing
    shutil.rmtree(part) if part.is_dir() else part.unlink()
    assert archive_for(SETTINGS) is None


def test_other_versions_and_what_a_user_has_of_ones_own_are_left_alone(whole, monkeypatch, tmp_path):
    assert archive_for({**SETTINGS, "spark.jars.packages": "a:b:2"}) is None
    assert archive_for({**SETTINGS, PATH: "mine.jar"}) is None
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_HOME", str(tmp_path))
        assert archive_for(SETTINGS) is None
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "release").write_text("another")
    monkeypatch.setenv("JAVA_HOME", str(java))
    assert archive_for(SETTINGS) is None
    assert archive(SETTINGS).folder != whole.folder
