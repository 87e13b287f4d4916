"""Refused records that are sent again: once each, whatever ends in between; and told in the list."""

from __future__ import annotations

import json
import random

import pytest
from confluent_kafka import Producer

from jobs.ingest import Ingest
from jobs.merge import Merge
from statehouse.cli import main
from statehouse.headers import REQUEUED_HEADER
from statehouse.requeue import _refused_rows, _Sender, kind_of, requeue
from tests.support import houses
from tests.support.api_lake import eventually
from tests.support.depth import sized
from tests.support.houses import CONFIG, House
from tests.support.records import rows

STRICT = CONFIG.replace('n BIGINT"', 'n BIGINT, weird INT"')  # what some records do not keep to
BEGINNING = 1_700_000_000_000
OTHER = {"key": "a", "n": "no number"}  # refused under both schemas


class Mended(House):
    """A house whose schema refuses some of what comes, until it is mended."""

    def __init__(self, spark, broker, lake, monkeypatch):
        monkeypatch.setattr(houses, "CONFIG", STRICT)
        super().__init__(spark, broker, lake, 2)
        self.lake, self.known, self.places = lake, [], set()
        self.producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def write(self, dice, count):
        """Some events, a third of them refused; each has a time of its own, in any order."""
        for _ in range(count):
            key, n, time = dice.choice("abc"), dice.randrange(1, 1000), BEGINNING + dice.randrange(10**9)
            body = {"key": key, "n": n} | ({"weird": dice.choice(["x", "long " * 30])} if dice.random() < 1 / 3 else {})
            self.known.append((key, n, time))
            self.put(body, time, key)

    def put(self, body, time, key):
        header = [("from", b"\xff"), (REQUEUED_HEADER, None)]  # what is no text, and what only looks like ours
        self.producer.produce(self.topic, json.dumps(body).encode(), key, timestamp=time, headers=header)
        assert self.producer.flush(60) == 0

    def mend(self):
        self.close()
        self.config = self.lake(CONFIG.format(kafka="", topic=self.topic), self.bootstrap)
        self.merges = [Merge(self.spark, self.config, store) for store in self.config.stores.values()]
        self.restart()
        self.open()

    def restart(self):
        self.ingest = Ingest(self.spark, self.config, self.config.streams["s"])

    @property
    def stream(self):
        return self.config.streams["s"]

    def totals(self):
        """The oracle: every event once."""
        return {key: sum(n for k, n, _ in self.known if k == key) for key, *_ in self.known}

    def lasts(self):
        """The oracle: the number of the newest time, which is the first one's that was sent."""
        return {key: max((t, n) for k, n, t in self.known if k == key)[1] for key, *_ in self.known}

    def told(self):
        """The list: which records were refused, and which of them have come back."""
        found, cursor = {}, ""
        while cursor is not None:
            page = self.client.get(f"/streams/s/quarantine?limit=7{cursor and f'&cursor={cursor}'}").get_json()
            found |= {f"{row['partition']}:{row['offset']}": row["requeued"] for row in page["rows"]}
            cursor = page["cursor"]
        return found


@pytest.fixture
def house(spark, broker, lake, monkeypatch):
    made = Mended(spark, broker, lake, monkeypatch)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("example", range(sized(1, 5)))
def test_each_counts_once_whatever_ends_in_between(house, example, monkeypatch):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    house.write(dice, 30)
    house.put(OTHER, BEGINNING, "a")
    house.once()
    refused = house.told()
    assert len(refused) > 3 and set(refused.values()) == {None}
    house.mend()
    house.write(dice, 5)
    sent = 0
    for step in range(sized(4, 6)):
        match step if step < 3 else dice.randrange(4):
            case 0:  # killed before it had committed: the next one ends what it began
                killed = _Sender(house.config.kafka, house.stream)
                killed._client.begin_transaction()
                for row in list(_refused_rows(house.config, house.stream))[:3]:
                    killed._produce(row, lambda *_: None)
                killed._client.flush(60)
            case 1:
                some = dice.sample(sorted(refused), 3)
                answer = house.client.post("/streams/s/requeue", json={"records": some}).get_json()
                sent += answer["sent"]
                assert answer["sent"] + answer["before"] == 3
            case 2:  # killed after it had noted what came back, and before the events were in the changelog
                sent += requeue(house.config, house.stream, most=2).sent
                with monkeypatch.context() as patched:
                    patched.setattr(Ingest, "_append_accepted", lambda *_: 1 / 0)
                    query = house.ingest.start(house.ingest.begin(), once=True)
                    eventually(query.exception)
                house.restart()
            case 3:
                house.once()
    done = requeue(house.config, house.stream)
    assert sent + done.sent >= len(refused) and not done.more
    eventually(lambda: house.shown("live") == house.totals())
    house.once()
    assert (house.merged(), house.merged("last")) == (house.totals(), house.lasts())
    assert house.shown("changelog") == house.totals()
    told = house.told()
    assert all(told[place] for place in refused), "each has come back"
    again = [place for place in set(told) - set(refused) if told[place] is None]
    assert len(again) == 1, "refused once more, and so it can be sent once more"
    assert len({place for place in told.values() if place}) == len(told) - 1
    kept = {row["offset"]: row for row in rows(house.spark, f"{house.config.root}/quarantine/s")}
    first = next(row for row in kept.values() if row["payload"] == json.dumps(OTHER))
    assert [h["value"] for h in first["headers"] if h["key"] == "from"] == [b"\xff"]
    assert requeue(house.config, house.stream).sent == 1


@pytest.mark.slow
def test_a_reason_is_chosen_by_its_text_or_its_kind(house, capsys):
    for number, weird in enumerate(["x", "y", [1]]):
        house.put({"key": "a", "n": 1, "weird": weird}, BEGINNING + number, "a")
    house.put(OTHER, BEGINNING, "a")
    house.once()
    reasons = [row["reason"] for row in rows(house.spark, f"{house.config.root}/quarantine/s")]
    assert len(set(reasons)) == 4
    kind = next(kind_of(reason) for reason in reasons if "weird" in reason)
    url = "/streams/s/requeue"
    assert house.client.post(url, json={"reason": "none of them"}).get_json()["sent"] == 0
    one = next(reason for reason in reasons if "weird" in reason)
    first = house.client.post(url, json={"reason": one})
    assert (first.status_code, first.get_json()["sent"], len(first.get_json()["tokens"])) == (202, 1, 1)
    second = house.client.post(url, json={"reason": kind}).get_json()
    assert (second["sent"], second["before"], second["more"]) == (2, 1, False)
    file = f"{house.config.root}/../statehouse.yaml"
    assert main(["requeue", "s", "-c", file]) == 0
    assert capsys.readouterr().out == "s: 1 sent again, 3 were sent before\n"
    assert main(["requeue", "s", "--reason", kind, "-c", file]) == 0
    assert capsys.readouterr().out == "s: 0 sent again, 3 were sent before\n"
    assert main(["requeue", "other", "-c", file]) == 2


def test_what_is_wrong_with_a_request_is_said(house):
    for body, found in (
        ({}, "expected one of reason and records"),
        ({"reason": 1}, "expected a text"),
        ({"reason": "a", "records": ["0:1"]}, "expected one of"),
        ({"records": []}, "expected a list of 1 to 10000"),
        ({"records": ["0"]}, "expected a place such as"),
        ({"records": [["0", 1]]}, "expected a place such as"),
    ):
        answer = house.client.post("/streams/s/requeue", json=body)
        assert answer.status_code == 400 and found in answer.get_json()["detail"]


@pytest.mark.slow
def test_two_at_a_time(house):
    """The one that began first has sent nothing, and says so."""
    house.put({"key": "a", "n": 1, "weird": "x"}, BEGINNING, "a")
    house.once()
    (row,) = _refused_rows(house.config, house.stream)
    first = _Sender(house.config.kafka, house.stream)
    assert requeue(house.config, house.stream).sent == 1
    with pytest.raises(Exception, match="another one sends refused records"):
        first.send([row])
    assert (requeue(house.config, house.stream).sent, requeue(house.config, house.stream).before) == (0, 1)
