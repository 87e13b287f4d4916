"""A private key that is encrypted, opened on the driver.

Kafka's client leaves that to a part of Java that knows the old ways of encryption alone, and not OpenSSL's default (PBES2). The same
Java can do it if it is asked otherwise.
"""

from __future__ import annotations

import base64
import textwrap
from typing import Any

from py4j.protocol import Py4JError

from statehouse.errors import ConfigError, first_line

BEGIN, END = "-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----"


def is_encrypted(pem: str) -> bool:
    """Whether a text is an encrypted key in PKCS#8."""
    return BEGIN in pem


def decrypt(gateway: Any, pem: str, password: str) -> str:
    """The key without its encryption, in PKCS#8; ``gateway`` is py4j's to a JVM. Raises ConfigError where Java cannot open it."""
    jvm = gateway.jvm
    try:
        sealed = jvm.javax.crypto.EncryptedPrivateKeyInfo(base64.b64decode(pem.split(BEGIN)[1].split(END)[0]))
        parameters = sealed.getAlgParameters()
        # Of PBES2 the name says nothing, and the parameters do: PBEWithHmacSHA256AndAES_256.
        algorithm = (
            parameters.toString() if sealed.getAlgName() in ("PBES2", "1.2.840.113549.1.5.13") else sealed.getAlgName()
        )
        letters = gateway.new_array(jvm.char, len(password))
        for index, letter in enumerate(password):
            letters[index] = letter
        secret = jvm.javax.crypto.SecretKeyFactory.getInstance(algorithm).generateSecret(
            jvm.javax.crypto.spec.PBEKeySpec(letters)
        )
        cipher = jvm.javax.crypto.Cipher.getInstance(algorithm)
        cipher.init(2, secret, parameters)  # to decrypt
        text = base64.b64encode(bytes(sealed.getKeySpec(cipher).getEncoded())).decode()
    except (Py4JError, ValueError, IndexError) as error:
        raise ConfigError(
            f"kafka.ssl.key: found a key that Java cannot open ({first_line(error)}), expected it encrypted by `openssl pkcs8 -topk8`"
        ) from None
    return "\n".join(["-----BEGIN PRIVATE KEY-----", *textwrap.wrap(text, 64), "-----END PRIVATE KEY-----"])
