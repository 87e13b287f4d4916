"""Routes from a store: the oracle of what they tell, and a lake whose routes are held to it."""

from __future__ import annotations

from collections import Counter

from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.run import merge_once
from jobs.store_route import router
from tests.support.depth import sized
from tests.support.lakes import drawn
from tests.support.oracle import fold, standing, windowed
from tests.support.records import EPOCH, SCHEMA, rows

HOUR = 3_600_000_000
REDUCE = {"total": "sum", "votes": "majority", "last": "latest", "hours": "count"}
CONFIG = """
streams:
  s:
    topic: {topic}
    schema: key STRING, agent STRING, n BIGINT, ts TIMESTAMP
    time: ts
stores:
  total: {{stream: s, key: key, value: n, reduce: sum}}
  votes: {{stream: s, key: key, agent: agent, value: "nullif(n % 3, -1)", reduce: majority}}
  last: {{stream: s, key: key, value: "nullif(n, 0)", reduce: latest}}
  hours: {{stream: s, key: key, value: n, window: 1 hour every 30 minutes, reduce: count}}
routes:
"""
ROUTE = """  {store}_{late}:
    from: {{store: {store}}}
    late: {late}
    select: [key AS the_key, _op, _offset, n, before, after{more}]
    to: {{table: {store}_{late}}}
"""
TOPIC = """  told:
    from: {{store: total}}
    where: before.value IS DISTINCT FROM after.value
    select: [key, n, "coalesce(before.value, 0) AS had", "after.value AS has"]
    to: {{topic: {topic}-told, key: key}}
"""
EVERY = [(store, late) for store in REDUCE for late in ("append", "resend")]
CASES = sized([("total", "resend"), ("votes", "resend"), ("last", "append"), ("hours", "resend")], EVERY)


def text(topic):
    more = {"hours": ", window_start"}
    routes = [ROUTE.format(store=s, late=late, more=more.get(s, "")) for s, late in CASES]
    return CONFIG.format(topic=topic) + "".join(routes) + TOPIC.format(topic=topic)


def vote(n):
    """What an agent says; None: it takes back what it said."""
    value = abs(n) % 3 * (1 if n > 0 else -1)
    return None if value == -1 else value


def states(events, store):
    """The states that some events of a key make: by window, or None where the store has none."""
    made = []
    for event in events:
        n = event["n"]
        value = {"votes": vote(n), "last": n or None}.get(store, n)
        made.append({**event, "value": value})
    if store == "hours":
        return windowed("count", made, HOUR, HOUR // 2)
    found = fold(REDUCE[store], made)
    votes = None
    if store == "votes":
        times = {e["agent"]: e["order"][0] for e in sorted(made, key=lambda e: e["order"])}
        votes = sorted((a, value, times[a]) for a, value in standing(made).items() if value is not None)
    return {None: (*found, votes)} if found else {}


def windows(event, before, store):
    """The windows that an event is in: of a purge those that there are."""
    if store != "hours":
        return [None]
    at = event["order"][0]
    if event["op"] == "purge":
        return sorted(before)
    return sorted(s for s in range(at // (HOUR // 2) * (HOUR // 2), at - HOUR, -HOUR // 2) if s <= at < s + HOUR)


def of_key(events, store):
    """Each key's events that are for a store, as they came."""
    found = {}
    for key, stores, event in events:
        if event["op"] != "set" or (store == "total" and store in stores):
            found.setdefault(key, []).append(event)
    return found


def appended(events, store):
    """The oracle of `late: append`: key, offset, window, revision, state before, state after."""
    made = []
    for key, mine in of_key(events, store).items():
        for step, event in enumerate(mine):
            before, after = states(mine[:step], store), states(mine[: step + 1], store)
            for window in windows(event, before, store):
                made.append((key, event["order"][2], window, 1, before.get(window), after.get(window)))
    return made


def resent(events, store):
    """The oracle of `late: resend`, in the order in which it is told."""
    made = []
    for key, mine in of_key(events, store).items():
        last, revisions = {}, Counter()
        for step, event in enumerate(mine):
            known = sorted(mine[: step + 1], key=lambda e: e["order"])
            for place in range(known.index(event), len(known)):
                other, before, after = known[place], states(known[:place], store), states(known[: place + 1], store)
                for window in windows(other, before, store):
                    which = other["order"], window
                    if other is event or after.get(window) != last.get(which):
                        revisions[which] += 1
                        offset = other["order"][2]
                        made.append((key, offset, window, revisions[which], before.get(window), after.get(window)))
                    last[which] = after.get(window)
    return made


RIGHT = {"append": appended, "resend": resent}


def told(spark, config, store, late):
    """What a route's table has, as the oracle has it."""

    def micros(moment):
        return None if moment is None else round((moment - EPOCH).total_seconds() * 1_000_000)

    def state(found):
        if found is None:
            return None
        reports = (found.get("reports") or {}).items()
        votes = sorted((a, r["value"], micros(r["event_time"])) for a, r in reports) or None
        return (found["value"], micros(found["event_time"]), *([votes] if store != "hours" else []))

    return [
        (
            *(r["the_key"], r["_offset"], micros(r.get("window_start")), r.get("revision", 1)),
            *(state(r["before"]), state(r["after"])),
        )
        for r in rows(spark, f"{config.root}/routes/{store}_{late}")
    ]


def same(found, expected):
    def plain(many):
        return sorted(map(repr, many))

    assert plain(found) == plain(expected)


class Lake:
    """A lake that events come to, and its routes."""

    def __init__(self, spark, config):
        self.spark, self.config, self.known, self.offset = spark, config, [], 0
        self.started()

    def started(self):
        self.routers = {n: router(self.spark, self.config, r) for n, r in self.config.routes.items()}

    def ingest(self, seed, count, resets=True):
        records, events = drawn(seed, count, first=self.offset, resets=resets)
        self.offset += count
        self.ingest_these(records, events)

    def ingest_these(self, records, events):
        self.known += events
        ingest = Ingest(self.spark, self.config, self.config.streams["s"])
        ingest.batch(self.spark.createDataFrame(records, SCHEMA))

    def merge(self, *names):
        for name in names or self.config.stores:
            merge_once(Merge(self.spark, self.config, self.config.stores[name]))

    def send(self, *names):
        return [self.routers[name].round() for name in names or self.routers]

    def check(self, cases=CASES):
        for store, late in cases:
            same(told(self.spark, self.config, store, late), RIGHT[late](self.known, store))
