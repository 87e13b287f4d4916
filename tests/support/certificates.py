"""Certificates of an authority of the tests' own, for this machine's loopback address, in PEM."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

ADDRESS = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
PEM, PKCS8, PKCS1 = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.PrivateFormat.TraditionalOpenSSL,
)


class Authority:
    """Signs certificates; ``file`` is its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key, self._name = _new_key(), _named("authority")
        self.certificate = self._sign(self._key, self._name, authority=True)
        self.file = self._write("authority.pem", self.certificate)

    def issue(
        self, name: str, password: str | None = None, form: serialization.PrivateFormat = PKCS8
    ) -> tuple[Path, Path]:
        """The files of a certificate and of its private key."""
        key = _new_key()
        opened = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        certificate = self._sign(key, _named(name))
        text = key.private_bytes(PEM, form, opened).decode()
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", text)

    def _sign(self, key: rsa.RSAPrivateKey, name: x509.Name, authority: bool = False) -> str:
        now = dt.datetime.now(dt.timezone.utc)
        made = (
            x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(ADDRESS, critical=False)
        )
        return made.sign(self._key, hashes.SHA256()).public_bytes(PEM).decode()

    def _write(self, name: str, text: str) -> Path:
        file = self._folder / name
        file.write_text(text)
        return file


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
