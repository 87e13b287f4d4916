"""The numbers of a stream's partitions: each its own, the same after a commit, and none twice, whatever topics come and go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.config.streams import Stream
from statehouse.kafka import Topic
from statehouse.numbering import Numbering, differs, parse_place

ONE = Stream(topic="a", schema="key STRING")
SEVERAL = Stream(topics="[a-e]", schema="key STRING")
# What Kafka has at a time: of each topic its id and how many partitions there are.
TOPICS = st.dictionaries(st.sampled_from("abcde"), st.tuples(st.sampled_from("xyz"), st.integers(1, 5)), max_size=5)


def topics_of(has):
    return {name: Topic(name + id, list(range(count))) for name, (id, count) in has.items()}


def committed(numbering, offsets):
    """As the next process reads it."""
    position = {**numbering.described(), "offsets": {str(number): offset for number, offset in offsets.items()}}
    return Numbering.of(SEVERAL, json.loads(json.dumps(position)))


@given(st.lists(st.tuples(TOPICS, st.booleans()), min_size=1, max_size=8))
def test_each_partition_of_each_topic_keeps_a_number_of_its_own(times):
    numbering, offsets, given_to = Numbering.of(SEVERAL, {}), {}, {}
    ids, partitions = {}, {}
    for has, crashes in times:
        known = topics_of(has)
        current = numbering.same(known)
        assert current == {name: topic for name, topic in known.items() if ids.get(name, topic.id) == topic.id}
        seen = numbering.seen(current)
        mine, counts = dict(ids), dict(partitions)
        for name, topic in current.items():  # the oracle: who is who
            counts[name] = max(counts.get(name, 0), len(topic.partitions))
            mine[name] = topic.id
        if crashes:
            continue
        numbering, ids, partitions = seen, mine, counts
        for name, id in ids.items():
            for partition in range(partitions[name]):
                number = numbering.number(name, partition)
                assert number is not None
                assert given_to.setdefault(number, (name, id, partition)) == (name, id, partition)
                assert given_to[number] == (name, id, partition)
                offsets[number] = 1
        assert len(set(numbering.numbers.values())) == len(numbering.numbers)
        assert committed(numbering, offsets) == numbering
        assert numbering.recreated(current) is None


def test_of_one_topic_they_are_kafkas():
    numbering = Numbering.of(ONE, {}).seen({"a": Topic("x", [0, 1])})
    assert [numbering.number("a", p) for p in (0, 7)] == [0, 7] and numbering.number("b", 0) is None
    assert numbering.described() == {"topic": "a", "id": "x"} and numbering.topics == ["a"]
    assert numbering.of_topic("a", {3: 5}) == {3: 5} and numbering.of_topic("b", {3: 5}) == {}
    assert "made again" in numbering.recreated({"a": Topic("y", [0])})


def test_a_stream_that_gets_more_topics_goes_on_with_the_numbers_of_the_one():
    position = {"topic": "a", "id": "x", "offsets": {"0": 5, "2": 7}}
    numbering = Numbering.of(SEVERAL, position).seen({"b": Topic("z", [0]), "a": Topic("x", [0, 1, 2])})
    assert {p: numbering.number("a", p) for p in range(3)} == {0: 0, 1: 3, 2: 2}
    assert numbering.number("b", 0) == 4
    assert numbering.of_topic("a", {0: 5, 2: 7, 4: 1}) == {0: 5, 2: 7}


@pytest.mark.parametrize(
    "text", ["", "t", "t:0", "t:0:x", "t:-1:2", "t:0:1:2", ":0:1", "t:1234567890:1", "t:0:1\n", "t:²:1"]
)
def test_what_is_no_token(text):
    assert parse_place(text) is None


def test_a_token():
    assert parse_place("a.b-c_d:12:345") == ("a.b-c_d", 12, 345)


def test_which_topics_a_changelog_goes_on_with():
    numbered = {"id": "x", "partitions": {"0": 0, "1": 1}}
    cases = [
        (ONE, {}, True),
        (ONE, {"topic": "a"}, True),
        (ONE, {"topic": "b"}, False),
        (ONE, {"topics": {"a": numbered}}, True),
        (ONE, {"topics": {"a": {"id": "x", "partitions": {"0": 1, "1": 0}}}}, False),
        (ONE, {"topics": {"a": numbered, "b": {"id": "y", "partitions": {"0": 2}}}}, False),
        (SEVERAL, {"topic": "b"}, True),
        (SEVERAL, {"topic": "x"}, False),
        (SEVERAL, {"topics": {"x": numbered}}, True),
    ]
    for stream, position, fits in cases:
        assert (differs(stream, {**position, "offsets": {}}) is None) == fits, (stream.topic_text, position)


def test_a_topic_of_which_nothing_was_read_is_as_good_when_it_is_made_again():
    numbering = Numbering.of(SEVERAL, {}).seen({"a": Topic("x", [0]), "b": Topic("y", [0])})
    assert set(numbering.without_ids_of_unread({0: 3}).ids) == {"a"}
    assert Numbering.of(ONE, {"id": "x", "topic": "a"}).without_ids_of_unread({}).ids == {}
    assert Numbering.of(ONE, {"id": "x", "topic": "a"}).without_ids_of_unread({0: 1}).ids == {"a": "x"}
