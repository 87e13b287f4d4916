"""Everything statehouse raises on purpose. One root; each error's ``advice`` says what the operator does next.

The command maps these to exit codes, the API to problem documents: both in one place.
"""

from __future__ import annotations


class StatehouseError(Exception):
    """Something that a person has to look at; the message says what was found and what was expected."""

    exit_code = 1
    advice = "`statehouse doctor` looks at Java, Kafka and the lake; `statehouse status` says what fails"

    def __init__(self, *args: object, advice: str | None = None) -> None:
        super().__init__(*args)
        if advice is not None:
            self.advice = advice


class ConfigError(StatehouseError):
    """``statehouse.yaml`` is wrong, or the command line is."""

    exit_code = 2
    advice = "correct it there, then `statehouse check`"


class BrokerError(StatehouseError):
    """The embedded Kafka could not be fetched or started."""

    advice = "look into the log that the message names"


class KafkaUnavailable(StatehouseError):
    """Kafka did not answer."""

    advice = "start Kafka, or correct `kafka: bootstrap.servers`; `statehouse doctor` says whether it answers"


class KafkaRefused(KafkaUnavailable):
    """Kafka does not let us in: a wrong password, token or certificate, or another security protocol."""

    advice = "correct the sign-in in `kafka:`, or the secret in the environment, and start again"


class TopicUnavailable(KafkaUnavailable):
    """Kafka answers, and cannot use a topic for now, such as one of which too few replicas are there: it is tried again."""

    advice = "look at the topic: are enough of its replicas there?"


class TopicRefused(KafkaUnavailable):
    """Kafka refuses a topic, and would again: a name that it does not take, no permission, a policy."""

    advice = "use another topic, or permit this one"


class TopicRecreated(StatehouseError):
    """A topic is not the one that the changelog's position is of: it was deleted and made again, so that its
    coordinates name other events now."""

    advice = "give the stream a new name (or another topic)"


class RegistryUnavailable(StatehouseError):
    """The schema registry did not answer; what waits for a schema is tried again."""

    advice = "start the registry, or correct `registry: url`; records whose schemas are known go on meanwhile"


class RegistryRefused(RegistryUnavailable):
    """The schema registry does not let us in."""

    advice = "correct the sign-in in `registry:`"


class SchemaRefused(StatehouseError):
    """The schema registry does not take a schema."""

    advice = "select what its earlier versions had, or name another `subject`"


class DefinitionChanged(StatehouseError):
    """A store's rule is not the one its state was folded by."""

    advice = "undo the change, or `statehouse recover` the store"


class FoldAnew(StatehouseError):
    """A state cannot be gone on from: it is folded anew from the whole changelog."""

    advice = "nothing: the jobs do it by themselves"


class FeedLost(FoldAnew):
    """The changelog's log or files no longer reach back to a state's position."""


class LakeBusy(StatehouseError):
    """Another process is writing to the same lake."""

    advice = "stop the other process first, or let it do the work"


def first_line(error: object) -> str:
    """The line of a long engine's error (a Spark stack, say) that a person can use."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by") or "Exception:" in line]
    if not causes and "Traceback (most recent call last):" in lines:
        causes = lines[-1:]  # of a Python worker's
    return (causes or lines or [type(error).__name__])[-1 if causes else 0][:300]
