"""The columns of a stream whose ``schema:`` is not written, and what is kept of its schemas with its changelog.

They are those of the newest version of the stream's subject in the registry, or of its schema file. The jobs keep them in a property of
the changelog. From then on they are read from there, by both halves, so that neither needs the registry to begin. A version
that comes later adds its columns (:func:`grown`); none is ever taken away, and none gets another type.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from statehouse.errors import ConfigError, RegistryUnavailable
from statehouse.formats.format import AVRO, IN_FILE, KINDS, Schema
from statehouse.formats.registry import Registered, Registry, registry_of
from statehouse.payload import Refused
from statehouse.types import Type, check_name

if TYPE_CHECKING:
    from statehouse.config.models import Stream

PROPERTY = (
    "statehouse.schemas"  # of a changelog: its payloads' columns where they are derived, and the schemas that are known
)
Known = tuple[tuple[str, Schema], ...]


class Kept(NamedTuple):
    """What a changelog's property says: the columns as DDL, None where ``schema:`` has them; and the schemas by their ids."""

    columns: str | None
    schemas: Known


def text_kept(stream: Stream) -> str:
    """What a stream's changelog keeps, as the property's text."""
    schemas = {id: schema._asdict() for id, schema in stream.schemas}
    return json.dumps({"columns": stream.schema_ if stream.derived else None, "schemas": schemas}, sort_keys=True)


def kept(path: str) -> Kept | None:
    """What is kept with a changelog; None where it is not made, or keeps nothing."""
    from statehouse.tables import opened  # which imports the configuration

    delta = opened(path)
    found = delta.metadata().configuration.get(PROPERTY) if delta else None
    if found is None:
        return None
    parts: dict[str, Any] = json.loads(found)
    schemas = {
        id: Schema(schema["kind"], schema["text"], tuple((name, text) for name, text in schema["references"]))
        for id, schema in parts["schemas"].items()
    }
    return Kept(parts["columns"], tuple(schemas.items()))


def resolved(stream: Stream, path: str) -> Stream:
    """A stream that knows its columns and what schemas are kept with its changelog, at a path. Raises ValueError where it has none that
    could be its columns, ConfigError and RegistryUnavailable as :class:`~statehouse.formats.registry.Registry` does."""
    try:
        import_module(f"statehouse.formats.{AVRO if stream.captured else stream.format}")
    except ImportError as error:
        raise ConfigError(
            f"format: found no package {error.name!r}, expected it: pip install 'statehouse[formats]'"
        ) from None
    if stream.schema_file is not None:
        schema = read_file(stream.schema_file)
        return stream.with_columns(stream.schema_ or ddl(stream.format, schema), ((IN_FILE, schema),))
    found = kept(path)
    schemas = found.schemas if found else ()
    if stream.schema_ is not None:
        return stream.with_columns(stream.schema_, schemas)
    if found and found.columns:
        return stream.with_columns(found.columns, schemas)
    latest = newest(stream)
    return stream.with_columns(ddl(stream.format, latest.schema), (*schemas, (latest.id, latest.schema)))


def newest(stream: Stream) -> Registered:
    """The newest version of a stream's subject; ValueError where there is none."""
    found = registry(stream).latest(stream.subject_name)
    if found is None:
        raise ValueError(
            f"found no schema of {stream.subject_name} in the registry, expected one: register it, or write schema: or subject:"
        )
    return found


def registry(stream: Stream) -> Registry:
    """A stream's registry."""
    return registry_of(stream.registry)


def read_file(path: str) -> Schema:
    """The schema that a file has; ConfigError where it cannot be read."""
    try:
        return Schema(KINDS[AVRO], Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema_file: found {path}: {error}, expected an Avro schema in a file") from None


def columns_of(format: str, schema: Schema) -> list[tuple[str, Type]]:
    """The columns that a schema means; raises Refused for one that cannot be read."""
    # Each has packages of its own.
    found: list[tuple[str, Type]] = import_module(f"statehouse.formats.{format}").columns(schema)
    return found


def usable(columns: Iterable[tuple[str, Type]]) -> dict[str, Type]:
    """Those that a stream can have: not one whose name is the system's, or no table's, or another's in another case."""
    found: dict[str, Type] = {}
    for name, kind in columns:
        try:
            check_name(name)
        except ValueError:
            continue
        if not name.startswith("_") and "`" not in name and name.lower() not in map(str.lower, found):
            found[name] = kind
    return found


def ddl(format: str, schema: Schema) -> str:
    """The columns that a schema means, as Spark's DDL; ValueError where there are none."""
    try:
        found = usable(columns_of(format, schema))
    except Refused as reason:
        raise ValueError(str(reason)) from None
    if not found:
        raise ValueError("found a schema without fields that can be columns, expected some")
    return ", ".join(f"`{name}` {kind.ddl}" for name, kind in found.items())


def described(stream: Stream) -> str:
    """What ``statehouse check`` says of a stream whose columns are derived: the columns, also those that the newest version adds."""
    if stream.schema_file is not None:
        return f"the columns of {Path(stream.schema_file).name}: {stream.schema_}"
    try:
        latest = newest(stream)
        stream = grown(stream, {latest.id: latest.schema})
    except (ValueError, RegistryUnavailable) as error:
        return f"the columns as the changelog keeps them: {stream.schema_} ({error})"
    return f"the columns of {stream.subject_name} (schema {latest.id}): {stream.schema_}"


def grown(stream: Stream, schemas: Mapping[str, Schema]) -> Stream:
    """The same stream, which knows further schemas. Where its columns are derived it has those that the schemas have besides."""
    known: Known = tuple({**dict(stream.schemas), **schemas}.items())
    if not stream.derived or stream.on_new_field != "add":
        return stream.with_columns(str(stream.schema_), known)
    text, names = str(stream.schema_), {column.name.lower() for column in stream.known}
    for schema in schemas.values():
        try:
            found = usable(columns_of(stream.format, schema))
        except Refused:  # its records are refused, and say why
            continue
        for name, kind in found.items():
            if name.lower() not in names:
                text += f", `{name}` {kind.ddl}"
                names.add(name.lower())
    return stream.with_columns(text, known)
