"""The shape of ``statehouse.yaml``: a model a section, and what of it is consistent with itself.

Nothing here evaluates an expression: that is done by the engines that will run it
(:mod:`jobs.check` for Spark, :mod:`api.engine.check` for DuckDB). It is one module, long as it is, since it reads as the file's own
reference: sections have sections in them, and the last one has them all.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from sqlglot import exp

from statehouse.formats import format as formats
from statehouse.formats.format import Schema as PayloadSchema
from statehouse.reducers import REDUCERS, Reducer, own, parse_reduce
from statehouse.spark_sql import quoted
from statehouse.values import (
    GENERATORS,
    ORDERED,
    RESERVED,
    UNITS,
    Address,
    Column,
    Cron,
    Duration,
    Expression,
    Host,
    Instance,
    Keys,
    Name,
    OneOrMore,
    Origin,
    Schema,
    Topic,
    TopicPatterns,
    Window,
    milliseconds,
    parse_expression,
    parse_schema,
    parse_window,
    unaliased,
)

ROW = "row"  # a store's value that is all of a row
TASK_TOPICS = "tasks.topics"  # the alias, which is also its place in the file
ISOLATION, ISOLATION_LEVELS = "isolation.level", ("read_committed", "read_uncommitted")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))

    def __getstate__(self) -> dict[Any, Any]:
        # What was worked out of the fields is worked out again in another process; a reducer cannot be pickled.
        state = super().__getstate__()
        return {**state, "__dict__": {n: v for n, v in state["__dict__"].items() if n in type(self).model_fields}}


class Lookup(_Model):
    """A small table, of whose rows a stream's events get the one that has their key: a column of that name, a struct."""

    name: str = ""
    stream: str
    table: str = Field(min_length=1)  # a Delta table, a CSV file with a header, or Parquet
    schema_: Schema = Field(alias="schema")
    key: Annotated[list[str], OneOrMore] = Field(min_length=1)
    by: Annotated[list[Expression], OneOrMore] = Field(default_factory=list)  # 'on' is true in YAML

    @cached_property
    def columns(self) -> list[Column]:
        """The table's columns that are wanted."""
        return parse_schema(self.schema_)

    @property
    def matches(self) -> list[tuple[Column, str]]:
        """The table's key, and the expression over the stream's columns that each part of it is equal to."""
        known = {c.name: c for c in self.columns}
        return [(known[name], found) for name, found in zip(self.key, self.by or self.key, strict=True)]

    @property
    def column(self) -> Column:
        """The column that events get."""
        fields = ", ".join(f"`{c.name}`: {c.type}" for c in self.columns)
        return Column(name=self.name, type=f"STRUCT<{fields}>")

    @model_validator(mode="after")
    def _consistent(self) -> Lookup:
        names = [c.name for c in self.columns]
        if unknown := [name for name in self.key if name not in names]:
            raise ValueError(f"found the key {unknown[0]!r}, expected one of {', '.join(names)}")
        if self.by and len(self.by) != len(self.key):
            raise ValueError(f"found by: {', '.join(self.by)}, expected as many expressions as key has columns")
        return self


class Stream(_Model):
    """A topic, what its payloads are written in, and their shape."""

    name: str = ""
    topic: Topic
    format: Literal["json", "avro", "protobuf", "json_schema", "string", "csv", "bytes", "debezium"] = "json"
    schema_: Schema | None = Field(default=None, alias="schema", validate_default=True)  # None: it is derived
    schema_file: str | None = Field(default=None, min_length=1)  # of Avro without a registry
    subject: str | None = Field(default=None, min_length=1)  # in the registry
    on_new_field: Literal["add", "ignore"] = "add"
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","  # of CSV
    encoding: Literal["json", "avro"] = "json"  # of Debezium
    time: Expression | None = None
    order: Expression | None = None  # None: by their time
    keep_payload: bool = False
    cluster_by: Annotated[list[str], OneOrMore, Field(max_length=4)] = Field(default_factory=list)

    _lookups: tuple[Lookup, ...] = PrivateAttr(())
    _askable_topics: tuple[str, ...] = PrivateAttr(())
    _registry: dict[str, Any] | None = PrivateAttr(None)
    _schemas: tuple[tuple[str, PayloadSchema], ...] = PrivateAttr(())
    _derived: bool = PrivateAttr(False)

    @cached_property
    def columns(self) -> list[Column]:
        """The payload's columns, in the file's order; of changes of a table those of its rows, and where each comes from."""
        columns = parse_schema(self.schema_) if self.schema_ else []
        return [*columns, Column(name=formats.SOURCE, type=formats.SOURCE_TYPE)] if self.captured else columns

    @property
    def captured(self) -> bool:
        """Whether its events are changes of a table's rows."""
        return self.format == formats.DEBEZIUM

    @property
    def ranked(self) -> bool:
        """Whether its events are in another order than that of their times."""
        return self.order is not None

    @property
    def registered(self) -> bool:
        """Whether its payloads name their schemas, which are in the registry."""
        in_avro = self.captured and self.encoding == formats.AVRO
        return in_avro or (self.format in formats.KINDS and self.schema_file is None)

    @property
    def registry(self) -> dict[str, Any]:
        """The registry's settings."""
        return self._registry or {}

    @property
    def subject_name(self) -> str:
        """The subject in the registry that has the versions of its schema."""
        return self.subject or f"{self.topic}-value"

    @property
    def schemas(self) -> tuple[tuple[str, PayloadSchema], ...]:
        """The schemas of its payloads that are known, by id."""
        return self._schemas

    @property
    def derived(self) -> bool:
        """Whether its columns are not written in the file, but derived from a schema."""
        return self._derived

    @property
    def payload_format(self) -> formats.Format:
        """What its payloads are written in."""
        return formats.Format(self.format, self.delimiter, self.registered, self.schemas)

    def with_columns(self, ddl: str, schemas: tuple[tuple[str, PayloadSchema], ...]) -> Stream:
        """The same with columns that are derived, or those that it has, and with known schemas. ValueError where ``cluster_by`` is of no
        such columns."""
        made = self.model_copy(update={"schema_": ddl})
        for name in ("columns", "types", "time_columns"):  # worked out of other columns
            made.__dict__.pop(name, None)
        made._derived = self._derived or self.schema_ is None
        made._schemas = schemas
        return made._ordered()

    @cached_property
    def types(self) -> dict[str, str]:
        """The types of the payload's columns, in Spark's DDL, by name."""
        return {column.name: column.type for column in self.columns}

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """What its events are joined with."""
        return self._lookups

    @property
    def askable_topics(self) -> tuple[str, ...]:
        """Patterns of the topics that a task which is asked for in it may send to."""
        return self._askable_topics

    @property
    def known(self) -> list[Column]:
        """The columns that expressions may name: the payload's, and those of the lookups."""
        return [*self.columns, *(lookup.column for lookup in self.lookups)]

    @cached_property
    def time_columns(self) -> list[str]:
        """The columns that the event time is made of."""
        # Of a struct's field the column that it is in.
        columns = parse_expression(self.time).find_all(exp.Column) if self.time else ()
        return sorted({column.parts[0].name for column in columns})

    @model_validator(mode="before")
    @classmethod
    def _placed(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("format") == formats.DEBEZIUM:
            return {"time": formats.SOURCE_TIME, "order": formats.SOURCE_POSITION, **data}
        return data

    @field_validator("schema_", mode="before")
    @classmethod
    def _needed(cls, schema: Any, info: ValidationInfo) -> Any:
        if schema is None and info.data.get("format") in formats.WRITTEN:
            raise ValueError("found no 'schema', expected one")
        if schema is None:
            return formats.DEFAULT_SCHEMAS.get(str(info.data.get("format")))
        return schema

    @model_validator(mode="after")
    def _fits(self) -> Stream:
        fits = (  # a setting, the formats that it is for, and whether it is set
            ("schema_file", (formats.AVRO,), self.schema_file is not None),
            ("subject", formats.KINDS, self.subject is not None),
            ("on_new_field", formats.KINDS, "on_new_field" in self.model_fields_set),
            ("delimiter", (formats.CSV,), "delimiter" in self.model_fields_set),
            ("encoding", (formats.DEBEZIUM,), "encoding" in self.model_fields_set),
            ("keep_payload", (formats.JSON,), self.keep_payload),
        )
        for name, known, is_set in fits:
            if is_set and self.format not in known:
                raise ValueError(f"found {name} with format: {self.format}, expected it with {' or '.join(known)}")
        if self.schema_file and self.subject:
            raise ValueError("found schema_file and subject, expected one: a schema is in a file, or in the registry")
        if self.format in formats.DEFAULT_SCHEMAS and len(self.columns) != 1:
            raise ValueError(f"schema: found {len(self.columns)} columns, expected one: a payload is one value")
        if self.format == formats.BYTES and self.columns[0].type != "BINARY":
            raise ValueError(f"schema: found {self.columns[0].type}, expected BINARY: a payload is bytes")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Stream:
        return self if self.schema_ is None else self._ordered()  # else they are not known yet

    def _ordered(self) -> Stream:
        """The same; ValueError where it is clustered by what is no column, or has no order."""
        plain = {c.name: c.type for c in self.columns if c.type.upper().startswith(ORDERED)}
        if unknown := [name for name in self.cluster_by if name not in plain]:
            found = f"cluster_by: {unknown[0]!r}"
            raise ValueError(f"found {found}, expected columns of the schema that have an order: {', '.join(plain)}")
        return self


class Key(BaseModel):
    """One column of a store's key: its name in the state table, and the expression that makes it."""

    name: str
    expression: str


class Target(_Model):
    """Where a route's events go: to a topic, by a key, or to a table."""

    topic: Topic | None = None
    key: Expression | None = None
    table: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Target:
        if (self.topic is None) == (self.table is None):
            found = "both" if self.topic else "neither"
            raise ValueError(f"found {found}, expected one of topic: and table:")
        if self.table and self.key:
            raise ValueError("found a key, expected none: it is messages of a topic that have one")
        return self


class Source(_Model):
    """A store, whose events a route passes on, each with the state before and after it."""

    store: str


class Route(_Model):
    """Events of a stream, or of a store, on their way to somewhere else: those that pass ``where``, in the shape of ``select``. ``late``
    says what becomes of the later events of a key where one has come late: nothing, or they are passed on once more."""

    name: str = ""
    source: Annotated[
        Annotated[str, Tag("<stream>")] | Annotated[Source, Tag("<store>")],
        Discriminator(lambda found: "<store>" if isinstance(found, (dict, Source)) else "<stream>"),
    ] = Field(alias="from")
    where: Expression | None = None
    select: Annotated[list[Expression], OneOrMore] = Field(default=["*"], min_length=1)
    to: Target
    late: Literal["append", "resend"] | None = None

    @property
    def store(self) -> str | None:
        """The store whose events are passed on; None: all of a stream."""
        return self.source.store if isinstance(self.source, Source) else None

    @property
    def multiplies(self) -> bool:
        """Whether one event may become several rows."""
        return any(GENERATORS.search(part) for part in self.select)

    @model_validator(mode="after")
    def _of_a_store(self) -> Route:
        if self.late and not self.store:
            raise ValueError("found late, expected from: {store: ...} too: it is a state that a late event changes")
        return self


class Own(_Model):
    """A user's own reducer, in SQL. ``fold``: aggregates over ``value``, ``event_time`` and ``agent``, by the column
    that keeps each; ``combine``: the same columns of two rows, ``a`` and ``b``; ``result``: the value, of those columns."""

    fold: dict[Name, Expression] = Field(min_length=1)
    combine: dict[Name, Expression]
    result: Expression

    @model_validator(mode="after")
    def _consistent(self) -> Own:
        if set(self.fold) != set(self.combine):
            raise ValueError(
                f"found combine: {', '.join(self.combine)}, expected fold's columns: {', '.join(self.fold)}"
            )
        if taken := {c for c in self.fold if c in (*RESERVED, "agent")}:
            raise ValueError(f"found a column named {sorted(taken)[0]!r}, expected a name of its own")
        return self


class Publish(_Model):
    """Where a state's changes are told: a compacted topic; ``where`` is over the state's columns."""

    topic: Topic
    where: Expression | None = None


class Store(_Model):
    """A state: the events of a stream, by key, reduced to a row each."""

    name: str = ""
    stream: str
    key: Keys
    agent: Expression | None = None
    where: Expression | None = None
    value: Expression | None = None
    window: Window | None = None
    retention: Annotated[str, AfterValidator(lambda r: (milliseconds(r), r)[1])] | None = None
    reduce: Annotated[
        Annotated[str, Tag("<name>")] | Annotated[Own, Tag("<own>")],
        Discriminator(lambda found: "<own>" if isinstance(found, (dict, Own)) else "<name>"),
    ]
    publish: Annotated[Publish | None, BeforeValidator(lambda p: {"topic": p} if isinstance(p, str) else p)] = None
    buckets: Annotated[int, Field(ge=1, le=10_000)] | None = None  # partitions of the state's table, by key

    @cached_property
    def keys(self) -> list[Key]:
        """The key's columns: one named ``key``, or a composite key's own."""
        if isinstance(self.key, str):
            return [Key(name="key", expression=unaliased(self.key))]
        return [Key(name=parse_expression(part).alias_or_name, expression=unaliased(part)) for part in self.key]

    @property
    def composite(self) -> bool:
        """Whether the key was written as a list, so that its parts are separated by '/' in text."""
        return not isinstance(self.key, str)

    @cached_property
    def reducer(self) -> Reducer:
        """The registry's entry that this store names, or the one that it writes itself."""
        if isinstance(self.reduce, Own):
            return own(self.reduce.fold, self.reduce.combine, self.reduce.result)
        return REDUCERS[parse_reduce(self.reduce)[0]]

    @cached_property
    def arguments(self) -> list[str]:
        """The reducer's arguments, as text."""
        return parse_reduce(self.reduce)[1] if isinstance(self.reduce, str) else []

    @cached_property
    def windows(self) -> tuple[int, int] | None:
        """A window's length and how often one begins, in microseconds; None: the store has no windows."""
        return parse_window(self.window) if self.window else None

    def of(self, stream: Stream) -> Store:
        """The same over a stream's columns: ``value: row`` is all of them, unless one is named so."""
        names = [column.name for column in stream.columns if not column.name.startswith("_")]
        if self.value != ROW or not names or ROW in map(str.lower, names):
            return self
        return self.model_copy(update={"value": f"struct({', '.join(map(quoted, names))})"})

    @property
    def definition(self) -> dict[str, Any]:
        """What the state is a function of: kept with the table, so that a changed rule is noticed."""
        return self.model_dump(exclude={"name", "publish", "buckets"}, exclude_none=True)

    @model_validator(mode="after")
    def _consistent(self) -> Store:
        name, arguments = parse_reduce(self.reduce) if isinstance(self.reduce, str) else ("own", [])
        if isinstance(self.reduce, str) and name not in REDUCERS:
            raise ValueError(
                f"found reduce: {self.reduce!r}, expected one of {', '.join(sorted(REDUCERS))}, or fold, combine and result"
            )
        reducer = self.reducer
        if len(arguments) != len(reducer.arguments):
            usage = f"{name}({', '.join(reducer.arguments)})" if reducer.arguments else name
            raise ValueError(f"found reduce: {self.reduce!r}, expected {usage}")
        if self.retention and not self.window:
            raise ValueError("found retention, expected a window too: it is windows that are kept for so long")
        if reducer.per_agent and self.agent is None:
            raise ValueError(f"found no 'agent', expected one: {name} is over each agent's latest report")
        if self.value is None and not reducer.value_optional:
            raise ValueError(f"found no 'value', expected an expression: {name} reduces values")
        names = [k.name for k in self.keys]
        if "" in names:
            raise ValueError(
                f"found the key part {self.key[names.index('')]!r}, expected a column or 'expression AS name'"
            )
        taken = {*RESERVED, *(column.lower() for column in reducer.columns), *(["agent"] if reducer.written else [])}
        small = [name.lower() for name in names]  # Spark does not tell cases apart
        for key, name in zip(names, small, strict=True):
            if name in taken or name.startswith("_") or small.count(name) > 1:
                raise ValueError(
                    f"found a key part named {key!r}, expected a name of its own: write 'expression AS name'"
                )
        return self


class Send(_Model):
    """The message of a task: its key and its value are expressions over the state's columns, ``since`` and ``due``. Without them
    the key of the state, and what there is of it as JSON."""

    topic: Topic
    key: Expression | None = None
    value: Expression | None = None


class SetKey(_Model):
    """What a task sets: a key of a store, by default the one that it is about."""

    store: str
    key: Expression | None = None
    value: Expression


class Task(_Model):
    """What is done when a key's state has been so for a while (``when``, ``after``), again and again (``every``), or at a time of
    the day for each key that is so (``at``)."""

    name: str = ""
    store: str
    when: Expression | None = None
    after: Duration = 0
    every: Annotated[Duration, Field(ge=1)] | None = None
    at: Cron | None = None
    send: Send | None = None
    set_: SetKey | None = Field(default=None, alias="set")

    @model_validator(mode="after")
    def _consistent(self) -> Task:
        if (self.send is None) == (self.set_ is None):
            raise ValueError(f"found {'both' if self.send else 'neither'}, expected one of send: and set:")
        if self.at and (self.after or self.every):
            raise ValueError(
                "found at: with after: or every:, expected one of them: a time of the day, or so long after a change"
            )
        return self


class Api(_Model):
    """Who may use the API, and how much of it; and where the other instances are."""

    tokens: str | None = None  # a file
    max_body: int = Field(default=1_000_000, ge=1)  # bytes
    max_key: int = Field(default=32_768, ge=1)  # bytes
    max_rows: int = Field(default=10_000, ge=1)
    max_answer: int = Field(default=8_000_000, ge=1)  # bytes, about
    max_time: Duration = Field(default=60_000, ge=1)  # ms
    rate_limit: float | None = Field(default=None, gt=0, allow_inf_nan=False)  # requests per second
    cors: list[Origin] = Field(default_factory=list)
    hosts: list[Host] = Field(default_factory=list)  # names of this machine, where there are no tokens
    max_lag: Duration | None = None  # ms
    replica: Literal["memory", "disk", "none"] = "memory"
    cache: str | None = None  # a folder of this machine, of a replica on disk
    freshness: Literal["live", "changelog"] = "live"
    shards: int = Field(default=0, ge=0, le=4096)  # 0: this instance has every key
    copies: int = Field(default=2, ge=1)  # instances that have a shard
    address: Instance | None = None  # where the others reach this instance
    peers: list[Instance] = Field(default_factory=list)
    discover: Instance | None = None  # the others are at every address that its name has

    @model_validator(mode="after")
    def _fleet(self) -> Api:
        if self.shards and not self.address:
            raise ValueError("shards: found no address, expected where the other instances reach this one")
        if self.shards and self.replica == "none":
            raise ValueError(
                "shards: found replica: none, expected memory or disk: it keeps no key that could be shared out"
            )
        return self


class Jobs(_Model):
    """How the jobs run."""

    metrics: Address | None = None


class Config(_Model):
    """The whole file."""

    root: str = "./lake"
    kafka: dict[str, Any] = Field(default={"bootstrap.servers": "127.0.0.1:9092"}, validate_default=True)
    registry: dict[str, Any] | None = None  # of schemas
    streams: dict[Name, Stream] = Field(min_length=1)
    lookups: dict[Name, Lookup] = Field(default_factory=dict)
    stores: dict[Name, Store] = Field(default_factory=dict)
    routes: dict[Name, Route] = Field(default_factory=dict)
    tasks: dict[Name, Task] | None = None  # {}: no rules, but tasks that are asked for
    task_topics: TopicPatterns | None = Field(default=None, alias="tasks.topics")  # stands among the rules, as `topics`
    merge_every: Duration = 5000
    deletion_vectors: bool = True  # of the states: a merge marks the rows that it replaces
    tombstones: Duration = 7 * UNITS["day"]
    maintain_every: Annotated[Duration, Field(ge=1)] = 10 * UNITS["minute"]
    # Not shorter than what a batch or a merge may take: its files are no version's until it commits.
    versions: Annotated[Duration, Field(ge=UNITS["hour"])] = UNITS["day"]
    api: Api = Field(default_factory=Api)
    jobs: Jobs = Field(default_factory=Jobs)

    @property
    def version_hours(self) -> int:
        """``versions`` in whole hours, not fewer than it says: as VACUUM takes it."""
        return -(-self.versions // UNITS["hour"])

    @model_validator(mode="before")
    @classmethod
    def _names(cls, data: Any) -> Any:
        tasks = data.get("tasks") if isinstance(data, dict) else None
        if isinstance(tasks, dict) and "topics" in tasks:
            rules = {name: rule for name, rule in tasks.items() if name != "topics"}
            data = {**data, "tasks": rules, TASK_TOPICS: tasks["topics"]}
        for section in ("streams", "lookups", "stores", "routes", "tasks"):
            entries = data.get(section) if isinstance(data, dict) else None
            if isinstance(entries, dict):
                data[section] = {n: {**e, "name": n} if isinstance(e, dict) else e for n, e in entries.items()}
        return data

    @model_validator(mode="after")
    def _joined(self) -> Config:
        return attached(self)

    @field_validator("kafka")
    @classmethod
    def _isolated(cls, properties: dict[str, Any]) -> dict[str, Any]:
        # In the section itself, so that whatever reads a topic sees the same events.
        found = properties.get(ISOLATION, ISOLATION_LEVELS[0])
        if found not in ISOLATION_LEVELS:
            raise ValueError(f"{ISOLATION}: found {found!r}, expected {' or '.join(ISOLATION_LEVELS)}")
        return {**properties, ISOLATION: found}

    @field_validator("registry")
    @classmethod
    def _reachable(cls, properties: dict[str, Any] | None) -> dict[str, Any] | None:
        if properties is not None and not re.match(r"https?://[^/\s]", str(properties.get("url"))):
            found = properties.get("url", "no url")
            raise ValueError(f"found {found!r}, expected url: and an address such as http://127.0.0.1:8081")
        return properties

    @field_validator("root")
    @classmethod
    def readable(cls, root: str) -> str:
        """The root, which both engines can read; else ValueError."""
        # Each of these is read as part of a URL or a pattern by one of the engines: a wrong folder, or none, in silence.
        if found := re.findall(r"[#%?\[\]*{}]", root):
            raise ValueError(f"found {found[0]!r} in {root!r}, expected a path without # % ? * [ ] {{ }}")
        return root

    @property
    def askable_topics(self) -> tuple[str, ...]:
        """Patterns of the topics that tasks may be asked to send to: by default what the task rules and the routes name. What is
        published is not among them: it is for the states alone."""
        if self.task_topics is not None:
            return tuple(self.task_topics)
        sends = [task.send.topic for task in (self.tasks or {}).values() if task.send]
        routed = [route.to.topic for route in self.routes.values() if route.to.topic]
        return tuple(dict.fromkeys([*sends, *routed]))

    def stream_of(self, route: Route) -> str:
        """The stream whose events a route passes on."""
        return self.stores[route.store].stream if route.store else str(route.source)

    def writable(self, store: str) -> bool:
        """Whether an event may set or purge a key of a store by its name: it has no place in an order that payloads tell."""
        return not self.streams[self.stores[store].stream].ranked

    @property
    def settable(self) -> list[str]:
        """The stores of which a task may set a key: a set names no window."""
        return [name for name, store in self.stores.items() if not store.windows and self.writable(name)]

    def stores_of(self, stream: str) -> list[Store]:
        """The stores that a stream feeds, in the file's order."""
        return [s for s in self.stores.values() if s.stream == stream]


def attached(config: Config) -> Config:
    """The same, whose streams know their lookups, the registry, and where tasks may send to, and whose stores know their rows."""
    for stream in config.streams.values():
        stream._askable_topics = config.askable_topics
        stream._registry = config.registry
        stream._lookups = tuple(lookup for lookup in config.lookups.values() if lookup.stream == stream.name)
    for name, store in config.stores.items():
        if store.stream in config.streams:
            config.stores[name] = store.of(config.streams[store.stream])
    return config
