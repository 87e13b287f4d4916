"""What the commands that need Spark share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from statehouse.commands.progress import working
from statehouse.errors import ConfigError
from statehouse.places import remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statehouse.config.models import Config, Store, Stream


def spark_log(config: Config) -> Path:
    """Where Spark's own log goes: into the lake, or for a lake on an object store into the working directory."""
    folder = Path(config.root) if not remote(config.root) else Path.cwd()
    return folder / "_logs" / "spark.log"


def start_spark(config: Config, command: str) -> SparkSession:
    """The session of a command."""
    from jobs.spark.session import session

    with working("starting Spark"):
        return session(f"statehouse {command}", spark_log(config), config.root)


def stream_named(config: Config, name: str) -> Stream:
    """A stream of the file; ConfigError where it has none of that name."""
    if name not in config.streams:
        raise ConfigError(
            f"found the stream {name!r}, expected one of {', '.join(config.streams)}", advice="name one of these"
        )
    return config.streams[name]


def store_named(config: Config, name: str) -> Store:
    """A store of the file; ConfigError where it has none of that name."""
    if name not in config.stores:
        raise ConfigError(
            f"found the store {name!r}, expected one of {', '.join(config.stores)}", advice="name one of these"
        )
    return config.stores[name]
