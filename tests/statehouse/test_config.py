"""The file: what is right is read, what is wrong names its line, what was found and what was expected."""

from __future__ import annotations

import json
import pickle
import random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from statehouse.cli import main
from statehouse.config.file import load, rule_file
from statehouse.errors import ConfigError
from statehouse.status import store_status
from statehouse.values import milliseconds, parse_address, parse_schema
from statehouse.yaml_file import parse_yaml

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
        ("key: key", "key: [key, agent AS Key]", 10, "found a key part named 'key'"),
        ("key: key", "key: [key, agent AS VALUE]", 10, "found a key part named 'VALUE'"),
        ("key: key", "key: [key, value]", 10, "found a key part named 'value'"),
        ("    reduce", "    reduces: x\n    reduce", 15, "found 'reduces', expected one of agent, buckets, key"),
        ("root: ./lake", "root: ./lake\nmerge_every: often", 2, "expected a duration such as '5 seconds'"),
        ("  status:", "  sta/tus:", 10, "expected a letter, then letters, digits"),
        ("root: ./lake", "root: ./la#ke", 1, "expected a path without #"),
        ("stores:", "stores: [", 11, "not YAML"),
        ("root: ./lake", "root: ./lake\nmerge_every: 2026-13-45", 2, "not YAML: month must be in 1..12"),
        ("    reduce", "    where: 'value = 'ok''\n    reduce", 15, "has each of its own twice"),
        (
            "    reduce",
            "    where: value = 'ok'\n    value: agent\n    reduce",
            16,
            "'value' twice, in lines 14 and 16",
        ),
        ("stores:", "streams: {}\nstores:", 9, "streams: found 'streams' twice, in lines 4 and 9"),
        ("topic: agent-reports", "topic: a, topic: b", 6, "not YAML: mapping values are not allowed here"),
        ("  status:", "  status: {}\n  status:", 11, "stores.status: found 'status' twice, in lines 10 and 11"),
        (
            "root: ./lake",
            "api: {max_bodies: 1}",
            1,
            "found 'max_bodies', expected one of address, cache, copies, cors, discover, freshness, hosts, max_answer",
        ),
        ("root: ./lake", "api:\n  rate_limit: -1", 2, "found -1"),
        ("root: ./lake", "api:\n  cors: [app.example.org/]", 2, "such as 'https://app.example.org'"),
        (
            "root: ./lake",
            "api:\n  hosts: ['state.internal:80']",
            2,
            "found 'state.internal:80', expected the name of a host",
        ),
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


def test_a_rule_of_its_own_names_a_thing_once_too(tmp_path):
    config, rule = load(write(tmp_path, GOOD), {}), tmp_path / "rule.yaml"
    rule.write_text("stream: reports\nkey: key\nvalue: value\nreduce: latest\nkey: agent\n")
    with pytest.raises(ConfigError, match=r"rule.yaml:5: key: found 'key' twice, in lines 2 and 5"):
        rule_file(rule, config, "status")


def test_a_variable_that_is_no_yaml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"\$STATEHOUSE_MERGE_EVERY:1: not YAML"):
        load(write(tmp_path, GOOD), {"STATEHOUSE_MERGE_EVERY": "["})


@pytest.mark.parametrize(
    "text",
    [
        "a: 2026-13-45",
        "a: !!int abc",
        "a: !!timestamp x",
        "a: " + "[" * 3000,
        "a: !!bool a",
        "a: !!int ''",
        "a: *b",
        "!!python/name:os.x a",
    ],
)
def test_a_value_that_cannot_be_made_is_an_error_of_the_file(text):
    with pytest.raises(ConfigError, match=r"^f(:1)?: not YAML"):
        parse_yaml(text, "f", "a file")


def test_a_name_that_comes_by_an_anchor_can_be_replaced():
    text = "x: &x {a: 1, b: {c: 2}}\ny: &y {a: 3}\nz:\n  <<: [*x, *y]\n  b: 4\nw: &w [*w]\n"
    document = parse_yaml(text, "f", "a file")
    assert document.data["z"] == {"a": 1, "b": 4}
    assert (document.line_of(("z", "b")), document.line_of(("z", "a")), document.line_of(("w", 0, 0))) == (5, 1, 6)
    for twice in ("z: {a: 1, <<: *x, a: 2}", "z: {<<: *x, <<: *y}", "z: {*k : 1, a: 2}", "z: {1: 1, 0x1: 2}"):
        with pytest.raises(ConfigError, match="^f:4: z.*twice, in lines? .*4, expected each name once"):
            parse_yaml(f"x: &x {{a: 1}}\ny: &y {{a: 3}}\nk: &k a\n{twice}\n", "f", "a file")


NAMES = st.text("abc:'\" é", min_size=1, max_size=4)
DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text("ab' #:", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def mappings(value):
    """Every mapping of a value that has a name."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(inner)
    if isinstance(value, dict) and value:
        yield value


class Twice(dict):
    """A mapping that is written with one of its names a second time, at the end."""

    def __init__(self, value, name):
        super().__init__(value)
        self.name = name

    def items(self):
        return [*super().items(), (self.name, None)]


class Dumper(yaml.SafeDumper):
    """As PyYAML writes, in the mapping's order."""


Dumper.add_representer(Twice, lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value.items()))


@given(DOCUMENTS, st.randoms(use_true_random=False), st.sampled_from([True, False, None]))
def test_a_name_twice_is_found_in_any_mapping(value, dice: random.Random, flow):
    layout = {"default_flow_style": flow, "sort_keys": False, "allow_unicode": True}
    assert parse_yaml(yaml.dump(value, Dumper=Dumper, **layout), "f", "a file").data == value
    if not (places := list(mappings(value))):
        return
    chosen = dice.choice(places)
    name = dice.choice(list(chosen))

    def twice(part):
        if isinstance(part, list):
            return [twice(p) for p in part]
        copied = {n: twice(p) for n, p in part.items()} if isinstance(part, dict) else part
        return Twice(copied, name) if part is chosen else copied

    with pytest.raises(ConfigError) as error:
        parse_yaml(yaml.dump(twice(value), Dumper=Dumper, **layout), "f", "a file")
    assert f"found {name!r} twice, in line" in str(error.value)
    assert len(str(error.value).splitlines()) == 1, "the others are not named"


def test_a_text_that_yaml_made_a_name_of_is_explained(spark, tmp_path, capsys):
    """``check`` in the words of Spark, and then why."""
    file = write(tmp_path, GOOD.replace("key: key", "key: 'ok'").replace("value: value", "value: nothing"))
    assert main(["check", "-c", str(file)]) == 2
    key, value, advice = capsys.readouterr().err.splitlines()[-3:]
    assert advice == "  to do: correct it there, then `statehouse check`"
    assert f"{file}:12: stores.status.key: found 'ok'" in key and "a text of SQL in YAML's quotes is \"'text'\"" in key
    assert f"{file}:14: stores.status.value: found 'nothing'" in value and "quotes" not in value


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        ("topics: []", "expected topics such as"),
        ("topics: [a, a]", "expected each topic once"),
        ("topics: [a, 'b c']", "expected topics such as"),
        ("topics: 'a['", "expected a regular expression"),
        ("topics: ''", "expected topics such as"),
        ("topics: {a: 1}", "expected topics such as"),
        ("topic: c\n    topics: [a, b]", "topic: found 'c', expected one of topics"),
        ("topic: c\n    topics: 'a.*'", "topic: found 'c', expected one of topics"),
        ("format: string", "found no 'topic', expected one, or topics"),
        ("format: avro\n    topics: 'a.*'", "found topics without subject"),
    ],
)
def test_several_topics_that_do_not_fit(tmp_path, topics, says):
    text = GOOD.replace("topic: agent-reports", topics)
    if "avro" in topics:
        text = text.replace("    schema: key STRING, agent STRING, value STRING, ts TIMESTAMP\n", "")
        text += "registry: {url: 'http://127.0.0.1:1'}\n"
    with pytest.raises(ConfigError, match="streams.reports") as caught:
        load(write(tmp_path, text), {})
    assert says in str(caught.value)


def test_several_topics(tmp_path):
    stream = load(write(tmp_path, GOOD.replace("topic: agent-reports", "topics: [a, b]")), {}).streams["reports"]
    assert (stream.topic, stream.topic_text, stream.several) == ("a", "a, b", True)
    assert stream.reads("b") and not stream.reads("c")
    stream = load(write(tmp_path, GOOD.replace("topic: agent-reports", r"topics: 'a\..*|__b'")), {}).streams["reports"]
    assert (stream.topic, stream.topic_text) == ("", r"a\..*|__b")
    assert stream.reads("a.x") and not stream.reads("ax") and not stream.reads("xa.y") and not stream.reads("__b")
    published = GOOD.replace("topic: agent-reports", "topics: 'a.*'") + "    publish: all-of-it\n"
    with pytest.raises(ConfigError, match="another topic than the stream's own"):
        load(write(tmp_path, published), {})
