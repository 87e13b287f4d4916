"""Values, times, numbers and keys as people read them: the filters of the templates."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape
from sqlglot import exp

from api.engine.exact_json import dumps

LONG = 200  # characters of a value that are shown in a table
NESTED = 80  # of an object or a list


def moment(text: str | None) -> Markup:
    """A time as ISO 8601 in UTC: the page shows it in the reader's zone, where it has JavaScript."""
    return _time(text, Markup('<time datetime="{0}" title="{0}">{1}</time>'), "none")


def age(text: str | None) -> Markup:
    """How long ago a time was; the page lets it tick."""
    return _time(text, Markup('<time class="age" datetime="{0}" title="{0}">{1}</time>'), "never")


def _time(text: str | None, element: Markup, none: str) -> Markup:
    if not text:
        return Markup('<span class="none">{}</span>').format(none)
    return element.format(text, text.replace("T", " ").replace("Z", "").partition(".")[0] + " UTC")


def value(found: Any, long: int = LONG) -> Markup:
    """A value of JSON: text as it is, numbers with all of their digits, objects as JSON."""
    if found is None:
        return Markup('<span class="none">null</span>')
    if isinstance(found, bool):
        return Markup('<span class="number">{}</span>').format("true" if found else "false")
    if is_number(found):
        return Markup('<span class="number">{}</span>').format(number(found))
    if found == "":
        return Markup('<span class="none">empty</span>')
    text = found if isinstance(found, str) else dumps(found)
    long = long if isinstance(found, str) else min(long, NESTED)
    shown = text if len(text) <= long else f"{text[:long]}…"
    if isinstance(found, str) and not visible(found):
        return Markup('<code class="json">{}</code>').format(json.dumps(shown))
    if isinstance(found, str):
        return Markup('<bdi class="text">{}</bdi>').format(shown)
    return Markup('<code class="json">{}</code>').format(shown)


def is_number(found: Any) -> bool:
    """Whether a value of JSON is a number."""
    return isinstance(found, (int, float, Decimal)) and not isinstance(found, bool)


def visible(text: str) -> bool:
    """Whether a text is one that can be seen: not of spaces alone, nor with characters that are no letters of any script."""
    return bool(text.strip()) and all(character.isprintable() or character in "\n\r\t" for character in text)


def reports(found: Mapping[str, Mapping[str, Any]] | None) -> Markup:
    """Agents' reports in short: how many say what."""
    counts = Counter(plain(report["value"]) for report in (found or {}).values())
    if not counts:
        return Markup('<span class="none">none</span>')
    words = [Markup("<bdi>{}</bdi>&nbsp;{}").format(text[:40], count) for text, count in counts.most_common(4)]
    return Markup(", ").join(words) + ("" if len(counts) <= 4 else Markup(" …"))


def number(found: int | float | Decimal) -> str:
    """A number, its thousands apart, with every digit."""
    text = dumps(found)
    whole, point, fraction = text.partition(".")
    digits = whole.lstrip("-")
    if not digits.isdigit():
        return text
    return ("-" if whole.startswith("-") else "") + f"{int(digits):,}" + point + fraction


def stamp(text: str) -> float:
    """A time of the API's as seconds since 1970; 0 of one that Python has no place for."""
    try:
        return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def size(found: int) -> str:
    """Bytes, in the unit that fits."""
    amount, units = float(found), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def milliseconds(found: int | float | None) -> str:
    """A duration in the unit that fits; it may not be known."""
    if found is None:
        return "unknown"
    amount = float(found)
    for unit, most, length in (("ms", 1000, 1000), ("s", 90, 60), ("min", 90, 60), ("h", 48, 24)):
        if amount < most:
            return f"{amount:.0f} {unit}" if unit == "ms" or amount >= 10 else f"{amount:.1f} {unit}"
        amount /= length
    return f"{amount:.0f} days"


def path(parts: Sequence[Any]) -> str:
    """A key's parts as the end of a path."""
    return "/".join(quote(plain(part), safe="") for part in parts)


def name(text: str) -> str:
    """A name as DuckDB's SQL needs it: in quotes only where it must be."""
    return exp.to_identifier(text).sql("duckdb")


def plain(part: Any) -> str:
    """A part of a key as text."""
    return part if isinstance(part, str) else dumps(part).strip('"')


def key_of(row: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """The parts of a row's key."""
    return [row[name] for name in names]


FILTERS: dict[str, Callable[..., Any]] = {
    **{f.__name__: f for f in (moment, age, value, number, reports, size, milliseconds, path, plain, key_of, name)},
    "pretty": lambda found: escape(pretty(found)),
}


def pretty(found: Any, indent: str = "") -> str:
    """JSON over several lines."""
    inner = indent + "  "
    if isinstance(found, dict) and found:
        lines = [f"{inner}{dumps(str(name))}: {pretty(item, inner)}" for name, item in found.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(found, list) and found and any(isinstance(item, (dict, list)) for item in found):
        return "[\n" + ",\n".join(inner + pretty(item, inner) for item in found) + f"\n{indent}]"
    return dumps(found)
