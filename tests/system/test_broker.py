"""The embedded broker, for real: what it promises about its data, its port, its directory and its end."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from demo import broker as embedded
from demo import jars as fetched
from demo.broker import Broker
from statehouse.errors import BrokerError


def send(broker: Broker, topic: str, *payloads: bytes) -> None:
    """Produces to one partition; returns when Kafka has acknowledged all of it."""
    # Idempotent, or a retry while the topic comes into being could change the order.
    settings = {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 16_000_000}
    producer = Producer(settings | {"enable.idempotence": True})
    errors: list[KafkaError | None] = []
    for payload in payloads:
        producer.produce(topic, payload, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    assert errors == [None] * len(payloads)


def read(broker: Broker, topic: str, count: int) -> list[bytes]:
    """The first messages of the topic's first partition."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, timeout=20)
        assert not any(message.error() for message in messages)
        return [message.value() or b"" for message in messages]
    finally:
        consumer.close()


def is_free(directory: Path) -> bool:
    """Whether no Kafka, and none of its threads, runs on the directory."""
    with (directory / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def command_line(pid: int) -> bytes:
    """Of a process; nothing if there is none, or only what its parent has yet to bury."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def eventually(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def owner(code: str, directory: Path) -> subprocess.Popen[str]:
    """Another Python process, which owns the broker that ``code`` starts in ``directory``."""
    program = f"import sys\nfrom pathlib import Path\nfrom demo.broker import *\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker. The thread that started it is gone when the tests begin: that must not end it."""
    broker = Broker(tmp_path_factory.mktemp("running, as we say in Łódź"), partitions=3)
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
    yield broker
    broker.stop()
    assert broker.pid is None


def test_takes_a_payload_of_5_mb_and_makes_topics_as_told(running: Broker) -> None:
    payload = os.urandom(5_000_000)
    send(running, "large", payload)
    assert read(running, "large", 1) == [payload]
    cluster = Consumer({"bootstrap.servers": running.bootstrap, "group.id": "test"}).list_topics(timeout=10)
    assert len(cluster.topics["large"].partitions) == 3


def test_listens_on_loopback_only(running: Broker) -> None:
    # 127.0.0.2 is this machine too: a listener on all addresses would answer there.
    with socket.socket() as elsewhere:
        assert elsewhere.connect_ex(("127.0.0.2", running.port)) != 0


def test_a_directory_in_use_is_refused(running: Broker) -> None:
    with pytest.raises(BrokerError, match=rf"in use by a running broker \(process {running.pid}\)"):
        Broker(running.directory).start()
    assert running.pid is not None


def test_a_port_in_use_is_refused(running: Broker, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match=f"port {running.port} .* is taken"):
        Broker(tmp_path, running.port).start()
    Broker(tmp_path)._write_settings()  # and the directory does not remember it
    assert (tmp_path / "port").read_text().strip() != str(running.port)


@pytest.mark.crash
@pytest.mark.parametrize("end", [Broker.stop, Broker.kill])
def test_data_and_port_outlive_the_process(tmp_path: Path, end: Callable[[Broker], None]) -> None:
    before = Broker(tmp_path)
    before.start()
    send(before, "kept", b"one", b"two")
    end(before)
    with Broker(tmp_path) as after:
        assert after.bootstrap == before.bootstrap
        send(after, "kept", b"three")
        assert read(after, "kept", 3) == [b"one", b"two", b"three"]


@pytest.mark.crash
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_ends_with_its_owner_and_frees_the_directory(tmp_path: Path) -> None:
    process = owner("b = Broker(Path(sys.argv[1])); b.start(); print(b.pid, flush=True); b.wait()", tmp_path)
    assert process.stdout
    pid = int(process.stdout.readline())
    assert not is_free(tmp_path)
    process.kill()
    process.communicate()
    assert eventually(lambda: is_free(tmp_path))
    assert b"kafka.Kafka" not in command_line(pid)


def test_serve_says_where_it_is_and_stops_in_order(tmp_path: Path) -> None:
    process = owner("sys.exit(serve(Path(sys.argv[1])))", tmp_path)
    assert process.stdout
    assert process.stdout.readline() == f"bootstrap.servers=127.0.0.1:{(tmp_path / 'port').read_text()}"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)  # a second one changes nothing
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.crash
def test_serve_reports_that_kafka_died(tmp_path: Path) -> None:
    process = owner("sys.exit(serve(Path(sys.argv[1])))", tmp_path)
    assert process.stdout
    process.stdout.readline()
    os.kill(int((tmp_path / "lock").read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Kafka ended by itself (exit code -9)" in err
    assert "broker.log" in err


def test_a_start_that_fails_quotes_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SERVER_SETTINGS", embedded.SERVER_SETTINGS + "num.io.threads=many\n")
    with pytest.raises(BrokerError, match=r"(?s)num\.io\.threads"):
        Broker(tmp_path).start()


@pytest.fixture
def central(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of Maven Central, with one jar; and the list of that one."""
    folder = tmp_path / "central"
    (folder / "org").mkdir(parents=True)
    (folder / "org" / "a.jar").write_bytes(b"a jar")
    (tmp_path / "list").write_text(f"{hashlib.sha256(b'a jar').hexdigest()}  org/a.jar\n")
    monkeypatch.setattr(fetched, "CENTRAL", folder.as_uri())
    monkeypatch.setattr(fetched, "LIST", tmp_path / "list")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return folder


def test_jars_are_fetched_once(central: Path) -> None:
    folder = fetched.kafka_jars()
    assert [(f.name, f.read_bytes()) for f in folder.iterdir()] == [("a.jar", b"a jar")]
    (central / "org" / "a.jar").unlink()
    assert fetched.kafka_jars() == folder


def test_a_jar_that_is_not_what_is_expected_is_refused_and_tried_again(central: Path, tmp_path: Path) -> None:
    (central / "org" / "a.jar").write_bytes(b"another")
    with pytest.raises(BrokerError, match=r"in 3 attempts: file:.*org/a\.jar: found the SHA-256 \w+, expected \w+"):
        fetched.kafka_jars()
    (central / "org" / "a.jar").unlink()
    with pytest.raises(BrokerError, match=r"in 3 attempts: file:.*org/a\.jar: .*No such file"):
        fetched.kafka_jars()
    assert not (tmp_path / "statehouse" / f"kafka_2.13-{fetched.KAFKA}").exists()
    (central / "org" / "a.jar").write_bytes(b"a jar")
    assert fetched.kafka_jars().is_dir()
