"""The shape of ``statehouse.yaml``: the whole file, of sections whose models are beside this one, a module a theme.

A model says what of its section is consistent with itself. None evaluates an expression: that is done by the engines that will run it
(:mod:`jobs.check` for Spark, :mod:`api.engine.check` for DuckDB). All models can be imported from here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from statehouse.config.base import Section
from statehouse.config.routes import Route, Source, Target
from statehouse.config.services import Api, Jobs
from statehouse.config.stores import Key, Own, Publish, Store
from statehouse.config.streams import Lookup, Stream
from statehouse.config.tasks import Send, SetKey, Task
from statehouse.values import UNITS, Duration, Name, TopicPatterns

TASK_TOPICS = "tasks.topics"  # the alias, which is also its place in the file
ISOLATION, ISOLATION_LEVELS = "isolation.level", ("read_committed", "read_uncommitted")

__all__ = [
    "ISOLATION",
    "TASK_TOPICS",
    "Api",
    "Config",
    "Jobs",
    "Key",
    "Lookup",
    "Own",
    "Publish",
    "Route",
    "Send",
    "SetKey",
    "Source",
    "Store",
    "Stream",
    "Target",
    "Task",
    "link_sections",
]


class Config(Section):
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
        return link_sections(self)

    @field_validator("kafka")
    @classmethod
    def _isolated(cls, properties: dict[str, Any]) -> dict[str, Any]:
        # In the section itself, so that whatever reads a topic sees the same events.
        level = properties.get(ISOLATION, ISOLATION_LEVELS[0])
        if level not in ISOLATION_LEVELS:
            raise ValueError(f"{ISOLATION}: found {level!r}, expected {' or '.join(ISOLATION_LEVELS)}")
        return {**properties, ISOLATION: level}

    @field_validator("registry")
    @classmethod
    def _reachable(cls, properties: dict[str, Any] | None) -> dict[str, Any] | None:
        if properties is not None and not re.match(r"https?://[^/\s]", str(properties.get("url"))):
            url = properties.get("url", "no url")
            raise ValueError(f"found {url!r}, expected url: and an address such as http://127.0.0.1:8081")
        return properties

    @field_validator("root")
    @classmethod
    def readable(cls, root: str) -> str:
        """The root, which both engines can read; else ValueError."""
        # Each of these is read as part of a URL or a pattern by one of the engines: a wrong folder, or none, in silence.
        if wrong := re.findall(r"[#%?\[\]*{}]", root):
            raise ValueError(f"found {wrong[0]!r} in {root!r}, expected a path without # % ? * [ ] {{ }}")
        return root

    @property
    def askable_topics(self) -> tuple[str, ...]:
        """Patterns of the topics that tasks may be asked to send to: by default what the task rules and the routes name. What is
        published is not among them: it is for the states alone; nor is what has messages with a schema."""
        if self.task_topics is not None:
            return tuple(self.task_topics)
        sends = [task.send.topic for task in (self.tasks or {}).values() if task.send]
        routed = [route.to.topic for route in self.routes.values() if route.to.topic and not route.to.registered]
        return tuple(dict.fromkeys([*sends, *routed]))

    def stream_of(self, route: Route) -> str:
        """The stream whose events a route passes on."""
        return self.stores[route.store].stream if route.store else str(route.source)

    def writable(self, store: str) -> bool:
        """Whether an event may set or purge a key of a store by its name: it has a topic, and no place in an order that payloads tell."""
        stream = self.streams[self.stores[store].stream]
        return bool(stream.topic) and not stream.ranked

    @property
    def settable(self) -> list[str]:
        """The stores of which a task may set a key: a set names no window."""
        return [name for name, store in self.stores.items() if not store.windows and self.writable(name)]

    def stores_of(self, stream: str) -> list[Store]:
        """The stores that a stream feeds, in the file's order."""
        return [s for s in self.stores.values() if s.stream == stream]


def link_sections(config: Config) -> Config:
    """The same, whose streams know their lookups, the registry, and where tasks may send to, and whose stores know their rows."""
    for stream in config.streams.values():
        stream._askable_topics = config.askable_topics
        stream._registry = config.registry
        stream._lookups = tuple(lookup for lookup in config.lookups.values() if lookup.stream == stream.name)
    for name, store in config.stores.items():
        if store.stream in config.streams:
            config.stores[name] = store.of(config.streams[store.stream])
    return config
