"""What fails is tried again by itself, keeps no other, and is said where people look: log, exit status, `status`, API, metrics."""

from __future__ import annotations

import json
import signal

import pytest
from py4j.protocol import Py4JNetworkError

from api import create_app
from jobs import attempts as trying
from jobs.attempts import Attempts
from statehouse import cli
from statehouse.config.file import load
from statehouse.failures import failing
from tests.support.records import create, produce, recreate, rows

CONFIG = """root: ./lake
kafka: {{bootstrap.servers: "{bootstrap}"}}
streams:
  anew: {{topic: {topic}-anew, schema: "key STRING, n BIGINT"}}
  s: {{topic: {topic}, schema: "key STRING, n BIGINT"}}
stores:
  other: {{stream: anew, key: key, value: n, reduce: sum}}
  changed: {{stream: s, key: key, value: {value}, reduce: sum}}
  total: {{stream: s, key: key, value: n, reduce: sum}}
routes:
  out: {{from: s, select: [key, n], to: {{table: out}}}}
"""


@pytest.fixture
def handlers():
    """The command's handlers of signals are taken away again."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
def test_run_once_tries_all_and_says_what_failed(spark, broker, tmp_path, handlers, capsys, caplog):
    file, topic = tmp_path / "statehouse.yaml", f"attempts-{tmp_path.name}"

    def run(value="n"):
        file.write_text(CONFIG.format(bootstrap=broker.bootstrap, topic=topic, value=value))
        caplog.clear()
        return cli.main(["run", "--once", "-c", str(file)])

    for name in (topic, f"{topic}-anew"):
        create(broker.bootstrap, name)
        produce(broker.bootstrap, name, [("k", {"key": "k", "n": 1}, None, 0)])
    assert run() == 0
    recreate(broker.bootstrap, f"{topic}-anew")
    for name in (topic, f"{topic}-anew"):
        produce(broker.bootstrap, name, [("k", {"key": "k", "n": 1}, None, 0)])
    capsys.readouterr()
    assert run(value="n + 1") == 1
    config = load(file, {})
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert [line.partition(":")[0] for line in lines] == ["ingest anew", "merge changed"]
    assert all("\n" not in line for line in lines)
    assert "failed: ingest anew, merge changed" in capsys.readouterr().err
    assert [r["value"] for r in rows(spark, f"{config.root}/state/total")] == [2]
    assert [r["value"] for r in rows(spark, f"{config.root}/state/changed")] == [1]
    assert len(rows(spark, f"{config.root}/routes/out")) == 2
    assert cli.main(["status", "--json", "-c", str(file)]) in (0, None)
    status = json.loads(capsys.readouterr().out)
    assert [(f["job"], f["name"]) for f in status["failing"]] == [("ingest", "anew"), ("merge", "changed")]
    app = create_app(config.model_copy(update={"api": config.api.model_copy(update={"freshness": "changelog"})}))
    try:
        shown = {s["name"]: s["error"] for s in app.test_client().get("/stores").get_json()["stores"]}
        metrics = app.test_client().get("/metrics").text
    finally:
        app.extensions["statehouse"].stop()
    assert shown["total"] is None and shown["changed"].startswith("merge changed is failing since ")
    assert "deleted and made again" in shown["other"]
    for store, is_failing in (("total", 0.0), ("changed", 1.0), ("other", 1.0)):
        assert f'statehouse_store_failing{{store="{store}"}} {is_failing}' in metrics
    assert run() == 1
    assert failing(config, "merge") == {} and list(failing(config, "ingest")) == ["anew"]
    assert [r["value"] for r in rows(spark, f"{config.root}/state/changed")] == [2]


STORES = """
streams: {{s: {{topic: t, schema: k STRING}}}}
stores:
  a: {{stream: s, key: k, reduce: count}}
{b}
"""


def test_what_is_no_more_in_the_file_does_not_fail_and_without_a_jvm_all_does(lake):
    attempts = Attempts(lake(STORES.format(b="  b: {stream: s, key: k, reduce: count}")), "merge")

    def fails(error):
        raise error

    for name in "ab":
        attempts.run(name, lambda: fails(ValueError("broken")))
    config = lake(STORES.format(b=""))
    assert list(failing(config, "merge")) == ["a"]
    for gone in (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")):
        with pytest.raises(type(gone)):
            Attempts(config, "merge").run("a", lambda gone=gone: fails(gone))
    assert failing(config, "merge")["a"]["error"] == "broken"


def test_each_name_waits_by_itself_ever_longer_and_what_succeeds_is_forgotten(lake, monkeypatch):
    config, now = lake(STORES.format(b="  b: {stream: s, key: k, reduce: count}")), [100.0]
    monkeypatch.setattr(trying.time, "monotonic", lambda: now[0])
    attempts, calls = Attempts(config, "merge"), []

    def fails(name):
        calls.append(name)
        raise ValueError(f"{name} is broken\nand more")

    waits = []
    for _ in range(7):
        assert attempts.run("a", lambda: fails("a")) is None
        assert attempts.run("b", lambda: "fine") == "fine"
        waits.append(attempts.wait("a"))
        assert attempts.run("a", lambda: fails("a")) is None, "it is too early"
        now[0] += attempts.wait("a")
    assert waits == [2, 4, 8, 16, 30, 30, 30] and calls == ["a"] * 7
    assert failing(config, "merge")["a"]["error"] == "a is broken" and set(attempts.errors) == {"a"}
    again = Attempts(config, "merge")  # another process, or the next scheduled run
    assert again.run("a", lambda: 1) == 1
    assert failing(config, "merge") == {} and not again.errors
