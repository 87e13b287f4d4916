"""The file: what is right is read, what is wrong names its line, what was found and what was expected."""

from __future__ import annotations

import json
import pickle

import pytest

from statehouse.config import load
from statehouse.errors import ConfigError
from statehouse.status import store_status
from statehouse.values import milliseconds, parse_address, parse_schema

GOOD = """root: ./lake
kafka:
  bootstrap.servers: 127.0.0.1:9092
streams:
  reports:
    topic: agent-reports
    schema: key STRING, agent STRING, value STRING, ts TIMESTAMP
    time: ts
stores:
  status:
    stream: reports
    key: key
    agent: agent
    value: value
    reduce: majority
"""


def write(tmp_path, text):
    file = tmp_path / "statehouse.yaml"
    file.write_text(text)
    return file


def test_a_good_file_and_its_defaults(tmp_path):
    config = load(write(tmp_path, GOOD), {})
    assert config.root == str(tmp_path / "lake"), "relative to the file, not to where the command runs"
    assert (config.merge_every, config.tombstones) == (5000, 7 * 86_400_000)
    assert [k.name for k in config.stores["status"].keys] == ["key"]
    assert config.kafka == {"bootstrap.servers": "127.0.0.1:9092", "isolation.level": "read_committed"}


def test_the_environment_overrides_scalars(tmp_path):
    environ = {
        "STATEHOUSE_ROOT": str(tmp_path / "elsewhere"),
        "STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS": "broker:1",
        "STATEHOUSE_STORES__STATUS__REDUCE": "latest",
        "STATEHOUSE_KAFKA__ISOLATION_LEVEL": "read_uncommitted",
        "STATEHOUSE_MERGE_EVERY": "1 minute",
        "STATEHOUSE_UNRELATED": "1",
    }
    config = load(write(tmp_path, GOOD), environ)
    assert config.root == str(tmp_path / "elsewhere")
    assert config.kafka == {"bootstrap.servers": "broker:1", "isolation.level": "read_uncommitted"}
    assert config.stores["status"].reduce == "latest"
    assert config.merge_every == 60_000


@pytest.mark.parametrize(
    ("found", "instead", "line", "says"),
    [
        (
            "  bootstrap.servers: 127.0.0.1:9092",
            "  isolation.level: read_comitted",
            2,
            "isolation.level: found 'read_comitted', expected read_committed or read_uncommitted",
        ),
        (
            "reduce: majority",
            "reduce: majorty",
            10,
            "found reduce: 'majorty', expected one of at_least_one, avg",
        ),
        ("reduce: majority", "reduce: at_least_one(alarm)", 10, "expected at_least_one(value, otherwise)"),
        ("    agent: agent\n", "", 10, "found no 'agent', expected one: majority"),
        ("    value: value\n", "", 10, "found no 'value', expected an expression: majority"),
        ("value: value\n", "value: (value\n", 14, "expected a Spark SQL expression"),
        ("stream: reports", "stream: report", 11, "found stream 'report', expected one of reports"),
        ("topic: agent-reports", "topic: 'agent reports'", 6, "found 'agent reports'"),
        ("    topic: agent-reports\n", "", 5, "found no 'topic', expected one"),
        ("key STRING, agent", "key STRNG, agent", 7, "STRNG"),
        ("key STRING, agent", "_key STRING, agent", 7, "names that begin with '_'"),
        ("key STRING, agent", "agent STRING, agent", 7, "'agent' twice"),
        (
            "    time:",
            "    cluster_by: store\n    time:",
            5,
            "found cluster_by: 'store', expected columns of the schema",
        ),
        ("key: key", "key: [key, upper(agent)]", 10, "expected a column or 'expression AS name'"),
        ("key: key", "key: [key, value]", 10, "found a key part named 'value'"),
        ("    reduce", "    reduces: x\n    reduce", 15, "found 'reduces', expected one of agent, buckets, key"),
        ("root: ./lake", "root: ./lake\nmerge_every: often", 2, "expected a duration such as '5 seconds'"),
        ("  status:", "  sta/tus:", 10, "expected a letter, then letters, digits"),
        ("root: ./lake", "root: ./la#ke", 1, "expected a path without #"),
        ("stores:", "stores: [", 11, "not YAML"),
        (
            "root: ./lake",
            "api: {max_bodies: 1}",
            1,
            "found 'max_bodies', expected one of address, cache, copies, cors, discover, freshness, max_body",
        ),
        ("root: ./lake", "api:\n  rate_limit: -1", 2, "found -1"),
        ("root: ./lake", "api:\n  cors: [app.example.org/]", 2, "such as 'https://app.example.org'"),
        ("root: ./lake", "api:\n  max_lag: soon", 2, "expected a duration"),
        ("root: ./lake", "jobs: {metrics: 9100}", 1, "found 9100, expected a host and a port such as '127.0.0.1:9100'"),
        ("root: ./lake", "jobs:\n  metrics: localhost:99999", 2, "found 'localhost:99999', expected a host and a port"),
        ("root: ./lake", "jobs: {metric: 1}", 1, "found 'metric', expected one of metrics"),
    ],
)
def test_a_wrong_file_names_the_line(tmp_path, found, instead, line, says):
    assert found in GOOD
    file = write(tmp_path, GOOD.replace(found, instead, 1))
    with pytest.raises(ConfigError) as error:
        load(file, {})
    assert f"{file}:{line}: " in str(error.value)
    assert says in str(error.value)


def test_the_api_section(tmp_path):
    assert load(write(tmp_path, GOOD), {}).api.tokens is None
    file = write(tmp_path, GOOD + "api: {tokens: ./secret/tokens.yaml, cors: ['*'], max_lag: 1 minute}\n")
    found = load(file, {"STATEHOUSE_API__MAX_BODY": "7"}).api
    assert found.tokens == str(tmp_path / "secret/tokens.yaml"), "relative to the file"
    assert (found.cors, found.max_lag, found.max_body) == (["*"], 60_000, 7)
    environ = {"STATEHOUSE_API__TOKENS": str(tmp_path / "t.yaml"), "STATEHOUSE_API__RATE_LIMIT": "2.5"}
    found = load(write(tmp_path, GOOD), environ).api
    assert (found.tokens, found.rate_limit) == (str(tmp_path / "t.yaml"), 2.5), "also where the file has no api"


def test_the_jobs_section(tmp_path):
    assert load(write(tmp_path, GOOD), {}).jobs.metrics is None
    assert load(write(tmp_path, GOOD + "jobs: {metrics: 127.0.0.1:9100}\n"), {}).jobs.metrics == "127.0.0.1:9100"
    found = load(write(tmp_path, GOOD), {"STATEHOUSE_JOBS__METRICS": "localhost:0"}).jobs.metrics
    assert parse_address(found) == ("localhost", 0), "also where the file has no jobs"
    assert parse_address("[::1]:9100") == ("::1", 9100)


def test_a_configuration_can_be_sent_to_another_process(tmp_path):
    config = load(write(tmp_path, GOOD), {})
    sent = pickle.loads(pickle.dumps(config))
    assert sent == config
    assert sent.stores["status"].reducer is config.stores["status"].reducer


def test_a_missing_file_and_one_that_is_no_mapping(tmp_path):
    with pytest.raises(ConfigError, match="expected a statehouse.yaml"):
        load(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="found list, expected root"):
        load(write(tmp_path, "- 1\n"), {})


def test_a_composite_keys_parts_keep_the_users_words(tmp_path):
    keys = "key: [agent, 'upper( key )  as  k', \"concat(key, ' AS k') AS both\"]"
    store = load(write(tmp_path, GOOD.replace("key: key", keys)), {}).stores["status"]
    assert [(k.name, k.expression) for k in store.keys] == [
        ("agent", "agent"),
        ("k", "upper( key )"),
        ("both", "concat(key, ' AS k')"),
    ]


def test_durations_and_schemas():
    assert [milliseconds(t) for t in ("5 seconds", "1.5 hours", "7 days")] == [5000, 5_400_000, 604_800_000]
    columns = parse_schema("a INT NOT NULL, b ARRAY<STRUCT<x: INT, y: STRING>>, c DECIMAL(10, 2)")
    assert [(c.name, c.required) for c in columns] == [("a", True), ("b", False), ("c", False)]


def test_the_status_tells_a_reducer_of_ones_own_by_a_word(tmp_path):
    own = "reduce: {fold: {low: min(value)}, combine: {low: 'least(a.low, b.low)'}, result: low}"
    config = load(write(tmp_path, GOOD.replace("reduce: majority", own)), {})
    assert json.loads(json.dumps(store_status(config, "status")))["reduce"] == "own"
