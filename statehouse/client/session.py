"""The writes of a session, which its reads wait for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

MOST_KEYS = 100_000  # of which the writes are remembered one by one


class Writes:
    """By store and key the tokens to wait for. Of a bulk write, whose answer has one token for each partition, these are all of them."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[tuple[str, Sequence[Any]], tuple[str, ...]] = OrderedDict()
        self._last: dict[str, dict[str, tuple[str, Sequence[Any]]]] = {}
        self._forgotten: set[str] = set()

    def note(self, store: str, keys: Sequence[tuple[Any, ...]], tokens: Sequence[str]) -> None:
        """Remember a write of some keys."""
        for key in keys:
            self._tokens[store, key] = tuple(tokens)
            self._tokens.move_to_end((store, key))
        last = self._last.setdefault(store, {})
        last.update((token.rpartition(":")[0], (token, keys[-1])) for token in tokens)
        while len(self._tokens) > MOST_KEYS:
            (forgotten, _), _ = self._tokens.popitem(last=False)
            self._forgotten.add(forgotten)

    def before(self, store: str, key: tuple[Any, ...]) -> tuple[str, ...]:
        """The tokens that a read of a key waits for."""
        if (store, key) in self._tokens:
            return self._tokens[store, key]
        return tuple(token for token, _ in self.of_store(store)) if store in self._forgotten else ()

    def of_store(self, store: str) -> list[tuple[str, Sequence[Any]]]:
        """The last token of each partition that a store's writes went to, and a key to ask with."""
        return list(self._last.get(store, {}).values())
