"""Where a lake may be: a folder of this machine, or an object store; what the engines have to be told of the latter. And
where the user's cache is.

Credentials are nobody's business here: each engine looks for them where its cloud's own tools do (the environment, the profile,
the machine's role). Only an endpoint that is not the cloud's, ``$AWS_ENDPOINT_URL``, has to be told to each in its own way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

# Of the Hadoop that pyspark ships.
CONNECTORS = {"s3a": "org.apache.hadoop:hadoop-aws:3.4.1", "abfss": "org.apache.hadoop:hadoop-azure:3.4.1"}
S3 = ("s3", "s3a")


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's cache of what is fetched or made once for all checkouts; it need not be there."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "statehouse"


def remote(path: str) -> bool:
    """Whether a path is not of a file system: there are no locks, and no folders."""
    return "://" in path


def scheme(path: str) -> str:
    """``s3a`` of ``s3a://bucket/lake``; empty for a file system's."""
    return path.partition("://")[0] if remote(path) else ""


def prepare(root: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell deltalake, by the environment, of an endpoint without TLS."""
    if scheme(root) in S3 and environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        environ.setdefault("AWS_ALLOW_HTTP", "true")


def spark_settings(root: str, packages: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Spark's settings for a root besides those of ``spark-defaults.conf``; ``packages`` are its ``spark.jars.packages``."""
    made: dict[str, str] = {}
    if connector := CONNECTORS.get(scheme(root)):
        made["spark.jars.packages"] = f"{packages},{connector}" if packages else connector
    if (
        scheme(root) in S3
    ):  # the commits since the last one, and not all of a table's, which are thousands, for each new one
        made["spark.hadoop.delta.enableFastS3AListFrom"] = "true"
    if scheme(root) in S3 and (endpoint := environ.get("AWS_ENDPOINT_URL")):
        made["spark.hadoop.fs.s3a.endpoint"] = endpoint
        made["spark.hadoop.fs.s3a.endpoint.region"] = environ.get("AWS_REGION", "us-east-1")
        made["spark.hadoop.fs.s3a.path.style.access"] = "true"
        made["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(endpoint.startswith("https://")).lower()
    return made


def duckdb_secret(environ: Mapping[str, str] = os.environ) -> str:
    """DuckDB's statement that lets it read S3."""
    words = ["TYPE s3", "PROVIDER credential_chain"]
    if endpoint := environ.get("AWS_ENDPOINT_URL"):
        protocol, _, place = endpoint.partition("://")
        region = environ.get("AWS_REGION", "us-east-1")
        words += [
            f"ENDPOINT '{place.rstrip('/')}'",
            "URL_STYLE 'path'",
            f"USE_SSL {protocol == 'https'}",
            f"REGION '{region}'",
        ]
    return f"CREATE SECRET ({', '.join(words)})"
