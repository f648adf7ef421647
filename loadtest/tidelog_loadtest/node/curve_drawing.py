"""Curves of figures by number of partitions, as an SVG image with one panel for each figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidelog_loadtest.node.partition_curves import Point

WIDTH: Final = 260
HEIGHT: Final = 150
COLUMNS: Final = 3
_LEFT: Final = 44
_TOP: Final = 30
_PLOT_WIDTH: Final = WIDTH - _LEFT - 16
_PLOT_HEIGHT: Final = HEIGHT - _TOP - 26
_MIB: Final = 1024 * 1024
_STYLE: Final = (
    "text { fill: #1f2328 } .axis { stroke: #8b949e; fill: none } .dot { fill: #0969da } "
    ".curve { stroke: #0969da; fill: none; stroke-width: 2 } @media (prefers-color-scheme: dark) { "
    "text { fill: #e6edf3 } .curve { stroke: #58a6ff } .dot { fill: #58a6ff } }"
)


class Panel(NamedTuple):
    """One figure: its title with the unit, and its value at a point."""

    title: str
    value: Callable[[Point], float]


PANELS: Final = (
    Panel("creation, s", lambda point: point.created_s),
    Panel("start after a kill, s", lambda point: point.killed_s),
    Panel("idle, % of a core", lambda point: 100 * max(point.core_share, point.killed_core_share)),
    Panel("private memory, MiB", lambda point: point.rss_anon_bytes / _MIB),
    Panel("description of a topic, s", lambda point: point.describe_s),
    Panel("hot partition, of alone", lambda point: point.hot),
)


def drawn(points: Sequence[Point], title: str) -> str:
    """Return the curves as SVG; the numbers of partitions have a logarithmic axis."""
    rows = -(-len(PANELS) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + 24
    box = f'viewBox="0 0 {width} {height}" role="img" font-family="system-ui, sans-serif" font-size="11"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<title>{title}</title>",
        f"<desc>{title}: {', '.join(panel.title for panel in PANELS)}, each over the number of partitions.</desc>",
        f"<style>{_STYLE}</style>",
        f'<text x="8" y="16" font-size="13" font-weight="600">{title}</text>',
    ]
    for number, panel in enumerate(PANELS):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT + 24
        parts.append(f'<g transform="translate({x} {y})">{_panel(points, panel)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(points: Sequence[Point], panel: Panel) -> str:
    values = [panel.value(point) for point in points]
    highest = _rounded_up(max(values, default=0.0))
    logs = [math.log10(max(point.partitions, 1)) for point in points]
    low, span = min(logs, default=0.0), max(logs, default=0.0) - min(logs, default=0.0)
    places = [
        (
            _LEFT + (_PLOT_WIDTH * (at - low) / span if span else _PLOT_WIDTH / 2),
            _TOP + _PLOT_HEIGHT * (1 - value / highest),
        )
        for at, value in zip(logs, values, strict=True)
    ]
    bottom = _TOP + _PLOT_HEIGHT
    parts = [
        f'<text x="{_LEFT}" y="{_TOP - 10}" font-weight="600">{panel.title}</text>',
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _PLOT_WIDTH}"/>',
        f'<text x="{_LEFT - 6}" y="{_TOP + 4}" text-anchor="end">{highest:g}</text>',
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>',
        *(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places),
        *(
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{_short(point.partitions)}</text>'
            for (x, _), point in zip(places, points, strict=True)
        ),
    ]
    return "".join(parts)


def _rounded_up(value: float) -> float:
    """Return the next number with one significant digit, at least as large as `value`; 1 for 0."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.ceil(value / unit) * unit:.12g}")


def _short(partitions: int) -> str:
    return f"{partitions / 1000:g}k" if partitions >= 1000 else str(partitions)
