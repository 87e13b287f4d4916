"""A schema registry that speaks Confluent's protocol: schemas by their ids and by their subjects.

Who decodes asks it for nothing (:mod:`statehouse.formats.framed`). It is asked by the driver of the jobs and by the processes of the API,
once for each schema in each process; what is known is also kept with the changelog.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from statehouse.errors import ConfigError, RegistryRefused, RegistryUnavailable, SchemaRefused
from statehouse.formats.format import AVRO, KINDS, PROTOBUF, UNKNOWN, Schema
from statehouse.payload import Refused

T = TypeVar("T")
# What its client is told where the settings say nothing else; seconds and milliseconds. All of it is some ten seconds at the most.
LIMITS = {"timeout": 3, "max.retries": 1, "retries.wait.ms": 200, "retries.max.wait.ms": 500}
ABSENT = (40401, 40402, 40403)  # what the registry says where it has no such subject, version or schema
ABSENT_SECONDS = 60.0  # that an id is taken to be absent, before the registry is asked again
MOST_ABSENT = 10_000
TOKEN, SOURCE, CLUSTER = "bearer.auth.token", "bearer.auth.credentials.source", "bearer.auth.logical.cluster"
NEW = "a new schema"
DEEPEST = 50  # references of references


class Registered(NamedTuple):
    """A schema, and its id."""

    id: str
    schema: Schema


class Registry:
    """Thread-safe. ``properties`` are those of ``confluent_kafka.schema_registry.SchemaRegistryClient``. Raises ConfigError where it
    cannot be used with them."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.url = re.sub("//[^/@]*@", "//", str(properties.get("url")))  # as it is shown: without a password
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigError(
                f"registry: found no package {error.name!r}, expected it: pip install 'statehouse[formats]'"
            ) from None
        settings = {**LIMITS, **properties}
        if TOKEN in settings:  # a token alone is enough for most; the client wants a cluster's name too
            settings = {SOURCE: "STATIC_TOKEN", CLUSTER: "none", **settings}
        try:
            self._client = SchemaRegistryClient(settings)
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(
                f"registry: found {', '.join(properties)} ({str(error).replace(str(properties.get('url')), self.url)}), expected settings of confluent-kafka's registry client"
            ) from None
        self._lock = threading.Lock()
        self._known: dict[str, Schema] = {}
        self._absent: dict[str, float] = {}  # and until when

    def find(self, ids: Iterable[str]) -> dict[str, Schema | None]:
        """Schemas by id (a number or a GUID); None where the registry has none. Raises RegistryUnavailable and RegistryRefused."""
        with self._lock:
            return {id: self._find(id) for id in ids}

    def latest(self, subject: str) -> Registered | None:
        """The newest version of a subject; None where it has none. Raises as :meth:`find`."""
        with self._lock:
            version = self._ask(lambda: self._client.get_version(subject, "latest"), f"the newest schema of {subject}")
            if version is None:
                return None
            id = str(version.schema_id)
            schema = self._known[id] = self._schema(version.schema)
            return Registered(id, schema)

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema, which is a version of the subject from now on. Raises as :meth:`find`, and SchemaRefused where it does not
        fit the subject's other versions."""
        from confluent_kafka.schema_registry import Schema as Version

        version = Version(schema.text, schema.kind)
        with self._lock:
            id = self._ask(lambda: self._client.register_schema(subject, version), f"{NEW} of {subject}")
        if id is None:
            raise RegistryUnavailable(
                f"registry: found the answer 404 at {self.url}, expected a new schema of {subject}"
            )
        return id

    def _find(self, id: str) -> Schema | None:
        if (known := self._known.get(id)) or self._absent.get(id, 0.0) > time.monotonic():
            return known
        client = self._client
        get = (lambda: client.get_schema_by_guid(id)) if "-" in id else (lambda: client.get_schema(int(id)))
        answer = self._ask(get, f"the schema {id}")
        if answer is None:
            if len(self._absent) >= MOST_ABSENT:
                self._absent.clear()
            self._absent[id] = time.monotonic() + ABSENT_SECONDS
            return None
        self._known[id] = schema = self._schema(answer)
        return schema

    def _schema(self, answer: Any) -> Schema:
        references: dict[str, str] = {}
        self._refer(answer.references or (), references)
        kind, text = answer.schema_type or KINDS[AVRO], answer.schema_str
        if kind == KINDS[PROTOBUF]:
            return Schema(kind, _compile_schema(text, references))
        return Schema(kind, text, tuple(references.items()))

    def _refer(self, references: Iterable[Any], into: dict[str, str], depth: int = 0) -> None:
        """The texts of references by their names, each after those that it refers to itself."""
        for reference in references if depth < DEEPEST else ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name in into:
                continue
            version_of = functools.partial(self._client.get_version, subject, version, deleted=True)
            schema = self._ask(version_of, f"version {version} of {subject}")
            if schema is None:
                continue  # who reads by it says that it is missing
            self._refer(schema.schema.references or (), into, depth + 1)
            into[name] = schema.schema.schema_str or ""

    def _ask(self, question: Callable[[], T], wanted: str) -> T | None:
        """What the registry answers; None where it says that there is no such thing."""
        from confluent_kafka.schema_registry import SchemaRegistryError

        try:
            return question()
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in ABSENT:
                return None
            if error.http_status_code in (401, 403):
                raise RegistryRefused(
                    f"registry: found the answer {error.http_status_code} at {self.url}, expected {wanted}"
                ) from None
            if error.http_status_code in (409, 422) and wanted.startswith(NEW):
                raise SchemaRefused(
                    f"registry: found {str(error.error_message)[:300]}, expected to register {wanted} at {self.url}"
                ) from None
            failure = f"the answer {error.http_status_code} ({str(error.error_message)[:100]})"
            raise RegistryUnavailable(f"registry: found {failure} at {self.url}, expected {wanted}") from None
        except Exception as error:  # of whichever HTTP client it uses
            failure = f"{type(error).__name__}: {error}"[:200]
            raise RegistryUnavailable(
                f"registry: found no answer at {self.url} ({failure}), expected {wanted}"
            ) from None


def _compile_schema(text: str, references: Mapping[str, str]) -> str:
    """A Protobuf file's text as its descriptors; as it is where it has none: who reads by it says so."""
    try:
        from statehouse.formats.protobuf_files import compile_schema

        return compile_schema(text, references)
    except (ImportError, Refused):
        return text


def registry_of(properties: Mapping[str, Any]) -> Registry:
    """The registry with these settings, made once in a process."""
    return _registry(json.dumps(dict(properties), sort_keys=True, default=str))


@functools.lru_cache(maxsize=8)
def _registry(properties: str) -> Registry:
    return Registry(json.loads(properties))


def wanted_by(reasons: Iterable[str | None]) -> list[str]:
    """The ids of the schemas that records wait for, out of the reasons for which a decoder refused them."""
    ids = {reason.removeprefix(UNKNOWN) for reason in reasons if reason and reason.startswith(UNKNOWN)}
    return sorted(ids)
