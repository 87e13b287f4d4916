"""What names say: words of columns that are keys, times, agents, values."""

from __future__ import annotations

import re


def _set_of(*lines: str) -> set[str]:
    """The words of some lines."""
    return set(" ".join(lines).split())


TIME_WORDS = _set_of("ts time timestamp at date datetime when epoch ms millis")
EVENT_WORDS = _set_of(
    "event created create occurred happened booked ordered sent measured recorded observed issued captured",
    "published purchased sold reported logged",
)
CHANGE_WORDS = _set_of("updated modified changed last received ingested processed")
LATER_WORDS = _set_of(
    "returned end ended expires expiry expired due deleted closed valid until birth born birthday shipped",
    "delivered finished completed cancelled canceled next planned",
)
ID_WORDS = _set_of("id key no nr number code uuid guid sku serial imei mac vin iban")
WHO_WORDS = _set_of("customer user account device member patient player vehicle client subscriber")
WHAT_WORDS = _set_of(
    "card item store shop product order host machine sensor asset meter car room till pos driver employee",
    "contract parcel shipment session symbol station node name",
)
AGENT_WORDS = _set_of("agent reporter observer probe monitor collector voter checker inspector witness")
MAYBE_AGENT_WORDS = _set_of("source sensor node origin sender")
STATE_WORDS = _set_of("value status state health condition result phase stage mode availability")
AMOUNT_WORDS = _set_of("amount total cost quantity qty points revenue fee paid bytes sales spent")
READING_WORDS = _set_of(
    "temperature temp humidity pressure reading speed voltage level balance price rate score usage load power",
    "weight battery",
)
# Money has cents, also where a sample has none.
MONEY_WORDS = _set_of("amount total price cost fee revenue paid tax taxable balance vat")
COUNT_WORDS = _set_of("count number items quantity qty points bytes")
KIND_WORDS = _set_of("type kind class category group method")


def words(name: str) -> set[str]:
    """``CustomerCardNo`` and ``customer_card_no`` as words."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
