"""The stores that the law is held to: every reducer, also of a user's own, with and without windows."""

from __future__ import annotations

# The range of the values: a reducer of a user's own.
OWN = (
    "{fold: {low: min(value), high: max(value)}, "
    "combine: {low: 'least(a.low, b.low)', high: 'greatest(a.high, b.high)'}, result: high - low}"
)
STORES = {
    # store: (value column, its type, the reducer's yaml)
    "latest": ("value", "STRING", "latest"),
    "majority": ("value", "STRING", "majority"),
    "at_least_one": ("value", "STRING", "at_least_one(b, no)"),
    "first": ("value", "STRING", "first"),
    "sum": ("n", "BIGINT", "sum"),
    "dec": ("d", "DECIMAL(12,2)", "sum"),
    "count": ("n", "BIGINT", "count"),
    "min": ("n", "BIGINT", "min"),
    "max": ("n", "BIGINT", "max"),
    "avg": ("n", "BIGINT", "avg"),
    "own": ("n", "BIGINT", OWN),
    "w_count": ("n", "BIGINT", "count"),
    "w_sum": ("d", "DECIMAL(12,2)", "sum"),
    "w_majority": ("value", "STRING", "majority"),
    "hop_latest": ("value", "STRING", "latest"),
    "hop_own": ("n", "BIGINT", OWN),
}
# Windows of two seconds; hopping ones begin every second.
WINDOWS = {s: ("2 seconds" if s[0] == "w" else "2 seconds every 1 second") for s in STORES if s[:2] in ("w_", "ho")}
OWN_TYPES = ("BIGINT", "BIGINT", "BIGINT")


def reduce_of(store):
    """The oracle's name and arguments of a store's reducer."""
    if STORES[store][2] is OWN:
        return "own", []
    name, _, arguments = STORES[store][2].partition("(")
    return name, [a.strip() for a in arguments.rstrip(")").split(",") if a.strip()]
