"""All that is done otherwise on Databricks: the session is there, with Delta and a Kafka of its own in it, and the platform keeps to
one writer."""

from __future__ import annotations

import os
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from jobs.spark import private_key
from statehouse import kafka_clients
from statehouse.errors import ConfigError
from statehouse.places import remote

VOLUMES = "/Volumes/"
KEY, KEY_PASSWORD = "ssl.keystore.key", "ssl.key.password"
SETTINGS = {
    # What the fold relies on; the rest of spark-defaults.conf is for a machine of our own.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.datetime.java8API.enabled": "true",
    # A workspace may have them on for every new table; but rows are counted by the files' statistics, which do not know of them.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "false",
}


def here() -> bool:
    """Whether this is a cluster of Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def session(root: str = "") -> SparkSession:
    """The cluster's session, :func:`prepare`. Raises ConfigError for a root that is one place to Spark and another to all else."""
    if root and not remote(root) and not in_volume(root):
        raise ConfigError(
            f"root: found {root}, expected s3://…, abfss://… or /Volumes/…: Spark looks for any other path in DBFS, and "
            "the rest of statehouse on the driver's own disk"
        )
    return prepare(SparkSession.builder.getOrCreate())


def prepare(spark: SparkSession) -> SparkSession:
    """The session with :data:`SETTINGS` where this is Databricks; elsewhere as it is. A new session does not take them over from
    the one that it comes from, only those of the cluster."""
    if here():
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
    return spark


def in_volume(path: str) -> bool:
    """Whether a path is in a volume, which looks like a folder but has neither locks nor renames."""
    return here() and path.startswith(VOLUMES)


def has_no_locks(root: str) -> bool:
    """Whether nothing can be locked in a root, nor renamed: an object store, or a volume, whose jobs have ``max_concurrent_runs: 1``."""
    return remote(root) or in_volume(root)


def kafka_package(spark: SparkSession) -> Any:
    """``org.apache.kafka`` of the session's JVM."""
    jvm: Any = spark._jvm
    return (jvm.kafkashaded if here() else jvm).org.apache.kafka


def client(properties: dict[str, Any]) -> dict[str, str]:
    """The file's ``kafka:`` section for the Kafka client that Spark has: with a private key that it can read. There its classes, such as
    those that log in, are under another name."""
    settings = kafka_clients.java(properties)
    if private_key.is_encrypted(settings.get(KEY, "")) and (context := SparkContext._active_spark_context):
        settings[KEY] = private_key.decrypt(context._gateway, settings[KEY], settings.pop(KEY_PASSWORD, ""))
    return {k: f"kafkashaded.{v}" if here() and v.startswith("org.apache.kafka.") else v for k, v in settings.items()}
