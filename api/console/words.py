"""A store's rule as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statehouse.reducers import parse_reduce


def reduction(store: Mapping[str, Any]) -> str:
    """What a store's value is made of, such as "majority of each agent's latest report"."""
    of, rule = store.get("value"), store["reduce"]
    if not isinstance(rule, str):
        return f"a reducer of your own over {of or 'the events'}"
    name, arguments = parse_reduce(rule)
    if name == "majority":
        return "majority of each agent's latest report"
    if name == "at_least_one":
        return f"“{arguments[0]}” while at least one agent's latest report says so, else “{arguments[1]}”"
    if name == "count":
        return "number of events" if of is None else f"number of events that have {of}"
    return f"{ {'sum': 'sum of', 'avg': 'mean of', 'min': 'least', 'max': 'greatest'}.get(name, name) } {of}"


def sentence(store: Mapping[str, Any]) -> str:
    """The whole rule in words."""
    keys = store["key"] if isinstance(store["key"], list) else [store["key"]]
    names = " and ".join(key.rpartition(" AS ")[2] for key in keys)
    text = f"The {reduction(store)}, for each {names}"
    if window := store.get("window"):
        text += f" and window of {window.replace(' every ', ', a new one every ')}"
    text += f" of the stream {store['stream']}"
    if where := store.get("where"):
        text += f", of events where {where}"
    if retention := store.get("retention"):
        text += f"; a window is kept for {retention}"
    return text + "."


def freshness(store: Mapping[str, Any]) -> tuple[str, int | None]:
    """How fresh a store's answers are, in words, and the lag in milliseconds where it is known."""
    live, lag = store["live"], store["lag_ms"]
    if store["freshness"] == "live":
        behind = live["lag_ms"] or 0
        return ("level with the topic" if not behind else f"{behind:,} ms behind the topic"), behind
    if store["position"] is None and store["version"] is None:
        return "nothing has been merged yet", lag
    if lag is None:
        return "how far it is behind is not known", None
    what = "the changelog" if store["freshness"] == "changelog" else "the changelog, until the next merge"
    return (f"level with {what}" if lag == 0 else f"{lag / 1000:,.1f} s behind {what}"), lag
