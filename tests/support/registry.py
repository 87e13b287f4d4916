"""A schema registry of the tests' own: so much of Confluent's REST protocol as producers and statehouse use, over a dict in memory.

A real one takes 13 seconds to start, and cannot be made to be away: `tests/statehouse/test_real_registry.py` has that. Here schemas are kept as they were
sent and not checked. ``away`` makes it answer nobody, ``sign_in`` those alone who send this header, ``refusing`` refuse all schemas for
this reason.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class SchemaRegistry:
    """As a context manager: started, and at the end stopped."""

    def __init__(self, port: int = 0) -> None:
        self.schemas: list[dict] = []  # a schema's id is its place, from 1 on
        self.subjects: dict[str, list[int]] = {}  # the ids of its versions
        self.asked: list[str] = []
        self.away = False
        self.sign_in: str | None = None
        self.refusing: str | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> SchemaRegistry:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: tuple = ()) -> int:
        """The id of a schema, which is one of the subject's from now on. References are (name, subject, version)."""
        names = ("name", "subject", "version")
        body = {"schema": schema, "schemaType": kind}
        if references:
            body["references"] = [dict(zip(names, reference, strict=True)) for reference in references]
        return self._register(subject, body)

    def _register(self, subject: str, body: dict) -> int:
        found = {
            "schemaType": "AVRO",
            **{n: v for n, v in body.items() if v and n in ("schema", "schemaType", "references")},
        }
        if found not in self.schemas:
            self.schemas.append(found)
        id = self.schemas.index(found) + 1
        versions = self.subjects.setdefault(subject, [])
        if id not in versions:
            versions.append(id)
        return id

    def guid(self, id: int) -> str:
        """The GUID of a schema."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{id} {json.dumps(self.schemas[id - 1], sort_keys=True)}"))

    def answer(self, method: str, path: str, body: dict | None) -> tuple[int, dict]:
        """The status and the body of an answer."""
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            id = int(found[1])
            return (200, self._shown(id)) if 0 < id <= len(self.schemas) else (404, _error(40403, "Schema not found"))
        if found := re.fullmatch(r"/schemas/guids/([0-9a-f-]+)", path):
            id = next((id for id in range(1, len(self.schemas) + 1) if self.guid(id) == found[1]), 0)
            return (200, self._shown(id)) if id else (404, _error(40403, "Schema not found"))
        if found := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            if self.refusing:
                return 409, _error(409, self.refusing)
            return 200, {"id": self._register(unquote(found[1]), body or {})}
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\w+)", path):
            versions = self.subjects.get(unquote(found[1]), [])
            place = len(versions) if found[2] == "latest" else int(found[2])
            if not versions:
                return 404, _error(40401, "Subject not found")
            if not 0 < place <= len(versions):
                return 404, _error(40402, "Version not found")
            return 200, {**self._shown(versions[place - 1]), "subject": unquote(found[1]), "version": place}
        if (found := re.fullmatch(r"/subjects/([^/]+)", path)) and method == "POST":
            subject = unquote(found[1])
            for version, id in enumerate(self.subjects.get(subject, []), 1):
                if self.schemas[id - 1]["schema"] == (body or {}).get("schema"):
                    return 200, {**self._shown(id), "subject": subject, "version": version}
            return 404, _error(40403, "Schema not found")
        return 404, {"message": "no such resource"}

    def _shown(self, id: int) -> dict:
        return {**self.schemas[id - 1], "id": id, "guid": self.guid(id)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                registry.asked.append(f"{self.command} {self.path}")
                if registry.away:
                    self.close_connection = True
                    return
                status, found = 401, _error(401, "Unauthorized")
                if registry.sign_in in (None, self.headers.get("Authorization")):
                    status, found = registry.answer(self.command, urlsplit(self.path).path, body)
                content = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _error(code: int, message: str) -> dict:
    return {"error_code": code, "message": message}
