"""A picture of a soak: the nodes' disk usage over time, and the times when nodes were killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

WIDTH: Final = 960
HEIGHT: Final = 420
LEFT: Final = 70
RIGHT: Final = 130
TOP: Final = 30
BOTTOM: Final = 40
FONT: Final = 'font-family="sans-serif" font-size="12"'
COLOURS: Final = ("#0969da", "#bf8700", "#1a7f37", "#8250df", "#cf222e")
STYLE: Final = """<style>
  text { fill: #1f2328 } .mark { stroke: #8b949e; stroke-opacity: .35 } .loss { stroke: #cf222e }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }
</style>"""
MIB: Final = 1024 * 1024

Line = Sequence[tuple[float, float]]
"""Points (s, MiB)."""


def picture(title: str, lines: Mapping[str, Line], marks: Sequence[tuple[float, str]]) -> str:
    """Return an SVG of lines over time, with what happened as thin upright lines."""
    last_s = max((at for line in lines.values() for at, _ in line), default=1.0) or 1.0
    most = max((value for line in lines.values() for _, value in line), default=1.0) or 1.0

    def x(at_s: float) -> float:
        return LEFT + at_s / last_s * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f"<title>{escape(title)}</title><desc>{escape(title)}: MiB on disk over seconds.</desc>",
        STYLE,
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for at_s, what in marks:
        kind = "loss" if "lost" in what else "mark"
        parts.append(
            f'<line class="{kind}" x1="{x(at_s):.1f}" x2="{x(at_s):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{escape(what)}</title></line>"
        )
    for step in range(5):
        value = most * step / 4
        parts.append(
            f'<line class="mark" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f} MiB</text>'
            f'<text x="{x(last_s * step / 4):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            f"{last_s * step / 4:,.0f} s</text>"
        )
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        end = line[-1][1] if line else 0.0
        place = f'x="{WIDTH - RIGHT + 6}" y="{TOP + 14 * (number + 1)}"'
        parts.append(f'<text {place} style="fill: {colour}">{escape(name)}, {end:,.0f} MiB</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
