"""Where real data is, beside the checkout; it is not part of it."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).parents[3] / "shared" / "data"
