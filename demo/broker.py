"""The embedded broker: one real Kafka node in KRaft mode, for the demo, the tests and a first try.

    with Broker(Path("lake/kafka")) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

Kafka itself is some 50 jars from Maven Central, fetched once for each user (:mod:`demo.jars`). It listens on loopback only. What is in a broker's directory:

    lock                the process id; locked as long as that process lives
    port                where clients find it, also after the next start
    data/               Kafka's own: formatted once, then the topics
    broker.log          what Kafka has said since its last start
    *.properties        its settings, written anew at each start

Needs a POSIX system. Only on Linux does the kernel see to it that the broker ends with its owner; elsewhere
an owner that was killed with -9 leaves it running, and the next start says so.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from demo.jars import KAFKA, kafka_jars
from statehouse.errors import BrokerError

HOST = "127.0.0.1"
START_TIMEOUT = 60.0  # seconds; a start takes 3 on two idle cores
STOP_TIMEOUT = 20.0

# fmt: off
# The simple compiler and collector: the node starts faster and takes half the processor time and memory,
# which Spark needs next to it, at the same throughput (500,000 small messages a second).
JVM_OPTIONS = [
    "-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
    "-Dfile.encoding=UTF-8", "-Dlog4j2.configurationFile=log4j2.properties",
]
# fmt: on

# Relative paths: the JVM runs in the broker's directory, whose name may hold what these files cannot
# (a comma, a space, an accent).
SERVER_SETTINGS = """\
process.roles=broker,controller
node.id=1
listeners=CLIENTS://{host}:{port},CONTROLLER://{host}:{controller_port}{addresses}
listener.security.protocol.map=CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=CLIENTS
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{host}:{controller_port}
log.dirs=data

auto.create.topics.enable=true
num.partitions={partitions}
# Room for a payload of several megabytes.
message.max.bytes=16777216
replica.fetch.max.bytes=16777216
# The data is the user's, and stays until its directory is deleted.
log.retention.ms=-1
log.retention.bytes=-1
offsets.retention.minutes=5256000

# After a crash a start waits until the session of the node's former life has run out: 9 s, if left alone.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500

# One node: it has nobody to replicate to, no other member to wait for, and a small heap.
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
"""

LOG_SETTINGS = """\
status=error
# Or the log would end where the shutdown begins.
shutdownHook=disable
# Three dumps of some 300 settings each.
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=warn
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""

# What our child does before it becomes the JVM: it asks the kernel to be killed when its owner dies. It is a
# program of its own, as code between fork and exec (preexec_fn) can hang on what other threads had locked.
LAUNCHER = """\
import ctypes, os, signal, sys
owner, *command = sys.argv[1:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(owner):
    sys.exit("the owner died before the kernel knew of our wish")
os.execv(command[0], command)
"""


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        where = f"JAVA_HOME ({home})" if home else "the PATH"
        raise BrokerError(f"Kafka needs Java 17 or newer; there is none in {where}: install it or set JAVA_HOME")
    return java


def _environment() -> dict[str, str]:
    # In the C locale the JVM cannot even start in a directory with an accent in its name.
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _free_ports(count: int) -> list[int]:
    # Not the kernel's choice, which would be one of its ephemeral ports. Clients that keep trying while the
    # broker is down are given such ports for their own end, sooner or later this very one: they would be
    # connected to themselves, and the broker could not come back.
    free = [port for port in random.sample(range(20000, 30000), k=100) if _is_free(port)]
    if len(free) < count:
        raise BrokerError(f"found no free port on {HOST} between 20000 and 30000: choose one (--port)")
    return free[:count]


@dataclass(frozen=True)
class Listener:
    """An address of its own for clients: its name in capitals, its ``protocol`` (``SSL``, ``SASL_PLAINTEXT``, ``SASL_SSL``), and
    the broker's ``settings`` for it, without their prefix."""

    name: str
    protocol: str
    settings: Mapping[str, str]

    def lines(self) -> list[str]:
        """Its lines of ``server.properties``."""
        prefix = f"listener.name.{self.name.lower()}"
        return [f"{prefix}.{name}={_escaped(value)}\n" for name, value in self.settings.items()]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


class Broker:
    """A Kafka node that keeps its data in ``directory`` and lives no longer than the process that starts it.

    ``port`` 0 is the port of the directory's last start, or any free one; ``partitions`` is what a topic gets
    that comes into being with its first message. ``listeners`` are further addresses, where clients have to sign in, and
    ``jvm_options`` what they need.
    """

    def __init__(
        self,
        directory: Path,
        port: int = 0,
        partitions: int = 2,
        listeners: Sequence[Listener] = (),
        jvm_options: Sequence[str] = (),
    ) -> None:
        self.directory = Path(directory)
        self.port = port
        self.partitions = partitions
        self.listeners = listeners
        self.jvm_options = jvm_options
        self._ports: dict[str, int] = {}
        self.log = self.directory / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, as in ``bootstrap.servers``; known once the broker was started."""
        return f"{HOST}:{self.port}"

    def address(self, listener: str) -> str:
        """The address of one of the ``listeners``, by its name; another one after each start."""
        return f"{HOST}:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """The process id of Kafka's JVM while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Starts Kafka and returns when it answers a client.

        :raises BrokerError: the directory or the port is in use, or Kafka did not come up; with the reason.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [_java(), *JVM_OPTIONS, *self.jvm_options, "-cp", f"{kafka_jars()}/*"]
        # The JVM inherits the open lock file, and with it the lock, which is then its own: it is free when
        # the JVM is gone, however that happened, and whoever has started it.
        with (self.directory / "lock").open("a+") as lock:
            self._acquire(lock)
            self._write_settings()
            self._format(command)
            try:
                self._process = self._spawn([*command, "kafka.Kafka", "server.properties"], lock.fileno())
                lock.write(f"{self._process.pid}\n")
                lock.flush()
                self._await_answer(self._process)
            except BaseException:
                self.kill()
                raise

    def stop(self) -> None:
        """Stops Kafka in order, or by force if that takes too long. Does nothing if it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends Kafka with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait(self) -> int:
        """Waits until Kafka has ended, whatever the reason; its exit code."""
        if self._process is None:
            raise BrokerError("the broker was not started")
        # Not a wait without end: Python does not notice a signal that comes in the instant before it blocks.
        while (code := self._process.poll()) is None:
            time.sleep(0.2)
        return code

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _acquire(self, lock: IO[str]) -> None:
        deadline = time.monotonic() + 1  # a JVM that was killed just now needs a moment to be gone
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.seek(0)
                    process = lock.read().strip() or "that is just starting"
                    raise BrokerError(
                        f"{self.directory} is in use by a running broker (process {process}): "
                        "stop that one, or choose another directory (--dir)"
                    ) from None
                time.sleep(0.05)
        lock.truncate(0)

    def _write_settings(self) -> None:
        remembered = self.directory / "port"
        port, controller_port, *others = _free_ports(2 + len(self.listeners))
        self._ports = {listener.name: other for listener, other in zip(self.listeners, others, strict=True)}
        if not self.port:
            self.port = int(remembered.read_text() or port) if remembered.exists() else port
        if not _is_free(self.port):
            raise BrokerError(
                f"port {self.port} of {HOST} is taken: stop what listens there, or choose another (--port)"
            )
        remembered.write_text(f"{self.port}\n")
        settings = SERVER_SETTINGS.format(
            host=HOST,
            port=self.port,
            controller_port=controller_port,
            partitions=self.partitions,
            addresses="".join(f",{each.name}://{HOST}:{self._ports[each.name]}" for each in self.listeners),
            protocols="".join(f",{each.name}:{each.protocol}" for each in self.listeners),
        )
        settings += "".join(line for each in self.listeners for line in each.lines())
        file = self.directory / "server.properties"
        file.touch(0o600)  # it may have passwords
        file.write_text(settings)
        (self.directory / "log4j2.properties").write_text(LOG_SETTINGS)

    def _format(self, command: list[str]) -> None:
        # The last file that formatting writes: without it, formatting was interrupted or never begun.
        if (self.directory / "data" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # The id is one word with its option, for it may begin with a dash.
        tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", f"--cluster-id={cluster}"]
        command = [*command, *tool, "--config=server.properties"]
        with self.log.open("wb") as out:
            done = subprocess.run(command, cwd=self.directory, env=_environment(), stdout=out, stderr=out)
        if done.returncode:
            raise BrokerError(f"Kafka could not format {self.directory / 'data'}:\n{self._last_words()}")

    def _spawn(self, command: list[str], lock: int) -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid())]
        started: Future[subprocess.Popen[bytes]] = Future()

        def keep() -> None:
            try:
                with self.log.open("wb") as out:
                    process = subprocess.Popen(
                        [*launcher, *command],
                        cwd=self.directory,
                        env=_environment(),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        pass_fds=[lock],
                        start_new_session=True,  # the terminal's Ctrl-C is for the owner alone
                    )
            except BaseException as error:
                started.set_exception(error)
                return
            started.set_result(process)
            process.wait()

        # To the kernel the owner is not the process but the *thread* that forked: had a short-lived thread
        # called us, Kafka would die with it. This one lives as long as Kafka, or as the whole process.
        threading.Thread(target=keep, name="kafka-keeper", daemon=True).start()
        return started.result()

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # that nobody listens yet is no news
            }
        )
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise BrokerError(f"Kafka ended before it was ready ({self.log}):\n{self._last_words()}")
            with contextlib.suppress(KafkaException):
                # A node lists itself when it takes requests, not as soon as its port is open.
                if admin.list_topics(timeout=0.5).brokers:
                    return
        raise BrokerError(f"Kafka was not ready in {START_TIMEOUT:.0f} s ({self.log}):\n{self._last_words()}")

    def _last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def serve(directory: Path, port: int = 0, partitions: int = 2) -> int:
    """``statehouse broker``: runs a broker until SIGTERM or Ctrl-C; the exit code.

    Says ``bootstrap.servers=HOST:PORT`` on stdout when it is ready. Belongs in the main thread.
    """

    def leave(signum: int, frame: FrameType | None) -> NoReturn:
        # Once: `timeout`, for one, signals the process and then its group, which must not break off the stop.
        for each in handlers:
            signal.signal(each, lambda *_: None)
        raise KeyboardInterrupt

    handlers = {each: signal.signal(each, leave) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        print(f"starting Kafka {KAFKA} in {directory} ...", file=sys.stderr, flush=True)
        with Broker(directory, port, partitions) as broker:
            print(f"bootstrap.servers={broker.bootstrap}", flush=True)
            code = broker.wait()
        print(f"Kafka ended by itself (exit code {code}); the reason is in {broker.log}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
