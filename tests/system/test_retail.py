"""The retail example of the demo's statehouse.yaml on real invoices, addresses and products, against plain Python."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest

from jobs.ingest import Ingest
from jobs.merge import Merge
from jobs.publish import Publisher
from jobs.store_route import router
from statehouse.config.file import load
from tests.support.records import SCHEMA, record, rows
from tests.support.retail import FOLDER, T0, sold
from tests.support.topics import messages, topic_of


def masked(invoice, line):
    """A row of the warehouse's table."""
    customer = hashlib.sha256(invoice["CustomerCardNo"].encode()).hexdigest()
    city = invoice.get("DeliveryAddress", {}).get("City")
    item = str(line["ItemCode"]), line["ItemDescription"], Decimal(line["ItemPrice"]), line["ItemQty"]
    return str(invoice["InvoiceNumber"]), invoice["StoreID"], customer, city, "***", *item


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared data is not beside the checkout")
def test_deliveries_points_and_the_warehouse(spark, broker, tmp_path, monkeypatch):
    monkeypatch.setenv("STATEHOUSE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("STATEHOUSE_KAFKA__BOOTSTRAP_SERVERS", broker.bootstrap)
    config = load(Path(__file__).parents[2] / "statehouse.yaml")
    ingest, dice = Ingest(spark, config, config.streams["invoices"]), random.Random()
    merge, publish = (job(spark, config, config.stores["rewards"]) for job in (Merge, Publisher))
    invoices = list(sold(dice, 300))
    for first in (0, 100):
        some = invoices[first : 100 if not first else None]
        made = [record("invoices", 0, i["InvoiceNumber"], T0 * 1000, i["StoreID"], i) for i in some]
        ingest.batch(spark.createDataFrame(made, SCHEMA))
        merge.round()
        for sender in (router(spark, config, route) for route in config.routes.values()):
            assert sender.round()
        publish.round()

    points = defaultdict(Decimal)
    for invoice in invoices:
        if invoice["CustomerType"] == "PRIME":
            points[invoice["CustomerCardNo"]] += invoice["TotalAmount"] * Decimal("0.02")
    told = {
        m.key().decode(): json.loads(m.value(), parse_float=Decimal)["value"]
        for m in messages(broker.bootstrap, "loyalty")
    }
    assert told == points

    had, expected = defaultdict(Decimal), {}
    for invoice in invoices:
        card, earned = invoice["CustomerCardNo"], invoice["TotalAmount"] * Decimal("0.02")
        if invoice["CustomerType"] == "PRIME":
            number = invoice["InvoiceNumber"]
            expected[f"invoices:0:{number}"] = (str(number), card, earned, had[card], had[card] + earned)
            had[card] += earned
    notified = {
        dict(m.headers())["statehouse-source"].decode(): tuple(json.loads(m.value(), parse_float=Decimal).values())
        for m in messages(broker.bootstrap, "notification")
    }
    assert notified == expected
    tills = {card: {i["StoreID"] for i in invoices if i["CustomerCardNo"] == card} for _, card, *_ in expected.values()}
    assert any(len(stores) > 1 for stores in tills.values())

    sent, again = topic_of(broker.bootstrap, "shipment")
    homes = [i for i in invoices if i["DeliveryType"] == "HOME-DELIVERY"]
    found = {
        place: (key, value["InvoiceNumber"], value["DeliveryAddress"]["City"]) for place, (key, value) in sent.items()
    }
    assert again == 0 and found == {
        (f"invoices:0:{i['InvoiceNumber']}", "0"): (i["StoreID"], str(i["InvoiceNumber"]), i["DeliveryAddress"]["City"])
        for i in homes
    }
    table = rows(spark, f"{config.root}/routes/sold_items")
    assert {row.pop("SoldAt").year for row in table} == {2026}
    assert Counter(tuple(row.values()) for row in table) == Counter(
        masked(i, x) for i in invoices for x in i["InvoiceLineItems"]
    )
