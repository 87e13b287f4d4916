"""``statehouse.yaml`` read and validated, with what the environment says instead; errors name the line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from statehouse import kafka_clients
from statehouse.config.models import (
    TASK_TOPICS,
    Api,
    Config,
    Jobs,
    Lookup,
    Own,
    Publish,
    Route,
    Send,
    SetKey,
    Store,
    Stream,
    Target,
    Task,
    link_sections,
)
from statehouse.errors import ConfigError, StatehouseError
from statehouse.formats import format as formats
from statehouse.places import prepare, remote
from statehouse.yaml_file import YamlFile, parse_yaml, read_yaml

DEFAULT_FILE = "statehouse.yaml"


def _override(data: Any, environ: Mapping[str, str]) -> None:
    """Put ``STATEHOUSE_ROOT``, ``STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS``, … in place of the file's scalars."""
    for variable, value in environ.items():
        if not variable.startswith("STATEHOUSE_") or variable == "STATEHOUSE_CONFIG":
            continue
        *parents, leaf = variable.removeprefix("STATEHOUSE_").lower().split("__")
        if parents in (["api"], ["jobs"]):  # they have defaults for everything, so a file need not have them
            data[parents[0]] = data.get(parents[0]) or {}
        at = data
        for parent in parents:
            at = next((v for k, v in at.items() if _flat(k) == parent), None) if isinstance(at, dict) else None
        if not isinstance(at, dict):
            continue
        known = {_flat(n): n for n in (Config.model_fields if at is data else at)}
        # As the properties of Kafka's clients are named.
        another = leaf.replace("_", ".") if parents in (["kafka"], ["registry"]) else leaf
        name = known.get(leaf, another)
        if (at is data and leaf not in known) or isinstance(at.get(name), (dict, list)):
            continue  # other variables with this prefix are not ours; only scalars can be overridden
        paths = (("root",), ("api", "tokens"), *(("kafka", file) for file in kafka_clients.FILES))
        if (*parents, name) in paths and not remote(value):
            at[name] = str(Path(value).absolute())
        else:  # a password is what it is, also where YAML would take it for a number
            literal = parents == ["kafka"] or (parents == ["registry"] and kafka_clients.is_secret(name))
            at[name] = value if literal else parse_yaml(value, f"${variable}", "a value").data


def _flat(name: Any) -> str:
    return re.sub(r"[^a-z0-9]", "_", str(name).lower())


def chosen(file: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file that is meant: the one named, else ``$STATEHOUSE_CONFIG``, else ``statehouse.yaml`` here."""
    return Path(file or environ.get("STATEHOUSE_CONFIG") or DEFAULT_FILE)


def load(file: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read and validate the file (default: ``$STATEHOUSE_CONFIG``, else ``statehouse.yaml`` here).

    A relative path in it is relative to the file, so that a scheduler's working directory does not matter.
    Raises :class:`ConfigError` with a line for each thing that is wrong: file, line, found, expected.
    """
    path = chosen(file, environ)
    return from_document(read_yaml(path, "a statehouse.yaml (see docs/reference.md)"), path, environ)


def from_document(document: YamlFile, path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """The same of a file that is read already, and that stands at a path."""
    data = document.data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: found {type(data).__name__}, expected root, kafka, streams and stores")
    _override(data, environ)
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaint(path, document, e) for e in error.errors())) from None
    properties = kafka_clients.locate_files(config.kafka, path.parent)
    wrong = [(("kafka", name), f"kafka.{name}: {message}") for name, message in kafka_clients.complaints(properties)]
    if wrong:
        raise ConfigError("\n".join(f"{path}:{document.line_of(where)}: {message}" for where, message in wrong))
    config = config.model_copy(update={"kafka": properties})
    for where, message in _missing_registry(config):
        raise ConfigError(f"{path}:{document.line_of(where)}: {'.'.join(where)}: {message}")
    prepare(config.root)
    if not remote(config.root):
        try:
            root = Config.readable(str((path.parent / config.root).absolute()))
        except ValueError as error:
            raise ConfigError(f"{path}:{document.line_of(('root',))}: root: {error}") from None
        config = config.model_copy(update={"root": root})
    config = _with_columns(config, path, document)
    for where, message in _inconsistencies(config):
        raise ConfigError(f"{path}:{document.line_of(where)}: {'.'.join(where)}: {message}")
    tables = {
        name: lookup.model_copy(update={"table": str((path.parent / lookup.table).absolute())})
        for name, lookup in config.lookups.items()
        if not remote(lookup.table)
    }
    config = link_sections(config.model_copy(update={"lookups": {**config.lookups, **tables}}))
    files = {name: getattr(config.api, name) for name in ("tokens", "cache")}
    absolute = {name: str((path.parent / file).absolute()) for name, file in files.items() if file is not None}
    return config.model_copy(update={"api": config.api.model_copy(update=absolute)})


def _missing_registry(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """The streams and routes whose schemas would be in a registry, and there is none."""
    for stream in config.streams.values():
        if stream.registered and config.registry is None:
            file = " or schema_file" if stream.format == formats.AVRO else ""
            message = f"found {stream.format} without a registry, expected registry: {{url: ...}}{file}"
            yield ("streams", stream.name, "format"), message
    for route in config.routes.values():
        if route.to.registered and config.registry is None:
            message = f"found {route.to.format} without a registry, expected registry: {{url: ...}}"
            yield ("routes", route.name, "to", "format"), message


def _with_columns(config: Config, path: Path, document: YamlFile) -> Config:
    """The same, whose streams know the columns that are not written in the file."""
    streams = dict(config.streams)
    for name, stream in config.streams.items():
        if stream.format not in formats.KINDS and not stream.registered:
            continue
        from statehouse.formats.columns import resolve_columns  # with packages that others do not need

        if stream.schema_file is not None:
            stream = stream.model_copy(update={"schema_file": str((path.parent / stream.schema_file).absolute())})
        try:
            streams[name] = resolve_columns(stream, f"{config.root}/changelog/{name}")
        except (ValueError, StatehouseError) as error:
            line = document.line_of(("streams", name))
            kind = type(error) if isinstance(error, StatehouseError) else ConfigError
            raise kind(f"{path}:{line}: streams.{name}: {error}") from None
    return link_sections(config.model_copy(update={"streams": streams}))


ANOTHER = "another topic than the stream's own: it would never end"


def _inconsistencies(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not fit together: the path in the file, and what was found and expected."""
    names = ", ".join(config.streams)
    for store in config.stores.values():
        if store.stream not in config.streams:
            yield ("stores", store.name, "stream"), f"found stream {store.stream!r}, expected one of {names}"
        elif store.publish and config.streams[store.stream].reads(store.publish.topic):
            yield ("stores", store.name, "publish"), f"found {store.publish.topic!r}, expected {ANOTHER}"
    for lookup in config.lookups.values():
        if lookup.stream not in config.streams:
            yield ("lookups", lookup.name, "stream"), f"found stream {lookup.stream!r}, expected one of {names}"
        elif lookup.name.lower() in (c.name.lower() for c in config.streams[lookup.stream].columns):
            yield ("lookups", lookup.name), f"found the name of a column of {lookup.stream}, expected one of its own"
    for route in config.routes.values():
        if route.store and route.store not in config.stores:
            stores = ", ".join(config.stores) or "none: there are no stores"
            yield ("routes", route.name, "from", "store"), f"found store {route.store!r}, expected one of {stores}"
        elif not route.store and route.source not in config.streams:
            yield ("routes", route.name, "from"), f"found stream {route.source!r}, expected one of {names}"
        elif (stream := config.streams.get(config.stream_of(route))) and stream.reads(route.to.topic or ""):
            yield ("routes", route.name, "to", "topic"), f"found {route.to.topic!r}, expected {ANOTHER}"
    yield from _unfit_tasks(config)


def _unfit_tasks(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """What does not fit together of the tasks."""
    names = ", ".join(config.stores) or "none: there are no stores"
    for task in (config.tasks or {}).values():
        target = config.stores.get(task.set_.store) if task.set_ else None
        if task.store not in config.stores:
            yield ("tasks", task.name, "store"), f"found store {task.store!r}, expected one of {names}"
        elif task.set_ and target is None:
            yield ("tasks", task.name, "set", "store"), f"found store {task.set_.store!r}, expected one of {names}"
        elif target and target.windows:
            message = f"found {target.name}, expected a store without windows: a set names none"
            yield ("tasks", task.name, "set", "store"), message
        elif target and not config.writable(target.name):
            message = (
                f"found {target.name}, expected a store of a stream without order, and with a topic that is written to"
            )
            yield ("tasks", task.name, "set", "store"), message


def rule_file(file: str | Path, config: Config, store: str) -> Store:
    """A store's rule from a file of its own: another statehouse.yaml that has the store, or just the store's settings.

    Raises :class:`ConfigError` as :func:`load` does.
    """
    path = Path(file)
    document = read_yaml(path, f"the rule of {store} in YAML")
    data = document.data
    if isinstance(data, dict) and "stores" in data:
        data = data["stores"].get(store) if isinstance(data["stores"], dict) else None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: found no store {store!r}, expected its rule, such as 'reduce: latest'")
    try:
        rule = Store.model_validate({**data, "name": store})
    except ValidationError as error:
        prefix = ("stores", store)
        lines = {p if p[:1] == ("stores",) else (*prefix, *p): n for p, n in document.lines.items()}
        wrong = [{**e, "loc": (*prefix, *e["loc"])} for e in error.errors()]
        raise ConfigError("\n".join(_complaint(path, document._replace(lines=lines), e) for e in wrong)) from None
    if rule.stream not in config.streams:
        raise ConfigError(f"{path}: found stream {rule.stream!r}, expected one of {', '.join(config.streams)}")
    return rule.of(config.streams[rule.stream])


def _complaint(path: Path, document: YamlFile, error: Mapping[str, Any]) -> str:
    where = tuple(
        "schema" if p == "schema_" else p  # where there is none, pydantic names the field
        for p in error["loc"]
        if p != "[key]" and not str(p).startswith(("function-", "list[", "constrained-", "<"))
    )
    if where[:1] == (TASK_TOPICS,):
        where = (*TASK_TOPICS.split("."), *where[1:])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        model: Any = {
            "streams": Stream,
            "lookups": Lookup,
            "stores": Store,
            "routes": Route,
            "tasks": Task,
            "api": Api,
            "jobs": Jobs,
        }.get(str(where[0]) if len(where) > 1 else "", Config)
        parts = {"reduce": Own, "to": Target, "publish": Publish, "send": Send, "set": SetKey}
        model = next((parts[str(part)] for part in where[2:-1] if part in parts), model)
        known = sorted({f.alias or n for n, f in model.model_fields.items()} - {"name", TASK_TOPICS})
        message = f"found {where[-1]!r}, expected one of {', '.join(known)}"
    elif error["type"] == "missing":
        message = f"found no {where[-1]!r}, expected one"
    elif "found" not in message:
        secret = where[:1] in (("kafka",), ("registry",))
        message = f"found {'a ' + type(error['input']).__name__ if secret else repr(error['input'])}: {message}"
    return f"{path}:{document.line_of(where)}: {'.'.join(map(str, where))}: {message}"
