"""An endpoint that gives out tokens (OAuth's client credentials), and one that tells a broker by which key it signs them."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER, AUDIENCE, SECONDS = "https://issuer.example", "kafka", 300


class Issuer:
    """Two servers on loopback: ``token_url`` by TLS for clients, ``keys_url`` without for the broker. ``asked`` are the forms of those
    who have got a token."""

    def __init__(self, client: str, secret: str, certificate: Path, key: Path) -> None:
        self._credentials = f"{client}:{secret}"
        self._client = client
        self._key = rsa.generate_private_key(65537, 2048)
        self.asked: list[dict[str, list[str]]] = []
        by_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        by_tls.load_cert_chain(certificate, key)
        self._servers = [self._serve(None), self._serve(by_tls)]
        plain, safe = (server.server_address[1] for server in self._servers)
        self.keys_url, self.token_url = f"http://127.0.0.1:{plain}/keys", f"https://127.0.0.1:{safe}/token"

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _serve(self, by_tls: ssl.SSLContext | None) -> ThreadingHTTPServer:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, {"keys": [issuer._public()]})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                kind, _, given = self.headers.get("Authorization", "").partition(" ")
                if kind != "Basic" or base64.b64decode(given).decode() != issuer._credentials:
                    self._answer(401, {"error": "invalid_client", "error_description": "a wrong secret"})
                elif form.get("grant_type") != ["client_credentials"]:
                    self._answer(400, {"error": "unsupported_grant_type"})
                else:
                    issuer.asked.append(form)
                    token = issuer._token(form.get("scope", [""])[0])
                    self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": SECONDS})

            def _answer(self, status: int, body: dict) -> None:
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if by_tls:
            server.socket = by_tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def _public(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        n, e = (_text(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (numbers.n, numbers.e))
        return {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": n, "e": e}

    def _token(self, scope: str) -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": self._client, "iat": now, "exp": now + SECONDS, "scope": scope}
        signed = ".".join(_text(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, claims))
        return f"{signed}.{_text(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
