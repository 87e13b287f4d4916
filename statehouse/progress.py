"""How far a job is, for whoever looks. The jobs know no terminal: they are given a :class:`Progress`, and tell it."""

from __future__ import annotations

from collections.abc import Callable


class Progress:
    """What a job tells of its steps. This one shows nothing; the one of a terminal is :class:`statehouse.commands.progress.Work`."""

    is_shown = False

    def begin(self, text: str, total: Callable[[], int | None] | None = None, of: str = "events") -> None:
        """A step begins, in the place of the one before: what it does, and how many ``of`` what there are to do. ``total`` is called
        where someone looks, and nowhere else, as counting may take a while; it gives None where that is not known."""

    def advance(self, count: int = 1) -> None:
        """So many more are done."""

    def end(self) -> None:
        """The step is over, and no other one begins."""


SILENT = Progress()
