"""Kafka where one has to sign in, for real: one ``kafka:`` block by which the API, its follower, the commands and Spark all come in; and
what they say when they do not."""

from __future__ import annotations

import logging
import time
import uuid

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from api import create_app
from jobs.check import unknown_properties
from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.publish import Publisher
from jobs.spark import databricks, private_key
from jobs.tasks.deliver import Message, deliver
from statehouse import doctor, kafka
from statehouse.config.file import load
from statehouse.errors import ConfigError, KafkaRefused, first_line
from statehouse.kafka_clients import variable
from tests.support.api_lake import eventually
from tests.support.certificates import Authority
from tests.support.depth import deep
from tests.support.doors import KINDS, SECRET, SECRET_OF, SECRETS, Doors
from tests.support.records import create, rows

pytestmark = pytest.mark.slow
SOON = 20  # seconds in which a wrong secret is told, on a machine that is busy
WRONG = "wrong-0123"
STREAMS = """
streams:
  s: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
  told: {{topic: {topic}-told, schema: "value BIGINT"}}
stores:
  last: {{stream: s, key: key, value: n, reduce: latest, publish: {topic}-told}}
  copy: {{stream: told, key: _key, value: value, reduce: latest}}
"""


@pytest.fixture(scope="module")
def doors(java, tmp_path_factory):
    with Doors(tmp_path_factory.mktemp("doors")) as running:
        yield running


@pytest.fixture
def signed(doors, tmp_path):
    """A function that loads a file with the ``kafka:`` block of a kind; its secret comes by the environment."""

    def make(kind, secret=None, **properties):
        topic = f"t-{uuid.uuid4()}"
        for name in (topic, f"{topic}-told"):
            create(doors.broker.bootstrap, name)
        file = tmp_path / "statehouse.yaml"
        block = doors.block(kind) | {name.replace("_", "."): value for name, value in properties.items()}
        text = yaml.safe_dump({"root": "./lake", "kafka": block}) + STREAMS.format(topic=topic)
        assert not any(known in text for known in SECRETS)
        file.write_text(text)
        name, right = SECRET_OF.get(kind, ("client.id", "none"))
        return load(file, {variable(name): secret or right})

    return make


def leaks(folder):
    """The files below a folder that have a secret."""
    return [f for f in folder.rglob("*") if f.is_file() and any(s.encode() in f.read_bytes() for s in SECRETS)]


# The others differ from one of these by a name.
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=deep) if k in ("plain", "scram-256", "tls") else k for k in KINDS]
)
def test_all_come_in_by_one_block(spark, doors, signed, kind, tmp_path, tmp_path_factory, caplog):
    config = signed(kind)
    caplog.set_level(logging.DEBUG)
    spark.sparkContext.setLogLevel("INFO")
    ingests = {name: Ingest(spark, config, stream) for name, stream in config.streams.items()}
    merges = [Merge(spark, config, store) for store in config.stores.values()]
    for merge in merges:
        merge.round()
    client = (app := create_app(config)).test_client()
    try:
        assert client.put("/stores/last/keys/a", json={"value": 7}).status_code == 202  # the API's writer
        eventually(lambda: client.get("/stores/last/keys/a").get_json().get("value") == 7)  # its follower
        ingests["s"].run(once=True)  # Spark's source of streams
        merges[0].round()
        assert {row["key"]: row["value"] for row in rows(spark, f"{config.root}/state/last")} == {"a": 7}
        assert Publisher(spark, config, config.stores["last"]).round().count == 1  # its source of batches, and its sink
        eventually(lambda: client.get("/stores/copy/keys/a").get_json().get("value") == 7)
        [outcome] = deliver(
            config.kafka, [Message(config.streams["s"].topic, "b", '{"key": "b", "n": 1}', {})], 1_000_000
        )
        assert outcome.refused is outcome.delayed is None
        assert {c.name: c.level for c in doctor.topics(config)} | {"Kafka": "ok"} == {
            "Kafka": "ok", **{f"topic {s.topic}": "ok" for s in config.streams.values()}
        }  # fmt: skip
    finally:
        app.extensions["statehouse"].replica.stop()
        spark.sparkContext.setLogLevel("ERROR")
    logs = list(tmp_path_factory.getbasetemp().glob("spark*/spark.log"))
    assert logs and not any(s in log.read_text(errors="replace") for log in logs for s in SECRETS)
    assert leaks(tmp_path) == [] and not any(s in caplog.text for s in SECRETS)


def test_a_scope_is_asked_for_by_both(doors):
    """After the test above: librdkafka's clients, and Java's."""
    asked = [form["scope"] for form in doors.issuer.asked]
    assert len(asked) >= 2 and set(map(str, asked)) == {"['read write']"}


@pytest.fixture
def shut_out(doors, signed, tmp_path):
    """A function that loads a file that does not come in."""

    def make(kind):
        if kind == "tls":
            return signed(kind, ssl_ca_location=str(Authority(tmp_path).file))
        if kind == "mtls, open key":
            certificate, key = Authority(tmp_path).issue("stranger")
            return signed(kind, ssl_certificate_location=str(certificate), ssl_key_location=str(key))
        return signed(kind, WRONG)

    return make


# With mTLS a wrong secret does not open the key, which is seen when the file is read.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mtls"])
def test_who_does_not_come_in_is_told_so(spark, shut_out, kind):
    config = shut_out(kind)
    began = time.monotonic()
    check = next(doctor.topics(config))
    assert (check.name, check.level) == ("Kafka", "bad") and "does not let us in: " in check.found
    assert check.advice == KafkaRefused.advice
    ingest = Ingest(spark, config, config.streams["s"])
    with pytest.raises(KafkaRefused) as error:
        ingest.run(once=True)
    assert time.monotonic() - began < 2 * SOON
    for text in (check.found, str(error.value)):
        assert "\n" not in text and WRONG not in text and SECRET not in text


@pytest.mark.parametrize("kind", ["scram-512", "tokens", "tls", "mtls, open key"])
def test_java_says_it_soon_too(spark, shut_out, kind):
    config = shut_out(kind)
    options = {f"kafka.{name}": value for name, value in databricks.client(config.kafka).items()}
    began = time.monotonic()
    with pytest.raises(Exception) as error:  # whatever Spark makes of it
        spark.read.format("kafka").options(**options).option("subscribe", config.streams["s"].topic).load().count()
    assert "\n" not in first_line(error.value)
    assert time.monotonic() - began < 3 * SOON
    assert WRONG not in str(error.value)


def test_a_key_is_opened_on_the_driver(spark, tmp_path):
    _, sealed = Authority(tmp_path).issue("sealed", 'of "two" words')
    key = load_pem_private_key(sealed.read_bytes(), b'of "two" words')
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode().strip()
    gateway = spark.sparkContext._gateway
    assert private_key.decrypt(gateway, sealed.read_text(), 'of "two" words') == text
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.key: found a key that Java cannot open") as error:
        private_key.decrypt(gateway, sealed.read_text(), WRONG)
    assert WRONG not in str(error.value)


def test_check_notes_a_property_that_nobody_knows(spark, signed):
    config = signed("scram-256", sasl_login_read_timeout_ms=5000, sasl_pasword="x")
    assert unknown_properties(spark, config) == ["sasl.pasword"]


def test_the_api_says_why_a_write_fails(shut_out):
    config = shut_out("scram-256")
    client = (app := create_app(config)).test_client()
    try:
        answer = client.put("/stores/last/keys/a", json={"value": 7})
        assert answer.status_code == 503 and "does not let us in: " in answer.get_json()["detail"]
    finally:
        app.extensions["statehouse"].replica.stop()


def test_another_protocol_than_the_brokers(signed):
    properties = {**signed("scram-256").kafka, "security.protocol": "SASL_SSL"}
    with pytest.raises(KafkaRefused, match="SSL handshake failed"):
        kafka.find_topic(properties, "t", 3)
