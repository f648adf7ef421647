"""Delays by carrier and day as a picture (SVG), written atomically."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 960
HEIGHT: Final = 420
LEFT: Final = 60
RIGHT: Final = 90
TOP: Final = 40
BOTTOM: Final = 40
LINES_MAX: Final = 6
"""Carriers that are drawn: those with the most flights."""
COLOURS: Final = ("#0969da", "#bf8700", "#1a7f37", "#8250df", "#cf222e", "#57606a")
STYLE: Final = """<style>
  text { fill: #1f2328; font: 12px sans-serif } .axis { stroke: #8b949e; stroke-opacity: .5 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""

Delays = Mapping[str, Mapping[int, float]]
"""Carrier -> day -> mean delay in minutes."""


def picture(delays: Delays, order: Sequence[str], days: tuple[int, int], title: str) -> str:
    """Return the picture as the text of an SVG file.

    Args:
        order: carriers, most flights first.
        days: the first and the last day of the axis.
    """
    first, last = days
    drawn = [carrier for carrier in order if delays.get(carrier)][:LINES_MAX]
    drawn_delays = [delay for carrier in drawn for delay in delays[carrier].values()]
    low, high = min([0.0, *drawn_delays]), max([30.0, *drawn_delays])

    def x(day: int) -> float:
        return LEFT + (day - first) / max(1, last - first) * (WIDTH - LEFT - RIGHT)

    def y(delay: float) -> float:
        return HEIGHT - BOTTOM - (delay - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title><desc>Mean delay of departures in minutes, by carrier and day.</desc>{STYLE}",
        f'<text x="{LEFT}" y="20">{escape(title)}</text>',
    ]
    for mark in range(int(low // 10) * 10, int(high) + 1, 10):
        if mark >= low:
            at = f"{y(mark):.1f}"
            parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark}</text>')
    for carrier, colour in zip(drawn, COLOURS, strict=False):
        points = sorted(delays[carrier].items())
        line = " ".join(f"{x(day):.1f},{y(delay):.1f}" for day, delay in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        day, delay = points[-1]
        parts.append(f'<text x="{x(day) + 6:.1f}" y="{y(delay) + 4:.1f}">{escape(carrier)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(path: Path, text: str) -> None:
    """Replace a picture atomically."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
