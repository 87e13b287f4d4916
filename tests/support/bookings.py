"""16,044 real bookings, and what is right of them."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict

from tests.support.data import SHARED
from tests.support.records import produce

FILE = SHARED / "bookings" / "bookings.jsonl.gz"
CONFIG = """root: ./lake
kafka:
  bootstrap.servers: {bootstrap}
streams:
  bookings:
    topic: {topic}
    schema: >-
      booking_id INT NOT NULL, customer_id INT, item_id INT, clerk STRING, booked_at TIMESTAMP, returned_at TIMESTAMP
    time: booked_at
    keep_payload: true
stores:
  latest_booking: {{stream: bookings, key: customer_id, value: booked_at, reduce: latest}}
  bookings_made: {{stream: bookings, key: customer_id, reduce: count}}
  usual_clerk: {{stream: bookings, key: customer_id, agent: booking_id, value: clerk, reduce: majority}}
  by_key: {{stream: bookings, key: _key, value: _payload, reduce: latest}}
  by_time: {{stream: bookings, key: [customer_id, booked_at], value: item_id, reduce: latest}}
"""


def expected():
    """Per customer: the latest booking's time, the number of bookings, the clerk of most of them. A tie goes to the
    tied clerk of the later booking (file order breaks ties in time)."""
    by_customer = defaultdict(list)
    with gzip.open(FILE, "rt") as lines:
        for offset, line in enumerate(lines):
            row = json.loads(line)
            by_customer[row["customer_id"]].append((row["booked_at"], offset, row["clerk"]))
    answer = {}
    for customer, rows in by_customer.items():
        votes = Counter(clerk for _, _, clerk in rows)
        clerk = max(rows, key=lambda r: (votes[r[2]], r[0], r[1]))[2]
        answer[customer] = (max(rows)[0], len(rows), clerk)
    return answer


def beside(text, bootstrap):
    """A configuration with the streams and stores of the bookings besides its own."""
    own = CONFIG.format(bootstrap=bootstrap, topic=f"bookings-beside-{os.getpid()}")
    streams, stores = own.partition("streams:\n")[2].split("stores:\n")
    return text.replace("streams:\n", f"streams:\n{streams}").replace("stores:\n", f"stores:\n{stores}")


def sent_to(bootstrap, topic):
    """Send the bookings to a topic; their lines."""
    with gzip.open(FILE, "rb") as lines:
        sent = [line.strip() for line in lines]
    produce(bootstrap, topic, [(f"{json.loads(line)['customer_id']}", line, None, 0) for line in sent])
    return sent
