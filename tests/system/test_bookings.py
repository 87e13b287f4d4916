"""16,044 real bookings through Kafka, `statehouse run --once` and HTTP, against a few lines of plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

import pytest
import requests

from tests.support.bookings import CONFIG, FILE, expected, sent_to
from tests.support.depth import deep
from tests.support.processes import statehouse
from tests.support.records import wait


def serve(folder, port):
    """The API as its own process, ready to answer."""
    log = open(folder / "serve.log", "wb")  # noqa: SIM115 (it lives as long as the process)
    process = subprocess.Popen(
        [sys.executable, "-m", "statehouse.cli", "serve", "--port", str(port)],
        cwd=folder,
        stdout=log,
        stderr=log,
    )

    def up():
        assert process.poll() is None, (folder / "serve.log").read_text()
        try:
            return requests.get(f"http://127.0.0.1:{port}/healthz", timeout=2).ok
        except requests.ConnectionError:
            return False

    wait(up, what="the API")
    return process


def queryable(base, sent):
    """The topic by the key of its messages, and by customer and time."""
    for customer in (1, 300, 599):
        mine = [row for row in sent if row["customer_id"] == customer]
        last = max(enumerate(mine), key=lambda found: (found[1]["booked_at"], found[0]))[1]
        assert json.loads(requests.get(f"{base}/stores/by_key/keys/{customer}").json()["value"]) == last
        times = sorted(row["booked_at"] for row in mine)[5:10]
        query = {"from": f"{customer}/{times[0]}", "to": f"{customer}/{times[-1]}"}
        found = requests.get(f"{base}/stores/by_time/keys", params=query).json()["rows"]
        wanted = {row["booked_at"]: row["item_id"] for row in mine if times[0] <= row["booked_at"] < times[-1]}
        assert {row["booked_at"].replace(".000000", "")[:19]: row["value"] for row in found} == {
            at.replace(" ", "T")[:19]: item for at, item in wanted.items()
        }


@deep
@pytest.mark.slow
@pytest.mark.skipif(not FILE.is_file(), reason="the shared data is not beside the checkout")
def test_the_bookings_of_every_customer(broker, tmp_path, unused_tcp_port):
    topic = f"bookings-{os.getpid()}"
    (tmp_path / "statehouse.yaml").write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=topic))
    sent = sent_to(broker.bootstrap, topic)
    statehouse(tmp_path, "run", "--once")
    status = json.loads(statehouse(tmp_path, "status", "--json"))
    assert (
        status["streams"][0]["events"],
        status["streams"][0]["quarantined"],
        status["streams"][0]["behind"],
    ) == (16_044, 0, 0)
    before = {s["name"]: s["version"] for s in status["stores"]}
    statehouse(tmp_path, "run", "--once")
    again = json.loads(statehouse(tmp_path, "status", "--json"))
    assert {s["name"]: s["version"] for s in again["stores"]} == before, "a second run makes no new state version"

    server = serve(tmp_path, unused_tcp_port)
    base = f"http://127.0.0.1:{unused_tcp_port}"
    try:
        listed = {row["name"]: row for row in again["stores"]}
        columns = ("keys", "position", "head", "lag_ms", "version")

        def same():  # a store that was not looked after for two seconds says so by its lag: it is asked for again
            served = requests.get(f"{base}/stores").json()["stores"]
            return all(s[c] == listed[s["name"]][c] for s in served for c in columns) and len(served) == len(listed)

        wait(same, what="the stores as `status` has them")
        wanted = expected()
        assert len(wanted) == 599
        iso = {c: w[0] if w[0].endswith("Z") else w[0].replace(" ", "T") + "Z" for c, w in wanted.items()}
        points, scans = {}, defaultdict(dict)
        for store in ("latest_booking", "bookings_made", "usual_clerk"):
            for customer in wanted:
                row = requests.get(f"{base}/stores/{store}/keys/{customer}").json()
                points.setdefault(customer, []).append(row["value"])
            cursor = ""
            while cursor is not None:
                page = requests.get(f"{base}/stores/{store}/keys?limit=250&cursor={cursor}").json()
                scans[store].update({row["key"]: row["value"] for row in page["rows"]})
                cursor = page["cursor"]
        for customer, (_, made, clerk) in wanted.items():
            assert points[customer] == [iso[customer], made, clerk]
            assert [scans[s][customer] for s in ("latest_booking", "bookings_made", "usual_clerk")] == points[customer]
        assert all(len(rows) == 599 for rows in scans.values())
        queryable(base, [json.loads(line) for line in sent])
    finally:
        server.terminate()
        assert server.wait(120) == 0
