"""Certificates and private keys in PEM, as ``kafka:`` names them: read, and tried before a client is.

librdkafka takes the names of files. Java's client is given their texts: what a job is told goes to Spark's executors with it, which need
no such files then, and the key is in no second file.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from statehouse.errors import ConfigError

BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
HASHED = re.compile(r"[0-9a-f]{8}\.\d+")  # as OpenSSL's c_rehash names the certificates of a folder
ENCRYPTED, PLAIN = "ENCRYPTED PRIVATE KEY", "PRIVATE KEY"  # PKCS#8, the only one that Java reads
CONVERT = "openssl pkcs8 -topk8 -in {file} -out key.pem"
CA, CERTIFICATE, KEY, PASSWORD = "ssl.ca", "ssl.certificate", "ssl.key", "ssl.key.password"
HTTPS_CA = "https.ca"  # of a token endpoint
BUNDLES = (  # Debian, Red Hat, SUSE, Alpine and macOS
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


class PemSource(NamedTuple):
    """What a property has, by its text (``ssl.ca.pem``) or by a file (``ssl.ca.location``): its name, its text, and the file."""

    name: str
    text: str
    file: str = ""

    def blocks(self, kind: str) -> list[str]:
        """The blocks whose kinds end so, such as ``CERTIFICATE``."""
        return [match[0] for match in BLOCK.finditer(self.text) if match[1].endswith(kind)]

    @property
    def key_kind(self) -> str | None:
        """The kind of the first private key; None where there is none."""
        return next((match[1] for match in BLOCK.finditer(self.text) if match[1].endswith(PLAIN)), None)

    @property
    def encrypted(self) -> bool:
        """Whether the first private key is encrypted."""
        return self.key_kind == ENCRYPTED or "Proc-Type: 4,ENCRYPTED" in self.text


class PemError(ConfigError):
    """A property's ``name``, and the ``message``: what was found and expected."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"kafka.{name}: {message}")
        self.name, self.message = name, message


def find(properties: Mapping[str, Any], part: str) -> PemSource | None:
    """What ``part`` (:data:`CA`, …) is; None where it is not named. Raises :class:`PemError` where the file cannot be read."""
    text, location = properties.get(f"{part}.pem"), properties.get(f"{part}.location")
    if text is not None:
        return PemSource(f"{part}.pem", str(text))
    if location is None or (part in (CA, HTTPS_CA) and location == "probe"):
        return None
    name, path = f"{part}.location", Path(str(location))
    try:
        files = sorted(f for f in path.iterdir() if HASHED.fullmatch(f.name)) if path.is_dir() else [path]
        return PemSource(name, "\n".join(file.read_text(errors="replace") for file in files), str(path))
    except OSError as error:
        raise PemError(name, f"found {path} ({error.strerror}), expected a file in PEM") from None


def system_file() -> str | None:
    """The file with the authorities that this system trusts; None where it is not found."""
    return next(
        (file for file in (ssl.get_default_verify_paths().cafile, *BUNDLES) if file and Path(file).is_file()), None
    )


def certificates(source: PemSource) -> str:
    """Its certificates. Raises :class:`PemError` where there is none."""
    blocks = source.blocks("CERTIFICATE")
    if not blocks:
        raise PemError(source.name, f"found no certificate{_in_file(source)}, expected -----BEGIN CERTIFICATE-----")
    return "\n".join(blocks)


def private_key(source: PemSource) -> str:
    """Its private key. Raises :class:`PemError` where there is none that Java's client reads."""
    kind = source.key_kind
    if kind is None:
        raise PemError(source.name, f"found no private key{_in_file(source)}, expected -----BEGIN PRIVATE KEY-----")
    if kind not in (PLAIN, ENCRYPTED):
        command = CONVERT.format(file=source.file or "old.pem")
        raise PemError(
            source.name, f"found an {kind}{_in_file(source)}, expected PKCS#8, which Spark reads too: {command}"
        )
    return source.blocks(PLAIN)[0]


def _in_file(source: PemSource) -> str:
    return f" in {source.file}" if source.file else ""


def complaints(properties: Mapping[str, Any]) -> Iterator[PemError]:
    """What is wrong with the files and texts: missing, of another format, a key of another certificate, a wrong password."""
    for part in (CA, HTTPS_CA):
        try:
            if authorities := find(properties, part):
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates(authorities))
        except PemError as error:
            yield error
        except (ssl.SSLError, ValueError) as error:
            yield PemError(
                authorities.name if authorities else part, f"found no certificate that can be read ({_reason(error)})"
            )
    try:
        chain, key = find(properties, CERTIFICATE), find(properties, KEY)
        for one, other in ((chain, f"{KEY}.location"), (key, f"{CERTIFICATE}.location")):
            if one and not (chain and key):
                raise PemError(one.name, f"found it without {other}, expected both: they are the client's certificate")
        if chain and key:
            certificates(chain)
            private_key(key)
            _try(chain, key, properties.get(PASSWORD))
    except PemError as error:
        yield error


def _try(chain: PemSource, key: PemSource, password: Any) -> None:
    """Raise :class:`PemError` where a key is not the certificate's, or not opened by the password. Texts are tried by those who use them."""
    if key.encrypted and not password:
        raise PemError(
            key.name, f"found an encrypted key, expected {PASSWORD}, such as by $STATEHOUSE_KAFKA__SSL_KEY_PASSWORD"
        )
    if key.encrypted and not str(password).isascii():
        raise PemError(PASSWORD, "found letters that are not ASCII, expected a password without: Java takes no others")
    if not (chain.file and key.file):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(chain.file, key.file, str(password or ""))
    except (ssl.SSLError, ValueError) as error:
        if key.encrypted and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH":
            raise PemError(
                PASSWORD, f"found one that does not open {key.file} ({_reason(error)}), expected the key's"
            ) from None
        raise PemError(key.name, f"found {key.file} ({_reason(error)}), expected the key of {chain.file}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")
