"""Spark's jars and an archive of the classes that it loads, in the user's cache, so that a local job starts in less time.

The archive is the JVM's own class-data sharing (JEP 350, "Dynamic CDS Archives"), made once for the versions of Spark, of
its packages and of Java by :mod:`demo.classes`. The JVM takes it for the very jars of which it was made, by path and time:
so they stand beside it, and environments of Python that come and go share it. It is never needed: without it Spark has
its own jars, and asks Ivy for the packages at each start.

    ~/.cache/statehouse/spark-VERSIONS/
        home/           what SPARK_HOME names: pyspark's bin, jars and python; as hard links where that can be
        packages/       the jars of spark.jars.packages
        packages.txt    their names, in the class path's order
        classes.jsa     the archive; the last to appear
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pyspark

from statehouse.places import cache_folder

OPTIONS, PATH = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
PACKAGES = ("spark.jars.packages", "spark.jars.excludes")
PARTS = ("bin", "jars", "python")  # of pyspark's folder, that SPARK_HOME has to have


class Archive(NamedTuple):
    """The archive for sessions of some settings; it need not be there."""

    folder: Path

    @property
    def home(self) -> Path:
        """The folder for SPARK_HOME."""
        return self.folder / "home"

    @property
    def classes(self) -> Path:
        """The archive's file."""
        return self.folder / "classes.jsa"

    @property
    def packages(self) -> list[Path]:
        """The jars that are on the class path before Spark's own."""
        return [self.folder / "packages" / name for name in (self.folder / "packages.txt").read_text().splitlines()]

    @property
    def complete(self) -> bool:
        """Whether all of it is there."""
        parts = (self.classes, self.folder / "packages.txt", self.home / "jars", self.home / "bin")
        return all(part.exists() for part in parts) and all(jar.is_file() for jar in self.packages)

    def settings(self, settings: dict[str, str], option: str = "") -> dict[str, str]:
        """The settings with the jars instead of packages that Ivy would look for, and with the archive, or ``option``."""
        # What the JVM says of an archive that does not fit would be on the console of whoever starts a job.
        option = option or f"-XX:SharedArchiveFile={self.classes}"
        options = f'{settings.get(OPTIONS, "")} "{option}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off'
        path = ":".join(map(str, self.packages))
        return {**settings, **dict.fromkeys(PACKAGES, ""), PATH: path, OPTIONS: options.strip()}

    def lay_out(self, packages: list[Path]) -> None:
        """Put pyspark's files and these jars into their places, anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for part in PARTS:
            shutil.copytree(Path(pyspark.__file__).parent / part, self.home / part, copy_function=_link)
        (self.folder / "packages").mkdir()
        for jar in packages:
            _link(jar, self.folder / "packages" / jar.name)
        (self.folder / "packages.txt").write_text("".join(f"{jar.name}\n" for jar in packages))


def archive(settings: dict[str, str]) -> Archive:
    """Where the archive for a session of these settings is, whether it is there or not."""
    versions = [pyspark.__version__, *(settings.get(name, "") for name in PACKAGES), _java_version()]
    return Archive(cache_folder() / f"spark-{hashlib.sha256(chr(10).join(versions).encode()).hexdigest()[:12]}")


def archive_for(settings: dict[str, str]) -> Archive | None:
    """The archive for a local session of these settings; None where there is none, or where the user has a class path or a
    Spark of their own."""
    own = archive(settings)
    return None if PATH in settings or "SPARK_HOME" in os.environ or not own.complete else own


def _java_version() -> str:
    """What tells one Java from another, without starting it: its ``release`` file, or where it is."""
    home = os.environ.get("JAVA_HOME")
    java = Path(os.path.realpath(Path(home, "bin", "java") if home else shutil.which("java") or "java"))
    release = java.parents[1] / "release" if len(java.parents) > 1 else java
    return release.read_text() if release.is_file() else str(java)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
