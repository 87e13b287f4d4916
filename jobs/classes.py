"""An archive of the classes that Spark loads in a local JVM, so that a job starts in less time.

It is the JVM's own class-data sharing (JEP 350, "Dynamic CDS Archives"), made once for an environment of Python by
``make`` (:mod:`demo.classes`). The JVM looks whether the archive fits its class path, and does without where it does
not: it is never needed. Jars are on the JVM's class path then instead of asked for from Ivy at each start: only those classes can
be in an archive.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pyspark

OPTIONS, PATH = "spark.driver.extraJavaOptions", "spark.driver.extraClassPath"
PACKAGES = ("spark.jars.packages", "spark.jars.excludes")


def archive(settings: dict[str, str]) -> tuple[Path, Path]:
    """The files of an archive for a session of these settings: the list of the jars, and the classes."""
    of = [pyspark.__version__, *(settings.get(name, "") for name in PACKAGES)]
    name = "spark-" + hashlib.sha256("\n".join(of).encode()).hexdigest()[:12]
    folder = Path(sys.prefix, "share", "statehouse")
    return folder / f"{name}.jars", folder / f"{name}.jsa"


def with_archive(settings: dict[str, str]) -> dict[str, str]:
    """The settings of a local session, with the archive where there is one for them."""
    listed, classes = archive(settings)
    if PATH in settings or not listed.is_file() or not classes.is_file():
        return settings
    return with_jars(settings, listed, f"-XX:SharedArchiveFile={classes}")


def with_jars(settings: dict[str, str], listed: Path, option: str) -> dict[str, str]:
    """The settings, with the jars of a list instead of packages, and one more option for the JVM; as they are where one of the
    jars is gone."""
    jars = listed.read_text().splitlines()
    if not all(Path(jar).is_file() for jar in jars):
        return settings
    # What it says of an archive that does not fit would be on the console of whoever starts a job.
    options = f'{settings.get(OPTIONS, "")} "{option}" -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off'
    return {**settings, **dict.fromkeys(PACKAGES, ""), PATH: ":".join(jars), OPTIONS: options.strip()}
