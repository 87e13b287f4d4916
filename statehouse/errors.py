"""Everything statehouse raises on purpose. One root; each docstring says what the operator does next.

The command maps these to exit codes, the API to problem documents: both in one place.
"""

from __future__ import annotations


class StatehouseError(Exception):
    """Something that a person has to look at; the message says what was found and what was expected."""

    exit_code = 1


class ConfigError(StatehouseError):
    """``statehouse.yaml`` is wrong: correct the line that the message names, then ``statehouse check``."""

    exit_code = 2


class BrokerError(StatehouseError):
    """The embedded Kafka could not be fetched or started: look into the log that the message names."""


class KafkaUnavailable(StatehouseError):
    """Kafka did not answer: start it, or correct ``kafka: bootstrap.servers``; then try again."""


class TopicUnavailable(KafkaUnavailable):
    """Kafka answers, and cannot use a topic for now, such as one of which too few replicas are there: it is tried again. Look at the
    topic."""


class TopicRefused(KafkaUnavailable):
    """Kafka refuses a topic, and would again: a name that it does not take, no permission, a policy. Use another topic, or permit it."""


class TopicRecreated(StatehouseError):
    """A topic is not the one that the changelog's position is of: it was deleted and made again, so that its
    coordinates name other events now. Give the stream a new name (or another topic)."""


class DefinitionChanged(StatehouseError):
    """A store's rule is not the one its state was folded by: undo the change, or ``statehouse recover``."""


class FoldAnew(StatehouseError):
    """A state cannot be gone on from: it is folded anew from the whole changelog, which the jobs do by themselves."""


class FeedLost(FoldAnew):
    """The changelog's log or files no longer reach back to a state's position."""


class LakeBusy(StatehouseError):
    """Another process is writing to the same lake: stop it first, or let it do the work."""


def first_line(error: object) -> str:
    """The line of a long engine's error (a Spark stack, say) that a person can use."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by") or "Exception:" in line]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]
