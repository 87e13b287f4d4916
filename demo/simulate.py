"""Simulated agents and tills: what a real fleet sends, with its disagreements, its delays and its rubbish."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from typing import Any

from confluent_kafka import Producer

DEVICES = [f"device-{n:03d}" for n in range(200)]
AGENTS = ["north", "south", "east", "west", "core"]
SHOPS = [f"STR{n}" for n in range(100, 110)]
CARDS = [str(3_000_000_000 + 7919 * n) for n in range(300)]
CITIES = ["Aarau", "Bergen", "Cork", "Delft"]
ITEMS = [("203", "Bunk bed", 168.6), ("208", "Canopy bed", 50.8), ("311", "Lamp", 12.25), ("407", "Tea pot", 9.9)]
RUBBISH = [
    b"",
    b"{not json",
    b"[1, 2, 3]",
    b"\xff\xfe\x00",
    b'{"key": "device-001", "agent": "north", "ts": "yesterday"}',
]


def report(dice: random.Random, health: dict[str, str]) -> tuple[str | None, bytes | None]:
    """One agent's report of a device, as a key and a payload: mostly the truth, now and then wrong or late."""
    device, agent = dice.choice(DEVICES), dice.choice(AGENTS)
    if dice.random() < 0.01:
        health[device] = dice.choice(["ok", "ok", "ok", "degraded", "alarm"])
    if dice.random() < 0.002:
        return device, None  # decommissioned: a purge
    seen = health.get(device, "ok") if dice.random() > 0.05 else dice.choice(["ok", "degraded", "alarm"])
    late = dice.uniform(0, 120) if dice.random() < 0.03 else 0.0
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - late)) + f".{dice.randrange(1000):03d}Z"
    return device, json.dumps({"key": device, "agent": agent, "value": seen, "ts": at}).encode()


def invoice(dice: random.Random, number: int) -> tuple[str, bytes]:
    """One sale at a till, as a key and a payload."""
    shop, prime, home = dice.choice(SHOPS), dice.random() < 0.4, dice.random() < 0.3
    lines: list[dict[str, Any]] = [
        {"ItemCode": code, "ItemDescription": what, "ItemPrice": price, "ItemQty": dice.randrange(1, 4)}
        for code, what, price in dice.sample(ITEMS, dice.randrange(1, 4))
    ]
    address = {
        "AddressLine": f"{dice.randrange(1, 99)} Station Road",
        "City": dice.choice(CITIES),
        "PinCode": str(dice.randrange(10**5, 10**6)),
        "ContactNumber": str(dice.randrange(10**9, 10**10)),
    }
    body = {
        "InvoiceNumber": str(number),
        "CreatedTime": int(time.time() * 1000),
        "StoreID": shop,
        "PosID": f"POS{dice.randrange(1, 5)}",
        "CustomerType": "PRIME" if prime else "NONPRIME",
        "CustomerCardNo": dice.choice(CARDS) if prime else None,
        "TotalAmount": round(sum(line["ItemPrice"] * line["ItemQty"] for line in lines), 2),
        "NumberOfItems": sum(line["ItemQty"] for line in lines),
        "DeliveryType": "HOME-DELIVERY" if home else "TAKEAWAY",
        "DeliveryAddress": address if home else None,
        "InvoiceLineItems": lines,
    }
    return shop, json.dumps(body).encode()


class Simulator(threading.Thread):
    """Sends ``rate`` events a second, half reports and half invoices, until stopped."""

    def __init__(self, bootstrap: str, rate: float, seed: int | None = None) -> None:
        super().__init__(name="simulator", daemon=True)
        self.producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5})
        self.rate, self.dice = rate, random.Random(seed)
        self.sent: Counter[str] = Counter()  # what Kafka has acknowledged, by topic
        self.failed = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Send until stopped, then wait for the last acknowledgements."""
        health: dict[str, str] = {}
        number, began = int(time.time()) * 1000, time.monotonic()
        made = 0
        while not self.stopping.wait(0.02):
            while made < (time.monotonic() - began) * self.rate:
                made += 1
                if self.dice.random() < 0.5:
                    key, body = report(self.dice, health)
                    if self.dice.random() < 0.005:
                        body = self.dice.choice(RUBBISH)
                    self._send("agent-reports", key, body)
                else:
                    self._send("invoices", *invoice(self.dice, number + made))
            self.producer.poll(0)
        self.failed += self.producer.flush(30)

    def _send(self, topic: str, key: str | None, body: bytes | None) -> None:
        self.producer.produce(topic, key=key, value=body, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed += 1
        else:
            self.sent[message.topic()] += 1

    def stop(self) -> None:
        """Send nothing more; returns when everything sent is acknowledged."""
        self.stopping.set()
        self.join(60)
