"""All that is done otherwise on Databricks: the session is there, with Delta and Kafka in it, and the platform keeps to one writer."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

# What the fold relies on; the rest of spark-defaults.conf is for a machine of our own.
SETTINGS = {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "UTC"}


def here() -> bool:
    """Whether this is a cluster of Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def session() -> SparkSession:
    """The cluster's session, with :data:`SETTINGS`."""
    spark = SparkSession.builder.getOrCreate()
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    return spark


def locked(root: str) -> bool:
    """Whether a root's files can be locked: a volume's cannot, and its jobs have ``max_concurrent_runs: 1``."""
    return not (here() and root.startswith(("/Volumes/", "/dbfs/", "/Workspace/")))
