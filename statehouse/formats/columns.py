"""The columns of a stream that has no ``schema:`` in the file, and the schemas that are stored with its changelog.

The columns are those of the newest version of the stream's subject in the registry, or of its schema file. The jobs store them in a
property of the changelog. From then on both halves read them from there, so that neither needs the registry to begin. A later version
adds its columns (:func:`grown`). No column is ever removed, and none gets another type.
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

# The property of a changelog's table that holds StoredSchemas.
PROPERTY = "statehouse.schemas"
Known = tuple[tuple[str, Schema], ...]


class StoredSchemas(NamedTuple):
    """What a changelog's :data:`PROPERTY` holds: the columns as DDL, None where the file's ``schema:`` has them; and the schemas by id."""

    columns: str | None
    schemas: Known


def stored_text(stream: Stream) -> str:
    """The text of :data:`PROPERTY` for a stream: JSON of its columns and schemas."""
    schemas = {id: schema._asdict() for id, schema in stream.schemas}
    return json.dumps({"columns": stream.schema_ if stream.derived else None, "schemas": schemas}, sort_keys=True)


def read_stored(path: str) -> StoredSchemas | None:
    """The schemas stored with the changelog at a path; None where there is no changelog, or no such property."""
    from statehouse.tables import opened  # which imports the configuration

    delta = opened(path)
    content = delta.metadata().configuration.get(PROPERTY) if delta else None
    if content is None:
        return None
    parts: dict[str, Any] = json.loads(content)
    schemas = {
        id: Schema(schema["kind"], schema["text"], tuple((name, text) for name, text in schema["references"]))
        for id, schema in parts["schemas"].items()
    }
    return StoredSchemas(parts["columns"], tuple(schemas.items()))


def resolve_columns(stream: Stream, path: str) -> Stream:
    """The stream with its columns and with the schemas that are stored with its changelog, at a path.

    Raises ValueError where no schema gives columns, ConfigError where a package or the schema file is missing, and RegistryUnavailable.
    """
    try:
        import_module(f"statehouse.formats.{AVRO if stream.captured else stream.format}")
    except ImportError as error:
        raise ConfigError(
            f"format: found no package {error.name!r}, expected it: pip install 'statehouse[formats]'"
        ) from None
    if stream.schema_file is not None:
        schema = read_file(stream.schema_file)
        return stream.with_columns(stream.schema_ or ddl(stream.format, schema), ((IN_FILE, schema),))
    stored = read_stored(path)
    schemas = stored.schemas if stored else ()
    if stream.schema_ is not None:
        return stream.with_columns(stream.schema_, schemas)
    if stored and stored.columns:
        return stream.with_columns(stored.columns, schemas)
    latest = newest_version(stream)
    return stream.with_columns(ddl(stream.format, latest.schema), (*schemas, (latest.id, latest.schema)))


def newest_version(stream: Stream) -> Registered:
    """The newest version of a stream's subject; ValueError where there is none."""
    version = registry(stream).latest(stream.subject_name)
    if version is None:
        raise ValueError(
            f"found no schema of {stream.subject_name} in the registry, expected one: register it, or write schema: or subject:"
        )
    return version


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
    """Names and types of the columns that a schema describes. Raises Refused where it cannot be read."""
    # Each has packages of its own.
    columns: list[tuple[str, Type]] = import_module(f"statehouse.formats.{format}").columns(schema)
    return columns


def usable_columns(columns: Iterable[tuple[str, Type]]) -> dict[str, Type]:
    """The columns that a stream can have, by name. Left out are names that begin with ``_``, that a table cannot have, or that differ
    from an earlier one in case only."""
    types: dict[str, Type] = {}
    for name, kind in columns:
        try:
            check_name(name)
        except ValueError:
            continue
        if not name.startswith("_") and "`" not in name and name.lower() not in map(str.lower, types):
            types[name] = kind
    return types


def ddl(format: str, schema: Schema) -> str:
    """The usable columns of a schema as Spark's DDL. Raises ValueError where there are none."""
    try:
        columns = usable_columns(columns_of(format, schema))
    except Refused as reason:
        raise ValueError(str(reason)) from None
    if not columns:
        raise ValueError("found a schema without fields that can be columns, expected some")
    return ", ".join(f"`{name}` {kind.ddl}" for name, kind in columns.items())


def describe_columns(stream: Stream) -> str:
    """For ``statehouse check``: where a stream's derived columns come from, and the columns, with those that the newest version adds."""
    if stream.schema_file is not None:
        return f"the columns of {Path(stream.schema_file).name}: {stream.schema_}"
    try:
        latest = newest_version(stream)
        stream = grown(stream, {latest.id: latest.schema})
    except (ValueError, RegistryUnavailable) as error:
        return f"the columns as the changelog keeps them: {stream.schema_} ({error})"
    return f"the columns of {stream.subject_name} (schema {latest.id}): {stream.schema_}"


def grown(stream: Stream, schemas: Mapping[str, Schema]) -> Stream:
    """The stream with further schemas, by id. Where its columns are derived, new fields of these schemas become columns too."""
    known: Known = tuple({**dict(stream.schemas), **schemas}.items())
    if not stream.derived or stream.on_new_field != "add":
        return stream.with_columns(str(stream.schema_), known)
    text, names = str(stream.schema_), {column.name.lower() for column in stream.known}
    for schema in schemas.values():
        try:
            columns = usable_columns(columns_of(stream.format, schema))
        except Refused:  # its records are refused, and say why
            continue
        for name, kind in columns.items():
            if name.lower() not in names:
                text += f", `{name}` {kind.ddl}"
                names.add(name.lower())
    return stream.with_columns(text, known)
