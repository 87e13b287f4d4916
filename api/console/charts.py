"""Charts as SVG, drawn here: a page shows them without JavaScript. Colours are the style sheet's, by class."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

Point = tuple[float, str | float | None, str]
GAP, WIDTH, HEIGHT = 56, 172, 34  # pixels of the flow's boxes


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A small bar for each value; ``label`` says in words what it shows."""
    most = max(values, default=0) or 1
    bars = Markup("").join(
        Markup('<rect x="{}" y="{:.1f}" width="5" height="{:.1f}"/>').format(
            7 * n, 22 - 20 * v / most, 20 * v / most + 1
        )
        for n, v in enumerate(values)
    )
    return Markup(
        '<svg class="spark" role="img" width="{0}" height="24" viewBox="0 0 {0} 24"><title>{1}</title>{2}</svg>'
    ).format(max(1, 7 * len(values) - 2), label, bars)


class Node(NamedTuple):
    """A box of the flow: its ``layer`` from the left, what it says and where it leads."""

    name: str
    layer: int
    kind: str
    text: str
    target: str | None


def flow(nodes: Sequence[Node], edges: Sequence[tuple[str, str]]) -> Markup:
    """Boxes in layers from left to right, and lines between them."""
    layers: dict[int, list[Node]] = {}
    for node in nodes:
        layers.setdefault(node.layer, []).append(node)
    height = max(len(found) for found in layers.values()) * (HEIGHT + 14) + 10 if layers else 10
    places: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(sorted(layers)):
        step = height / len(layers[layer])
        for row, node in enumerate(layers[layer]):
            places[node.name] = column * (WIDTH + GAP) + 2, step * (row + 0.5) - HEIGHT / 2
    width = len(layers) * (WIDTH + GAP) - GAP + 4 if layers else 10
    lines = [_line(places[a], places[b]) for a, b in edges if a in places and b in places]
    boxes = [_box(node, *places[node.name]) for node in nodes]
    return Markup(
        '<svg class="flow" role="group" aria-label="The flow of events" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}">{2}{3}</svg>'
    ).format(width, height, Markup("").join(lines), Markup("").join(boxes))


def _line(begin: tuple[float, float], end: tuple[float, float]) -> Markup:
    x, y, u, v = begin[0] + WIDTH, begin[1] + HEIGHT / 2, end[0], end[1] + HEIGHT / 2
    middle = (x + u) / 2
    return Markup('<path class="edge" d="M{:.0f} {:.0f}C{:.0f} {:.0f} {:.0f} {:.0f} {:.0f} {:.0f}"/>').format(
        x, y, middle, y, middle, v, u, v
    )


def _box(node: Node, x: float, y: float) -> Markup:
    text = node.text if len(node.text) <= 22 else node.text[:21] + "…"
    box = Markup(
        '<g class="node {0}"><title>{1}: {2}</title><rect x="{3:.0f}" y="{4:.0f}" width="{5}" height="{6}" rx="5"/>'
        '<text x="{7:.0f}" y="{8:.0f}">{9}</text></g>'
    ).format(node.kind, node.kind, node.text, x, y, WIDTH, HEIGHT, x + 12, y + 22, text)
    return Markup('<a href="{}">{}</a>').format(node.target, box) if node.target else box


def steps(points: Sequence[Point], label: str = "The value over time", width: int = 900) -> Markup:
    """A value over time as steps: of each point the time (seconds), the value and a label. Numbers have a scale, other values a
    line each; None is no value."""
    known = [value for _, value, _ in points if value is not None]
    numbers = all(isinstance(value, (int, float)) for value in known) and bool(known)
    levels = sorted({str(value) for value in known}) if not numbers else []
    height = 160 if numbers else 44 + 30 * len(levels)
    first, last = (points[0][0], points[-1][0]) if points else (0.0, 1.0)
    span, left = (last - first) or 1.0, 12 if numbers else 110
    low, high = (min(known), max(known)) if numbers else (0, len(levels) - 1)

    def across(at: float) -> float:
        return left + (width - left - 14) * (at - first) / span

    def up(value: Any) -> float:
        place = float(value) if numbers else levels.index(str(value))
        share = (place - float(low)) / (float(high) - float(low)) if high != low else 0.5
        return height - 20 - (height - 40) * share

    parts: list[Markup] = []
    for level in levels:
        parts.append(_grid_line(left, width, up(level)))
        shown = level if len(level) <= 14 else level[:13] + "…"
        parts.append(Markup('<text x="0" y="{:.1f}">{}</text>').format(up(level) + 4, shown))
    if numbers:
        for bound in dict.fromkeys((low, high)):
            parts.append(_grid_line(left, width, up(bound)))
            parts.append(Markup('<text x="{}" y="{:.1f}">{}</text>').format(left + 2, up(bound) - 4, f"{bound:,}"))
    d, drawn = "", False
    for number, (at, value, _) in enumerate(points):
        end = points[number + 1][0] if number + 1 < len(points) else last
        if value is None:
            drawn = False
            continue
        d += f"{'L' if drawn else 'M'}{across(at):.1f} {up(value):.1f}L{max(across(end), across(at) + 1):.1f} {up(value):.1f}"
        drawn = True
    parts.append(Markup('<path class="step" d="{}"/>').format(d))
    for at, value, text in points:
        y = height - 6 if value is None else up(value)
        parts.append(
            Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3.5"><title>{}</title></circle>').format(
                "gone" if value is None else "at", across(at), y, text
            )
        )
    return Markup(
        '<svg class="steps" role="img" aria-label="{3}" viewBox="0 0 {0} {1}" preserveAspectRatio="xMidYMid meet">{2}</svg>'
    ).format(width, height, Markup("").join(parts), label)


def _grid_line(left: float, right: float, y: float) -> Markup:
    return Markup('<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>').format(left, right, y)


def bars(counts: Mapping[str, int], targets: Mapping[str, str]) -> Markup:
    """A row for each value with a bar as long as its count is large; each leads to its target."""
    most = max(counts.values(), default=0) or 1
    rows = [
        Markup(
            '<tr><th scope="row"><a href="{0}"><bdi>{1}</bdi></a></th><td><svg width="240" height="14" viewBox="0 0 240 14" preserveAspectRatio="none" aria-hidden="true"><rect class="bar" width="{2:.0f}" height="14" rx="2"/></svg></td><td class="number">{3:,}</td></tr>'
        ).format(targets[name], name or "(empty)", max(1, 240 * count / most), count)
        for name, count in counts.items()
    ]
    return Markup('<table class="bars"><tbody>{}</tbody></table>').format(Markup("").join(rows))


def columns(values: Mapping[str, float], label: str) -> Markup:
    """A bar for each value with its name below it."""
    most, wide, height = max(values.values(), default=0) or 1, min(120, max(22, 860 // max(1, len(values)))), 200
    parts = [
        Markup(
            '<g><title>{0}: {1:,.10g}</title><rect class="bar" x="{2}" y="{3:.1f}" width="{4}" height="{5:.1f}" rx="2"/></g>'
        ).format(name, value, number * wide + 2, 160 - 150 * value / most, wide - 6, 150 * value / most + 1)
        for number, (name, value) in enumerate(values.items())
    ]
    every = -(-len(values) // 10)
    parts += [
        Markup('<text x="{}" y="180" text-anchor="middle"{}>{}</text>').format(
            number * wide + wide // 2, Markup(' data-at="{}"').format(name) if _is_time(name) else "", _short(name)
        )
        for number, name in enumerate(values)
        if number % every == 0
    ]
    return Markup(
        '<svg class="columns" role="img" aria-label="{0}" viewBox="0 0 {1} {2}"><title>{0}</title>{3}</svg>'
    ).format(label, len(values) * wide + 4, height, Markup("").join(parts))


def _short(name: str) -> str:
    """What fits below a bar; of a time no year."""
    if _is_time(name):
        return name[5:16].replace("T", " ")
    return name if len(name) <= 16 else name[:15] + "…"


def _is_time(name: str) -> bool:
    return bool(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", name))
