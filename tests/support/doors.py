"""A real Kafka where one has to sign in: listeners of each kind, and what a ``kafka:`` block says to come in by each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from demo.broker import Broker, Listener
from statehouse.kafka_clients import PREFIX, jaas
from tests.support.certificates import Authority
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

USER, CLIENT = "statehouse", "statehouse-client"
PASSWORD = 'of "two"\\ words; = #0123'  # what JAAS, YAML and the environment each have a meaning for
KEY_PASSWORD, SECRET = "opens the key", "the client's secret"
SECRETS = (PASSWORD, KEY_PASSWORD, SECRET)
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"  # that a broker may ask


class Doors:
    """The broker, with one listener without sign-in (``open``) and those of ``blocks``."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        server, key = self.authority.issue("broker")
        self.client, self.client_key = self.authority.issue("client", KEY_PASSWORD)
        self.plain_client, self.plain_key = self.authority.issue("client-plain")
        self.issuer = Issuer(CLIENT, SECRET, server, key)
        own = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": server.read_text(),
            "ssl.keystore.key": key.read_text(),
        }
        trusting = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": self.authority.certificate}
        users = {"plain.sasl.jaas.config": jaas("PLAIN", {f"user_{USER}": PASSWORD})}
        users |= {f"{name.lower()}.sasl.jaas.config": jaas(name, {}) for name in SCRAM}
        tokens = {
            "oauthbearer.sasl.jaas.config": jaas("OAUTHBEARER", {}),
            "oauthbearer.sasl.server.callback.handler.class": f"{PREFIX}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.keys_url,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }
        mechanisms = {"sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM])}
        mechanisms_and_tokens = {"sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM, "OAUTHBEARER"])}
        self.broker = Broker(
            folder / "kafka",
            listeners=[
                Listener("WORDS", "SASL_PLAINTEXT", {**mechanisms, **users}),
                Listener("SAFE", "SASL_SSL", {**mechanisms_and_tokens, **users, **tokens, **own}),
                Listener("TLS", "SSL", own),
                Listener("BOTH", "SSL", {**own, **trusting, "ssl.client.auth": "required"}),
            ],
            jvm_options=[f"{ALLOWED}={self.issuer.keys_url}"],
        )

    def __enter__(self) -> Doors:
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        for mechanism in SCRAM.values():  # one user a request
            secret = ScramCredentialInfo(mechanism, 4096)
            for asked in admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, secret, PASSWORD.encode())]
            ).values():
                asked.result(20)
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.stop()
        self.issuer.close()

    def block(self, kind: str) -> dict[str, Any]:
        """A ``kafka:`` block, without what is secret."""
        trusting = {"ssl.ca.location": str(self.authority.file)}
        listener, properties = {
            "plain": ("WORDS", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"}),
            "scram-256": ("WORDS", {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}),
            "scram-512": ("SAFE", {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", **trusting}),
            "tokens": (
                "SAFE",
                {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **trusting, **self._tokens()},
            ),
            "tls": ("TLS", {"security.protocol": "SSL", **trusting}),
            "mtls": ("BOTH", {"security.protocol": "SSL", **trusting, **_pair(self.client, self.client_key)}),
            "mtls, open key": (
                "BOTH",
                {"security.protocol": "SSL", **trusting, **_pair(self.plain_client, self.plain_key)},
            ),
        }[kind]
        if kind in ("plain", "scram-256", "scram-512"):
            properties["sasl.username"] = USER
        return {"bootstrap.servers": self.broker.address(listener), **properties}

    def _tokens(self) -> dict[str, str]:
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.issuer.token_url,
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.scope": "read write",
            "https.ca.location": str(self.authority.file),
        }


KINDS = ("plain", "scram-256", "scram-512", "tokens", "tls", "mtls", "mtls, open key")
SECRET_OF = {  # by kind: the property, and its value
    "plain": ("sasl.password", PASSWORD),
    "scram-256": ("sasl.password", PASSWORD),
    "scram-512": ("sasl.password", PASSWORD),
    "tokens": ("sasl.oauthbearer.client.secret", SECRET),
    "mtls": ("ssl.key.password", KEY_PASSWORD),
}


def _pair(certificate: Path, key: Path) -> dict[str, str]:
    return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
