"""What a ``kafka:`` block means to either client, and what is wrong with one, by its line. Nothing is asked here: see test_sign_in.py."""

from __future__ import annotations

import pytest
import yaml

from statehouse import kafka, pem
from statehouse.config.file import load
from statehouse.errors import ConfigError
from statehouse.kafka_clients import complaints, is_secret, jaas, java, known_to_librdkafka, librdkafka, notes
from tests.support.certificates import PKCS1, Authority

SERVERS = {"bootstrap.servers": "k:9092"}
SCRAM = {**SERVERS, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u"}
TOKENS = {
    **SERVERS,
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://issuer/token",
    "sasl.oauthbearer.client.id": "me",
}
HIDDEN = "hidden-0123"
STREAM = {"streams": {"s": {"topic": "t", "schema": "k STRING"}}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def file(tmp_path):
    """A function that loads a file with a ``kafka:`` block."""

    def make(block, environ=()):
        path = tmp_path / "statehouse.yaml"
        path.write_text(yaml.safe_dump({"kafka": block}, sort_keys=False) + yaml.safe_dump(STREAM))
        return load(path, dict(environ))

    return make


def pair(certificate, key):
    return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}


def test_user_and_password_are_one_line_of_jaas():
    found = java({**SCRAM, "sasl.password": 'a"b\\c\nd'})
    assert found == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="a\\"b\\\\c\\012d";',
    }
    assert java({**SERVERS, "sasl.mechanisms": "PLAIN"})["sasl.mechanism"] == "PLAIN", "librdkafka's other name"
    own = "org.apache.kafka.common.security.plain.PlainLoginModule required a=b;"
    given = {**SCRAM, "sasl.password": "p", "sasl.jaas.config": own}
    assert java(given)["sasl.jaas.config"] == own and "sasl.jaas.config" not in librdkafka(given)


def test_tokens_are_fetched_by_both(authority):
    given = {
        **TOKENS,
        "sasl.oauthbearer.client.secret": "x y",
        "sasl.oauthbearer.scope": "a b",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-1",
        "https.ca.location": str(authority.file),
    }
    found = java(given)
    assert found["sasl.oauthbearer.token.endpoint.url"] == "https://issuer/token"
    assert found["sasl.login.callback.handler.class"].endswith(".OAuthBearerLoginCallbackHandler")
    line = found["sasl.jaas.config"]
    words = 'clientId="me" clientSecret="x y" scope="a b" extension_logicalCluster="lkc-1" extension_identityPoolId="pool-1"'
    assert words in line and 'ssl.truststore.certificates="-----BEGIN CERTIFICATE-----\\012' in line
    assert {n for n in found if n.startswith(("sasl.oauthbearer", "https"))} == {"sasl.oauthbearer.token.endpoint.url"}
    other = {n.replace("bearer.client.", "bearer.client.credentials.client."): v for n, v in given.items()}
    assert java(other) == found and set(librdkafka(other)) == {"log_level", *other}


def test_files_in_pem_become_texts(authority):
    certificate, key = authority.issue("a")
    given = {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": str(authority.file), **pair(certificate, key)}
    found = java({**given, "ssl.key.password": "not needed", "ssl.endpoint.identification.algorithm": "none"})
    assert found == {
        "bootstrap.servers": "k:9092",
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.file.read_text().strip(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.read_text().strip(),
        "ssl.keystore.key": key.read_text().strip(),
    }
    texts = {
        "ssl.ca.pem": authority.file.read_text(),
        "ssl.certificate.pem": certificate.read_text(),
        "ssl.key.pem": key.read_text(),
    }
    assert java({**SERVERS, "security.protocol": "SSL", **texts}) == {**java(given)}
    both = {**given, "ssl.truststore.location": "/jks", "ssl.truststore.password": "p"}
    assert java(both)["ssl.truststore.location"] == "/jks" and "ssl.truststore.type" not in java(both)
    assert "ssl.truststore.location" not in librdkafka(both) and list(complaints(both)) == []


def test_one_file_may_have_it_all_and_a_folder_what_is_trusted(authority, tmp_path):
    certificate, key = authority.issue("one", "p")
    every = tmp_path / "every.pem"
    every.write_text(f"# of one\n{key.read_text()}{certificate.read_text()}{authority.file.read_text()}")
    (tmp_path / "0123abcd.0").write_text(authority.file.read_text())
    given = {**SERVERS, "security.protocol": "SSL", "ssl.ca.location": str(tmp_path), **pair(every, every)}
    given["ssl.key.password"] = "p"
    assert list(complaints(given)) == []
    found = java(given)
    assert found["ssl.keystore.certificate.chain"].count("BEGIN") == 2 and found["ssl.keystore.key"].count("BEGIN") == 1
    assert found["ssl.truststore.certificates"].count("BEGIN") == 1 and found["ssl.key.password"] == "p"


def test_each_client_gets_what_it_knows():
    given = {
        **SERVERS,
        "isolation.level": "read_committed",
        "sasl.login.read.timeout.ms": 5,
        "enable.idempotence": True,
    }
    assert librdkafka({**given, "statistics.interval.ms": 0}) == {
        "log_level": 0, **SERVERS, "isolation.level": "read_committed", "enable.idempotence": "true", "statistics.interval.ms": "0",
    }  # fmt: skip
    assert java({**given, "auto.offset.reset": "earliest"}) == {
        **SERVERS, "isolation.level": "read_committed", "sasl.login.read.timeout.ms": "5", "enable.idempotence": "true",
    }  # fmt: skip
    assert librdkafka({"ssl.endpoint.identification.algorithm": ""})["ssl.endpoint.identification.algorithm"] == "none"
    assert not known_to_librdkafka("sasl.jaas.config") and known_to_librdkafka("ssl.keystore.location")
    assert "error_cb" in kafka.librdkafka(given)


def said(given):
    return dict(complaints({**SERVERS, **given}))


@pytest.mark.parametrize(
    ("given", "name", "text"),
    [
        ({"security.protocol": "SASL"}, "security.protocol", "found SASL, expected PLAINTEXT, SSL"),
        ({"security.protocol": "SSL", "sasl.username": "u"}, "sasl.username", "expected SASL_SSL (or SASL_PLAINTEXT)"),
        ({"sasl.username": "u"}, "sasl.username", "found it with security.protocol none"),
        ({"ssl.ca.location": "/x"}, "ssl.ca.location", "expected SSL or SASL_SSL: nothing would be encrypted"),
        ({"security.protocol": "SASL_SSL"}, "security.protocol", "found no sasl.mechanism, expected one that both"),
        ({**SCRAM, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism", "found GSSAPI, expected one that both clients have: PLAIN, "),
        (SCRAM, "sasl.mechanism", "found no sasl.password, expected one, such as by $STATEHOUSE_KAFKA__SASL_PASSWORD"),
        ({**SCRAM, "sasl.jaas.config": HIDDEN}, "sasl.mechanism", "beside sasl.jaas.config, which librdkafka does not read"),
        ({**SCRAM, "sasl.password": 83}, "sasl.password", "expected it in quotes"),
        ({**SCRAM, "sasl.password": None}, "sasl.password", "found nothing, expected a text, here or by $STATEHOUSE_KAFKA__SASL_P"),
        ({"linger.ms": "soon"}, "linger.ms", "found soon (Invalid value for"),
        (TOKENS, "sasl.oauthbearer.method", "found no sasl.oauthbearer.client.secret, expected one, such as by $STATEHOUSE_"),
        ({**TOKENS, "sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method", "expected oidc"),
        (
            {**TOKENS, "sasl.oauthbearer.client.secret": HIDDEN, "sasl.oauthbearer.assertion.issuer": "x"},
            "sasl.oauthbearer.assertion.issuer", "Java's client, which Spark has, has no such thing",
        ),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": False}, "enable.ssl.certificate.verification", "always"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/x"}, "ssl.truststore.location", "expected ssl.ca.location"),
        ({"security.protocol": "SSL", "ssl.keystore.key": HIDDEN}, "ssl.keystore.key", "expected ssl.certificate.location"),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/x.p12"}, "ssl.keystore.location", "found no file /x.p12"),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "x"}, "ssl.cipher.suites", "has no such thing"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/x"}, "ssl.ca.location", "found /x (No such file or directory), expected"),
        ({"security.protocol": "SSL", "ssl.ca.pem": "x"}, "ssl.ca.pem", "found no certificate, expected -----BEGIN CERTIFICATE-----"),
        ({"security.protocol": "SSL", "ssl.key.pem": HIDDEN}, "ssl.key.pem", "found it without ssl.certificate.location, expected both"),
    ],
)  # fmt: skip
def test_what_is_wrong_names_the_property(given, name, text):
    found = said(given)
    assert text in found[name], found
    assert HIDDEN not in str(found)


def test_keys_are_tried(authority, tmp_path):
    certificate, key = authority.issue("first", "opens")
    _, other = authority.issue("second")
    _, old = authority.issue("old", form=PKCS1)
    by_tls = {"security.protocol": "SSL"}
    assert said({**by_tls, **pair(certificate, key), "ssl.key.password": "opens"}) == {}
    assert "expected ssl.key.password, such as by" in said({**by_tls, **pair(certificate, key)})["ssl.key.location"]
    wrong = said({**by_tls, **pair(certificate, key), "ssl.key.password": HIDDEN})
    assert "found one that does not open" in wrong["ssl.key.password"] and HIDDEN not in str(wrong)
    assert "not ASCII" in said({**by_tls, **pair(certificate, key), "ssl.key.password": "ö"})["ssl.key.password"]
    assert f"expected the key of {certificate}" in said({**by_tls, **pair(certificate, other)})["ssl.key.location"]
    found = said({**by_tls, **pair(tmp_path / "none", key)})["ssl.certificate.location"]
    assert found == f"found {tmp_path / 'none'} (No such file or directory), expected a file in PEM"
    found = said({**by_tls, **pair(certificate, old)})["ssl.key.location"]
    assert f"found an RSA PRIVATE KEY in {old}, expected PKCS#8" in found and f"-topk8 -in {old}" in found
    assert (
        "found no certificate in"
        in said({**by_tls, **pair(key, key), "ssl.key.password": "opens"})["ssl.certificate.location"]
    )
    assert "found no private key" in said({**by_tls, **pair(certificate, certificate)})["ssl.key.location"]


def test_a_file_names_each_line(file, tmp_path):
    block = {**SCRAM, "security.protocol": "SASL_SSL", "ssl.ca.location": "no.pem"}
    with pytest.raises(ConfigError) as error:
        file(block)
    path = tmp_path / "statehouse.yaml"
    assert str(error.value).splitlines() == [
        f"{path}:4: kafka.sasl.mechanism: found no sasl.password, expected one, such as by $STATEHOUSE_KAFKA__SASL_PASSWORD",
        f"{path}:6: kafka.ssl.ca.location: found {tmp_path / 'no.pem'} (No such file or directory), expected a file in PEM",
    ]


def test_files_are_relative_to_the_file_and_secrets_come_by_the_environment(file, authority, tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text(authority.file.read_text())
    monkeypatch.chdir(authority.file.parent)
    block = {**SCRAM, "security.protocol": "SASL_SSL", "ssl.ca.location": "ca.pem"}
    config = file(block, {"STATEHOUSE_KAFKA__SASL_PASSWORD": "0123: #"})
    assert config.kafka["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert config.kafka["sasl.password"] == "0123: #", "not as YAML would read it"
    there = {"STATEHOUSE_KAFKA__SASL_PASSWORD": "p", "STATEHOUSE_KAFKA__SSL_CA_LOCATION": authority.file.name}
    assert file(block, there).kafka["ssl.ca.location"] == str(authority.file), "a variable's is relative to this folder"


def test_a_block_that_is_none_is_not_shown(tmp_path):
    path = tmp_path / "statehouse.yaml"
    path.write_text(f"kafka: [sasl.password={HIDDEN}]\nstreams: {{s: {{topic: t, schema: k STRING}}}}\n")
    with pytest.raises(ConfigError, match="found a list") as error:
        load(path, {})
    assert HIDDEN not in str(error.value)


def test_notes():
    given = {**SCRAM, "sasl.mechanism": "PLAIN", "sasl.password": "p", "auto.offset.reset": "latest"}
    assert [name for name, _ in notes(given)] == ["security.protocol", "auto.offset.reset"]
    assert list(notes(SCRAM)) == []


def test_secrets_are_known():
    secret = [
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.secret",
    ]
    assert [name for name in secret if not is_secret(name)] == []
    shown = ["sasl.oauthbearer.token.endpoint.url", "ssl.key.location", "ssl.keystore.location", "sasl.username"]
    assert [name for name in shown if is_secret(name)] == []
    assert jaas("PLAIN", {"a": None}).endswith("PlainLoginModule required;")


def test_tokens_are_asked_for_at_an_endpoint_that_the_system_trusts():
    assert librdkafka(TOKENS).get("https.ca.location") == pem.system_file()
    assert librdkafka({**TOKENS, "https.ca.location": "/x"})["https.ca.location"] == "/x"
    assert "https.ca.location" not in {**java(TOKENS), **librdkafka(SCRAM)}
