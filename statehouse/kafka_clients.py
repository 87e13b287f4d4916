"""The file's ``kafka:`` section for both of Kafka's clients: librdkafka (the API, the commands) and Java's (Spark).

The section is written in librdkafka's words. What Java's client calls otherwise is translated; what cannot mean the same to both is
an error of the file (:func:`complaints`). A property that only one of them knows is that one's alone. No text here has a value
that is secret.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from statehouse import pem

VARIABLE = "STATEHOUSE_KAFKA__"
PREFIX = "org.apache.kafka.common.security"
MODULES = {  # of each mechanism, who logs in by it in Java
    "PLAIN": f"{PREFIX}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{PREFIX}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{PREFIX}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{PREFIX}.oauthbearer.OAuthBearerLoginModule",
}
TOKENS = "OAUTHBEARER"
TOKEN_HANDLER = f"{PREFIX}.oauthbearer.OAuthBearerLoginCallbackHandler"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
JAAS, PROTOCOL, USERNAME, PASSWORD = "sasl.jaas.config", "security.protocol", "sasl.username", "sasl.password"
MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")  # Java's name, and librdkafka's other one
HOSTNAMES = "ssl.endpoint.identification.algorithm"
METHOD, ENDPOINT, SCOPE = "sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.scope"
EXTENSIONS, GRANT = "sasl.oauthbearer.extensions", "sasl.oauthbearer.grant.type"
# librdkafka has two names for each.
CLIENT_ID = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
CLIENT_SECRET = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")
FILES = (
    *(f"{part}.location" for part in (pem.CA, pem.CERTIFICATE, pem.KEY, pem.HTTPS_CA)),
    "ssl.keystore.location",
    "ssl.truststore.location",
)
SECRETS = re.compile(
    r"password|passphrase|secret|jaas|\.key\.pem$|^ssl\.keystore\.key$|^sasl\.oauthbearer\.config$|^basic\.auth\.user\.info$|^bearer\.auth\.token$"
)
# librdkafka's own, of which Java has another form: it is translated. Names that end in a dot are of all that begin so.
TRANSLATED = (
    USERNAME, PASSWORD, "sasl.mechanisms", "ssl.ca.", "ssl.certificate.", "ssl.key.location", "ssl.key.pem",
    "https.ca.", METHOD, SCOPE, EXTENSIONS, GRANT, "sasl.oauthbearer.client.",
)  # fmt: skip
# librdkafka's, which would make the two differ in what they trust or how they sign in.
ONE_SIDED = (
    "ssl.cipher.suites", "ssl.curves.list", "ssl.sigalgs.list", "ssl.crl.location", "ssl.engine.", "ssl.providers",
    "ssl.ca.certificate.stores", "sasl.oauthbearer.assertion.", "sasl.oauthbearer.metadata.",
    "sasl.oauthbearer.config", "enable.sasl.oauthbearer.unsecure.jwt",
)  # fmt: skip
# Whatever the section says of these, the one who reads or writes decides; Spark refuses them.
OURS = (
    "auto.offset.reset", "enable.auto.commit", "interceptor.classes", "key.deserializer", "value.deserializer",
    "key.serializer", "value.serializer",
)  # fmt: skip


def librdkafka(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The section for confluent-kafka. Its log lines are dropped: what matters is raised."""
    own = {name: _text(value) for name, value in properties.items() if known_to_librdkafka(name)}
    if own.get(HOSTNAMES) == "":
        own[HOSTNAMES] = "none"
    own_choice = "https.ca.pem" in own or own.get("https.ca.location", "probe") != "probe"
    if _mechanism(properties) == TOKENS and not own_choice and (trusted := pem.system_file()):
        own["https.ca.location"] = trusted  # its default is one distribution's file, also where it says `probe`
    return {"log_level": 0, **own}


def java(properties: Mapping[str, Any]) -> dict[str, str]:
    """The section for Kafka's Java client, as Spark uses it. Raises ConfigError where a file is gone."""
    left_out = (*TRANSLATED, *ONE_SIDED, *OURS)
    own = {name: _text(value) for name, value in properties.items() if not _among(name, left_out)}
    mechanism = _mechanism(properties)
    if mechanism:
        own["sasl.mechanism"] = mechanism
    if JAAS not in own:
        own |= _signing_in(properties, mechanism or "PLAIN")
    if HOSTNAMES in own and own[HOSTNAMES] == "none":
        own[HOSTNAMES] = ""
    tls = _tls(properties)
    if "ssl.keystore.key" in tls:
        own.pop(pem.PASSWORD, None)  # one that the key does not need is an error to Java, and nothing to librdkafka
    return {**own, **tls}


def locate_files(properties: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The section with absolute paths of files; relative ones are relative to a folder."""
    paths = {
        n: str((folder / str(properties[n])).absolute()) for n in FILES if properties.get(n) not in (None, "probe")
    }
    return {**properties, **paths}


def is_secret(name: str) -> bool:
    """Whether a property's value is for nobody to see."""
    return SECRETS.search(name) is not None


def variable(name: str) -> str:
    """The environment's variable for a property."""
    return VARIABLE + re.sub("[^A-Z0-9]", "_", name.upper())


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The properties that are secret and come from the environment."""
    properties = {
        v.removeprefix(VARIABLE).lower().replace("_", "."): value
        for v, value in environ.items()
        if v.startswith(VARIABLE)
    }
    return {name: value for name, value in properties.items() if is_secret(name)}


@functools.cache
def known_to_librdkafka(name: str) -> bool:
    """Whether librdkafka has a property of that name."""
    refusal = _refusal(name, "")
    return "No such configuration property" not in refusal and "Java" not in refusal


def complaints(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong in the section, or cannot mean the same to both clients: the property, and what was found and expected."""
    if set(properties) <= {"bootstrap.servers", "isolation.level"}:
        return
    wrong = False
    for name, message in (*_values(properties), *_protocol(properties)):
        wrong = True
        yield name, message
    if wrong:  # the checks below would complain about the same once more
        return
    yield from _one_sided(properties)
    if _protocol_of(properties).startswith("SASL_"):
        yield from _sasl(properties)
    if _protocol_of(properties).endswith("SSL") or _mechanism(properties) == TOKENS:
        yield from ((error.name, error.message) for error in pem.complaints(properties))


def notes(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Properties that are valid but may not do what was meant: the property, and what it does."""
    if _protocol_of(properties) == "SASL_PLAINTEXT" and _mechanism(properties) in ("PLAIN", TOKENS):
        what = "a password" if _mechanism(properties) == "PLAIN" else "a token"
        yield PROTOCOL, f"with SASL_PLAINTEXT {what} can be read on the way; SASL_SSL encrypts it"
    for name in properties:
        if name in OURS:
            yield name, "it has no effect: whoever reads or writes a topic decides that itself"


# --- Java's own ------------------------------------------------------------------------------------------------------------------


def _signing_in(properties: Mapping[str, Any], mechanism: str) -> dict[str, str]:
    if mechanism == TOKENS and ENDPOINT in properties:
        options = {
            "clientId": _first(properties, CLIENT_ID),
            "clientSecret": _first(properties, CLIENT_SECRET),
            "scope": properties.get(SCOPE),
            **{f"extension_{name}": value for name, value in _extensions(properties)},
        }
        if authorities := pem.find(properties, pem.HTTPS_CA):
            options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.certificates(authorities)}
        handler = {"sasl.login.callback.handler.class": TOKEN_HANDLER}
        return {**handler, JAAS: jaas(mechanism, options)}
    if USERNAME in properties and mechanism in MODULES:
        user = {"username": properties[USERNAME], "password": properties.get(PASSWORD)}
        return {JAAS: jaas(mechanism, user)}
    return {}


def jaas(mechanism: str, options: Mapping[str, Any]) -> str:
    """The value of ``sasl.jaas.config`` that logs in by a mechanism. Java's parser takes backslash escapes, but no line break in a
    quoted value: control characters are escaped."""

    def quote(value: object) -> str:
        return re.sub(
            r'["\\]|[\x00-\x1f]', lambda m: f"\\{m[0]}" if m[0] in '"\\' else f"\\{ord(m[0]):03o}", str(value)
        )

    words = [f'{name}="{quote(value)}"' for name, value in options.items() if value is not None]
    return " ".join([MODULES[mechanism], "required", *words]) + ";"


def _tls(properties: Mapping[str, Any]) -> dict[str, str]:
    """What is trusted and the client's certificate, as texts; empty where the section says nothing, or Java's own names."""
    if not _protocol_of(properties).endswith("SSL"):
        return {}
    settings: dict[str, str] = {}
    trusted = None if _has(properties, "ssl.truststore.") else pem.find(properties, pem.CA)
    if trusted:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem.certificates(trusted)}
    if "ssl.keystore.location" in properties and "ssl.keystore.type" not in properties:
        settings["ssl.keystore.type"] = "PKCS12"  # the one that librdkafka reads
    if _has(properties, "ssl.keystore."):
        return settings
    chain, key = pem.find(properties, pem.CERTIFICATE), pem.find(properties, pem.KEY)
    if chain and key:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": pem.certificates(chain),
            "ssl.keystore.key": pem.private_key(key),
        }
        if key.encrypted:
            settings[pem.PASSWORD] = _text(properties.get(pem.PASSWORD, ""))
    return settings


# --- what is wrong ---------------------------------------------------------------------------------------------------------------


def _values(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in properties.items():
        if value is None or isinstance(value, (dict, list)):
            kind = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
            yield name, f"found {kind}, expected a text, here or by ${variable(name)}"
        elif (is_secret(name) or name == USERNAME) and not isinstance(value, str):
            yield name, "found what YAML takes for no text, expected it in quotes"
        elif known_to_librdkafka(name) and (refusal := _refusal(name, librdkafka({name: value})[name])):
            what = "what librdkafka does not take" if is_secret(name) else f"{value} ({refusal})"
            yield name, f"found {what}, expected a value of this property"


def _protocol(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    protocol = _protocol_of(properties)
    if protocol not in PROTOCOLS:
        yield PROTOCOL, f"found {protocol}, expected {_or(PROTOCOLS)}"
        return
    shown = protocol if PROTOCOL in properties else "none"
    for name in properties:
        if name.startswith("sasl.") and not protocol.startswith("SASL_"):
            yield name, f"found it with {PROTOCOL} {shown}, expected SASL_SSL (or SASL_PLAINTEXT): nobody would sign in"
            return
        if name.startswith(("ssl.", "enable.ssl.")) and not protocol.endswith("SSL"):
            yield name, f"found it with {PROTOCOL} {shown}, expected SSL or SASL_SSL: nothing would be encrypted"
            return


def _one_sided(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in properties:
        if _among(name, ONE_SIDED):
            yield (
                name,
                "found a property of librdkafka, expected none: Java's client, which Spark has, has no such thing",
            )
    if _text(properties.get("enable.ssl.certificate.verification", True)).lower() in ("false", "f", "0"):
        name = "enable.ssl.certificate.verification"
        yield name, "found false, expected ssl.ca.location: Java's client, which Spark has, always verifies"
    if _has(properties, "ssl.truststore.") and not _has(properties, "ssl.ca."):
        name = next(n for n in properties if n.startswith("ssl.truststore."))
        yield name, "found Java's name alone, expected ssl.ca.location with a PEM file, which both read"
    inline = [n for n in properties if n in ("ssl.keystore.certificate.chain", "ssl.keystore.key")]
    if inline and not _has(properties, "ssl.certificate."):
        yield (
            inline[0],
            "found Java's name alone, expected ssl.certificate.location and ssl.key.location, which both read",
        )
    store = str(properties.get("ssl.keystore.location", ""))
    if store and not Path(store).is_file():
        yield "ssl.keystore.location", f"found no file {store}, expected one in PKCS#12"
    if store.endswith((".jks", ".jceks")) and not _has(properties, "ssl.certificate."):
        yield (
            "ssl.keystore.location",
            "found a store of Java's, expected ssl.certificate.location and ssl.key.location, which both read",
        )


def _sasl(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mechanism = _mechanism(properties)
    name = next((n for n in MECHANISMS if n in properties), PROTOCOL)
    if mechanism not in MODULES:
        yield (
            name,
            f"found {mechanism or 'no sasl.mechanism'}, expected one that both clients have: {_or(tuple(MODULES))}",
        )
    elif mechanism == TOKENS:
        yield from _tokens(properties, name)
    else:
        for wanted in (USERNAME, PASSWORD):
            if not properties.get(wanted):
                beside = f" beside {JAAS}, which librdkafka does not read" if JAAS in properties else ""
                yield name, f"found no {wanted}, expected one{beside}{_by_variable(wanted)}"


def _tokens(properties: Mapping[str, Any], mechanism: str) -> Iterator[tuple[str, str]]:
    method = str(properties.get(METHOD, "default"))
    if method.lower() != "oidc":
        yield (
            METHOD if METHOD in properties else mechanism,
            f"found {METHOD} {method}, expected oidc: tokens of an endpoint",
        )
        return
    for names in ((ENDPOINT,), CLIENT_ID, CLIENT_SECRET):
        if not _first(properties, names):
            yield METHOD, f"found no {names[0]}, expected one{_by_variable(names[0])}"
    if (grant := str(properties.get(GRANT, "client_credentials"))) != "client_credentials":
        yield GRANT, f"found {grant}, expected client_credentials, the one that Java's client has"


def _by_variable(name: str) -> str:
    return f", such as by ${variable(name)}" if is_secret(name) else ""


# --- words -----------------------------------------------------------------------------------------------------------------------


def _refusal(name: str, value: Any) -> str:
    """What librdkafka says against a property with a value; empty where it takes it. No client is made."""
    from confluent_kafka import KafkaException, Producer

    end = "statehouse.end"  # which it does not know: so it ends there
    try:
        Producer({name: value, end: ""})
    except KafkaException as error:
        text = error.args[0].str()
        return "" if end in text else text
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("librdkafka knows the end")


def _mechanism(properties: Mapping[str, Any]) -> str | None:
    name = _first(properties, MECHANISMS)
    return str(name).upper() if name else None


def _protocol_of(properties: Mapping[str, Any]) -> str:
    return str(properties.get(PROTOCOL, "PLAINTEXT")).upper()


def _extensions(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for pair in filter(None, str(properties.get(EXTENSIONS, "")).split(",")):
        name, _, value = pair.partition("=")
        yield name.strip(), value.strip()


def _first(properties: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((properties[name] for name in names if properties.get(name)), None)


def _has(properties: Mapping[str, Any], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in properties)


def _among(name: str, names: tuple[str, ...]) -> bool:
    return any(name.startswith(each) if each.endswith(".") else name == each for each in names)


def _text(value: Any) -> str:
    """As both clients read it: YAML's ``true`` is Python's ``True``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _or(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
