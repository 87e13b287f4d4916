"""The nginx configurations of docs/nginx, under a real nginx, before real instances."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from statehouse.config.models import Config
from tests.support.api_lake import eventually
from tests.support.fleet import SHARDS, Instances, answers, config, filled, fleet, get, raw
from tests.support.records import free_port

__all__ = ["config"]  # a fixture

CONFIGURATIONS = Path(__file__).parents[2] / "docs/nginx"
NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)


@contextmanager
def nginx(name: str, folder: Path, instances: Instances) -> Iterator[int]:
    """nginx with a configuration of ours, whose addresses are replaced by those of here; its port."""
    if NGINX is None:
        assert os.environ.get("CI") != "true", "CI needs nginx"
        pytest.skip("needs nginx")
    port, text = free_port(), (CONFIGURATIONS / name).read_text()
    for number, of in enumerate(instances.ports, 8081):
        text = text.replace(f"127.0.0.1:{number}", f"127.0.0.1:{of}")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("/etc/nginx/?.lua", f"{CONFIGURATIONS}/?.lua")
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = text.replace("http {", f"http {{ access_log {folder}/access.log; {temporary}")
    (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid; error_log {folder}/error.log; user root;\n{text}")
    command = [NGINX, "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            eventually(lambda: process.poll() is not None or answers(port))
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            yield port
        finally:
            process.terminate()
            process.wait(120)


def forwarded(instances: Instances) -> int:
    """How many point reads the instances have had in all, as they count them."""
    found = Counter()
    for port in instances.running:
        for line in raw(port, "/metrics")[2].decode().splitlines():
            if line.startswith("statehouse_http_request_seconds_count{") and "/keys/<key:key>" in line:
                found[port] += int(float(line.rpartition(" ")[2]))
    return sum(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["round-robin.conf", "owners.conf"])
def test_every_key_is_found_through_nginx_while_an_instance_dies(name: str, config: Config, tmp_path: Path) -> None:
    names, _ = filled(config, 300)
    with fleet(tmp_path, 3) as instances:
        instances.settled()
        with nginx(name, tmp_path, instances) as port:
            eventually(lambda: get(port, "/processors")[1]["shards"] == SHARDS)
            before = forwarded(instances)
            plain = [key for key in names if key and not re.search(r"(^|/)\.\.?(/|$)|\0", key)]
            for key in plain:
                status, found = get(port, f"/stores/last/keys/{quote(key, safe='')}")
                assert (status, found.get("key")) == (200, key)
            hops = forwarded(instances) - before - len(plain)
            if name == "owners.conf":
                assert hops <= len(plain) // 50, "nearly each one was asked where it is"
            else:
                assert hops > len(plain) // 10, "a third of them was not where it was asked for"
            for key in plain[20:60]:
                assert get(port, f"/stores/pairs/keys/{quote(key, safe='')}/0")[0] in (200, 404)
            instances.kill(instances.ports[0])
            for key in plain:
                assert get(port, f"/stores/last/keys/{quote(key, safe='')}")[1].get("key") == key
            assert len(get(port, "/stores/last/keys?limit=9000")[1]["rows"]) == len(names)
        said = (tmp_path / "error.log").read_text()
        assert "lua" not in said.replace("[lua] ", ""), said[-3000:]
