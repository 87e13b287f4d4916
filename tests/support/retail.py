"""What tills send: from real invoices, addresses and products."""

from __future__ import annotations

import json

from tests.support.data import SHARED

FOLDER = SHARED / "retail"
T0 = 1_780_000_000_000


def sold(dice, count):
    """What tills send: templates with number, time, lines and totals filled in, and an address where it is to be delivered."""
    known = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("invoice", "address", "products")}
    for number in range(count):
        lines = [
            {**item, "ItemPrice": int(item["ItemPrice"]), "ItemQty": dice.randrange(1, 4)}
            for item in dice.sample(known["products"], dice.randrange(1, 4))
        ]
        made = dict(
            dice.choice(known["invoice"]), InvoiceNumber=number, CreatedTime=T0 + number, InvoiceLineItems=lines
        )
        made["StoreID"] = dice.choice(known["invoice"])["StoreID"]  # customers buy at several tills
        made["TotalAmount"] = sum(line["ItemPrice"] * line["ItemQty"] for line in lines)
        made["NumberOfItems"] = sum(line["ItemQty"] for line in lines)
        if made["DeliveryType"] == "HOME-DELIVERY":
            made["DeliveryAddress"] = dice.choice(known["address"])
        yield made
