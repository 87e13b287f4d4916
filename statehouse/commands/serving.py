"""``serve`` and ``broker``."""

from __future__ import annotations

from pathlib import Path

import click

from statehouse.commands.base import command, config_option


@command(
    "Run",
    ("statehouse serve", "http://127.0.0.1:8080/, for this machine"),
    ("statehouse serve --port 8000 --workers 4", "another port, more processes"),
    ("statehouse serve --host 0.0.0.0", "for others too; needs api: tokens in the file"),
    until_stopped=True,
)
@config_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Another machine's needs api: tokens.")
@click.option("--port", type=int, default=8080, show_default=True)
@click.option("--workers", type=int, default=1, show_default=True, help="Processes.")
def serve(file: str | None, host: str, port: int, workers: int) -> int:
    """The API, and the console for people at the same address."""
    from api.server import supervisor
    from statehouse.config import file as configuration

    return supervisor.serve(configuration.load(file), host, port, workers)


@command(
    "Run",
    ("statehouse broker", "Kafka on 127.0.0.1:9092; its data is in ./kafka"),
    ("statehouse broker --dir ./kafka2 --port 0", "on any free port, which it prints"),
    until_stopped=True,
)
@click.option("--dir", "folder", default="./kafka", show_default=True, help="Where its data is kept.")
@click.option("--port", type=int, default=9092, show_default=True, help="0: any free one.")
def broker(folder: str, port: int) -> int:
    """The embedded single-node Kafka; prints bootstrap.servers=HOST:PORT when it is ready."""
    from demo import broker as embedded

    return embedded.serve(Path(folder), port)
